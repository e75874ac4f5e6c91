"""How an op reaches torch: one schema, one implementation that asks the backends, one that does nothing on meta tensors.

``Library.define`` and ``impl`` cost a call about 2 µs; ``torch.library.custom_op`` costs about 14.
"""

import torch

from specdec_kernels import backends

_library = torch.library.Library("specdec", "DEF")  # noqa: TOR901  (kept for as long as the module lives)


def define(name, schema, merge):
    """Register ``specdec::name``; returns the callable overload.

    Parameters
    ----------
    name : str
        The op, and the backends' function.
    schema : str
        Arguments of the schema. Every output is an argument that the op mutates; it returns nothing.
    merge : callable
        Maps the schema's arguments to the backend function's.
    """
    _library.define(f"{name}({schema}) -> ()", tags=(torch.Tag.pt2_compliant_tag,))

    def implement(device_type):
        def call(*args):
            getattr(backends.active(device_type), name)(*merge(*args))

        return call

    _library.impl(name, implement("cpu"), "CPU")
    _library.impl(name, implement("cuda"), "CUDA")
    _library.impl(name, lambda *args: None, "Meta")
    return getattr(torch.ops.specdec, name).default
