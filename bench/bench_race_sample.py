"""race_sample against torch.argmax, softmax + multinomial, and a bare maximum of the row (the read roof)."""

import pytest
import torch
from harness import KINDS, OURS, ROOF, SEED, VOCABULARY, logits

import specdec_kernels as sd


def ours(row, position):
    return sd.race_sample(row, seed=SEED, position=position)


def argmax(row, position):
    return torch.argmax(row, -1)


def softmax_multinomial(row, position):
    return torch.multinomial(torch.softmax(row, -1), 1)


def maximum(row, position):
    return row.numpy().max()


CONTENDERS = {
    OURS: ours,
    "torch.argmax": argmax,
    "softmax+multinomial": softmax_multinomial,
    ROOF: maximum,
}


def inputs_of(kind, vocabulary):
    rows = logits(kind, (8, 1, vocabulary), SEED)
    return [(rows[i % 8], 1000 + i) for i in range(64)]


def check_of(inputs):
    def check(call):
        for row, position in inputs[:16]:
            with sd.backend("reference"):
                expected = ours(row, position)
            assert torch.equal(ours(row, position), expected)

    return check


def run(measure, contender, kind, vocabulary, threads, sweep):
    inputs = inputs_of(kind, vocabulary)
    check = check_of(inputs) if contender == OURS else None
    case = {"sweep": sweep, "kind": kind, "V": vocabulary, "threads": threads}
    measure("race_sample", contender, case, CONTENDERS[contender], inputs, check, bytes=4 * vocabulary)


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("threads", [1, 2], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def bench_peers(measure, contender, kind, threads):
    run(measure, contender, kind, VOCABULARY, threads, "peers")


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("vocabulary", [32_000, 64_000, 128_256, 151_936, 262_144])
def bench_vocabulary(measure, contender, vocabulary, threads):
    run(measure, contender, "normal", vocabulary, threads, "V")
