"""The public ops: one file each, with its declaration, docstring, checks and one call. ``OPS`` has them by name."""

from specdec_kernels.ops._declaration import OPS, Law, Noise
from specdec_kernels.ops.compact_kv import compact_kv
from specdec_kernels.ops.overlap import Overlap, overlap
from specdec_kernels.ops.race_sample import race_sample
from specdec_kernels.ops.race_topk import race_topk
from specdec_kernels.ops.residual import Residual, residual
from specdec_kernels.ops.tree_mask import tree_mask
from specdec_kernels.ops.tree_positions import tree_positions
from specdec_kernels.ops.verify_chain import Verdict, verify_chain
from specdec_kernels.ops.verify_tree import TreeVerdict, verify_tree

__all__ = [
    "OPS",
    "Law",
    "Noise",
    "Overlap",
    "Residual",
    "TreeVerdict",
    "Verdict",
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
