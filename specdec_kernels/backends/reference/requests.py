"""The entry of numbers and draft rows for each batch row, and numbers as tensors with one for each row."""

import torch

from specdec_kernels.calls.values import Noise
from specdec_kernels.status import Status

ANY = 2**31


class Requests:
    """The live requests of a call; the others are idle, or their index is out of range.

    Parameters
    ----------
    index : Tensor or None
        ``request_index``; without it batch row b uses entry b.
    entries : int
        How many entries there are.
    inner : tuple of int
        The dimensions of numbers after the first: (R,) beside rows [A, R, V].
    outside : Tensor, optional
        bool [B]: requests that are out of range by other means.

    Attributes
    ----------
    live, entry : Tensor
        int64 [n]: the batch rows that are live, and the entry of numbers and draft rows that each of them uses.
    idle, outside : Tensor
        bool [B]: the batch rows that are not live.
    """

    def __init__(self, index, batch, entries, device, inner=(), outside=None):
        index = torch.arange(batch, device=device, dtype=torch.int64) if index is None else index.long()
        self.idle = index == -1
        self.outside = (index < -1) | (index >= entries)
        if outside is not None:
            self.outside |= outside & ~self.idle
        self.rows = (~self.idle & ~self.outside).nonzero().squeeze(-1)
        self.entry, self.inner = index[self.rows], inner

    def numbers(self, value, dtype):
        """A number, or a tensor with one for each entry, as a tensor with one for each live request: [n, *inner]."""
        if isinstance(value, torch.Tensor):
            return value[self.entry].to(dtype)
        return torch.tensor(value, dtype=dtype, device=self.rows.device).expand(len(self.rows), *self.inner)

    def noise(self, noise):
        return Noise(*(self.numbers(value, torch.int64) for value in noise))

    def write(self, output, values, idle=0, outside=0):
        """Write the results of the live requests, and the values of the others."""
        if self.inner:
            output = output.unflatten(0, (len(self.idle), *self.inner))
        output[self.idle], output[self.outside] = idle, outside
        output[self.rows] = values.to(output.dtype)

    def report(self, output, status):
        """Write the status of the live requests, where the caller wants it."""
        if output is not None:
            self.write(output, status, outside=Status.PARAMETER)


def of(call, batch, device, inner=(), outside=None):
    """The requests of a call. Without a draft or a tensor of numbers all entries are equal, so any index is good."""
    if call.request_index is None:
        return Requests(None, batch, batch, device, inner, outside)
    numbers = [getattr(call, "draft", None), getattr(call, "draft_prob", None), getattr(call, "epsilon", None)]
    for group in ("law", "target_law", "draft_law", "noise"):
        numbers += getattr(call, group, ())
    numbers += call.edits.by_entry() if hasattr(call, "edits") else ()
    entries = next((len(x) for x in numbers if isinstance(x, torch.Tensor)), ANY)
    return Requests(call.request_index, batch, entries, device, inner, outside)
