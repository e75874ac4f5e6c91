"""What penalties count, in a scheduler like SGLang's; the slot machine has the texts under them."""

import sys

import pytest
import torch

from specdec_kernels import Sampling
from specdec_kernels.engines import sglang
from tests.engines.sglang_server import TREES, VOCAB, Batch, Server
from tests.engines.sglang_stand_in import PENALIZERS, Orchestrator, Penalizer, Pool, Registry, request


@pytest.fixture(autouse=True)
def registered(engine, monkeypatch):
    monkeypatch.setenv("SPECDEC_SGLANG", "race")
    sglang.register()


def test_every_token_is_counted_once():
    """A list has the tokens of a request, and its last one again behind them."""
    reqs = [request(frequency=0.5, prompt=[1]) for _ in range(3)]
    for slot, req in enumerate(reqs):
        req.kv.req_pool_idx, req.seed, req.sampling = slot, slot, Sampling()
    batch, counts = Batch(reqs, Pool(3)), torch.zeros(3, VOCAB)
    for new in ([], [], []), ([3, 3, 4], [], [5]), ([], [1], []), ([], [], []), ([3], [1, 1], [5, 6, 7, 6]):
        for row, tokens in enumerate(new):
            reqs[row].output_ids.extend(tokens)
            counts[row] += torch.bincount(torch.tensor(tokens, dtype=torch.int64), minlength=VOCAB)
        penalties = batch.forward_info().specdec_penalties
        assert torch.equal(torch.zeros(3, VOCAB).scatter(1, penalties.tokens, penalties.counts), counts)
        assert (penalties.counted - penalties.prompt).tolist() == counts.sum(1).tolist()


def test_other_penalizers_are_refused():
    class OtherPenalizer(Penalizer):
        pass

    batch = Batch([request(frequency=0.5, prompt=[1])], Pool(1))
    assert not batch.sampling_info.penalizer_orchestrator.is_required
    assert not any(each.is_prepared() for each in batch.sampling_info.penalizer_orchestrator.penalizers.values())
    batch.sampling_info.penalizer_orchestrator = Orchestrator(batch, (*PENALIZERS, OtherPenalizer))
    begin = Registry.hook("from_schedule_batch")
    with pytest.raises(NotImplementedError, match="OtherPenalizer"):
        begin(batch.sampling_info, None, batch)
    OtherPenalizer.prepared = False
    begin(batch.sampling_info, None, batch)


def test_paths_wider_than_what_is_kept_are_refused(monkeypatch):
    reqs = [request(frequency=0.5, prompt=[1, 2, 3])]
    server = Server(reqs, TREES["chain"], 1)
    server.step(new=reqs)
    server.step()
    monkeypatch.setattr(sys.modules["specdec_kernels.engines._sglang_penalties"], "RING", 3)
    with pytest.raises(ValueError, match="max_tree_depth: expected 3 at most with penalties; got 4"):
        server.step()
