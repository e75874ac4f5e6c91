"""Writes specdec_kernels/calls/typed.pyi from the declarations of the ops: ``python -m tests.support.call_types``."""

from pathlib import Path

import torch

import specdec_kernels.sharded
from specdec_kernels.calls.op import OPS

PLACE = Path(specdec_kernels.__file__).parent / "calls" / "typed.pyi"
HEAD = '''"""Written by ``python -m tests.support.call_types`` from the declarations of the ops."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from specdec_kernels.calls.values import Edit, Law, Noise

# ruff: noqa: UP014
# fmt: off
'''


def name_of(annotation):
    """The annotation in typed.pyi."""
    if annotation is torch.Tensor:
        return "Tensor"
    if parts := getattr(annotation, "__args__", ()):
        names = [name_of(part) for part in parts]
        return f"Sequence[{names[0]}]" if len(names) == 1 else " | ".join(names)
    return "None" if annotation is type(None) else annotation.__name__


def class_of(op):
    name = op.name.title().replace("_", "")
    fields = [f'("{field}", {name_of(annotation)}),' for field, annotation in op.Call.__annotations__.items()]
    lines = [f'{name} = NamedTuple("{name}", [']
    for field in fields:
        if len(lines) == 1 or len(lines[-1]) + len(field) >= 120:
            lines.append("   ")
        lines[-1] += f" {field}"
    return "\n".join([*lines, "])\n"])


def text():
    return "\n".join([HEAD, *(class_of(op) for _, op in sorted(OPS.items()))])


if __name__ == "__main__":
    PLACE.write_text(text(), encoding="utf-8")
