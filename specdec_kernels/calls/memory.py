"""Checks that an output shares no byte with another output or an input of its call."""

import operator
from itertools import pairwise

import numpy as np
import torch

SCALARS = frozenset((type(None), str, int, float, bool))


def check_apart(arguments, call):
    """Raise ValueError if an output of ``call`` shares memory with another one, or with an input."""
    # ``_C.apart`` decides most calls from where tensors begin and end. Here bytes are compared where these spans meet.
    read, written = [], []
    for (name, kind), value in zip(arguments.items(), call, strict=True):
        if type(value) in SCALARS:
            continue
        spans = written if kind.written else read
        if isinstance(value, torch.Tensor):
            spans.append(_span(value, kind.shown or name))
        else:  # a group, or a list of tensors
            names = getattr(value, "_fields", None) or [kind.shown] * len(value)
            spans += [_span(x, names[i]) for i, x in enumerate(value) if type(x) not in SCALARS]
    written.sort(key=operator.itemgetter(0))
    for one, other in pairwise(written):
        if other[0] < one[1]:
            _check_written(written)
            break
    for first, end, name, x in read:
        for output_first, output_end, output, output_tensor in written:
            if first < output_end and output_first < end and _overlap(output_tensor, x):
                raise _shared(output, name)


def _span(x, name):
    """(first byte, byte after the last, name, tensor) of the span of a tensor's memory; nothing if it is empty."""
    first = x.data_ptr()
    if x.is_contiguous():
        return first, first + x.nbytes, name, x
    elements = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return first, first + (elements * x.itemsize if x.numel() else 0), name, x


def _shared(output, other):
    return ValueError(f"{output}: expected memory of its own; got some of {other}'s")


def _check_written(spans):
    """Raise if two outputs overlap. If any intervals do, then two neighbours in order of their starts do."""
    runs = [_runs(x) for _, _, _, x in spans]
    starts = np.concatenate([start for start, _ in runs])
    ends = np.concatenate([start + length for start, length in runs])
    owners = np.repeat(np.arange(len(runs)), [len(start) for start, _ in runs])
    order = np.argsort(starts, kind="stable")
    starts, ends, owners = starts[order], ends[order], owners[order]
    meeting = np.flatnonzero(starts[1:] < ends[:-1])
    if meeting.size:
        one, other = owners[meeting[0] : meeting[0] + 2]
        raise _shared(spans[other][2], spans[one][2])


def _overlap(output, x):
    """Whether an output and an input share a byte. The runs of an output do not overlap each other."""
    (starts, length), (others, other_length) = _runs(output), _runs(x)
    if not len(starts):
        return False
    starts.sort()
    before = np.searchsorted(starts, others + other_length) - 1  # the last run that starts before the other's end
    return bool(((before >= 0) & (starts[before] + length > others)).any())


def _runs(x):
    """A tensor as runs of bytes: where each starts, and how long all are."""
    length, dimensions = x.itemsize, []
    for size, stride in sorted(zip(x.shape, x.stride(), strict=True), key=lambda dimension: dimension[1]):
        if (not dimensions and stride * x.itemsize == length) or size == 1:
            length *= size
        else:
            dimensions.append((size, stride * x.itemsize))
    starts = np.array([x.data_ptr()] if x.numel() else [], dtype=np.int64)
    for size, stride in dimensions:
        starts = (starts[:, None] + stride * np.arange(size)).ravel()
    return starts, length
