"""verify_chain and race_sample on a GPU, by every backend that runs there, replayed from CUDA graphs.

bfloat16 logits, K = 4. ``cold`` rotates among inputs larger than the L2 cache, ``warm`` repeats one. The roof is a read
of the same rows by torch.amax. Skipped by name without a GPU.
"""

import pytest
import torch
from harness import SEED, VOCABULARY, draft_near, logits

import specdec_kernels as sd

K = 4
COLD_BYTES = 256 << 20

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def rejection(tokens, target, draft, seed, position):
    return sd.verify_chain(tokens, target, draft, seed=seed, position=position)


def race(tokens, target, draft, seed, position):
    return sd.verify_chain(tokens, target, method="race", seed=seed, position=position)


def sample(tokens, target, draft, seed, position):
    return sd.race_sample(target[:, 0], seed=seed, position=position)


def softmax_multinomial(tokens, target, draft, seed, position):
    return torch.multinomial(torch.softmax(target[:, 0].float(), -1), 1)


def roof(tokens, target, draft, seed, position):
    return target.amax(-1)


CALLS = {"rejection": rejection, "race": race, "race_sample": sample}


def entries(batch, cold):
    """Argument tuples: one pair of logits if warm, as many as overflow the cache if cold."""
    pair = (2 * K + 1) * batch * VOCABULARY * 2
    found = []
    for number in range(max(2, COLD_BYTES // pair) if cold else 1):
        target = logits("realistic", (batch, K + 1, VOCABULARY), SEED + number)
        draft = draft_near(target[:, :K], 0.7, SEED + 100 + number)
        seed, position = SEED + torch.arange(batch), torch.full((batch,), 1000 * number)
        tokens = sd.race_sample(draft, seed=seed[:, None], position=position[:, None] + torch.arange(K))
        found.append([x.cuda() for x in (tokens, target.bfloat16(), draft.bfloat16(), seed, position)])
    return found


def replays(call, inputs):
    """A graph for each input; a round replays one and waits."""
    graphs = []
    for arguments in inputs:
        call(*arguments)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call(*arguments)
        graphs.append((graph,))
    return graphs


def replay(graph):
    graph.replay()
    torch.cuda.synchronize()


def check_of(call, inputs, backend):
    def check(_):
        with sd.backend("cpu"):
            expected = [call(*(x.cpu() for x in arguments)) for arguments in inputs[:2]]
        with sd.backend(backend):
            found = [call(*arguments) for arguments in inputs[:2]]
        for one, other in zip(expected, found, strict=True):
            for a, b in [(one, other)] if isinstance(one, torch.Tensor) else zip(one, other, strict=True):
                assert torch.equal(a, b.cpu())

    return check


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize("batch", [1, 8, 64])
@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("backend", ["cuda", "triton"])
def bench_backends(measure, backend, op, batch, cold):
    if backend not in sd.available_backends():
        pytest.skip(f"backend {backend} does not run here")
    inputs, call = entries(batch, cold), CALLS[op]
    case = {"op": op, "B": batch, "cold": cold, "gpu": torch.cuda.get_device_name()}
    rows = {"rejection": 2 * K + 1, "race": K + 1, "race_sample": 1}[op]
    check_of(call, inputs, backend)(call)
    with sd.backend(backend):
        graphs = replays(call, inputs)
    measure("gpu", f"specdec {backend}", case, replay, graphs, bytes=rows * batch * VOCABULARY * 2)


@pytest.mark.parametrize("batch", [1, 8, 64])
@pytest.mark.parametrize("peer", [softmax_multinomial, roof], ids=["softmax+multinomial", "torch.amax"])
def bench_peers(measure, peer, batch):
    inputs = entries(batch, cold=True)
    case = {"op": peer.__name__, "B": batch, "cold": True, "gpu": torch.cuda.get_device_name()}
    rows = K + 1 if peer is roof else 1
    measure("gpu", peer.__name__, case, replay, replays(peer, inputs), bytes=rows * batch * VOCABULARY * 2)
