"""The backends, the choice of one for a call, and a call's way to it.

A backend is a module with one function per op (``specdec_kernels.calls.op.OPS``). The function takes one argument, an
``Op.Call`` that ``specdec_kernels.ops`` has checked. It writes its results into the call's output tensors and returns
nothing. Numbers are a float or a float32 tensor, counters an int or an int64 or int32 tensor; an argument that is not
given is None. Beside rows [A, R, V], tensors of numbers are [A, R]. For chains (rows [B, K+1, V], ragged [D+B, V]) they
are [B], and ``draft_prob`` is [B, K], ragged [B, D]. They have any strides. Outputs are [rows] or [rows, columns].

A backend that cannot run everywhere has ``unavailable()``, one that cannot do every call has ``unsupported(op, call)``.
Both give the reason, or None. ``absent()`` is the part of ``unavailable()`` that touches no device.
"""

import contextlib
import contextvars
import functools
import importlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch

__all__ = ["BackendError", "available_backends", "backend", "build_info", "register", "run"]

_LOGGER = logging.getLogger("specdec_kernels")
# name -> (module, device types it takes)
_BACKENDS = {
    "cpu": ("specdec_kernels.backends.cpu", ("cpu",)),
    "cuda": ("specdec_kernels.backends.cuda", ("cuda",)),
    "triton": ("specdec_kernels.backends.triton", ("cuda", "cpu")),
    "reference": ("specdec_kernels.backends.reference", ("cpu", "cuda")),
}
_loaded: dict[str, Any] = {}
# op -> name of a block -> functions for direct calls, one for each backend that the block may mean
ran: dict[str, Any] = {}


class _Block:
    """A ``with backend(...)``."""

    __slots__ = ("name", "outer")

    def __init__(self, name, outer):
        self.name, self.outer = name, outer


class _Ended(_Block):
    """A block that has ended. Tasks that began inside and outlive it use the one around it."""

    __slots__ = ()
    name = property(lambda self: self.outer.name)


# Outside of any block the backend is that of $SPECDEC_BACKEND at import; None: the device decides.
_OUTSIDE = _Block(os.environ.get("SPECDEC_BACKEND") or None, None)
_block = contextvars.ContextVar("specdec_backend", default=_OUTSIDE)
block = _block.get  # its ``name`` names the backend


class BackendError(RuntimeError):
    """A backend cannot run here, or cannot do a call: the message names it and the reason."""


def register(name: str, module: Any, devices: Sequence[str]) -> None:
    """Add a backend: ``module`` is a module or the name of one, ``devices`` the device types it takes."""
    _BACKENDS[name] = (module, tuple(devices))
    _loaded.pop(name, None)
    _forget_direct()


def _forget_direct():
    for functions in ran.values():
        functions.clear()
    _direct.cache_clear()


def _check_name(name):
    if name not in _BACKENDS:
        raise ValueError(f"backend: expected one of {', '.join(sorted(_BACKENDS))}; got {name!r}")


def _module(name):
    module = _BACKENDS[name][0]
    return importlib.import_module(module) if isinstance(module, str) else module


def _load(name):
    module = _loaded.get(name)
    if module is None:
        module = _module(name)
        if reason := getattr(module, "unavailable", lambda: None)():
            raise BackendError(_not_available(name, reason))
        _loaded[name] = module
        _forget_direct()  # the name may have meant another module
    return module


