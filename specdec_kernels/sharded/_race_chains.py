"""Chains verified by the race: the winner of every row is found, then the walk compares drafts with them.

Its rows are those of equal tokens at temperature 0, so 0 wins: a draft is 0 if it is its row's winner, else 1.
"""

import torch

from specdec_kernels import ops
from specdec_kernels.ops import Verdict
from specdec_kernels.sharded._constants import filled, only
from specdec_kernels.sharded._layout import short
from specdec_kernels.sharded._races import race
from specdec_kernels.sharded._requests import any_bits
from specdec_kernels.status import Status

OF_WALKS = Status.TOKEN_RANGE | Status.PARAMETER  # bits of a walk on a short vocabulary that are of the whole one, too


def race_chains(chains, requests, shard, draft_tokens, target, edits, law, draft_prob, epsilon):
    """The verdict, with the law and the noise of every row."""
    winners, met = race(shard, target, edits=edits, **law, **requests.noise_of_rows())
    lost, equal = chains.at_drafts(winners) != draft_tokens, filled(1.0, met, 2, dtype=torch.float32)
    walked = ops.verify_chain(
        short(draft_tokens, shard.vocab, lost), equal.expand(*winners.shape, 2),
        method="race", space="probs", temperature=0.0, draft_prob=draft_prob, epsilon=epsilon,
        request_index=requests.index, cu_drafts=chains.cu_drafts, max_drafts=chains.max_drafts,
        **requests.noise_of_requests(),
    )  # fmt: skip
    width, emitted = walked.tokens.shape[-1], walked.tokens >= filled(0, walked.tokens)
    tokens, met = chains.by_request(winners, width), chains.by_request(met, width)
    if chains.cu_drafts is not None:
        tokens, met = (only(chains.sound.unsqueeze(-1), x, 0) for x in (tokens, met))
    status = walked.status & filled(OF_WALKS, met) | any_bits((met, emitted))
    return Verdict(only(emitted, tokens, -1), walked.num_accepted, status)
