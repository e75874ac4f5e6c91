"""How long ``verify_chain`` by race may take on an H100: rows from a queue, or a team of blocks for each request.

    python -m bench.gpu.queue_model

A model of events; no time here was measured. Latencies are those that docs/cuda.md assumes and bench/gpu/micro.cu
measures; a cluster's barrier has a fence in it. The memory serves one load after the other at its rate, and each comes
one latency later.
"""

import argparse
import heapq
import itertools
import random
from statistics import mean

SLOTS = 264  # blocks at once
BLOCK_TOKENS = 16_384  # of 16 bits, in a chunk of each of a block's warps
GAP, TICKET, CLUSTER, BARRIER, L2, DRAM = 1.2, 0.65, 0.7, 0.15, 0.17, 0.5  # microseconds
GUESS, JUDGE, GATHER, WALK, FENCE = 0.3, 0.3, 0.4, 0.5, 0.5


class Machine:
    """Calls functions at their times, and loads bytes."""

    def __init__(self, rate):
        self.rate, self.free, self.bytes = rate, 0.0, 0.0
        self.events, self.numbers, self.ended = [], itertools.count(), 0.0

    def at(self, time, what, *arguments):
        heapq.heappush(self.events, (time, next(self.numbers), what, arguments))

    def load(self, time, size):
        self.free = max(self.free, time) + size / self.rate
        self.bytes += size
        return self.free + DRAM

    def run(self):
        while self.events:
            time, _, what, arguments = heapq.heappop(self.events)
            what(time, *arguments)
        return self.ended, self.bytes


def chunks(size):
    """The bytes of a block's chunks in a part of a row."""
    whole, rest = divmod(round(size), 2 * BLOCK_TOKENS)
    return [2 * BLOCK_TOKENS] * whole + [rest] * (rest > 0)


def queue(accepted, slots, row, rate, parts, ahead):
    """race_queue_kernel: `accepted` drafts of each request; `ahead` as in race_queue.cuh."""
    m, running, taken = Machine(rate), len(accepted), itertools.count()

    def together(left):
        return max(1, min(left, 16, ahead // running))

    first = together(slots + 1)
    rows = [(request, 0, first) for request in range(running) for _ in range(first)]
    left, waiting = {}, {}

    def take(time, cold=False):
        place = next(taken) // parts
        if place < len(rows):
            decode(time, place, cold)
        else:
            waiting.setdefault(place, []).append(cold)

    def decode(time, place, cold):
        m.at(time + (DRAM if cold else L2), read, place, chunks(row / parts))

    def read(time, place, sizes):  # the next chunk is on its way while this one is judged
        loaded = m.load(time, sizes[0])
        if len(sizes) > 1:
            m.at(max(loaded, time + JUDGE), read, place, sizes[1:])
        else:
            m.at(loaded + GUESS + JUDGE + 2 * BARRIER + TICKET, ticket, place)

    def ticket(time, place):
        nonlocal running
        request, slot, count = rows[place]
        left[request, slot] = left.get((request, slot), count * parts) - 1
        if left[request, slot] == 0:
            time += GATHER + WALK
            if accepted[request] < slot + count:
                running -= 1
                m.ended = max(m.ended, time)
            else:
                time += L2 + TICKET + FENCE  # who runs, a place in the list, and the row is there
                m.at(time, push, request, slot + count, together(slots + 1 - slot - count))
        m.at(time, take)

    def push(time, request, slot, count):
        for _ in range(count):
            rows.append((request, slot, count))
            for cold in waiting.pop(len(rows) - 1, []):
                decode(time + L2, len(rows) - 1, cold)

    for _ in range(SLOTS):
        m.at(GAP + TICKET, take, True)
    return m.run()


def teams(accepted, row, rate):
    """chain_kernel: a block or a cluster has a request, and reads row by row."""
    m, share, waiting = Machine(rate), SLOTS // len(accepted), list(range(len(accepted)))
    size = max(1, share if 11 * share * len(accepted) >= 10 * SLOTS else share + 1)
    left = {}

    def start(time):
        if waiting:
            m.at(time + DRAM, begin, waiting.pop(0), 0)

    def begin(time, request, slot):
        left[request] = size
        for _ in range(size):
            m.at(time + WALK, read, request, slot, chunks(row / size), GUESS + BARRIER + L2)

    def read(time, request, slot, sizes, guess):  # the first chunk waits in the L2 cache for the guess
        time = m.load(time, sizes[0]) + guess + JUDGE
        if len(sizes) > 1:
            m.at(time, read, request, slot, sizes[1:], 0.0)
        else:
            m.at(time + 2 * BARRIER, part, request, slot)

    def part(time, request, slot):
        left[request] -= 1
        if left[request]:
            return
        if size > 1:
            time += CLUSTER + L2
        if slot < accepted[request]:
            m.at(time, begin, request, slot + 1)
        else:
            m.ended = max(m.ended, time + WALK)
            m.at(time + WALK, start)

    for _ in range(SLOTS // size):
        m.at(GAP, start)
    return m.run()


def drafts_accepted(requests, slots, acceptance, seed):
    coins = random.Random(seed)
    return [next((n for n in range(slots) if coins.random() >= acceptance), slots) for _ in range(requests)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--acceptance", type=float, default=0.7)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--rate", type=float, default=3.0, help="terabytes a second")
    parser.add_argument("--waves", type=float, nargs="+", default=[0, 2, 3, 4], help="kWavesAhead")
    given = parser.parse_args()
    row, rate = 2 * given.vocabulary, given.rate * 1e6
    whole = -(-given.vocabulary // BLOCK_TOKENS)
    for requests in (53, 64, 80, 96, 128, 192, 256, 512):
        chains = [drafts_accepted(requests, given.slots, given.acceptance, seed) for seed in range(8)]
        floor = mean(row * sum(n + 1 for n in chain) / rate for chain in chains)
        text = f"B {requests:4}  bytes {floor:5.1f}  teams {mean(teams(c, row, rate)[0] for c in chains):5.1f}"
        for parts in (whole, -(-whole // 2)):
            text += f"   {parts} parts:"
            for waves in given.waves:
                found = [queue(c, given.slots, row, rate, parts, int(waves * SLOTS / whole)) for c in chains]
                text += f"  {mean(t for t, _ in found):5.1f} ({mean(b for _, b in found) / rate:.1f})"
        print(text)


if __name__ == "__main__":
    main()
