"""The ops in Triton, for any GPU that Triton reaches. One module per op; ``_math`` is the one Triton copy of the maths.

Installed as ``specdec_kernels.triton_kernels``. The functions have the names and arguments of every backend: outputs
are preallocated, nothing is checked, nothing is returned, the host never waits. ``specdec_kernels.backend("triton")``
is how they are meant to be reached.
"""

if __name__ != "specdec_kernels.triton_kernels":
    raise ImportError(
        f"import specdec_kernels.triton_kernels, not {__name__}: the bare name belongs to another project"
    )

from specdec_kernels.triton_kernels import _versions  # noqa: F401  first: an old Triton is reported by name
from specdec_kernels.triton_kernels.compact_kv import compact_kv
from specdec_kernels.triton_kernels.overlap import overlap
from specdec_kernels.triton_kernels.race_sample import race_sample
from specdec_kernels.triton_kernels.race_topk import race_topk
from specdec_kernels.triton_kernels.residual import residual
from specdec_kernels.triton_kernels.tree_mask import tree_mask
from specdec_kernels.triton_kernels.tree_positions import tree_positions
from specdec_kernels.triton_kernels.verify_chain import verify_chain
from specdec_kernels.triton_kernels.verify_tree import verify_tree

__all__ = [
    "compact_kv",
    "overlap",
    "race_sample",
    "race_topk",
    "residual",
    "tree_mask",
    "tree_positions",
    "verify_chain",
    "verify_tree",
]
