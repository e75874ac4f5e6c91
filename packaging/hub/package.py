"""Kernels that verify speculative decoding: exact, reproducible, without writing anything of the vocabulary's size.

The ops of specdec-kernels in Triton for GPUs, and compiled for CPUs; where nothing compiled fits, in plain torch, slow
and exact. ``backend("reference")``, or another of ``available_backends()``, chooses for a ``with`` block.
"""

from .backends import available_backends, backend
from .layout import InputPositions, Packing
from .ops import (
    Form,
    build_tree,
    coin,
    compact_kv,
    context_seeds,
    count_tokens,
    cutoff,
    logprobs,
    mask_logits,
    merge_paths,
    overlap,
    race_sample,
    race_topk,
    residual,
    store_rows,
    tree_mask,
    tree_parents,
    tree_positions,
    verify_chain,
    verify_links,
    verify_tree,
)
from .sampling import Draft, Edits, Sampling
from .status import Status

__all__ = [
    "Draft",
    "Edits",
    "Form",
    "InputPositions",
    "Packing",
    "Sampling",
    "Status",
    "available_backends",
    "backend",
    "build_tree",
    "coin",
    "compact_kv",
    "context_seeds",
    "count_tokens",
    "cutoff",
    "logprobs",
    "mask_logits",
    "merge_paths",
    "overlap",
    "race_sample",
    "race_topk",
    "residual",
    "store_rows",
    "tree_mask",
    "tree_parents",
    "tree_positions",
    "verify_chain",
    "verify_links",
    "verify_tree",
]
