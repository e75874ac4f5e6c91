"""Kept sets: a sampler says which tokens its filters kept, and a trainer takes the same law over the same set.

Run it: python examples/kept_sets.py
"""

import torch

import specdec_kernels as specdec
from specdec_kernels import LogitEdits, Sampling
from specdec_kernels.ops import Support


def sample(logits: torch.Tensor, sampling: Sampling, seed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Support]:
    """Tokens of rows, their log-probabilities under the filtered law, and the sets that the filters kept."""
    requests, vocabulary = logits.shape
    words = torch.empty(requests, -(-vocabulary // 32), dtype=torch.int32)
    support = Support(words, torch.empty(requests, dtype=torch.int32))
    tokens = specdec.race_sample(logits, seed=seed, position=0, sampling=sampling)
    return tokens, specdec.logprobs(logits, tokens, sampling=sampling, support=support).logprob, support


def of_trainer(logits: torch.Tensor, tokens: torch.Tensor, temperature: float, support: Support) -> torch.Tensor:
    """The tokens' log-probabilities in a trainer's logits, over the sampler's sets."""
    return specdec.logprobs(logits, tokens, temperature=temperature, edits=LogitEdits(allowed=support.bits)).logprob


def main() -> tuple[torch.Tensor, torch.Tensor]:
    """Ratios of trainer and sampler for equal models: over the sampler's sets, and over the whole vocabulary."""
    logits = 2 * torch.randn(256, 1000, generator=torch.Generator().manual_seed(0))
    sampling = Sampling(0.8, top_k=50, top_p=0.9)
    tokens, logprob, support = sample(logits, sampling, torch.arange(256))
    same_set = (of_trainer(logits, tokens, 0.8, support) - logprob).exp()
    whole = (specdec.logprobs(logits, tokens, temperature=0.8).logprob - logprob).exp()
    return same_set, whole


if __name__ == "__main__":
    same_set, whole = main()
    print(f"trainer / sampler over the kept sets: {same_set.min():.6f} to {same_set.max():.6f}")
    print(f"trainer / sampler over all tokens:    {whole.min():.6f} to {whole.max():.6f}")
