#!/bin/sh
# One would guess that torch's float32 log_softmax of a row on a CPU is right to a few roundings of float32 (1e-6), as its
# logsumexp of the same row is, and that softmax sums to 1 as nearly.
#
# What happens: on a row of 128,256 logits that are all 0 but one, log_softmax is off by 1e-4 to 8e-4, depending on the
# height of the peak, and softmax sums to as much more or less than 1. logsumexp of the same row is right to 2e-6. Sums of
# 1e5 equal small numbers lose their low bits where they are added to a large one in float32. Of columns, by log_softmax(0), it
# is off by ten times as much: 6e-3. Rows of 262,144 logits are off by twice as much as these.
#
# Seen on 2026-11-29, torch 2.13.0 and 2.15.0 on x86-64 with AVX2 (on another x86-64, torch 2.13.0 was off by half as much):
#   peak  5.0  log_softmax off by 1.1e-04  softmax sums to 1.000113  logsumexp off by 4.3e-07
#   peak 12.0  log_softmax off by 5.3e-04  softmax sums to 0.999471  logsumexp off by 6.7e-07
#   peak 15.0  log_softmax off by 8.0e-04  softmax sums to 0.999200  logsumexp off by 2.0e-07
#   peak 15.0, as a column  log_softmax(0) off by 6.4e-03
#
# What to do: compare kernels of wide rows with float64, or with x - logsumexp(x).
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "torch==${1:-2.13.0}" numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import platform

import torch

print("python", platform.python_version(), "torch", torch.__version__)
worst = {}
for peak in (5.0, 12.0, 15.0):
    row = torch.zeros(128_256)
    row[7] = peak
    exact = row.double()
    logs = (row.log_softmax(-1) - exact.log_softmax(-1)).abs().max().item()
    total = row.softmax(-1).sum(dtype=torch.float64).item()
    lse = abs(row.logsumexp(-1).item() - exact.logsumexp(-1).item())
    print(f"peak {peak:4.1f}  log_softmax off by {logs:.1e}  softmax sums to {total:.6f}  logsumexp off by {lse:.1e}")
    worst["log_softmax"] = max(worst.get("log_softmax", 0.0), logs)
    worst["logsumexp"] = max(worst.get("logsumexp", 0.0), lse)
columns = row.expand(4, -1).T.contiguous()
down = (columns.log_softmax(0) - columns.double().log_softmax(0)).abs().max().item()
print(f"peak {peak:4.1f}, as a column  log_softmax(0) off by {down:.1e}")
raise SystemExit(0 if worst["log_softmax"] > 1e-4 and worst["logsumexp"] < 1e-5 and down > 1e-3 else 1)
PY
