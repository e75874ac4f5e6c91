"""Kernels for chains give the CPU backend's bits, with filters or without; bounds of a draw hold."""

import copy
import ctypes

import pytest
import torch

from specdec_kernels import Sampling, race_sample
from tests.backends.host_cuda.build import build
from tests.backends.host_cuda.played import NEEDS_COMPILER
from tests.support.cases import DTYPES, adversarial_rows, chain_call, seeds
from tests.support.edits import random_edits
from tests.support.same_bits import assert_as_by_baseline

pytestmark = NEEDS_COMPILER


def odd_calls():
    """Calls on which bounds, tickets or judges could go wrong."""
    for dtype in DTYPES:
        call = chain_call(7, requests=3, slots=3, vocabulary=3000, dtype=dtype) | {"temperature": 1.0}
        refused = call | {"draft_tokens": (call["target"][:, :-1] - 8 * call["draft"]).argmin(-1)}
        yield f"{dtype}, drafts that are refused", refused
        nan = copy.deepcopy(refused)
        nan["draft"][..., 1::2] = torch.nan
        yield f"{dtype}, NaN in a draft", nan
        yield f"{dtype}, as a block", refused | {"method": "block"}
    # All weights equal: the winner is the first arrival, and many come close.
    flat = {"target": torch.zeros(2, 1, 70_000), "draft_tokens": torch.zeros(2, 0).long(), "method": "race"}
    yield "flat", flat | {"seed": seeds(2), "position": 3}
    infinite = torch.zeros(2, 1, 5000)
    infinite[..., ::3] = torch.inf
    yield "many largest", flat | {"target": infinite, "seed": seeds(2), "position": 3}
    hidden = chain_call(7, requests=3, slots=2, vocabulary=3000, space="probs") | {"temperature": 1.0}
    hidden["target"][..., ::4] = torch.nan  # one in each vector
    for method in ("rejection", "block"):
        yield f"NaN in probabilities, {method}", hidden | {"method": method}
    call = chain_call(3, requests=2, slots=31, vocabulary=300)
    for method in ("rejection", "block", "race"):
        yield f"31 slots, {method}", call | {"method": method} | ({"draft": None} if method == "race" else {})
    # More than lanes judge at once: no draft of the first request is refused, one of the second.
    long = chain_call(5, requests=2, slots=70, vocabulary=300, space="probs") | {"temperature": 1.0}
    long["draft"].copy_(long["target"][:, :-1])
    long["draft_tokens"] = long["draft"].argmax(-1)
    long["target"][1, 50, long["draft_tokens"][1, 50]] = 0.0
    yield "70 slots of probabilities", long
    cold = Sampling(torch.tensor([1e-30, 0.0]))
    call = {name: x for name, x in chain_call(4, requests=2, slots=2, vocabulary=2050).items() if name != "temperature"}
    yield "cold", call | {"sampling": cold, "draft.sampling": Sampling(1e30)}


def odd_rows(dtype, vocabulary=2101):
    """Rows whose cuts are hard."""
    smooth = 3 * torch.randn(vocabulary, generator=torch.Generator().manual_seed(3))
    rows = [smooth, smooth.round(), *adversarial_rows(vocabulary, 5).values()]
    rows += [torch.zeros(vocabulary), torch.full((vocabulary,), -torch.inf), smooth / 100, smooth * 1e30]
    rows += [torch.where(smooth > 6, value, smooth) for value in (torch.inf, torch.nan)]
    return torch.stack([row.to(dtype) for row in rows])


FILTERS = {
    "top-k": Sampling(top_k=3),
    "top-k, of more than there are cells": Sampling(top_k=50),
    "top-k, large": Sampling(top_k=318),
    "top-k, larger": Sampling(top_k=320),
    "top-k, of all": Sampling(top_k=10**6, top_p=0.5),
    "top-p": Sampling(top_p=0.9),
    "top-p of flat rows": Sampling(1e4, top_p=0.995),
    "min-p": Sampling(min_p=0.05),
    "all after another": Sampling(0.7, 9, 0.9, 0.01),
    "all together": Sampling(0.7, 9, 0.9, 0.01, top_p_after=()),
    "ties": Sampling(30.0, 8, ties="all"),
    "before the temperature": Sampling(0.3, 4, 0.9, at_temperature=False),
}


