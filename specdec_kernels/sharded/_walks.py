"""The walks of chains and trees over slices of rows, whatever the method.

A race finds the winner of every row, and the walk compares drafts with them. Otherwise all ranks find p and q of every
draft in one round: each weighs the tiles of its columns, and the owner of a draft's token tells its logits. Walks that
need sums over pairs of rows ask for them, a round for all that are asked at once. Last round: the race over what is
left of the last row.
"""

import torch

from specdec_kernels.sharded._cached_tensors import only
from specdec_kernels.sharded._final_token import last_tokens
from specdec_kernels.sharded._laws import argmax_of, laws_of, left_in_slices, parameters
from specdec_kernels.sharded._parts import walk_tables
from specdec_kernels.sharded._races import race, race_finish
from specdec_kernels.sharded._requests import both
from specdec_kernels.status import Status

SPARED_BY_NOBODY = -1.0  # in place of p: csrc/include/specdec/walk.h


def raced(requests, shard, draft_tokens, target, edits, law, **how):
    """Walked, with the law and the noise of every row. ``how`` is more of walk_tables' arguments, here and below."""
    winners, row_status = race(shard, target, edits=edits, **law, **requests.noise_of_rows())
    return walk_tables(
        draft_tokens, row_status.flatten(), vocab=shard.vocab, method="race", winners=winners.flatten(),
        request_index=requests.index, **how,
    )  # fmt: skip


def weighed(requests, shard, draft_tokens, sides, draft_places, laws, method, sound=None, lossy=False, **how):
    """Walked by rejection or traversal, with the last tokens."""
    # ``sides``: the target's and, if there are draft laws, the draft's. ``draft_places``: the draft's row of each draft
    # or node, if they are not those in order. ``laws``: Samplings of target and draft, whose numbers may be those of
    # entries, and the draft's as given. ``sound`` bool [B]: whose rows lie where they can. ``lossy``: p alone may be
    # overruled.
    law, draft_law, draft_sampling = laws
    greedy = requests.greedy(law.temperature)
    also = []
    if greedy.any_may_be:
        also.append(argmax_of(sides[0].rows, shard, greedy.row_index(), sides[0].edits).packed())
    (target, *draft), also = laws_of(shard, sides, *also)
    row_status, winners = target.row_status, None
    if greedy.any_may_be:
        winners, of_argmax = (x.flatten() for x in race_finish(also[0]))
        row_status = torch.where(greedy.of_rows().flatten(), row_status & ~Status.NON_FINITE | of_argmax, row_status)
    known = {"row_status": row_status, "winners": winners, "known": target.known}
    known["p_of_drafts"] = _spared(target) if lossy else target.probs
    if draft:
        known |= {
            "q_of_drafts": draft[0].probs, "draft_known": draft[0].known, "draft_places": draft_places,
            "draft_row_status": draft[0].row_status if draft_places is None else draft[0].row_status[draft_places],
        }  # fmt: skip
    walked = _answered(
        shard, target, draft, draft_tokens, vocab=shard.vocab, method=method, temperature=greedy.temperature(),
        request_index=requests.index, **known, **requests.noise_of_requests(), **how,
    )  # fmt: skip
    numbers = requests.noise_of_requests()
    numbers["position"] = walked.slot + numbers["position"]
    temperatures = (requests.of_requests(x.temperature) for x in (law, draft_law))
    drawn = last_tokens(shard, target, draft[0] if draft else None, walked, *temperatures, numbers)
    place, bits = walked.slot.unsqueeze(-1), parameters(requests, law, draft_sampling)
    token, status = drawn()
    token = token.unsqueeze(-1)
    if both(requests.those_live, sound, greedy.others()) is not None:
        token = torch.where((walked.row >= 0).unsqueeze(-1), token, walked.tokens.gather(1, place))
    status = walked.status | status
    return walked._replace(
        tokens=walked.tokens.scatter_(1, place, token), status=status if bits is None else status | bits
    )


def _spared(target):
    """p of the drafts. Over-acceptance spares no token that filters drop or edits forbid."""
    some = [] if target.kept is None else [target.keeps()]
    if target.side.edits is not None:
        some.append(target.logits > -torch.inf)
    return only(both(*some), target.probs, SPARED_BY_NOBODY)


def _answered(shard, target, draft, draft_tokens, *, parents=None, cu_drafts=None, method, places, **how):
    """Walked, once nothing is asked any more."""
    walk = {"parents": parents, "cu_drafts": cu_drafts, "method": method, "places": places, **how}
    if not draft or (parents is None and method == "rejection"):
        return walk_tables(draft_tokens, **walk)
    batch = len(draft_tokens) if cu_drafts is None else len(cu_drafts) - 1
    nodes = places if parents is None else draft_tokens.shape[1]
    answers = torch.full((batch, nodes, 2), -1, device=draft_tokens.device, dtype=torch.int64)
    while True:
        walked = walk_tables(draft_tokens, answers=answers, **walk)
        asked = (walked.asked[..., 0] >= 0).nonzero(as_tuple=True)
        if not len(asked[0]):
            return walked
        rows, draft_rows = walked.asked[asked].T.contiguous()
        answers[asked] = left_in_slices(shard, target, draft[0], rows, draft_rows, walked.asked_subtracted[asked])
