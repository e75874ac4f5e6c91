"""Outputs have memory of their own: what a caller gives is compared, byte for byte, with all else of the call."""

from itertools import pairwise

import numpy as np
import torch


def check_apart(arguments, call):
    """Raise ValueError if an output of ``call`` shares memory with another one, or with an input."""
    written, read = [], []  # (first byte, byte after the last, name, tensor)
    for (name, kind), value in zip(arguments.items(), call, strict=True):
        entries = written if kind.written else read
        if isinstance(value, torch.Tensor):
            entries.append((*_span(value), kind.shown or name, value))
        elif isinstance(value, tuple):
            entries += [
                (*_span(part), field, part)
                for field, part in zip(value._fields, value, strict=True)
                if isinstance(part, torch.Tensor)
            ]
        elif isinstance(value, list):
            entries += [(*_span(part), kind.shown, part) for part in value]
    written.sort(key=_start)
    if any(b[0] < a[1] for a, b in pairwise(written)):
        _check_written([(name, x) for _, _, name, x in written])
    for first, end, name, x in read:
        for own_first, own_end, output, own in written:
            if first < own_end and own_first < end and _meet(own, x):
                raise ValueError(f"{output}: expected memory of its own; got some of {name}'s")


def _start(entry):
    return entry[0]


def _span(x):
    """(first byte, byte after the last) of all that a tensor could touch; empty tensors touch nothing."""
    first = x.data_ptr()
    if x.is_contiguous():
        return first, first + x.nbytes
    elements = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return first, first + (elements * x.itemsize if x.numel() else 0)


def _check_written(outputs):
    """None of these [(name, tensor)] meets another; sorted by start, intervals that meet have neighbours that do."""
    runs = [_runs(x) for _, x in outputs]
    starts = np.concatenate([start for start, _ in runs])
    ends = np.concatenate([start + length for start, length in runs])
    owners = np.repeat(np.arange(len(runs)), [len(start) for start, _ in runs])
    order = np.argsort(starts, kind="stable")
    starts, ends, owners = starts[order], ends[order], owners[order]
    meeting = np.flatnonzero(starts[1:] < ends[:-1])
    if meeting.size:
        one, other = (outputs[owner][0] for owner in sorted(owners[meeting[0] : meeting[0] + 2], reverse=True))
        raise ValueError(f"{one}: expected memory of its own; got some of {other}'s")


def _meet(x, y):
    """Whether two tensors share a byte; the runs of ``x`` are known not to meet each other."""
    (starts, length), (others, other_length) = _runs(x), _runs(y)
    starts = np.sort(starts)
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
