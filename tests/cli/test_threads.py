"""How many threads `generate` uses: what a few forwards say, unless somebody asked for a number."""

import json
from types import SimpleNamespace

import pytest
import torch

from specdec_kernels.backends import _cores
from specdec_kernels.cli import threads


class Model(torch.nn.Module):
    """Takes a time by the number of threads, of a clock that stands still otherwise."""

    def __init__(self, clock, seconds, parameters=10):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(parameters, device="meta"))
        self.clock, self.seconds, self.calls = clock, seconds, []

    def forward(self, input_ids, use_cache):
        self.calls.append(torch.get_num_threads())
        self.clock.now += self.seconds[torch.get_num_threads()]


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(threads.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(_cores, "threads", lambda: 3)
    for name in _cores.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return clock


def language_model(model, device="cpu"):
    return SimpleNamespace(model=model, device=torch.device(device), tokens_read=7)


@pytest.mark.parametrize(
    "seconds, wanted, forwards",
    [({1: 1.0, 3: 0.7}, 3, 9), ({1: 1.0, 3: 1.2}, 1, 9), ({1: 1.0, 3: 30.0}, 1, 3), ({1: 1.0, 3: 0.3}, 3, 3)],
)
def test_what_is_quicker_is_taken(clock, seconds, wanted, forwards):
    before, model = torch.get_num_threads(), Model(clock, seconds)
    with threads.quickest([language_model(model)]) as count:
        assert (count, torch.get_num_threads()) == (wanted, wanted)
    assert torch.get_num_threads() == before
    assert len(model.calls) == forwards


def test_models_count_together(clock):
    pair = [Model(clock, {1: 5.0, 3: 4.0}), Model(clock, {1: 1.0, 3: 2.5})]
    with threads.quickest([language_model(model) for model in pair]) as count:
        assert count == 1


@pytest.mark.parametrize("case", ["asked", "large", "on a GPU", "cannot"])
def test_nothing_is_tried(clock, monkeypatch, case):
    model = Model(clock, {} if case == "cannot" else {1: 1.0, 3: 2.0}, threads.SMALL + 1 if case == "large" else 10)
    if case == "asked":
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with threads.quickest([language_model(model, "cuda" if case == "on a GPU" else "cpu")]) as count:
        assert count == 3
    assert len(model.calls) == (case == "cannot")


def test_the_report_tells(run, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    options = ["generate", "--max-new-tokens", 4, "--method", "plain"]
    assert run(*options)[2].rstrip().endswith(" tokens/s on 1 thread)")
    assert json.loads(run(*options, "--json")[1])["threads"] == 1
