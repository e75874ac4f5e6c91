"""The numbers of a verification's rows: those of their request, at their position in the sequence."""

import functools

import torch

from specdec_kernels._constants import SMALLEST
from specdec_kernels.calls import inputs
from specdec_kernels.ops import _laws as laws
from specdec_kernels.sampling import Sampling

NO_ENTRY = -2  # an index out of range for every array


class Requests:
    """The requests of chains or trees, and the request of each row.

    ``request`` and ``step``, int64 like the rows: the request of each, and how many positions after the request's
    position it decides. ``noise``: seed, position, nonce, an int or one for each entry. ``numbers``: other arguments
    that may have one for each entry.
    """

    def __init__(self, batch, request, step, request_index, noise, numbers):
        self.batch, self.request, self.step = batch, request, step
        self.noise = [x if (plain := inputs.integer(x)) is None else plain for x in noise]
        inputs.check_noise(batch, self.noise)
        self.entry = self.index = None  # request b uses entry b
        self.entries = batch
        if request_index is None:
            return
        laws.check_index(request_index, batch, request.device)
        self.entries, self.entry, self.index = looked_up(request_index, 1, laws.numbers_in(*noise, *numbers))

    def of_requests(self, x):
        """A number, a tensor of entries or a Sampling of these, for each request."""
        return x if self.entry is None else _at(x, self.entry)

    def of_rows(self, x):
        """A number, a tensor of entries or a Sampling of these, for each row."""
        if self.entry is not None or self.request.ndim == 1:
            return _at(x, self.entry_of_row)
        if isinstance(x, Sampling):
            return mapped(x, self.of_rows)
        return x.unsqueeze(-1) if isinstance(x, torch.Tensor) and x.ndim == 1 else x

    @functools.cached_property
    def entry_of_row(self):
        """int64, like the rows."""
        return self.request if self.entry is None else self.entry[self.request]

    def noise_of_requests(self):
        return dict(zip(("seed", "position", "nonce"), map(self.of_requests, self.noise), strict=True))

    def noise_of_rows(self):
        """seed, position and nonce of each row, and ``request_index`` of an op on rows."""
        seed, position, nonce = map(self.of_rows, self.noise)
        position = self.step + (position.long() if isinstance(position, torch.Tensor) else position)
        position = position.expand(self.request.shape)
        return {"seed": seed, "position": position, "nonce": nonce, "request_index": self.row_index()}

    def row_index(self, index=None):
        """``request_index`` of an op on rows."""
        index = self.index if index is None else index
        if index is None or self.request.ndim > 1:
            return index
        row = torch.arange(len(self.request), device=index.device, dtype=torch.int32)  # ragged: each row is a request
        return torch.where(index[self.request] >= 0, row, index[self.request])

    @functools.cached_property
    def those_live(self):
        """bool [B]: requests that are not idle; None: all."""
        return None if self.index is None else self.index >= 0

    def live(self):
        """bool [B]: ``those_live``, as a tensor in any case."""
        if self.index is None:
            return torch.ones(self.batch, dtype=torch.bool, device=self.request.device)
        return self.those_live

    # ---- drafts ------------------------------------------------------------------------------------------------------

    def draft_row_indices(self, chains, draft):
        """The row of each draft among all draft rows; None if these are in order."""
        if self.entry is None:
            return None
        slots = draft.shape[1]
        if self.request.ndim == 1:
            return chains.at_drafts(self.entry_of_row * slots + self.step.clamp(0, slots - 1))
        slot = torch.arange(slots, device=draft.device, dtype=torch.int64)
        return (self.entry.unsqueeze(-1) * slots + slot).flatten()

    def of_draft_rows(self, chains, draft, x):
        """A number of entries, or a Sampling of these, for each draft row."""
        if isinstance(x, Sampling):
            return mapped(x, lambda number: self.of_draft_rows(chains, draft, number))
        if not isinstance(x, torch.Tensor) or x.ndim == 0:
            return x
        packed = self.request.ndim == 1 and self.entry is None
        return chains.at_drafts(self.of_rows(x)) if packed else x.unsqueeze(-1)

    def greedy(self, temperature):
        return Greedy(self, self.of_requests(temperature))


def looked_up(request_index, leading, numbers):
    """(the number of entries, the entry of each request, the index of a call with an entry for each request)."""
    # Numbers with ``leading`` dimensions have entries. If none has, any index that is not negative is in range.
    there = any(isinstance(x, torch.Tensor) and x.ndim >= leading for x in numbers)
    entries = laws.entries(None, leading, *numbers)
    entry = request_index.long().clamp(0, entries - 1)
    inside = (request_index >= 0) & (request_index < entries) if there else request_index >= 0
    row = torch.arange(len(request_index), device=request_index.device, dtype=torch.int32)
    return entries, entry, torch.where(inside, row, torch.where(request_index == -1, -1, NO_ENTRY)).int()


def mapped(sampling, function):
    """The Sampling whose numbers are those that a function gives for the numbers of another."""
    return sampling._replace(**{name: function(getattr(sampling, name)) for name in Sampling._fields[:4]})


def _at(x, entry):
    """A number, a tensor of entries or a Sampling of these, at some entries."""
    if isinstance(x, Sampling):
        return mapped(x, lambda number: _at(number, entry))
    if not isinstance(x, torch.Tensor) or x.ndim == 0:
        return x
    if len(x) == 1:
        return x.expand(entry.shape) if x.ndim == 1 else x[torch.zeros_like(entry)]
    return x[entry]


class Greedy:
    """Which requests have temperature 0."""

    def __init__(self, requests, temperature):
        self._all, self._temperature, self.any_may_be = requests, temperature, isinstance(temperature, torch.Tensor)

    @functools.cached_property
    def requests(self):
        """bool [B]."""
        none = torch.zeros(self._all.batch, dtype=torch.bool, device=self._all.request.device)
        return none | ~(self._temperature >= SMALLEST) if self.any_may_be else none

    def others(self):
        """bool [B]: requests that sample; None: all."""
        return ~self.requests if self.any_may_be else None

    def of_rows(self):
        """bool, like the rows."""
        return self.requests[self._all.request]

    def row_index(self):
        """``request_index`` of an op that reads the rows of these requests alone."""
        index = torch.arange(self._all.batch, device=self.requests.device, dtype=torch.int32)
        index = torch.where(self.requests & self._all.live(), index, -1).int()
        return self._all.row_index(index)

    def temperature(self):
        """A temperature for rows that hold probabilities: 0 for these requests."""
        return (~self.requests).float() if self.any_may_be else 1.0


def both(*masks):
    """A mask that holds where all do. None, as a mask and as the result, holds everywhere."""
    masks = [mask for mask in masks if mask is not None]
    return functools.reduce(torch.logical_and, masks) if masks else None
