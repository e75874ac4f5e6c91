"""FlashInfer's own file beside our functions: its kernels need a GPU, its signatures do not."""

import ast
import inspect

import pytest

from specdec_kernels.engines import flashinfer
from tests.engines.unpacked import functions, signature

NAMES = (
    "chain_speculative_sampling", "sampling_from_logits", "sampling_from_probs", "min_p_sampling_from_probs",
    "top_k_top_p_sampling_from_logits", "top_k_renorm_probs", "top_p_renorm_probs", "top_k_mask_logits",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_signature(name, table):
    """Every argument has the name, the place and the default that FlashInfer's has."""
    theirs = signature(functions("flashinfer/sampling.py")[name])
    source = ast.parse(inspect.getsource(getattr(flashinfer, name))).body[0]
    ours = signature(source)
    assert ours == theirs
    table("FlashInfer: signatures", {"function": name, "arguments": len(ours[0]), "the same": "yes"})
