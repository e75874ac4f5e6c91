"""A batch generator: speculative decoding of Hugging Face models on the public ops. ``minimal`` is the reference.

Models of Hugging Face need transformers, which is imported at the first use of one of their names. Any other object
with the interface of ``LanguageModel`` works as well.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from specdec_kernels.generate.control import Controller, PathController, TreeController
from specdec_kernels.generate.drafters import (
    CachedNgramDrafter,
    ModelDrafter,
    NgramCache,
    NgramDrafter,
    ParallelDrafter,
)
from specdec_kernels.generate.edits import TextEdits
from specdec_kernels.generate.loop import generate, stream
from specdec_kernels.generate.noise import Watermark
from specdec_kernels.generate.policies import FixedLength, FixedTree, RandomLength
from specdec_kernels.generate.protocols import ChainPolicy, Drafter, DraftPlan, Drafts, TreeDrafter, TreePolicy
from specdec_kernels.generate.results import Generation, Round, TokenLogprobs, VerifiedTree

if TYPE_CHECKING:
    from specdec_kernels.generate.derived import early_exit
    from specdec_kernels.generate.models import LanguageModel, check_vocabularies, load_model

__all__ = [
    "CachedNgramDrafter",
    "ChainPolicy",
    "Controller",
    "DraftPlan",
    "Drafter",
    "Drafts",
    "FixedLength",
    "FixedTree",
    "Generation",
    "LanguageModel",
    "ModelDrafter",
    "NgramCache",
    "NgramDrafter",
    "ParallelDrafter",
    "PathController",
    "RandomLength",
    "Round",
    "TextEdits",
    "TokenLogprobs",
    "TreeController",
    "TreeDrafter",
    "TreePolicy",
    "VerifiedTree",
    "Watermark",
    "check_vocabularies",
    "early_exit",
    "generate",
    "load_model",
    "stream",
]

_MODELS = dict.fromkeys(("LanguageModel", "check_vocabularies", "load_model"), "models") | {"early_exit": "derived"}


def __getattr__(name: str) -> Any:
    if name in _MODELS:
        return getattr(importlib.import_module(f"specdec_kernels.generate.{_MODELS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
