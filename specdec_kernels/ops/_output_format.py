"""Checks of ``output_format=``, how a verdict is written into an engine's buffers."""

import torch

from specdec_kernels.calls import inputs
from specdec_kernels.calls.values import ADDED, EMITTED, ZEROS
from specdec_kernels.layout import OutputFormat

PLAIN = OutputFormat()


def checked(output_format, given, shape):
    """(output_format, the bits of its choices, the shape of tokens): of ``given`` outputs, or of paths, ``shape``."""
    if output_format is None:
        return PLAIN, 0, shape
    inputs.check_type("output_format", output_format, OutputFormat)
    inputs.check_choice("output_format.count", output_format.count, ("accepted", "emitted"))
    zeros, add = (inputs.flag(f"output_format.{name}", getattr(output_format, name)) for name in ("zeros", "add"))
    if add and given[-2] is None:
        raise ValueError("out.num_accepted: expected a counter with output_format.add=True; got None")
    bits = EMITTED * (output_format.count == "emitted") | ADDED * add | ZEROS * zeros
    if output_format.index is None:
        return output_format, bits, shape
    if not isinstance(given[0], torch.Tensor) or given[0].ndim != 1:
        raise ValueError(f"out.tokens: expected one dimension with output_format.index; got {inputs.shown(given[0])}")
    return output_format, bits, given[0].shape


def check_bonus(by_rows, by_input):
    """Raise for arguments with an item for each row, which a call with a bonus token does not take."""
    if by_rows:
        raise ValueError("packing.cu_rows: expected None with output_format.bonus; got a tensor")
    if by_input:
        raise ValueError(
            "position: expected an int or a tensor of int64 or int32 with output_format.bonus; got InputPositions"
        )


def is_empty(output_format):
    """Whether there is an index without requests. It has no address, so native code would read it as None."""
    return output_format.index is not None and output_format.index.numel() == 0


def check_tree(output_format):
    """Raise for fields that trees return elsewhere, or not at all."""
    for name in ("path", "num_passed", "bonus"):
        if getattr(output_format, name) is not None:
            raise ValueError(
                f"output_format.{name}: expected None for trees; got {inputs.shown(getattr(output_format, name))}"
            )
