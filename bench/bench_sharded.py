"""Verification over slices of a vocabulary against gathering the logits first: bytes sent and time, over gloo.

    python bench/bench_sharded.py [--ranks 2 4] [--batches 1 8 64] [--calls 20] [--json FILE]

Each rank is a process of one thread. Before it is timed, a verdict is compared with that of the gathered rows. Bytes
are those that a rank passes to its collectives for one call, over NCCL as over gloo. Times are of the slowest rank, in
microseconds, medians of calls that take turns; the ratio is the median over turns.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import specdec_kernels as sd
from specdec_kernels import sharded
from specdec_kernels.sharded._shard import all_gather

VOCABULARY, DRAFTS = 128_256, 4


class CountedShard(sharded.VocabShard):
    """A shard that counts the bytes that its rank sends."""

    sent = 0

    def _sent(self, mine):
        self.sent += mine.numel() * mine.element_size()
        return super()._sent(mine)


def inputs(batch, shard, size, rejection):
    """A call on slices of rows, in which about two of four drafts are accepted."""
    generator = torch.Generator().manual_seed(7)
    rows = DRAFTS + 1
    target = torch.randn(batch, rows, VOCABULARY, generator=generator).mul_(2)
    draft = target[:, :-1] + 0.5 * torch.randn(batch, DRAFTS, VOCABULARY, generator=generator)
    seed = torch.arange(batch)
    drafts = sd.race_sample(draft, seed=seed[:, None], position=torch.arange(DRAFTS))
    columns = slice(shard.vocab_start, shard.vocab_start + size)
    call = {"draft_tokens": drafts, "target": target[..., columns].bfloat16().contiguous(), "seed": seed, "position": 0}
    if rejection:
        call["draft"] = draft[..., columns].bfloat16().contiguous()
    return call | {"method": "rejection" if rejection else "race"}


def gathered(rows, sizes):
    """(whole rows from all ranks' slices, bytes sent). The collective needs slices of one size, so they are padded."""
    most = max(sizes)
    mine = torch.nn.functional.pad(rows, (0, most - rows.shape[-1])) if rows.shape[-1] < most else rows
    every = mine.new_empty(len(sizes), *mine.shape)
    all_gather(every.flatten(0, 1), mine)
    whole = torch.cat([slice_[..., :size] for slice_, size in zip(every, sizes, strict=True)], dim=-1)
    return whole, mine.numel() * mine.element_size()


def times_of(calls, count):
    """[calls, count] in seconds, of the slowest rank: calls take turns, and all ranks begin each one together."""
    times = torch.empty(len(calls), count)
    for turn in range(count):
        for i, call in enumerate(calls):
            dist.barrier()
            begun = time.perf_counter()
            call()
            times[i, turn] = time.perf_counter() - begun
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return times


def measure(rank, ranks, batch, method, calls):
    bounds = CountedShard.bounds(VOCABULARY, ranks)
    sizes = [end - first for first, end in itertools.pairwise(bounds)]
    shard = CountedShard(VOCABULARY, bounds[rank])
    call = inputs(batch, shard, sizes[rank], method == "rejection")
    peer_bytes = 0

    def ours():
        return sharded.verify_chain(**call, shard=shard)

    def peer():
        nonlocal peer_bytes
        peer_bytes = 0
        rows = {}
        for name in ("target", "draft"):
            if name in call:
                rows[name], sent = gathered(call[name], sizes)
                peer_bytes += sent
        return sd.verify_chain(**call | rows)

    assert all(map(torch.equal, ours(), peer()))
    shard.sent = 0
    verdict = ours()
    sent = shard.sent
    mine, others = times_of((ours, peer), calls)
    return {
        "ranks": ranks, "B": batch, "method": method, "accepted": verdict.num_accepted.float().mean().item(),
        "bytes": sent, "gathered bytes": peer_bytes, "fewer": peer_bytes / sent,
        "us": 1e6 * mine.median().item(), "gathered us": 1e6 * others.median().item(),
        "ratio": (others / mine).median().item(),
    }  # fmt: skip


def play(rank, ranks, store, batches, calls):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timedelta(minutes=5)
    )
    for method in ("race", "rejection"):
        for batch in batches:
            record = measure(rank, ranks, batch, method, max(3, calls if batch < 64 else calls // 4))
            if rank == 0:
                print(json.dumps(record), flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--play", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.play:
        rank, ranks, store = args.play
        return play(int(rank), int(ranks), store, args.batches, args.calls)
    rows = []
    for ranks in args.ranks:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--batches", *map(str, args.batches), "--calls", str(args.calls)]
            each = [
                subprocess.Popen([*command, "--play", str(rank), str(ranks), f"{folder}/store"], stdout=subprocess.PIPE,
                                 text=True)
                for rank in range(ranks)
            ]  # fmt: skip
            for line in each[0].stdout:
                rows.append(json.loads(line))
                if len(rows) == 1:
                    print(*(f"{name:>14}" for name in rows[0]))
                print(*(f"{x:>14,.1f}" if isinstance(x, float) else f"{x:>14}" for x in rows[-1].values()), flush=True)
            assert all(process.wait() == 0 for process in each)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
