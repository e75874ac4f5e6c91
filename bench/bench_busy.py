"""Time of a call beside 0, 1, 2 and 4 busy processes a core, on one thread and on all.

    python bench/bench_busy.py

A call that waits for a thread without a core takes a thousand times as long, now and then; a median does not see it.
So each figure is a mean over seconds, in turns. It writes `busy.json` of this device and prints its table.
"""

import os
import subprocess
import sys
import time

import torch
from harness import SEED, draft_near, environment, folder, like_reference, logits, write_json

import specdec_kernels as sd

RIVALS = (0, 1, 2, 4)  # busy processes a core
SECONDS, TURNS = 1.0, 4
VOCABULARY, REQUESTS, DRAFTS = 32_000, 8, 5


def calls():
    """Name -> (function, arguments)."""
    row, target = logits("normal", (1, VOCABULARY), 1), logits("normal", (REQUESTS, DRAFTS + 1, VOCABULARY), 2)
    draft = draft_near(target[:, :DRAFTS], 0.7, 3)
    seeds = torch.arange(REQUESTS)
    tokens = sd.race_sample(draft, seed=seeds[:, None], position=torch.arange(DRAFTS))
    return {
        f"`race_sample` [1, {VOCABULARY:,}]": (lambda row: sd.race_sample(row, seed=SEED, position=0), (row,)),
        f"`verify_chain` [{REQUESTS}, {DRAFTS}, {VOCABULARY:,}]": (
            lambda *rows: sd.verify_chain(*rows, seed=seeds, position=0), (tokens, target, draft),
        ),
    }  # fmt: skip


def mean(call, arguments, threads):
    """Microseconds a call over a second."""
    torch.set_num_threads(threads)
    count, begun = 0, time.perf_counter()
    while (passed := time.perf_counter() - begun) < SECONDS:
        call(*arguments)
        count += 1
    return passed / count * 1e6


def measured(cores):
    records = []
    for rivals in RIVALS:
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(rivals * cores)]
        try:
            time.sleep(1)
            for name, (call, arguments) in calls().items():
                like_reference(call, [arguments])
                counts = (1, cores)
                turns = [[mean(call, arguments, threads) for threads in counts] for _ in range(TURNS)]
                for threads, times in zip(counts, zip(*turns, strict=True), strict=True):
                    record = {"call": name, "rivals": rivals, "threads": threads, "turns": times}
                    records.append(record | {"mean": sum(times) / TURNS})
        finally:
            for other in others:
                other.kill()
                other.wait()
    return records


def main():
    env, cores, load = environment(), max(2, len(os.sched_getaffinity(0))), os.getloadavg()[2]
    records = measured(cores)
    write_json(folder(env) / "busy.json", {"environment": env, "load": load, "records": records})
    for record in records:
        print("{call}, {rivals} rivals a core, {threads} threads: {mean:,.0f} µs".format(**record))


if __name__ == "__main__":
    main()
