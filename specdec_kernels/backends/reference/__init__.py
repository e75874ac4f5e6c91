"""The oracle: every op in float64 and plain torch, on any device, written to be checked by eye.

Nothing is shared with the other backends: the noise, the laws and the rules are written here a second time, from the
maths, and every token of a race is evaluated. Each module holds the op of its name; ``noise``, ``laws`` and
``requests`` serve all, ``trees`` the ops on trees. Chains and trees share their rules: rejection and races in ``walk``,
``traversal``, and ``paths``, the one of several chains.
"""

import importlib
import inspect
import pkgutil

import torch

from specdec_kernels.calls.denormals import with_denormals

__all__ = ["unsupported"]

for _name in [module.name for module in pkgutil.iter_modules(__path__)]:
    _function = getattr(importlib.import_module(f"{__name__}.{_name}"), _name, None)
    if _function and [*inspect.signature(_function).parameters] == ["call"]:
        globals()[_name] = with_denormals(torch.no_grad()(_function))
        __all__.append(_name)


def unsupported(op, call):
    """The reason why this backend cannot do a call, or None."""
    return None if op.name in __all__ else "it has whole ops alone, with which those of shards are compared"
