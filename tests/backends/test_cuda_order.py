"""Chains that do not all fit the device at once: races row after row, and pairs turn after turn."""

import pytest
import torch

import specdec_kernels
from specdec_kernels import OutputFormat, Sampling
from tests.backends.host_cuda.played import NEEDS_COMPILER
from tests.support.cases import DTYPES, chain_call, ragged, seeds
from tests.support.edits import random_edits
from tests.support.ops import verify_chain
from tests.support.same_bits import assert_as_cpu, assert_same, on_cpu

pytestmark = NEEDS_COMPILER

RACE = {"method": "race", "draft": None}
# Few multiprocessors, so that some ten rows do not fit.
DEVICES = {
    "three multiprocessors": {"multiprocessors": 3},
    "one block at a time": {"multiprocessors": 3, "blocks_in_flight": 1},
    "one block lags": {"multiprocessors": 2, "lags": True},
    "blocks that wait are refused": {"multiprocessors": 2, "refuses": True},
    "a kernel before it": {"multiprocessors": 2, "overlaps": True},
}


@pytest.fixture
def play(device):
    """The large machine with changes."""

    def played(**changes):
        device.play("large", **changes)
        return device

    return played


def decided_chain(accepted, slots, vocabulary=4096):
    """Requests whose target tokens are certain, as are the numbers of drafts accepted."""
    tokens = torch.arange(len(accepted) * (slots + 1)).view(-1, slots + 1) % vocabulary
    target = torch.full((*tokens.shape, vocabulary), -30.0).scatter(-1, tokens[..., None], 30.0).bfloat16()
    refused = torch.arange(slots) == torch.tensor(accepted)[:, None]
    drafts = torch.where(refused, (tokens[:, :-1] + 1) % vocabulary, tokens[:, :-1])
    return {"draft_tokens": drafts, "target": target, "seed": seeds(len(accepted)), "position": 0, **RACE}


def counted(backend, call):
    """The verdict, and what the machine counted."""
    found = []
    count = backend.counted(lambda: found.append(verify_chain(**call)))
    return found[0], count


def calls(seed):
    """Of all kinds of rows, chains that end early, greedy rows, drafts that are none."""
    for dtype, space in zip(DTYPES, ("logits", "probs", "logits"), strict=True):
        yield {**chain_call(seed, requests=11, slots=3, vocabulary=700, dtype=dtype, space=space), **RACE}
    # Several parts a row, of one chunk or of two.
    for requests in (5, 9):
        yield {**chain_call(seed, requests=requests, slots=3, vocabulary=34_000, dtype=torch.bfloat16), **RACE}
    yield {**chain_call(seed, requests=2, slots=19, vocabulary=70), **RACE}
    index = torch.tensor([1, -1, 0, 1, 7, 2], dtype=torch.int32)  # idle requests, and one that is not there
    states = {"temperature": torch.tensor([0.7, 1.0, 0.0]), "seed": seeds(3), "position": 3, "request_index": index}
    yield {**chain_call(seed, requests=6, slots=3, vocabulary=2500), **states, **RACE}
    packed = {**chain_call(seed, requests=8, slots=3, vocabulary=300), **RACE}
    yield ragged(packed, torch.tensor([0, 3, 1, 2, 0, 0, 3, 3]))
    yield decided_chain([19] * 3, slots=19, vocabulary=90)
    yield decided_chain([0, 3, 1, 0, 0, 2, 3, 0, 1], slots=3, vocabulary=90)


@pytest.mark.parametrize("change", DEVICES.values(), ids=DEVICES)
def test_the_same_verdict(play, change):
    for seed in (1, 2, 3):
        for call in calls(seed):
            backend = play(**change, schedule=seed)
            found, count = counted(backend, call)
            assert count["launches"] == 1
            assert_same(found, on_cpu(verify_chain, **call))
            assert backend.tickets_are_zero()


def test_a_status_comes_along(play):
    """What is wrong with a row is known to whoever ends the request, also if other rows came between."""
    call = decided_chain([3] * 20, slots=3, vocabulary=90)
    for slot in range(4):
        call["target"][slot, slot, 5] = torch.nan
    play(multiprocessors=2)
    found = verify_chain(**call)
    assert found.status.tolist() == [1] * 4 + [0] * 16
    assert_same(found, on_cpu(verify_chain, **call))


def test_forms(play):
    """Tokens in one row by an index, and a path whose parts different blocks write."""
    accepted, slots = [3, 0, 2, 3, 1, 0, 3], 3
    call, places = decided_chain(accepted, slots, vocabulary=90), len(accepted) * (slots + 1)
    index = torch.randperm(places, generator=torch.Generator().manual_seed(0)).view(len(accepted), -1)
    index[3, 1] = places + 4  # no such place: the status says so, after two more rows

    def verdict():
        path = torch.full((len(accepted), slots + 1), -5, dtype=torch.int32)
        output_format = OutputFormat(index=index, path=path, count="emitted", add=True)
        tokens, counts = torch.full((places,), -5), torch.zeros(2, len(accepted), dtype=torch.int32)
        found = verify_chain(**call, output_format=output_format, out=specdec_kernels.ops.Verdict(tokens, *counts))
        return *found, path

    with specdec_kernels.backend("cpu"):
        expected = verdict()
    play(multiprocessors=2)
    assert_same(verdict(), expected)


