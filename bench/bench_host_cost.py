"""What a call costs before any work: one request, eight tokens, given outputs but once; beside it calls of torch."""

import pytest
import torch
from harness import OURS, SEED

import specdec_kernels as sd
from specdec_kernels.ops import Verdict

TARGET, DRAFT = torch.randn(1, 2, 8), torch.randn(1, 1, 8)
ROW = TARGET[0, :1]
TOKENS = torch.tensor([[3]])
OUT = Verdict(torch.empty(1, 2, dtype=torch.int64), *(torch.empty(1, dtype=torch.int32) for _ in range(2)))
SAMPLED = torch.empty(1, dtype=torch.int64)

SERVED = TOKENS[0], TARGET[0], DRAFT  # packed drafts, an index of requests, and numbers in tensors
NUMBERS = {"temperature": torch.ones(1), "seed": torch.tensor([SEED]), "position": torch.tensor([7])}
PACKED = {"packing": sd.Packing(torch.tensor([0, 1]).int(), max_drafts=1), "request_index": torch.tensor([0]).int()}
CALLS = {
    "race_sample": lambda: sd.race_sample(ROW, seed=SEED, position=7, out=SAMPLED),
    "verify_chain(race)": lambda: sd.verify_chain(TOKENS, TARGET, method="race", seed=SEED, position=7, out=OUT),
    "verify_chain(rejection)": lambda: sd.verify_chain(TOKENS, TARGET, DRAFT, seed=SEED, position=7, out=OUT),
    "verify_chain(rejection), new outputs": lambda: sd.verify_chain(TOKENS, TARGET, DRAFT, seed=SEED, position=7),
    "verify_chain(rejection), serving": lambda: sd.verify_chain(*SERVED, **NUMBERS, **PACKED, out=OUT),
}


def softmax_multinomial():
    return torch.multinomial(torch.softmax(ROW, -1), 1)


@pytest.mark.parametrize("name", CALLS)
def bench_call(measure, name, threads):
    call = CALLS[name]

    def check(_):
        with sd.backend("reference"):
            expected = [part.clone() for part in (call() if name != "race_sample" else [call()])]
        assert all(map(torch.equal, call() if name != "race_sample" else [call()], expected))

    measure("host_cost", OURS, {"call": name, "threads": threads}, call, [()] * 3, check)


def bench_torch(measure, threads):
    case = {"call": "softmax+multinomial", "threads": threads}
    measure("host_cost", "torch", case, softmax_multinomial, [()] * 3)
