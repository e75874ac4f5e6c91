#!/bin/sh
# One would guess that torch.distributions.Categorical(probs=p) gives log p as log_prob, -inf where p is 0.
#
# What happens: p is clamped to the epsilon of its type before the logarithm. In float32 no log_prob is below -15.94, in float16
# -6.93, in bfloat16 -4.85. Most tokens of a vocabulary may lie below these, and all that top-k took out do. Samples and .probs
# are right, and log_prob is not their logarithm. A ratio of two log_probs, by which a draft is accepted, is wrong without a sign:
# of a draft with p = 1e-10 and q = 1e-8 it is 1, not 0.01, and a draft that top-k took out of the target (p = 0, q = 0.01) is
# accepted with probability 0.78 in bfloat16.
#
# Seen on 2026-11-30, torch 2.13.0 on x86-64:
#   torch.float32, probs=: rare draft 1, draft outside top-k 1.2e-05
#   torch.float32, logits=: rare draft 0.01, draft outside top-k 0
#   torch.bfloat16, probs=: rare draft 1, draft outside top-k 0.78
#   torch.bfloat16, logits=: rare draft 0.0098, draft outside top-k 0
#   103135 of 128256 tokens have a wrong log_prob by probs=, 0 by logits=; the lowest: -15.94, -37.17
#
# What to do: give Categorical the logits, p.log() where there are none: its log_prob is right then. It takes -inf.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "torch==${1:-2.13.0}" numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import platform

import torch
from torch.distributions import Categorical

print("python", platform.python_version(), "torch", torch.__version__)
torch.set_num_threads(1)


def ratios(dtype, given):
    """p / q of a rare draft, and of one that top-k took out of the target, by log_prob."""
    rare_p, rare_q = (torch.tensor([1 - 3 * x, x, 2 * x], dtype=dtype) for x in (1e-10, 1e-8))
    cut_p, cut_q = torch.tensor([0.5, 0.5, 0], dtype=dtype), torch.tensor([0.5, 0.49, 0.01], dtype=dtype)
    seen = []
    for p, q, token in ((rare_p, rare_q, 1), (cut_p, cut_q, 2)):
        p, q = (Categorical(**{given: x.log() if given == "logits" else x}) for x in (p, q))
        token = torch.tensor(token)
        seen.append((p.log_prob(token) - q.log_prob(token)).float().exp().item())
    return seen


seen = {}
for dtype in (torch.float32, torch.bfloat16):
    for given in ("probs", "logits"):
        rare, cut = seen[dtype, given] = ratios(dtype, given)
        print(f"{dtype}, {given}=: rare draft {rare:.2g}, draft outside top-k {cut:.2g}")
law = (4 * torch.randn(128_256, generator=torch.Generator().manual_seed(1))).softmax(-1)
by_probs, by_logits = (Categorical(**given).log_prob(torch.arange(len(law))) for given in ({"probs": law}, {"logits": law.log()}))
off, right = (((x - law.double().log()).abs() > 1e-3).sum().item() for x in (by_probs, by_logits))
print(f"{off} of {len(law)} tokens have a wrong log_prob by probs=, {right} by logits=; the lowest: {by_probs.min():.2f}, {by_logits.min():.2f}")
wrong = seen[torch.float32, "probs"][0] > 0.9 and seen[torch.bfloat16, "probs"][1] > 0.7
fine = all(abs(seen[dtype, "logits"][0] - 0.01) < 1e-3 and seen[dtype, "logits"][1] == 0 for dtype in (torch.float32, torch.bfloat16))
raise SystemExit(not (wrong and fine and off > 1000 and right == 0))
PY