@pytest.mark.parametrize("change", DEVICES.values(), ids=DEVICES)
def test_given_tokens(play, change):
    """The token after a request's last draft is given; a chain that ends early still draws from the row there."""
    for slots in (1, 3):
        call = decided_chain([0, slots, slots - 1] * 4, slots, vocabulary=90)
        call["target"][:, -1] = torch.nan
        call["draft_tokens"][7:, slots // 2] = -1
        bonus = torch.arange(12) * 7 % 90
        bonus[4] = 2**40
        options = {**call, "target": call["target"][:, :-1], "output_format": OutputFormat(bonus=bonus)}
        play(**change, schedule=slots)
        found = verify_chain(**options)
        assert found.tokens[1, slots] == 7
        assert found.status.tolist() == [0] * 4 + [8] + [0] * 7
        assert_same(found, on_cpu(verify_chain, **options))


@pytest.mark.parametrize(
    "requests, change", [(3, {}), (3, {"refuses": True}), (1, {"lags": True, "multiprocessors": 2})]
)
def test_a_draw_under_edits_is_shared(play, requests, change):
    """By the blocks of a request without filters; the second one has some. Of few blocks one lags."""
    generator = torch.Generator().manual_seed(1)
    for seed, method in enumerate(("rejection", "block", "rejection")):
        call = chain_call(seed, requests=requests, slots=1 + requests // 2, vocabulary=5000, dtype=torch.bfloat16)
        slots = call["draft_tokens"].shape[1]
        call |= {"edits": random_edits(requests, slots + 1, vocabulary=5000, seed=seed), "temperature": None}
        call |= {"method": method, "sampling": Sampling(top_k=torch.tensor([0, 20, 0][:requests]))}
        call["draft"] = call["target"][:, :-1] + 2 * torch.randn(requests, slots, 5000, generator=generator).bfloat16()
        backend = play(**{"multiprocessors": 40, "schedule": seed} | change)
        assert_as_cpu(verify_chain, **call)
        assert backend.tickets_are_zero()


@pytest.mark.parametrize("change", [{}, *DEVICES.values()], ids=["large", *DEVICES])
def test_turns(play, change):
    """Blocks weigh eight slots, or one, and those of the next turn judge them and go on; as a block its own do."""
    for requests, slots, vocabulary, turns in ((10, 9, 1100, 2), (82, 2, 300, 2)):
        call = chain_call(4, requests, slots, vocabulary)
        call["temperature"] = torch.tensor([1.0, 0.0] * (requests // 2))
        call["draft"].copy_(call["target"][:, :-1])
        call["draft"][torch.arange(requests), torch.arange(requests) % slots] *= -1
        call["draft_tokens"][5, 1] = -1
        call["draft_tokens"][3] = call["target"][3, :-1].argmax(-1)  # all are accepted, with a status from the first
        call["target"][3, 0, call["target"][3, 0].argmin()] = torch.nan
        for method, blocks in (("rejection", turns + 1), ("block", 1)):
            backend = play(**change, schedule=3)
            found, count = counted(backend, call | {"method": method})
            if not change:
                assert count["blocks"] == requests * (2 if requests == 10 else 1) * blocks
            assert (found.num_accepted[3], found.status[3]) == (slots, 1)
            assert_same(found, on_cpu(verify_chain, **call | {"method": method}))
            assert backend.tickets_are_zero()


class TestRows:
    """Which rows are read, of twenty requests whose rows come in order, a part each. This machine starts blocks in any
    order, so of the rows behind an end only those are left out whose blocks come late."""

    SLOTS, ROW = 4, 4096 * 2

    def bytes_read(self, play, accepted, bonus=None):
        call = decided_chain(accepted, self.SLOTS)
        if bonus is not None:
            call |= {"target": call["target"][:, :-1], "output_format": OutputFormat(bonus=bonus)}
        found, count = counted(play(multiprocessors=2), call)
        assert found.num_accepted.tolist() == accepted
        assert count["launches"] == 1
        return count["bytes_read"]

    @pytest.mark.parametrize("accepted", [[0] * 20, [4] * 20, [0, 4] * 20, [3] * 20], ids=str)
    def test_rows_behind_an_end_are_left_out(self, play, accepted):
        needed, all_rows = sum(count + 1 for count in accepted), len(accepted) * (self.SLOTS + 1)
        read = self.bytes_read(play, accepted) / self.ROW
        assert needed <= read < all_rows or read == needed == all_rows

    @pytest.mark.parametrize("requests", [4, 20])
    def test_a_given_token_has_no_row(self, play, requests):
        found = self.bytes_read(play, [4] * requests, torch.arange(requests))
        assert found // self.ROW == requests * self.SLOTS
