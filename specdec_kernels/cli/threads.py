"""Measures which number of threads is faster for a small model's forwards, on this machine and now."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from specdec_kernels.backends import _cores

if TYPE_CHECKING:
    from specdec_kernels.generate import LanguageModel

SMALL = 200_000_000  # parameters. Larger models gain by threads, and one forward on one thread takes long
TURNS, CLEAR = 4, 2.0  # forwards of each; fewer where one number takes so many times as long
LENGTH = 5  # tokens a forward, as a target reads in a round


@contextmanager
def quickest(models: Sequence[LanguageModel]) -> Iterator[int]:
    """Set torch's and our threads to the faster number for these models, one or all; yields it."""
    # OpenMP's threads, which torch uses, wait for each other. Beside other work a forward of a small model takes many
    # times as long with them as without. A set `OMP_NUM_THREADS` decides.
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(choose(models, _cores.threads()))
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def choose(models: Sequence[LanguageModel], most: int) -> int:
    """One thread, or the most."""
    on_cpu = all(model.device.type == "cpu" for model in models)
    if most == 1 or _cores.is_set() or not on_cpu or sum(map(parameters, models)) > SMALL:
        return most
    try:
        forwards(models, 1)  # allocations and caches of a first forward
        one = all_of_them = 0.0
        for _ in range(TURNS):
            one += forwards(models, 1)
            all_of_them += forwards(models, most)
            if not 1 / CLEAR < all_of_them / one < CLEAR:
                break
    except Exception:  # the loop reports a model that cannot be read
        return most
    return 1 if one < all_of_them else most


def parameters(model: LanguageModel) -> int:
    return sum(weight.numel() for weight in model.model.parameters())


def forwards(models: Sequence[LanguageModel], threads: int) -> float:
    """Seconds of a forward of each."""
    torch.set_num_threads(threads)
    begun = time.perf_counter()
    for model in models:
        text = torch.arange(LENGTH, device=model.device, dtype=torch.int64)[None] % model.tokens_read
        with torch.no_grad():
            model.model(input_ids=text, use_cache=False)
    return time.perf_counter() - begun