def odd_filtered(names=FILTERS):
    for number, name in enumerate(names):
        rows = odd_rows(DTYPES[number % len(DTYPES)])[len(name) % 2 :: 2]
        yield name, "race_sample", {"target": rows, "sampling": FILTERS[name], "seed": seeds(len(rows)), "position": 3}


def odd_shaped():
    """Chains whose cuts, records, lists or edits could go wrong: drafts that are refused, and some that are not."""
    off = {"at_temperature": False}
    for number, (name, of_target) in enumerate(FILTERS.items()):
        method = ("rejection", "block", "rejection", "race")[number % 4]
        call = chain_call(number, requests=1 + number % 4, slots=3, vocabulary=2101, dtype=DTYPES[number % len(DTYPES)])
        temperature = call.pop("temperature")
        of_draft = Sampling(1.0, 9, 0.9, **(off if of_target.at_temperature is False else {}))
        call |= {"method": method, "sampling": of_target, "draft.sampling": of_draft}
        if method == "race":
            call["draft"] = None
            del call["draft.sampling"]
        yield name, call
    mixed = Sampling(temperature, torch.tensor([0, 5, 0, 400]), torch.tensor([1.0, 0.9, 0.9, 1.0]))
    for method in ("rejection", "block"):
        call |= {"method": method, "sampling": mixed, "draft.sampling": mixed, "draft": call["target"][:, :-1].flip(-1)}
        yield f"some requests without filters, {method}", call
        nan = copy.deepcopy(call)
        nan["draft"][..., 1::2], nan["target"][1:, :, ::512] = torch.nan, torch.nan
        yield f"NaN, {method}", nan
        edits = random_edits(4, 4, vocabulary=2101, seed=1, bias_by_row=True)
        yield f"edits, {method}", call | {"edits": edits, "draft_tokens": call["draft_tokens"].clamp(0, 40)}
        yield f"one-hot, {method}", {name: x for name, x in call.items() if name != "draft.sampling"} | {"draft": None}
    refused = (call["target"][:, :-1]).argmin(-1)
    yield "equal laws", call | {"draft": call["target"][:, :-1], "draft_tokens": refused, "method": "rejection"}


def assert_chains(calls):
    assert_as_by_baseline((name, "verify_chain", call) for name, call in calls)


class TestPlayedMachine:
    def test_odd_calls(self, machine):
        assert_chains(odd_calls())

    def test_odd_chains_with_filters(self, machine):
        assert_chains(odd_shaped())


@pytest.mark.parametrize("name", FILTERS)
def test_odd_rows_with_filters(device, name):
    device.play("large" if len(name) % 3 else "lone", few_rows="1")
    assert_as_by_baseline(odd_filtered([name]))


def test_which_rows_take_the_kernel_for_few(device):
    """Few of whole vocabularies; by launches of one block a part."""

    def blocks(rows, few_rows):
        logits = torch.zeros(rows, 9000, dtype=torch.bfloat16)
        device.play("large", few_rows=few_rows, multiprocessors=132)
        return device.counted(lambda: race_sample(logits, seed=seeds(rows), position=0))["blocks"]

    # Nine tiles of 1,024 columns; the others take parts of 2,048.
    assert blocks(2, "") == blocks(2, "1") == 2 * 9
    assert blocks(2, "0") == 2 * 5
    assert blocks(20, "") == blocks(20, "0") == 20 * 5
    assert blocks(20, "1") == 20 * 9


class TestBounds:
    """Each bound holds by as much as the device's functions may be off, and is not much wider than that."""

    @pytest.fixture(scope="class")
    def parts(self):
        parts = ctypes.CDLL(str(build("parts")))
        parts.bounds_of_scores.restype = parts.bounds_of_laws.restype = ctypes.c_double
        return parts

    def test_scores(self, parts):
        """The largest share of its allowance that a score uses, over arrivals of all sizes and ways to be first."""
        used = parts.bounds_of_scores(ctypes.c_uint64(1), 400_000)
        assert 0.6 < used < 1.0

    def test_laws(self, parts):
        used = parts.bounds_of_laws(ctypes.c_uint64(1), 400_000)
        assert 0.6 < used < 1.0
