#!/bin/sh
# One would guess that torch.multinomial never draws a token of probability 0, in any type that it takes.
#
# What happens: in float16, on a CPU, one draw of one token from a law that has weight on 4 of 128,256 tokens gives a token of
# weight 0 in about one row of 400. One sample a row is drawn by the largest of p / e, with e exponential in the type of p.
# Of float16 exponentials about one in 3e7 is rounded to 0, 0 / 0 is NaN, and NaN wins. bfloat16 and float32 have no such
# zero, and more than one sample with replacement goes another way.
#
# Seen on 2026-11-29, torch 2.13.0 and 2.15.0 on x86-64, 3,000 draws of each type:
#   torch.float16: 7 of 3000 draws have probability 0
#   torch.bfloat16: 0 of 3000 draws have probability 0
#   torch.float32: 0 of 3000 draws have probability 0
#
# What to do: give multinomial float32 laws.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "torch==${1:-2.13.0}" numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import platform

import torch

print("python", platform.python_version(), "torch", torch.__version__)
torch.set_num_threads(1)
rows, rounds, tokens, wrong = 100, 30, 128_256, {}
generator = torch.Generator().manual_seed(0)
for dtype in (torch.float16, torch.bfloat16, torch.float32):
    law = torch.zeros(tokens, dtype=dtype)
    law[:4] = 0.25
    wrong[dtype] = 0
    for _ in range(rounds):
        drawn = torch.multinomial(law.expand(rows, -1), 1, generator=generator)
        wrong[dtype] += int((law[drawn] == 0).sum())
    print(f"{dtype}: {wrong[dtype]} of {rows * rounds} draws have probability 0")
raise SystemExit(0 if wrong.pop(torch.float16) > 0 and not any(wrong.values()) else 1)
PY
