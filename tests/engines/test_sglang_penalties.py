"""What penalties count, in a scheduler like SGLang's; the slot machine has the texts under them."""

import sys

import pytest
import torch

from specdec_kernels.engines import sglang
from tests.engines.sglang_server import TREES, VOCAB, Batch, Server, requests
from tests.engines.sglang_stand_in import PENALIZERS, Orchestrator, Penalizer, Registry, request


@pytest.fixture(autouse=True)
def registered(engine, monkeypatch):
    monkeypatch.setenv("SPECDEC_SGLANG", "race")
    sglang.register()


def test_every_token_is_counted_once():
    reqs = [request(frequency=0.5, presence=1.0, repetition=2.0, least=5, stop=(7,), prompt=[1]) for _ in range(3)]
    for slot, req in enumerate(reqs):
        req.slot = slot
    batch = Batch(reqs)
    counts = torch.zeros(3, VOCAB)
    for new in ([], [], []), ([3, 3, 4], [], [5]), ([], [1], []), ([], [], []), ([3], [1, 1], [5, 6, 7, 6]):
        for row, tokens in enumerate(new):
            reqs[row].output_ids.extend(tokens)
            counts[row] += torch.bincount(torch.tensor(tokens, dtype=torch.int64), minlength=VOCAB)
        Registry.hook("cumulate_penalty_output_tokens")(batch)
        frequency, length, presence, repetition = (
            getattr(each, each.MADE) for each in batch.sampling_info.penalizer_orchestrator.penalizers.values()
        )
        assert torch.equal(frequency, 0.5 * counts)
        assert torch.equal(presence, (counts > 0).float())
        assert torch.equal(repetition, torch.where(counts > 0, 2.0, 1.0))
        assert length[:, 0].tolist() == counts.sum(1).tolist()


def test_other_penalizers_are_refused():
    class OtherPenalizer(Penalizer):
        NUMBERS, PARAMETER, MADE = "numbers", "frequency_penalty", "made"

    req = request(frequency=0.5, prompt=[1])
    batch = Batch([req])
    req.output_ids.append(1)
    batch.sampling_info.penalizer_orchestrator = Orchestrator(VOCAB, batch, (*PENALIZERS, OtherPenalizer))
    with pytest.raises(NotImplementedError, match="OtherPenalizer"):
        Registry.hook("cumulate_penalty_output_tokens")(batch)
    req.sampling_params.frequency_penalty = 0.0
    batch.sampling_info.penalizer_orchestrator = Orchestrator(VOCAB, batch, (*PENALIZERS, OtherPenalizer))
    Registry.hook("cumulate_penalty_output_tokens")(batch)


def test_paths_wider_than_what_is_kept_are_refused(monkeypatch):
    reqs = requests()[:1]
    server = Server(reqs, TREES["chain"], 1)
    server.step(new=reqs)
    server.step()
    monkeypatch.setattr(sys.modules["specdec_kernels.engines._sglang_penalties"], "RING", 3)
    with pytest.raises(ValueError, match="max_tree_depth: expected 3 at most with penalties; got 4"):
        server.step()
