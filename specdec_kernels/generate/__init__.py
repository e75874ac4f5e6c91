"""A reference generator: speculative decoding of Hugging Face models on the public ops, in a few hundred lines."""

from specdec_kernels.generate.drafting import DraftPlan, FixedLength, ModelDrafter, NgramDrafter, RandomLength
from specdec_kernels.generate.loop import Generation, Round, generate, stream
from specdec_kernels.generate.models import LanguageModel, check_vocabularies, load_model

__all__ = [
    "DraftPlan",
    "FixedLength",
    "Generation",
    "LanguageModel",
    "ModelDrafter",
    "NgramDrafter",
    "RandomLength",
    "Round",
    "check_vocabularies",
    "generate",
    "load_model",
    "stream",
]
