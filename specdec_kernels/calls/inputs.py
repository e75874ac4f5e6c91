"""Checks that ops share. Each error names the argument, the expected value and the given one."""

import math
import operator

import numpy as np
import torch

from specdec_kernels.calls import torch_names

ROW_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOKEN_DTYPES = (torch.int32, torch.int64)
COUNTER_DTYPES = (torch.int64, torch.int32)
SPACES = ("logits", "probs")


def shown(x):
    if isinstance(x, torch.Tensor):
        return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)} on {x.device}"
    return repr(x) if isinstance(x, (int, float, str, type(None))) else type(x).__name__


def named(dtypes):
    return " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def check_tensor(name, x, dtypes, ndim):
    if isinstance(x, torch.Tensor) and x.dtype in dtypes:
        if ndim is None or x.ndim == ndim:
            return
        raise ValueError(f"{name}: expected {ndim} dimensions; got {shown(x)}")
    raise TypeError(f"{name}: expected a tensor of {named(dtypes)}; got {shown(x)}")


def check_rows(name, x, ndim=None):
    """A tensor of rows of a vocabulary."""
    check_tensor(name, x, ROW_DTYPES, ndim)
    check_columns(name, x)


def check_columns(name, x):
    """The dimension of a vocabulary."""
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"{name}: expected rows of at least one token; got {shown(x)}")
    check_step(name, x, "the vocabulary")


def check_step(name, x, along):
    if x.stride()[-1] != 1 and x.shape[-1] > 1:
        raise ValueError(f"{name}: expected unit stride along {along}; got strides {tuple(x.stride())}")


def check_shape(name, x, shape):
    if x.shape != shape:
        raise ValueError(f"{name}: expected shape {list(shape)}; got {shown(x)}")


def check_device(name, x, device):
    if x.device != device:
        raise ValueError(f"{name}: expected a tensor on {device}; got {shown(x)}")


def check_choice(name, x, choices):
    if x not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}; got {x!r}")


def check_type(name, x, kind):
    if not isinstance(x, kind):
        raise TypeError(
            f"{name}: expected {'an' if kind.__name__[0] in 'EIO' else 'a'} {kind.__name__}; got {shown(x)}"
        )


def beside(x):
    """The sizes that ``Op.check`` starts from: the device of this tensor."""
    return {"device": x.device} if isinstance(x, torch.Tensor) else {}


def check_final(name, temperature, space_name, space):
    """Probabilities are final: a temperature only selects argmax (0) or not."""
    if space == "probs" and not isinstance(temperature, torch.Tensor) and temperature not in (0.0, 1.0):
        raise ValueError(
            f"{name}: expected 0 or 1 with {space_name}='probs', whose laws are final (apply it before the softmax); "
            f"got {temperature}"
        )


def wants_gradient(*values):
    """Whether autograd records computations on these."""
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in values)


def host_sees(tensor):
    """Whether the values can be read without waiting for a device or breaking a graph."""
    if tensor.device.type != "cpu" or type(tensor) is not torch.Tensor or torch.compiler.is_compiling():
        return False
    return not torch_names.is_wrapped(tensor)


def integer(x):
    """An int, of Python, NumPy or anything else with ``__index__``; None for a bool, a tensor and anything else."""
    if type(x) is int or isinstance(x, torch.SymInt):
        return x
    if isinstance(x, (bool, np.bool_, torch.Tensor)):
        return None
    try:
        return operator.index(x)
    except TypeError:
        return None


def real(x):
    """A float, or an int, of Python or NumPy; None for a bool, a tensor and anything else."""
    return float(x) if isinstance(x, (float, np.floating)) else integer(x)


def whole(name, x, expected, least, most=None, step=1):
    """An int from ``least`` to ``most``, a multiple of ``step``; ``expected`` may name these in braces."""
    # Braces, because a formatted size would be compiled as a constant even where no error is raised.
    plain = integer(x)
    if plain is None or plain < least or (most is not None and plain > most) or (step > 1 and plain % step):
        raise ValueError(f"{name}: expected {expected.format(least=least, most=most, step=step)}; got {x!r}")
    return plain


def flag(name, x):
    """A bool, of Python or NumPy."""
    if not isinstance(x, (bool, np.bool_)):
        raise TypeError(f"{name}: expected a bool; got {shown(x)}")
    return bool(x)


def int64(name, x):
    """An int as a signed 64-bit number with the same bits; seeds may be unsigned."""
    if isinstance(x, torch.SymInt) or -(2**63) <= x < 2**63:
        return x
    if x < 2**64 and x > 0:
        return x - 2**64
    raise ValueError(f"{name}: expected 64 bits at most; got {x}")


def counter(name, x, shape, device, seen=None):
    """``seed``, ``position`` or ``nonce``: an int, or an int64 or int32 tensor, one for each of ``shape``."""
    if type(x) is int and -(2**63) <= x < 2**63:
        return x
    if isinstance(x, torch.Tensor):
        return _broadcast(name, x, COUNTER_DTYPES, shape, device, seen)
    if (plain := integer(x)) is None:
        raise TypeError(f"{name}: expected an int or a tensor of {named(COUNTER_DTYPES)}; got {shown(x)}")
    return int64(name, plain)


