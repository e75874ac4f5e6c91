"""Checks that ops share. Each error names the argument, what was expected and what came."""

import math

import torch

ROW_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOKEN_DTYPES = (torch.int32, torch.int64)


def shown(x):
    if isinstance(x, torch.Tensor):
        return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)} on {x.device}"
    return repr(x) if isinstance(x, (int, float, str, type(None))) else type(x).__name__


def check_tensor(name, x, dtypes, ndim):
    if isinstance(x, torch.Tensor) and x.dtype in dtypes:
        if ndim is None or x.ndim == ndim:
            return
        raise ValueError(f"{name}: expected {ndim} dimensions; got {shown(x)}")
    expected = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
    raise TypeError(f"{name}: expected a tensor of {expected}; got {shown(x)}")


def check_rows(name, x, ndim=None):
    """A tensor of rows of a vocabulary."""
    check_tensor(name, x, ROW_DTYPES, ndim)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"{name}: expected rows of at least one token; got {shown(x)}")
    if x.stride()[-1] != 1 and x.shape[-1] != 1:
        raise ValueError(f"{name}: expected unit stride along the vocabulary; got strides {tuple(x.stride())}")


def check_shape(name, x, shape):
    if x.shape != shape:
        raise ValueError(f"{name}: expected shape {list(shape)}; got {shown(x)}")


def check_device(name, x, device):
    if x.device != device:
        raise ValueError(f"{name}: expected a tensor on {device}; got {shown(x)}")


def check_choice(name, x, choices):
    if x not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}; got {x!r}")


def check_vocabulary(target, draft):
    if draft.shape[-1] > target.shape[-1]:
        raise ValueError(
            f"draft: expected a vocabulary no larger than the target's {target.shape[-1]}; got {draft.shape[-1]}"
        )


def check_space(space, temperature):
    """Probabilities are final: a temperature only says argmax (0) or not."""
    check_choice("space", space, ("logits", "probs"))
    if space == "probs" and not isinstance(temperature, torch.Tensor) and temperature not in (0.0, 1.0):
        raise ValueError(
            "temperature: expected 0 or 1 with space='probs', whose laws are final (apply it before the softmax); "
            f"got {temperature}"
        )


def is_int(x):
    return type(x) is int or (isinstance(x, (int, torch.SymInt)) and not isinstance(x, bool))


def int64(name, x):
    """An int as the signed 64-bit number of the same bits; seeds may be unsigned."""
    if isinstance(x, torch.SymInt):
        return x
    if -(2**63) <= x < 2**63:
        return int(x)
    if x < 2**64 and x > 0:
        return x - 2**64
    raise ValueError(f"{name}: expected 64 bits at most; got {x}")


def counter(name, x, shape, device):
    """``seed``, ``position`` or ``nonce``: an int, or one int64 for each of ``shape``. Gives (tensor or None, int)."""
    if is_int(x):
        return None, int64(name, x)
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: expected an int or an int64 tensor; got {shown(x)}")
    return _broadcast(name, x, torch.int64, shape, device), 0


def number(name, x, shape, device, least=0.0, most=float("inf")):
    """``temperature``, ``draft_prob`` or ``epsilon``: a float in range, or one float32 for each of ``shape``.

    A tensor's values are the kernels' to check: they set status bit 8.
    """
    if type(x) is float or (isinstance(x, (int, float)) and not isinstance(x, bool)):
        if not least <= x <= most or x == float("inf"):
            span = f"[{least:g}, {most:g}]" if most != float("inf") else f"at least {least:g} and finite"
            raise ValueError(f"{name}: expected a number {span}; got {x}")
        return None, float(x)
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: expected a float or a float32 tensor; got {shown(x)}")
    return _broadcast(name, x, torch.float32, shape, device), 0.0


def _broadcast(name, x, dtype, shape, device):
    if x.dtype != dtype:
        raise TypeError(f"{name}: expected {str(dtype).removeprefix('torch.')}; got {shown(x)}")
    if x.device != device:
        raise ValueError(f"{name}: expected a tensor on {device}; got {shown(x)}")
    if x.shape == shape:
        return x
    if x.ndim > len(shape):
        raise ValueError(f"{name}: expected shape {list(shape)}; got {shown(x)}")
    try:
        return x.expand(shape)
    except RuntimeError:
        raise ValueError(f"{name}: expected shape {list(shape)}; got {shown(x)}") from None


def check_noise(requests, seed, position, nonce):
    """More than one request under one seed, position and nonce would share its noise."""
    if requests > 1 and is_int(seed) and is_int(position) and is_int(nonce):
        raise ValueError(
            f"seed: expected one seed per request (int64 [{requests}]), or positions or nonces that differ, "
            "or all requests would share their noise; got plain ints for all three"
        )


def output(name, x, dtype, shape, device, row_stride=False):
    """A preallocated output, contiguous; with ``row_stride`` only along its last dimension."""
    if isinstance(x, torch.Tensor) and x.dtype == dtype and x.shape == shape and x.device == device:
        if x.is_contiguous() or (row_stride and (x.stride(-1) == 1 or x.shape[-1] <= 1)):
            return
        raise ValueError(f"{name}: expected {'unit stride' if row_stride else 'contiguous'}; got strides {x.stride()}")
    check_tensor(name, x, (dtype,), None)
    check_shape(name, x, shape)
    check_device(name, x, device)


def rows3(name, x):
    """[..., V] as [A, R, V] without a copy."""
    if x.ndim == 2:
        return x.unsqueeze(1)
    if x.ndim == 3:
        return x
    if x.ndim == 1:
        return x.view(1, 1, -1)
    try:
        return x.view(math.prod(x.shape[:-2]), *x.shape[-2:])
    except RuntimeError:
        raise ValueError(
            f"{name}: expected leading dimensions that fold into two; got strides {tuple(x.stride())}"
        ) from None


def fold(x, rows):
    """A per-row tensor of the shape of the leading dimensions, as [A, R] of ``rows`` [A, R, V]; None stays None."""
    return x if x is None else x.reshape(rows.shape[:2])


STATUS = (
    (1, "a NaN or +inf was met, or a row without positive weight"),
    (2, "the residual was empty"),
    (4, "a draft token out of range"),
    (8, "a temperature, draft_prob, epsilon or cu_drafts out of range"),
)


def raise_for_status(op, status):
    """What ``check=True`` does: waits for the device, raises if any request has a status bit set."""
    found = status.tolist()
    bad = [(b, s) for b, s in enumerate(found) if s]
    if bad:
        lines = [f"request {b}: " + "; ".join(text for bit, text in STATUS if s & bit) for b, s in bad[:8]]
        more = f" (and {len(bad) - 8} more)" if len(bad) > 8 else ""
        raise RuntimeError(f"{op}: " + ", ".join(lines) + more)
