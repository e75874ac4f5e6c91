"""Kernels that verify speculative decoding: exact, reproducible, without writing anything of the vocabulary's size.

The ops of specdec-kernels in Triton, and in plain torch: on a GPU the first is chosen, on a CPU the second, which is
slow and exact. ``backend("reference")`` and ``backend("triton")`` choose for a ``with`` block.
"""

from .backends import available_backends, backend
from .ops import (
    Cut,
    Form,
    Logprobs,
    Overlap,
    Residual,
    TreeParents,
    TreeVerdict,
    Verdict,
    coin,
    compact_kv,
    count_tokens,
    cutoff,
    logprobs,
    mass_tiles,
    overlap,
    race_sample,
    race_topk,
    residual,
    residual_race,
    residual_sums,
    tile_laws,
    tree_mask,
    tree_parents,
    tree_positions,
    verify_chain,
    verify_links,
    verify_tree,
)
from .sampling import Edits, Sampling
from .status import Status

__all__ = [
    "Cut",
    "Edits",
    "Form",
    "Logprobs",
    "Overlap",
    "Residual",
    "Sampling",
    "Status",
    "TreeParents",
    "TreeVerdict",
    "Verdict",
    "available_backends",
    "backend",
    "coin",
    "compact_kv",
    "count_tokens",
    "cutoff",
    "logprobs",
    "mass_tiles",
    "overlap",
    "race_sample",
    "race_topk",
    "residual",
    "residual_race",
    "residual_sums",
    "tile_laws",
    "tree_mask",
    "tree_parents",
    "tree_positions",
    "verify_chain",
    "verify_links",
    "verify_tree",
]