def _not_available(name, reason):
    return f"backend {name!r} is not available: {reason}"


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Use one backend for every call inside the ``with`` block.

    The block is a value of ``contextvars``: it holds in the thread that entered it and in the asyncio tasks that are
    started inside, until it ends. Another thread has the block of its context: start it with
    ``contextvars.copy_context().run``, or Python (3.14, or free-threaded) with ``thread_inherit_context``.

    Parameters
    ----------
    name : str
        ``"cpu"``, ``"cuda"``, ``"triton"`` or ``"reference"`` (float64, slow, for checking). Outside of any block
        ``$SPECDEC_BACKEND`` decides, and without it the device of the tensors: ``cpu`` on a CPU; on a CUDA device
        ``cuda`` if it was built, else ``triton``.

    Raises
    ------
    ValueError
        For a name that is none of these.
    RuntimeError
        If that backend cannot run here; the message says why. It never falls back to another.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> logits = torch.tensor([0.0, 1.0, 2.0])
    >>> with specdec_kernels.backend("reference"):
    ...     token = specdec_kernels.race_sample(logits, seed=1, position=0)
    >>> bool(token == specdec_kernels.race_sample(logits, seed=1, position=0))
    True
    """
    _check_name(name)
    _load(name)
    entered = _Block(name, block())
    token = _block.set(entered)
    try:
        yield
    finally:
        entered.__class__ = _Ended
        _block.reset(token)


@functools.cache
def _cuda_runs():
    """Whether tensors on a CUDA device have the backend ``cuda``; if not, the log says so, once."""
    try:
        return _load("cuda") is not None
    except (ImportError, BackendError) as error:
        if torch.version.hip is None:  # AMD's devices have type "cuda", too
            _LOGGER.info(
                "calls on CUDA tensors run by backend 'triton', whose kernels are compiled at their first calls; a "
                "package with CUDA kernels for this device needs no compiling, and less time a call on the host (%s)",
                error,
            )
        return False


def _default(device_type):
    if device_type == "cpu":
        return "cpu"
    if device_type == "cuda":
        return "cuda" if _cuda_runs() else "triton"
    raise BackendError(f"device: expected cpu or cuda; got {device_type}")


def of_device(device_type):
    """The default backend for tensors on this type of device."""
    return _load(_default(device_type))


@functools.cache
def _direct(name, op):
    return _loaded[name].direct(op)


def run(op, call, device_type):
    """Run a call of an op on the backend for tensors on this type of device."""
    chosen = block().name
    name = chosen or _default(device_type)
    module = _loaded.get(name)
    if module is None:
        _check_name(name)
        module = _load(name)
    if device_type not in _BACKENDS[name][1]:
        raise BackendError(
            f"backend {name!r} takes tensors on {' or '.join(_BACKENDS[name][1])}; these are on {device_type}"
        )
    unsupported = getattr(module, "unsupported", None)
    if unsupported is not None and (reason := unsupported(op, call)):
        raise BackendError(f"backend {name!r} cannot do this {op.name}: {reason}")
    getattr(module, op.name)(call)
    if op.plan is not None and hasattr(module, "direct"):
        functions = op.ran.get(chosen, ())
        if (function := _direct(name, op)) not in functions:
            op.ran[chosen] = (*functions, function)


def _absent(name):
    """The reason why a backend cannot run here, or None; touches no device."""
    if name in _loaded:
        return None
    try:
        module = _module(name)
        reason = getattr(module, "absent", getattr(module, "unavailable", lambda: None))()
    except ImportError as error:
        return str(error)
    return _not_available(name, reason) if reason else None


def available_backends() -> list[str]:
    """The names of the backends that can run on this machine, now.

    Examples
    --------
    >>> import specdec_kernels
    >>> "reference" in specdec_kernels.available_backends()
    True
    """
    return [name for name in _BACKENDS if _absent(name) is None]


def build_info() -> dict[str, Any]:
    """The build: its compilers, its machines, and the backends that run on this one.

    Returns
    -------
    dict
        ``version``, ``torch``, ``compiler``, ``flags``, ``isas`` (compiled), ``isa`` (in use), ``cuda``,
        ``cuda_archs``, ``backends`` (name to None, or to the reason why it cannot run here) and more.

    Examples
    --------
    >>> import specdec_kernels
    >>> specdec_kernels.build_info()["backends"]["cpu"] is None
    True
    """
    import specdec_kernels
    import specdec_kernels._C as _C

    return {
        "version": specdec_kernels.__version__,
        "torch": torch.__version__,
        **json.loads(_C.build_info()),
        "isa": _C.isa(),
        "backends": {name: _absent(name) for name in _BACKENDS},
    }
