"""The oracle: every op in float64 and plain torch, on any device, written to be checked by eye.

Nothing is shared with the other backends: the noise, the laws and the rules are written here a second time, from the
maths, and every token of a race is evaluated. Each module holds the op of its name; ``noise`` and ``laws`` serve all,
``trees`` the ops on trees.
"""

from specdec_kernels.backends.reference.compact_kv import compact_kv
from specdec_kernels.backends.reference.overlap import overlap
from specdec_kernels.backends.reference.race_sample import race_sample
from specdec_kernels.backends.reference.race_topk import race_topk
from specdec_kernels.backends.reference.residual import residual
from specdec_kernels.backends.reference.tree_mask import tree_mask
from specdec_kernels.backends.reference.tree_positions import tree_positions
from specdec_kernels.backends.reference.verify_chain import verify_chain
from specdec_kernels.backends.reference.verify_tree import verify_tree

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
