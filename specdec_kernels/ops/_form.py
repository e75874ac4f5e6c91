"""Checks of ``form=``, how a verdict is written where an engine wants it otherwise."""

import torch

from specdec_kernels.calls import inputs
from specdec_kernels.calls.values import ADDED, EMITTED, ZEROS
from specdec_kernels.layout import Form

PLAIN = Form()


def checked(form, out, shape):
    """(form, the bits of its choices, the shape of tokens) for paths of this ``shape``."""
    if form is None:
        return PLAIN, 0, shape
    inputs.check_type("form", form, Form)
    inputs.check_choice("form.count", form.count, ("accepted", "emitted"))
    zeros, add = (inputs.flag(f"form.{name}", getattr(form, name)) for name in ("zeros", "add"))
    given = (None,) * 3 if out is None else out
    if add and given[-2] is None:
        raise ValueError("out.num_accepted: expected a counter with form.add=True; got None")
    bits = EMITTED * (form.count == "emitted") | ADDED * add | ZEROS * zeros
    if form.index is None:
        return form, bits, shape
    if not isinstance(given[0], torch.Tensor) or given[0].ndim != 1:
        raise ValueError(f"out.tokens: expected one dimension with form.index; got {inputs.shown(given[0])}")
    return form, bits, given[0].shape


def check_bonus(by_rows, by_input):
    """A call with a bonus token has nothing with one item for each row."""
    if by_rows:
        raise ValueError("packing.cu_rows: expected None with form.bonus; got a tensor")
    if by_input:
        raise ValueError("position: expected an int or a tensor of int64 or int32 with form.bonus; got InputPositions")


def is_empty(form):
    """Whether there is an index, of no requests. It has no address, so native code would take it for none."""
    return form.index is not None and form.index.numel() == 0


def check_tree(form):
    """Trees have these elsewhere, or not at all."""
    for name in ("path", "num_passed", "bonus"):
        if form is not PLAIN and getattr(form, name) is not None:
            raise ValueError(f"form.{name}: expected None for trees; got {inputs.shown(getattr(form, name))}")
