"""The ops in Triton, for any GPU that Triton reaches. One module per op; ``_math`` is the one Triton copy of the maths.

Installed as ``specdec_kernels.triton_kernels``. Each function has the name of its op and takes the op's call: outputs
are preallocated, nothing is checked, nothing is returned, the host never waits but for ``walk_tables``. To use them,
choose ``specdec_kernels.backend("triton")``.
"""

if __name__ != "specdec_kernels.triton_kernels":
    raise ImportError(
        f"import specdec_kernels.triton_kernels, not {__name__}: the bare name belongs to another project"
    )

import importlib
import pkgutil

from specdec_kernels.triton_kernels import _versions  # noqa: F401  first: an old Triton is reported by name

__all__ = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]

for _name in __all__:
    globals()[_name] = getattr(importlib.import_module(f"{__name__}.{_name}"), _name)
