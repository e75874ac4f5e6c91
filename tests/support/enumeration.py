"""Exact laws of the oracle's decisions: every uniform and every draw it could meet, weighted by probability.

The oracle's own code runs. Its uniforms are replaced by one value from each interval between the points where a
decision could change, its races by each token in turn; the seed of a case is its number. The law of what is emitted
then is a finite sum.
"""

from itertools import pairwise, product
from typing import NamedTuple

import pytest
import torch

from specdec_kernels.backends import reference
from specdec_kernels.backends.reference import laws, noise
from specdec_kernels.calls.values import Edit, Law, Noise
from tests.support.calls import backends_call

PROBS = Law("probs", 1.0)


class Given(NamedTuple):
    """How the oracle is given the laws of a target and a draft: what its rows hold, and at which temperatures."""

    target: Law = PROBS
    draft: Law = PROBS
    draft_map: torch.Tensor | None = None

    def rows(self, p, q):
        """Rows that become these probabilities; of the draft those of the tokens it knows."""
        return rows_of(p, self.target), rows_of(q if self.draft_map is None else q[..., self.draft_map], self.draft)


def rows_of(probabilities, law):
    """At temperature 0 the one token is the largest of either kind of row."""
    return probabilities if law.space == "probs" or law.temperature == 0 else law.temperature * probabilities.log()


AS_PROBS = Given()


def shares_of(weights):
    """Laws of rows of weights; of a row without weight any token may come."""
    total = weights.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, weights / total, 1 / weights.shape[-1])


def output_law(contexts, draft_lengths, draft_prob=1.0, epsilon=0.0, given=AS_PROBS):
    """{emitted tokens: probability} of one round that drafts l tokens with probability ``draft_lengths[l]``.

    draft_prob [K] is what verification is told about it: the probability that slot j is drafted if it is reached.
    """
    slots = len(draft_lengths) - 1
    draft_prob = torch.as_tensor(draft_prob, dtype=torch.float32).expand(slots)

    def decide(drafts, p_rows, q_rows):
        law = {}
        for length, chance in enumerate(draft_lengths):
            drafted = list(drafts[:length]) + [-1] * (slots - length)
            for emitted, probability in decisions(drafted, p_rows, q_rows, draft_prob, epsilon, given).items():
                law[emitted] = law.get(emitted, 0.0) + chance * probability
        return law

    return contexts.round(slots, decide)


def decisions(drafts, p_rows, q_rows, draft_prob, epsilon, given):
    """{emitted tokens: probability} for given drafts (-1 ends them), p_rows [K+1, V] and q_rows [K, V]."""
    slots, vocabulary = q_rows.shape
    thresholds = ((p_rows[:-1] + epsilon) / (draft_prob.double().unsqueeze(-1) * q_rows)).flatten()
    edges = sorted({0.0, 1.0, *thresholds[(thresholds > 0) & (thresholds < 1)].tolist()})
    cells = [((low + high) / 2, high - low) for low, high in pairwise(edges)]
    cases = list(product(product(cells, repeat=slots), range(vocabulary)))
    forced = torch.tensor([token for _, token in cases])
    uniform_table, widths = torch.tensor([uniforms for uniforms, _ in cases], dtype=torch.float64).unbind(-1)
    drawn_with = torch.zeros(len(cases), dtype=torch.float64)

    def uniforms(whose, stream, index):
        case = whose.seed
        return uniform_table[case, index] if index < slots else torch.zeros(len(case), dtype=torch.float64)

    def case_as_arrivals(whose, stream, size):
        return whose.seed.unsqueeze(-1)

    def draw(weights, case):
        case = case.squeeze(-1)
        drawn_with[case] = shares_of(weights).gather(-1, forced[case].unsqueeze(-1)).squeeze(-1)
        return forced[case]

    tokens = torch.empty(len(cases), slots + 1, dtype=torch.int64)
    num_accepted, status = torch.empty(2, len(cases), dtype=torch.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "uniforms", uniforms)
        patch.setattr(noise, "arrivals", case_as_arrivals)
        patch.setattr(laws, "draw", draw)
        target, draft = given.rows(p_rows, q_rows)
        call = backends_call(
            "verify_chain", draft_tokens=torch.tensor(drafts).expand(len(cases), -1),
            target=target.expand(len(cases), -1, -1), draft=draft.expand(len(cases), -1, -1), draft_map=given.draft_map,
            method="rejection", target_law=given.target, draft_law=given.draft, edits=Edit(), output_format=0,
            draft_prob=draft_prob.expand(len(cases), -1), epsilon=epsilon, noise=Noise(torch.arange(len(cases)), 0, 0),
            tokens=tokens, num_accepted=num_accepted, status=status,
        )  # fmt: skip
        reference.verify_chain(call)
    # The last draw of a case is the one that ended it, and the widths of uniforms that were not reached add up to one.
    law = {}
    for emitted, probability in zip(tokens.tolist(), (widths.prod(dim=-1) * drawn_with).tolist(), strict=True):
        key = tuple(token for token in emitted if token != -1)
        law[key] = law.get(key, 0.0) + probability
    return law
