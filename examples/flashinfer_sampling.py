"""A round of speculative decoding with FlashInfer's functions, served by ours.

Run it: python examples/flashinfer_sampling.py

The functions have FlashInfer's names and signatures, and run on CPU tensors as well. Where FlashInfer is installed,
``flashinfer.install()`` puts them into it, for engines that call it.
"""

import torch

from specdec_kernels.engines import flashinfer

BATCH, DRAFTS, VOCABULARY = 8, 4, 32_000


def main() -> None:
    generator = torch.Generator().manual_seed(1)
    target = 3 * torch.randn(BATCH, DRAFTS + 1, VOCABULARY, generator=generator)
    draft = target[:, :DRAFTS] + torch.randn(BATCH, DRAFTS, VOCABULARY, generator=generator)

    # FlashInfer verifies probabilities, after their filters.
    p, q = (flashinfer.top_k_renorm_probs(x.softmax(-1).flatten(0, 1), 50).view(x.shape) for x in (target, draft))
    rows = draft.flatten(0, 1)
    drafts = flashinfer.top_k_top_p_sampling_from_logits(rows, 50, 1.0, seed=7, offset=0).view(BATCH, DRAFTS)

    accepted = torch.zeros(BATCH, dtype=torch.int32)
    emitted = torch.zeros(BATCH, dtype=torch.int32)
    tokens, _, _ = flashinfer.chain_speculative_sampling(q, drafts, p, accepted, emitted, seed=7, offset=64)
    if not torch.equal((tokens >= 0).sum(1), emitted + 1):
        raise SystemExit("tokens: expected one more than were emitted of the drafts")
    print(f"{int(emitted.sum())} of {BATCH * DRAFTS} drafts were emitted, {int(accepted.sum())} pass their own test")

    # Filters in the sampler itself: one call, and nothing of the size of the vocabulary is written.
    row = flashinfer.top_k_top_p_sampling_from_logits(target[:, 0], 50, 0.9, None, "joint", seed=7, offset=1)
    print(f"plain sampling: {row.tolist()}")


if __name__ == "__main__":
    main()
