"""A reference generator: speculative decoding of Hugging Face models on the public ops, in a few hundred lines."""

from specdec_kernels.generate.control import Controller, TreeController
from specdec_kernels.generate.drafters import CachedNgramDrafter, ModelDrafter, NgramCache, NgramDrafter
from specdec_kernels.generate.edits import TextEdits
from specdec_kernels.generate.loop import generate, stream
from specdec_kernels.generate.models import LanguageModel, check_vocabularies, early_exit, load_model
from specdec_kernels.generate.policies import FixedLength, FixedTree, RandomLength
from specdec_kernels.generate.protocols import ChainPolicy, Drafter, DraftPlan, Drafts, TreeDrafter, TreePolicy
from specdec_kernels.generate.results import Generation, Round, TokenLogprobs, VerifiedTree

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
    "RandomLength",
    "Round",
    "TextEdits",
    "TokenLogprobs",
    "TreeController",
    "TreeDrafter",
    "TreePolicy",
    "VerifiedTree",
    "check_vocabularies",
    "early_exit",
    "generate",
    "load_model",
    "stream",
]
