#!/bin/sh
# One would guess that assisted generation, with prompt look-up or an assistant model, writes the text that generate() writes
# without drafts when the search is greedy, whatever logits processors are on.
#
# What happens: with guidance_scale most texts are others. Its processor reads the unconditional prompt by a KV cache of its own, to
# which it adds a token each time it is called. In assisted generation it is called for each draft, accepted or not; the cache keeps
# what was rejected, and later rows are guided by a text that was never written. Nothing is raised or logged. With a repetition penalty, a
# processor without a memory, all texts are the same.
#
# Seen on 2026-11-30, transformers 5.24.0, torch 2.13.0 on x86-64, a small random Llama in float64, ten prompts:
#   prompt look-up, no processor: 0 of 10 greedy texts differ from those without drafts
#   assistant, no processor: 0 of 10 greedy texts differ from those without drafts
#   prompt look-up, {'repetition_penalty': 1.3}: 0 of 10 greedy texts differ from those without drafts
#   assistant, {'repetition_penalty': 1.3}: 0 of 10 greedy texts differ from those without drafts
#   prompt look-up, {'guidance_scale': 1.5}: 8 of 10 greedy texts differ from those without drafts
#   assistant, {'guidance_scale': 1.5}: 8 of 10 greedy texts differ from those without drafts
#
# What to do: no drafts with guidance_scale; or batch the conditional and the unconditional text in one model whose cache is cropped
# with the drafts.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/pip" install -q "transformers==${1:-5.24.0}"
"$folder/venv/bin/python" - <<'PY'
import copy
import platform
import warnings

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()
print("python", platform.python_version(), "torch", torch.__version__, "transformers", transformers.__version__)
torch.set_num_threads(1)
torch.manual_seed(1)
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
target = LlamaForCausalLM(LlamaConfig(**sizes, bos_token_id=None, eos_token_id=None)).double().eval()
target.lm_head.weight.data.mul_(60)
assistant = copy.deepcopy(target)
assistant.lm_head.weight.data.add_(0.1 * torch.randn_like(assistant.lm_head.weight))
PROMPTS = [torch.randint(0, 64, (1, 12), generator=torch.Generator().manual_seed(seed)) for seed in range(10)]
DRAFTS = {
    "prompt look-up": {"prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 1},
    "assistant": {"assistant_model": assistant},
}


def text(prompt, **options):
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 24, "do_sample": False} | options
    return target.generate(prompt, **options)[0].tolist()


seen = {}
for processor in ({}, {"repetition_penalty": 1.3}, {"guidance_scale": 1.5}):
    plain = [text(prompt, **processor) for prompt in PROMPTS]
    for name, drafts in DRAFTS.items():
        others = [text(prompt, **drafts, **processor) for prompt in PROMPTS]
        differ = sum(one != other for one, other in zip(plain, others, strict=True))
        seen.setdefault("guidance_scale" in processor, []).append(differ)
        print(f"{name}, {processor or 'no processor'}: {differ} of {len(PROMPTS)} greedy texts differ from those without drafts")
raise SystemExit(not (min(seen[True]) >= 5 and max(seen[False]) == 0))
PY
