"""Walks by tables. Tables are small, so copies of them go to the op of the CPU, and the host waits for the device."""

import torch

from specdec_kernels import backends
from specdec_kernels.calls.op import OPS


def walk_tables(call):
    """All outputs of ``ops.walk_tables``."""
    host = call._make(_on_host(value) for value in call)
    backends.of_device("cpu").walk_tables(host)
    for kind, output, result in zip(OPS["walk_tables"].arguments.values(), call, host, strict=True):
        if kind.written and output is not None and output is not result:
            output.copy_(result)


def _on_host(value):
    if isinstance(value, tuple):
        return value._make(map(_on_host, value))
    return value.cpu() if isinstance(value, torch.Tensor) else value
