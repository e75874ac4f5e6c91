"""What the rows of a verification are asked with: the numbers of their request, at their place in the sequence."""

import torch

from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.sampling import Sampling

NO_ENTRY = -2  # an index that no array has


class Requests:
    """The requests of a chain or a tree, and which of them each row belongs to.

    Parameters
    ----------
    batch : int
    request : Tensor
        int64, like the rows: the request of each.
    step : Tensor
        int64, broadcast to the rows: how many positions after the request's own each row decides.
    request_index : Tensor or None
    noise : tuple
        seed, position, nonce: an int, or one for each entry.
    numbers : iterable
        What else may have one for each entry: numbers, a Sampling, draft rows.
    """

    def __init__(self, batch, request, step, request_index, noise, numbers):
        inputs.check_noise(batch, *noise)
        self.batch, self.request, self.step, self.noise = batch, request, step, noise
        flat = [y for x in (*noise, *numbers) for y in (x[:4] if isinstance(x, Sampling) else (x,))]
        sizes = [len(x) for x in flat if isinstance(x, torch.Tensor) and x.ndim and len(x) != 1]
        if request_index is None:
            self.entry, self.index = torch.arange(batch, device=request.device), None
            return
        inputs.check_tensor("request_index", request_index, (torch.int32,), 1)
        inputs.check_shape("request_index", request_index, (batch,))
        entries = sizes[0] if sizes else 2**31
        inside = (request_index >= 0) & (request_index < entries)
        self.entry = request_index.long().clamp(0, entries - 1)
        own = torch.arange(batch, device=request.device, dtype=torch.int32)
        self.index = torch.where(inside, own, torch.where(request_index == -1, -1, NO_ENTRY)).int()

    def of_requests(self, x):
        """A number, a tensor of entries or a Sampling of these, for each request."""
        return self._at(x, self.entry)

    def of_rows(self, x):
        """The same for each row."""
        return self._at(x, self.entry[self.request])

    def _at(self, x, entry):
        if isinstance(x, Sampling):
            return x._replace(**{name: self._at(getattr(x, name), entry) for name in Sampling._fields[:4]})
        if not isinstance(x, torch.Tensor) or x.ndim == 0:
            return x
        if len(x) == 1:
            return x.expand(entry.shape) if x.ndim == 1 else x[torch.zeros_like(entry)]
        return x[entry]

    def noise_of_requests(self):
        return dict(zip(("seed", "position", "nonce"), map(self.of_requests, self.noise), strict=True))

    def noise_of_rows(self):
        """seed, position and nonce of each row, and the requests' index as an op on rows takes it."""
        seed, position, nonce = map(self.of_rows, self.noise)
        position = self.step + (position.long() if isinstance(position, torch.Tensor) else position)
        index = self.index
        if index is not None and self.request.ndim == 1:  # ragged: each row is a request
            own = torch.arange(len(self.request), device=index.device, dtype=torch.int32)
            index = torch.where(index[self.request] >= 0, own, index[self.request])
        return {"seed": seed, "position": position.expand(self.request.shape), "nonce": nonce, "request_index": index}


def any_bits(status, among):
    """The bits of ``status`` [..., n], int32, of the places ``among`` together."""
    status = torch.where(among, status, 0)
    return sum((status & 1 << bit).amax(dim=-1) for bit in range(4)) if status.shape[-1] else status.sum(-1).int()
