#!/bin/sh
# One would guess that torch's topk(1) of a row on a CPU gives the index that argmax gives: both take the first of equal
# values in rows of 64 and more.
#
# What happens: below 64 values topk takes a later one of the largest in almost every row that has several, so greedy drafts by
# topk and a greedy target by argmax disagree on equal logits (16-bit rows have many), although the rows are the same.
# argmax and max(-1) take the first one at every size.
#
# Seen on 2026-11-29, torch 2.13.0 and 2.15.0 on x86-64, 200 rows of small whole numbers for each size:
#   16 values: topk(1) differs from argmax in 164 rows
#   63 values: topk(1) differs from argmax in 197 rows
#   64 values: topk(1) differs from argmax in 0 rows
#   1000 values: topk(1) differs from argmax in 0 rows
#   max(-1) differs from argmax in 0 rows of any size
#
# What to do: take argmax where one token is wanted, and a stable sort where ties of several have to be the lowest ids.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "torch==${1:-2.13.0}" numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import platform

import torch

print("python", platform.python_version(), "torch", torch.__version__)
differ, of_max = {}, 0
for size in (16, 63, 64, 1000):
    differ[size] = 0
    for seed in range(200):
        row = torch.randint(0, 3, (size,), generator=torch.Generator().manual_seed(seed)).float()
        first = row.argmax().item()
        differ[size] += row.topk(1).indices.item() != first
        of_max += row.max(-1).indices.item() != first
    print(f"{size} values: topk(1) differs from argmax in {differ[size]} rows")
print(f"max(-1) differs from argmax in {of_max} rows of any size")
raise SystemExit(0 if min(differ[16], differ[63]) > 100 and differ[64] == differ[1000] == of_max == 0 else 1)
PY
