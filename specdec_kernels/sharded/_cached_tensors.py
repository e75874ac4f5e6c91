"""Small tensors that every call needs again; they are read-only.

A torch operation that gets a Python number first makes a tensor of it, which doubles its time.
"""

import torch

MOST = 512  # tensors in the cache; a server has as many batch sizes
_CACHE = {}


def filled(value, like, *shape):
    """A tensor filled with ``value``, with the device and dtype of ``like``; -0.0 gives 0.0."""
    return _cached(torch.full, shape, value, like.dtype, like.device)


def steps(count, step, device):
    """int64 [count]: 0, step, twice the step."""
    return _cached(_steps, count, step, torch.int64, device)


def owners(batch, width, device):
    """int64 [batch, width]: the request of each row."""
    return _cached(_owners, batch, width, torch.int64, device)


def only(mask, x, otherwise):
    """``x`` where ``mask`` (None: everywhere) holds, else ``otherwise``: a tensor, or a number of x's type."""
    if mask is None:
        return x
    return torch.where(mask, x, otherwise if isinstance(otherwise, torch.Tensor) else filled(otherwise, x))


def _steps(count, step, dtype, device):
    return torch.arange(count, dtype=dtype, device=device) * step


def _owners(batch, width, dtype, device):
    return torch.arange(batch, dtype=dtype, device=device).unsqueeze(-1).expand(batch, width)


def _cached(make, *key):
    tensor = _CACHE.get((make, *key))
    if tensor is None:
        *how, dtype, device = key
        with torch.inference_mode(False):
            tensor = make(*how, dtype=dtype, device=device)
        if _lasts(tensor):
            if len(_CACHE) >= MOST:
                _CACHE.clear()
            _CACHE[(make, *key)] = tensor
    return tensor


def _lasts(made):
    """Whether later calls can read it: a tensor made during a graph's capture has no values before the replay."""
    return type(made) is torch.Tensor and not (made.is_cuda and torch.cuda.is_current_stream_capturing())
