#!/bin/sh
# One would guess that torch.rand in bfloat16 or float16 is the float32 number of the same seed, rounded, and 0 as rarely as
# that.
#
# What happens on a CPU: it is, but for the numbers that would round to 1, which is outside of [0, 1). These come as 0: the
# largest uniforms become the smallest, one in 512 in bfloat16 and one in 4,096 in float16. An accept test u < p / q, with u drawn
# in the type of the laws, then accepts one draft in 512 whatever p is, and u <= p / q also one that the target forbids.
#
# Seen on 2026-11-29, torch 2.13.0 and 2.15.0 on x86-64, 2^20 numbers of each type:
#   torch.bfloat16: 2054 zeros, 1 in 511, all of float32 numbers from 0.998052 on
#   torch.float16: 270 zeros, 1 in 3884, all of float32 numbers from 0.999756 on
#   all others are the float32 numbers, rounded; of these 0 are 0
#
# What to do: draw uniforms in float32, whatever the type of the laws is.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "torch==${1:-2.13.0}" numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import platform

import torch

print("python", platform.python_version(), "torch", torch.__version__)
count, as_seen = 1 << 20, True
wide = torch.rand(count, generator=torch.Generator().manual_seed(0))
for dtype, bits in ((torch.bfloat16, 9), (torch.float16, 12)):
    narrow = torch.rand(count, generator=torch.Generator().manual_seed(0), dtype=dtype)
    zero = narrow == 0
    zeros, least = int(zero.sum()), wide[zero].min().item() if zero.any() else 0.0
    print(f"{dtype}: {zeros} zeros, 1 in {count / max(zeros, 1):.0f}, all of float32 numbers from {least:.6f} on")
    as_seen &= zeros > 0 and least >= 1 - 2**-bits and torch.equal(narrow[~zero], wide[~zero].to(dtype))
print("all others are the float32 numbers, rounded; of these", int((wide == 0).sum()), "are 0")
raise SystemExit(0 if as_seen else 1)
PY
