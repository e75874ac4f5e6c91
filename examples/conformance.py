"""The conformance kit on our op, and on a verifier that takes the drafts' law for another one.

Run it: python examples/conformance.py
"""

from typing import Literal

import torch

import specdec_kernels as specdec
from specdec_kernels import Draft, LogitEdits, Sampling
from specdec_kernels.conformance import Batch, check


def ours(batch: Batch, method: Literal["rejection", "race", "block"] = "rejection") -> torch.Tensor:
    """`verify_chain`, with all that a batch asks for."""
    vocabulary = batch.target.shape[-1]
    mask, prompt = torch.zeros(2, len(batch.drafts), 1, dtype=torch.int32)
    counts = torch.zeros(len(batch.drafts), vocabulary, dtype=torch.int32)
    edits = LogitEdits(
        repetition=batch.repetition, frequency=batch.frequency, presence=batch.presence, prompt_mask=prompt,
        output_mask=mask, output_counts=counts,
    )  # fmt: skip
    specdec.count_tokens(edits, batch.prompt, prompt=True)
    specdec.count_tokens(edits, batch.output)
    draft = None if batch.draft is None or method == "race" else Draft(batch.draft, space="probs")
    return specdec.verify_chain(
        batch.drafts, batch.target, draft, method=method, seed=batch.seed, position=batch.position, edits=edits,
        sampling=Sampling(batch.temperature, batch.top_k, batch.top_p, batch.min_p),
    ).tokens  # fmt: skip


def race_draft(probs: torch.Tensor, seed: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Drafts by the noise that a race shares."""
    return specdec.race_sample(probs, seed=seed, position=position, space="probs")


def mistaken(batch: Batch) -> torch.Tensor:
    """Drafts are verified by another law than they were drawn from: that of another temperature."""
    assert batch.draft is not None
    q = batch.draft.sqrt()
    return ours(batch._replace(draft=q / q.sum(-1, keepdim=True)))


if __name__ == "__main__":
    print("verify_chain:", check(ours, draw=race_draft, trials=20_000), sep="\n")
    print("\nWith another law of the drafts:", check(mistaken, ["chain", "ends"], trials=20_000), sep="\n")
