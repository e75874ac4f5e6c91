"""Checkers of laws, shared by every op's tests, and the laws of algorithms.md section 7."""

import numpy as np
import torch
from scipy import stats

from specdec_kernels.conformance import chi_squared

# Probability that a right law is called wrong, per check. All draws are seeded: a check that passes passes again.
FALSE_ALARM = 1e-6

P = torch.tensor([0.4, 0.3, 0.2, 0.1])
Q = torch.tensor([0.1, 0.2, 0.3, 0.4])


def follows_law(tokens, law, false_alarm=FALSE_ALARM):
    """Whether ``tokens`` look drawn from ``law``: Pearson's chi-squared, and no token of probability 0 at all."""
    return counts_follow(np.bincount(np.asarray(tokens).ravel(), minlength=len(law)), law, false_alarm)


def counts_follow(counts, law, false_alarm=FALSE_ALARM):
    """`follows_law` for counts of the tokens."""
    return chi_squared(counts, law)[2] >= false_alarm


def assert_law(tokens, law, false_alarm=FALSE_ALARM):
    assert follows_law(tokens, law, false_alarm), (
        f"drawn {np.bincount(np.asarray(tokens).ravel(), minlength=len(law))}, law {np.asarray(law)}"
    )


def has_rate(hits, rate, false_alarm=FALSE_ALARM):
    """Whether booleans look drawn with probability ``rate`` (exact binomial test)."""
    hits = np.asarray(hits)
    return stats.binomtest(int(hits.sum()), hits.size, rate).pvalue >= false_alarm


def assert_rate(hits, rate, false_alarm=FALSE_ALARM):
    assert has_rate(hits, rate, false_alarm), f"rate {np.asarray(hits).mean()} of {np.size(hits)}, expected {rate}"


def random_laws(generator, *shape, dtype=torch.float32):
    """Laws [..., V] with all probabilities well above 0."""
    return torch.randn(*shape, generator=generator, dtype=dtype).softmax(dim=-1)
