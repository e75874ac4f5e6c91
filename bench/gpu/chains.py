"""Times the chain kernels, and both kinds of race_sample's in turns, in one process of a few minutes on a device.

    python bench/gpu/chains.py --out build/gpu/chains.jsonl [--seconds 300]
    python bench/gpu/chains.py --dry-run        small, on the CPU: the same path, no figure worth anything

A line is a case: microseconds of a call (of race_sample by SPECDEC_CUDA_FEW_ROWS, and of vLLM's kernels if they are
installed), cold, and added to a large matrix product; and the tracer's model (bench/results/compiled/traces.json).
Cases that the file already has are skipped. Few requests come first.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from peers import PEERS, available

import bench

VARIABLE = "SPECDEC_CUDA_FEW_ROWS"
BATCHES, ACCEPTANCES = (1, 8, 16, 32, 64, 256), (0.7, 0, 1)
OPS = ("rejection", "race", "race_sample", "block", "serving rejection", "serving race")
TRACES = Path(__file__).parents[1] / "results" / "compiled" / "traces.json"


def call_of(op, few_rows):
    def call(inputs):
        os.environ[VARIABLE] = few_rows
        if op == "block":
            return bench.chain(inputs, draft=inputs.draft, method=op)
        return bench.OURS[op](inputs)

    return call


def measured(op, requests, acceptance, scale, device):
    vocabulary = 1000 if device == "cpu" else 128_256
    made = "rejection" if op == "block" else op
    inputs = bench.inputs_of(made, requests, vocabulary, acceptance, True, scale, device)
    timers = bench.timer(device), bench.timer(device, bench.product_of(scale["product"], device))  # cold, and behind it
    row = {"op": op, "B": requests, "acceptance": acceptance}
    calls = {"new": call_of(op, "1")}
    if op == "race_sample":  # chains have no other kernels
        calls = {"old": call_of(op, "0")} | calls
        verdicts = [[x.clone() for x in call(inputs[0])] for call in calls.values()]
        if not all(map(torch.equal, *verdicts)):
            return row | {"differs": True}
    if op in PEERS:
        calls |= {name: call for name, call in available(op)[0].items() if "vllm" in name.lower()}
    for name, call in calls.items():
        row[name] = [round(1e6 * statistics.median(timed(call, inputs)), 2) for timed in timers]
    model = [x for x in json.loads(TRACES.read_text()) if (x["call"], x["B"]) == (op, requests)]
    return row | {x["kernel"]: [x["cold_us"], x["behind_product_us"]] for x in model}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/gpu/chains.jsonl"))
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--dry-run", action="store_true")
    chosen = parser.parse_args()
    device, scale = ("cpu", bench.DRY) if chosen.dry_run else ("cuda", bench.FULL)
    start, out = time.time(), chosen.out
    out.parent.mkdir(parents=True, exist_ok=True)
    done = {(row["op"], row["B"], row["acceptance"]) for row in bench.lines_of(out)}
    batches = (1, 3) if chosen.dry_run else BATCHES
    for acceptance, requests, op in itertools.product(ACCEPTANCES, batches, OPS):
        if (op, requests, acceptance) in done or time.time() - start > chosen.seconds:
            continue
        row = measured(op, requests, acceptance, scale, device)
        print(json.dumps(row), flush=True)
        bench.add_line(out, row)


if __name__ == "__main__":
    main()
