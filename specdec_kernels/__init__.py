"""Kernels that verify speculative decoding: exact, reproducible, without writing anything of the vocabulary's size."""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec_kernels.backends import available_backends, backend, build_info
    from specdec_kernels.layout import InputPositions, OutputFormat, Packing
    from specdec_kernels.ops.build_tree import build_tree
    from specdec_kernels.ops.compact_kv import compact_kv
    from specdec_kernels.ops.context_seeds import context_seeds
    from specdec_kernels.ops.count_tokens import count_tokens
    from specdec_kernels.ops.cutoff import cutoff
    from specdec_kernels.ops.logprobs import logprobs
    from specdec_kernels.ops.mask_logits import mask_logits
    from specdec_kernels.ops.merge_chains import merge_chains
    from specdec_kernels.ops.overlap import overlap
    from specdec_kernels.ops.race_sample import race_sample
    from specdec_kernels.ops.race_topk import race_topk
    from specdec_kernels.ops.residual import residual
    from specdec_kernels.ops.store_rows import store_rows
    from specdec_kernels.ops.tree_mask import tree_mask
    from specdec_kernels.ops.tree_parents import tree_parents
    from specdec_kernels.ops.tree_positions import tree_positions
    from specdec_kernels.ops.uniform import uniform
    from specdec_kernels.ops.verify_chain import verify_chain
    from specdec_kernels.ops.verify_linked_tree import verify_linked_tree
    from specdec_kernels.ops.verify_tree import verify_tree
    from specdec_kernels.sampling import Draft, LogitEdits, Sampling, draft_map
    from specdec_kernels.status import Status
    from specdec_kernels.trees import DraftTree

__all__ = [
    "Draft",
    "DraftTree",
    "InputPositions",
    "LogitEdits",
    "OutputFormat",
    "Packing",
    "Sampling",
    "Status",
    "available_backends",
    "backend",
    "build_info",
    "build_tree",
    "compact_kv",
    "context_seeds",
    "count_tokens",
    "cutoff",
    "draft_map",
    "logprobs",
    "mask_logits",
    "merge_chains",
    "overlap",
    "race_sample",
    "race_topk",
    "residual",
    "store_rows",
    "tree_mask",
    "tree_parents",
    "tree_positions",
    "uniform",
    "verify_chain",
    "verify_linked_tree",
    "verify_tree",
]
__version__ = "0.1.0"

if not TYPE_CHECKING:

    def _check_place(module: Any, *expected: str) -> None:
        """Raise if a part lies elsewhere: an installation's finder supplies what a checkout on PYTHONPATH lacks."""
        folder, wanted = (os.path.dirname(os.path.realpath(file)) for file in (module.__file__, __file__))
        if folder not in [os.path.normpath(os.path.join(wanted, name)) for name in expected]:
            raise ImportError(
                f"{module.__name__}: expected it beside {wanted}, from which {__name__} was imported; got {folder} "
                "(build that checkout, or take it off PYTHONPATH)"
            )

    _check_place(importlib.import_module(f"{__name__}._C"), ".")

    _MODULES = ("backends", "headers", "layout", "ops", "sampling", "status", "trees")
    _PLACES = dict.fromkeys(__all__, "ops") | {
        "Draft": "sampling", "DraftTree": "trees", "LogitEdits": "sampling", "OutputFormat": "layout",
        "InputPositions": "layout",
        "Packing": "layout", "Sampling": "sampling", "Status": "status", "available_backends": "backends",
        "backend": "backends", "build_info": "backends", "draft_map": "sampling",
    }  # fmt: skip

    def __getattr__(name: str) -> Any:
        """Import a public name at its first use: `theory`, `headers` and the command line's help need no torch."""
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_MODULES})
