#!/bin/sh
# One would guess that temp=2 and top_p=0.75 mean in mlx-lm what they mean in transformers and vLLM: the temperature comes first,
# and top-p takes the most probable tokens of the law that is drawn from. mlx-lm's own docstring names no order.
#
# What happens: make_sampler applies top_p, min_p, XTC and top_k to the law at temperature 1, and divides by temp afterwards. At
# temperatures above 1 fewer tokens are left than elsewhere, below 1 more. A draft and a target of which one runs in mlx-lm and
# the other elsewhere, with the same numbers, have other supports; nothing raises an error.
#
# Seen on 2026-11-30, mlx-lm 0.32.2, mlx 0.32.4, transformers 5.23.0 on x86-64; law at temperature 1: .50 .26 .14 .07 .03
#   temp 2.0, top_p 0.75: mlx-lm draws tokens 0 1 | transformers 0 1 2
#   temp 0.5, top_p 0.80: mlx-lm draws tokens 0 1 2 | transformers 0 1
#   temp 2.0, min_p 0.20: mlx-lm draws tokens 0 1 2 | transformers 0 1 2 3 4
#
# What to do: divide the log-probabilities by the temperature and normalise them before a sampler of temp 1, as `elsewhere` does
# below; or, where mlx-lm's texts are the measure, apply filters before the temperature on the other side, too.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0
"$folder/venv/bin/pip" install -q "mlx[cpu]==0.32.4" transformers==5.23.0
"$folder/venv/bin/pip" install -q "mlx-lm==${1:-0.32.2}"
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import mlx.core as mx
import torch
from mlx_lm.sample_utils import make_sampler
from transformers.generation.logits_process import MinPLogitsWarper, TemperatureLogitsWarper, TopPLogitsWarper

mx.set_default_device(mx.cpu)
LAW = [0.50, 0.26, 0.14, 0.07, 0.03]
WARPERS = {"top_p": TopPLogitsWarper, "min_p": MinPLogitsWarper}


def support(sampler, logprobs):
    """The tokens of 2,000 draws: the rarest that any of the three has comes with 0.1 or more."""
    mx.random.seed(0)
    return sorted({int(x) for x in sampler(mx.broadcast_to(logprobs, (2000, len(LAW))))})


def elsewhere(temp, **filters):
    logprobs = mx.log(mx.array(LAW)) / temp
    return support(make_sampler(temp=1.0, **filters), logprobs - mx.logsumexp(logprobs))


print("mlx-lm", version("mlx-lm"), "mlx", version("mlx"), "transformers", version("transformers"), "torch", torch.__version__)
seen = []
for temp, name, number in ((2.0, "top_p", 0.75), (0.5, "top_p", 0.80), (2.0, "min_p", 0.20)):
    mlx = support(make_sampler(temp=temp, **{name: number}), mx.log(mx.array(LAW)))
    scores = TemperatureLogitsWarper(temp)(None, torch.tensor([LAW]).log())
    theirs = WARPERS[name](number)(None, scores)[0].isfinite().nonzero().flatten().tolist()
    assert elsewhere(temp, **{name: number}) == theirs
    print(f"temp {temp}, {name} {number:.2f}: mlx-lm draws tokens", *mlx, "| transformers", *theirs)
    seen.append((mlx, theirs))
raise SystemExit(seen != [([0, 1], [0, 1, 2]), ([0, 1, 2], [0, 1]), ([0, 1, 2], [0, 1, 2, 3, 4])])
PY
