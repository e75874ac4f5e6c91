#!/bin/sh
# One would guess that mx.random.categorical draws each token with its probability, the rare ones of a wide vocabulary, too.
#
# What happens: float32 Gumbel noise is added to the logits, made of uniform numbers that end at 1 - 2^-24, so it ends at 16.64. A
# token whose logit lies 18.5 below the largest one's (probability 1e-8) can win only where the largest one's own noise is below
# -1.86, once in 640 draws. 131,072 such tokens, a vocabulary's tail, have 0.12 % of the law together: 12 of 10,000 draws should
# be theirs, and none is.
#
# Seen on 2026-11-30, mlx 0.32.4 on x86-64, 10,000 draws:
#   tokens of the tail: 0, by blocks 8, expected 12.1; largest of 2^26 Gumbel numbers: 16.64
#
# What to do: where rare tokens matter, draw by a cumulative sum in float64, or a block of the vocabulary first (by the logsumexp of
# each, of some hundred tokens), then a token of it, as `in_two_steps` does below.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "mlx[cpu]==${1:-0.32.4}"
"$folder/venv/bin/python" - <<'PY'
import math
from importlib.metadata import version

import mlx.core as mx

mx.set_default_device(mx.cpu)
mx.random.seed(0)
TAIL, DRAWS, BLOCK = 131_072, 10_000, 512
law = mx.concatenate([mx.zeros(BLOCK), mx.full(TAIL, -18.5)])
law[1:BLOCK] = -math.inf  # the first block has the largest token alone
blocks = mx.logsumexp(law.reshape(-1, BLOCK), axis=-1)


def in_two_steps(draws):
    """Whether each draw is of the tail, by the law of blocks; a second draw would choose the token in its block."""
    return int(mx.sum(mx.random.categorical(blocks, num_samples=draws) > 0).item())


rare = 0
for _ in range(DRAWS // 40):
    rare += int(mx.sum(mx.random.categorical(mx.broadcast_to(law, (40, law.size))) > 0).item())
expected = DRAWS * TAIL * math.exp(-18.5) / (1 + TAIL * math.exp(-18.5))
loudest = max(float(mx.max(mx.random.gumbel(shape=(1 << 24,))).item()) for _ in range(4))
steps = in_two_steps(DRAWS)
print("mlx", version("mlx"))
print(f"tokens of the tail: {rare}, by blocks {steps}, expected {expected:.1f}; largest of 2^26 Gumbel numbers: {loudest:.2f}")
raise SystemExit(not (rare <= 1 and 2 <= steps <= 30 and loudest < 16.64))
PY
