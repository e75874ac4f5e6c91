"""The public ops: one file each, with its declaration, docstring, checks and one call.

Each raises a ``TypeError`` or a ``ValueError`` that names the argument, the expected value and the given one, and a
``RuntimeError`` if the backend cannot run the call here. ``check=True`` waits for the result and raises a
``RuntimeError`` if a status bit is set, and a ``ValueError`` if rows given as logits are probabilities. ``space`` says
what rows hold (``docs/ops.md``). The names are written out because type checkers and the documents read them from the
text.
"""

from specdec_kernels.layout import OutputFormat
from specdec_kernels.ops.build_tree import BuiltTrees, build_tree
from specdec_kernels.ops.compact_kv import compact_kv
from specdec_kernels.ops.context_seeds import context_seeds
from specdec_kernels.ops.count_tokens import count_tokens
from specdec_kernels.ops.cutoff import Cut, cutoff
from specdec_kernels.ops.logprobs import Logprobs, Support, logprobs
from specdec_kernels.ops.mask_logits import mask_logits
from specdec_kernels.ops.merge_chains import MergedChains, merge_chains
from specdec_kernels.ops.overlap import Overlap, overlap
from specdec_kernels.ops.race_sample import race_sample
from specdec_kernels.ops.race_topk import race_topk
from specdec_kernels.ops.residual import Residual, residual
from specdec_kernels.ops.store_rows import store_rows
from specdec_kernels.ops.tree_mask import tree_mask
from specdec_kernels.ops.tree_parents import TreeParents, tree_parents
from specdec_kernels.ops.tree_positions import tree_positions
from specdec_kernels.ops.uniform import uniform
from specdec_kernels.ops.verify_chain import Verdict, verify_chain
from specdec_kernels.ops.verify_linked_tree import verify_linked_tree
from specdec_kernels.ops.verify_tree import TreeVerdict, verify_tree

__all__ = [
    "BuiltTrees", "Cut", "Logprobs", "MergedChains", "OutputFormat", "Overlap", "Residual", "Support",
    "TreeParents", "TreeVerdict", "Verdict", "build_tree", "compact_kv", "context_seeds", "count_tokens", "cutoff",
    "logprobs", "mask_logits", "merge_chains", "overlap", "race_sample", "race_topk", "residual", "store_rows",
    "tree_mask", "tree_parents", "tree_positions", "uniform", "verify_chain", "verify_linked_tree", "verify_tree",
]  # fmt: skip
