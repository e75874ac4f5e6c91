"""The walks of chains and trees over slices of rows, whatever the method.

A race gives the winner of every row, and the walk compares drafts with winners. Otherwise all ranks get p and q of
every draft in one round: each weighs the tiles of its columns, and the owner of a draft's token sends its logits. Walks
that need sums over pairs of rows request them, a round for all requests at once. Last round: the race over the residual
of the last row.
"""

import torch

from specdec_kernels.calls.values import Noise
from specdec_kernels.sharded import _parts as parts
from specdec_kernels.sharded._cached_tensors import only
from specdec_kernels.sharded._laws import argmax_of, cuts_of, laws_of, left_in_slices, with_parameters
from specdec_kernels.sharded._parts import Tables, walk_tables
from specdec_kernels.sharded._races import gathered, winners
from specdec_kernels.sharded._requests import both
from specdec_kernels.status import Status

SPARED_BY_NONE = -1.0  # a value of p that over-acceptance never accepts (csrc/include/specdec/walk.h)


def raced(requests, shard, draft_tokens, target, edits, law, unused=(), **how):
    """Walked by a race with the rows' law and noise. ``how``: other arguments of walk_tables, here and below."""
    # ``unused``: numbers that set the status and nothing else.
    winner, row_status = winners(gathered(shard, target, edits=edits, **law, **requests.noise_of_rows()))
    tables = Tables(row_status, winner)
    how["request_index"] = requests.index
    walked = walk_tables(draft_tokens, tables, vocab=shard.vocab, method="race", **how)
    return walked._replace(status=with_parameters(walked.status, requests, *unused))


def weighed(requests, shard, draft_tokens, sides, draft_row_indices, laws, method, lossy=False, **how):
    """Walked by rejection or traversal, with the last tokens."""
    # ``sides``: the target's and, if there are draft laws, the draft's. ``draft_row_indices``: the draft's row of each
    # draft or node; None if these are in order. ``laws``: Samplings of target and draft, whose numbers may be those of
    # entries, and the draft's as given. ``lossy``: over-acceptance may accept a draft that p alone would refuse.
    law, draft_law, draft_sampling = laws
    greedy = requests.greedy(law.temperature)
    also = []
    if greedy.any_may_be:
        also.append(argmax_of(sides[0].rows, shard, greedy.row_index(), sides[0].edits).packed())
    (target, *draft), also = laws_of(shard, sides, *also)
    row_status, winner = target.row_status, None
    if greedy.any_may_be:
        winner, of_argmax = winners(also[0])
        row_status = torch.where(greedy.of_rows().flatten(), row_status & ~Status.NON_FINITE | of_argmax, row_status)
    tables = Tables(row_status, winner, _spared(target) if lossy else target.probs, target.row_stats)
    if draft:
        (q,) = draft
        of_drafts = q.row_status if draft_row_indices is None else q.row_status[draft_row_indices]
        tables = tables._replace(
            q_of_drafts=q.probs, draft_row_status=of_drafts, draft_row_stats=q.row_stats,
            draft_row_indices=draft_row_indices,
        )  # fmt: skip
    numbers = requests.noise_of_requests()
    walked = _answered(
        shard, target, draft, draft_tokens, tables, vocab=shard.vocab, method=method, temperature=greedy.temperature(),
        request_index=requests.index, noise=Noise(**numbers), **how,
    )  # fmt: skip
    numbers["position"] = walked.slot + numbers["position"]
    temperatures = (requests.of_requests(x.temperature) for x in (law, draft_law))
    drawn = last_tokens(shard, target, draft[0] if draft else None, walked, *temperatures, numbers)
    column = walked.slot.unsqueeze(-1)
    token, status = drawn()
    token = token.unsqueeze(-1)
    if how.get("cu_drafts") is not None or both(requests.those_live, greedy.others()) is not None:
        token = torch.where((walked.row >= 0).unsqueeze(-1), token, walked.tokens.gather(1, column))
    status = with_parameters(walked.status | status, requests, law, draft_sampling)
    return walked._replace(tokens=walked.tokens.scatter_(1, column, token), status=status)


def _spared(target):
    """p of the drafts; where filters drop a token or edits forbid it, a value that over-acceptance never accepts."""
    some = [] if target.support is None else [target.contains()]
    if target.side.edits is not None:
        some.append(target.logits > -torch.inf)
    return only(both(*some), target.probs, SPARED_BY_NONE)


def _answered(shard, target, draft, draft_tokens, tables, *, parents=None, cu_drafts=None, method, width, **how):
    """Walked, after rounds of answers until no sum is requested."""
    walk = {"parents": parents, "cu_drafts": cu_drafts, "method": method, "width": width, **how}
    if not draft or (parents is None and method == "rejection"):
        return walk_tables(draft_tokens, tables, **walk)
    batch = len(draft_tokens) if cu_drafts is None else len(cu_drafts) - 1
    nodes = width if parents is None else draft_tokens.shape[1]
    answers = torch.full((batch, nodes, 2), -1, device=draft_tokens.device, dtype=torch.int64)
    while True:
        walked = walk_tables(draft_tokens, tables, answers=answers, **walk)
        requested = (walked.requested_rows[..., 0] >= 0).nonzero(as_tuple=True)
        if not len(requested[0]):
            return walked
        rows, draft_rows = walked.requested_rows[requested].T.contiguous()
        subtracted = walked.requested_subtracted[requested]
        answers[requested] = left_in_slices(shard, target, draft[0], rows, draft_rows, subtracted)


def last_tokens(shard, target, draft, walked, temperature, draft_temperature, numbers):
    """A function that waits for (token, status), int64 and int32 [B], of the rows where walks ended."""
    # ``numbers``: seed, position and nonce. The gather of 12 bytes a request is in flight when this returns.
    if draft is None:
        how = {"excluded": walked.excluded}
    else:
        how = {"draft": draft.side.rows, "draft_row": walked.draft_row, "subtracted": walked.subtracted}
        how["draft_temperature"] = draft_temperature
    cuts = cuts_of(shard, (target, walked.row), (draft, walked.draft_row))

    def draw(row, draft=None, **how):
        token, scores, status = parts.residual_race(
            target.side.rows, draft, row, vocab_start=shard.vocab_start, temperature=temperature, row_stats=walked.laws,
            cuts=cuts, edits=target.side.edits, **how, **numbers,
        )  # fmt: skip
        return shard.gather_later(torch.stack([token.int(), scores.view(torch.int32), status], dim=-1))

    every = draw(walked.row, **how)

    def drawn():
        token, status, empty = parts.first_arrivals(every())
        empty = torch.logical_and(empty, walked.draft_row >= 0)
        if bool(empty.any()):  # p and q equal to rounding, or all of p tried; rare, and alike on all ranks
            again, more, weightless = parts.first_arrivals(draw(torch.where(empty, walked.row, -1))())
            token = torch.where(empty, again, token)
            more = torch.where(weightless.bool(), more, more | Status.EMPTY_RESIDUAL)
            status = torch.where(empty, status & ~Status.NON_FINITE | more, status)
        return token, status

    return drawn