def number(name, x, shape, device, least, most, seen=None):
    """``temperature``, ``draft_prob`` or ``epsilon``: a float in range, or one float32 for each of ``shape``."""
    # The kernels check a tensor's values: they set status bit 8.
    if type(x) is float and least <= x <= most and x - x == 0.0:  # finite
        return x
    if isinstance(x, torch.Tensor):
        return _broadcast(name, x, (torch.float32,), shape, device, seen)
    if (plain := real(x)) is None:
        raise TypeError(f"{name}: expected a float or a float32 tensor; got {shown(x)}")
    if not least <= plain <= most or abs(plain) == float("inf"):
        span = f"[{least:g}, {most:g}]" if most != float("inf") else f"at least {least:g} and finite"
        raise ValueError(f"{name}: expected a {'finite number' if least == -most else f'number {span}'}; got {x}")
    return float(plain)


def _broadcast(name, x, dtypes, shape, device, seen):
    """A tensor broadcast to ``shape``, in the shape ``seen`` that backends take."""
    if x.dtype not in dtypes:
        raise TypeError(f"{name}: expected {named(dtypes)}; got {shown(x)}")
    check_device(name, x, device)
    if x.shape != shape:
        try:
            x = x.expand(shape)
        except RuntimeError:
            raise ValueError(f"{name}: expected shape {list(shape)}; got {shown(x)}") from None
    if seen is None:
        return x
    return x.unsqueeze(1) if x.ndim == 1 and seen[1] == 1 else x.reshape(seen)  # reshape takes twice as long


def check_noise(requests, noise):
    """Raise for requests with the same seed, position and nonce, which would share their noise."""
    if requests > 1 and all(type(x) is int or isinstance(x, torch.SymInt) for x in noise):
        raise ValueError(
            f"seed: expected one seed per request (int64 [{requests}]), or positions or nonces that differ, "
            "or all requests would share their noise; got plain ints for all three"
        )


def output(name, x, dtype, shape, device, by_rows=False):
    """Check a preallocated output. It must be contiguous; with ``by_rows`` only its rows, which must not overlap."""
    if isinstance(x, torch.Tensor) and x.dtype == dtype and x.shape == shape and x.device == device:
        if x.is_contiguous():
            return
        if not by_rows or (x.stride(-1) != 1 and x.shape[-1] > 1):
            raise ValueError(f"{name}: expected {'unit stride' if by_rows else 'contiguous'}; got strides {x.stride()}")
        return check_rows_apart(name, x)
    check_tensor(name, x, (dtype,), None)
    check_shape(name, x, shape)
    check_device(name, x, device)


def outputs(names, out):
    """An item for each of these names: None, or the caller's."""
    if out is None:
        return (None,) * len(names)
    if not isinstance(out, (tuple, list)) or len(out) != len(names):
        raise TypeError(f"out: expected ({', '.join(names)}); got {shown(out)}")
    return out


def strided_output(name, x, dtypes, shape, device):
    """Check a preallocated output of one or two dimensions, whose strides keep its elements apart."""
    check_tensor(name, x, dtypes, None)
    check_shape(name, x, shape)
    check_device(name, x, device)
    if not x.is_contiguous() and x.numel() > 0:
        check_rows_apart(name, x)


def check_rows_apart(name, x):
    """Raise if two elements of one or two dimensions share memory."""
    sizes, strides, last = x.shape, x.stride(), x.ndim - 1
    inner = 0 if strides[0] < strides[last] else last
    outer = last - inner  # with one dimension, both are it
    apart = strides[inner] >= 1 or sizes[inner] <= 1
    if last and sizes[outer] > 1:
        apart = apart and strides[outer] >= max(1, sizes[inner] * strides[inner])
    if not apart:
        raise ValueError(f"{name}: expected rows that share no memory; got strides {strides}")


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


# The error of a softmaxed row's sum: half precision rounds each number by 2^-9 of itself (bfloat16), or by 2^-25
# (float16's least, of which there may be 2^18), and such a row may have been widened since. Numbers that are uniform in
# [0, 1] look softmaxed in 8 rows of 1,000 if there are three, in 3 of a million if there are SHORTEST: their sum's
# density at 1 is 1/(n - 1)!. Few long rows are summed: one of their first numbers is negative.
SUM_SLACK, SHORTEST, LOOKED_AT = 2**-7, 8, 64


def check_logits(name, rows, space):
    """The first step of ``check=True``: waits for the device, raises if a row given as logits is a softmaxed one."""
    if space != "logits" or rows is None or rows.shape[-1] < SHORTEST:
        return
    suspects = (rows[..., :LOOKED_AT] >= 0).all(-1)
    if bool(suspects.any()):
        rows = rows[suspects]
        raise_for_softmaxed(name, *rows.aminmax(dim=-1), rows.sum(-1, dtype=torch.float32), suspects.nonzero())


def raise_for_softmaxed(name, low, high, total, indices):
    """Raise if a row with one of these least and largest numbers and sums is softmaxed."""
    # A row of equal numbers, or with a single 1, is none: it has the same law or the same argmax either way.
    wrong = (low >= 0) & (low < high) & (high < 1) & ((total - 1).abs() <= SUM_SLACK)
    if bool(wrong.any()):
        raise ValueError(
            f"{name}{indices[wrong][0].tolist()}: expected logits; got probabilities, for none is negative and they "
            "sum to 1 (take log(), or say space='probs' where there is a space; of logits that look so subtract a "
            "constant)"
        )
