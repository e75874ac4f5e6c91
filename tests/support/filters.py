"""The support of sampling filters, by their definition: one token at a time, from the weights of the contract."""

import numpy as np
import torch

from specdec_kernels import Sampling
from specdec_kernels.backends.reference import mass

LARGEST = np.finfo(np.float32).max
COLDEST = 2.0**-64  # docs/noise.md: a lower temperature counts as this one, one above 1 / COLDEST as that


def scaled(row, temperature):
    """float32 logits over the temperature, -inf for no weight."""
    with np.errstate(over="ignore", invalid="ignore"):
        x = row.float().numpy() * (np.float32(1) / np.float32(min(max(temperature, COLDEST), 1 / COLDEST)))
    return np.where(np.isnan(x), -np.inf, np.minimum(x, LARGEST)).astype(np.float32)


def kept(row, sampling):
    """bool [V]: the tokens of one row that a Sampling of plain numbers keeps."""
    v = scaled(row, sampling.temperature if sampling.at_temperature else 1.0)
    size, largest = len(v), v.max()
    if largest == -np.inf:
        return torch.zeros(size, dtype=torch.bool)
    weights = [int(w) for w in mass.weights(v, largest)]
    some = v > -np.inf

    def before(token):
        same = (v == v[token]) & (np.arange(size) < token) if sampling.ties == "first" else False
        return np.flatnonzero(some & ((v > v[token]) | same))

    by_k, by_least = 0 < sampling.top_k < size, sampling.min_p > 0
    first = np.array([not by_k or len(before(i)) < sampling.top_k for i in range(size)]) & some
    least = np.float32(largest) + mass.log(np.float32(sampling.min_p)) if by_least else -np.inf
    large = (v >= least) & some
    keep = first & large
    if np.float32(sampling.top_p) < 1:
        whole = some
        if by_k and "top_k" in sampling.top_p_after:
            whole = whole & first
        if by_least and "min_p" in sampling.top_p_after:
            whole = whole & large
        total = sum(w for w, inside in zip(weights, whole, strict=True) if inside)
        if (whole == some).all() and not (set(sampling.top_p_after) & on(by_k, by_least)):
            total = mass.mass(v, largest)
        share = int(float(np.float32(sampling.top_p)) * 2**32)
        for token in range(size):
            reached = sum(weights[i] for i in before(token)) << 32 >= max(share * total, 1)
            keep[token] &= not reached
    return torch.from_numpy(keep)


def on(by_k, by_least):
    return {name for name, active in (("top_k", by_k), ("min_p", by_least)) if active}


def figures(row, keep, sampling):
    """(value, last, count, mass, max) of a cut that keeps these tokens; the row is of one tile."""
    v = scaled(row, sampling.temperature if sampling.at_temperature else 1.0)
    if not (0 < sampling.top_k < len(v) or np.float32(sampling.top_p) < 1 or sampling.min_p > 0):
        return -np.inf, -1, int(keep.sum()), mass.mass(v, v.max()), v.max()
    tokens = [int(i) for i in keep.nonzero().flatten()]
    last = max(tokens, key=lambda i: (-v[i], i))
    return v[last], last, len(tokens), int(mass.weights(v, v.max())[tokens].sum()), v.max()


def masked(rows, keep):
    """The rows without the tokens that are not kept."""
    return torch.where(keep, rows, -torch.inf)


def each(sampling, index):
    """The Sampling of one request, of tensors with one number a request."""
    return Sampling(*(x[index].item() if isinstance(x, torch.Tensor) else x for x in sampling))
