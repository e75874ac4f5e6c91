"""walk_tables: the walks of chains and trees whose rows lie in parts elsewhere, by what is known of the rows."""

from typing import NamedTuple

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.types import Counter, Number, TreeMethod
from specdec_kernels.calls.values import Noise
from specdec_kernels.ops._laws import slot_numbers

NODE_WORDS = 8  # of a node on the path of a traversal (PathNode in csrc/include/specdec/walk.h)


class Walked(NamedTuple):
    """What each walk decided, or asks. What a method does not need is None.

    Attributes
    ----------
    tokens : Tensor
        int64 [B, places]: the drafts accepted, 0 where the last token is still to be drawn, -1 behind.
    path : Tensor
        int32 [B, places], of trees: the nodes accepted from the root, then -1.
    num_accepted, status : Tensor
        int32 [B].
    row, draft_row : Tensor
        int32 [B]: what the last token is drawn from, among all rows: the target's row, or -1 where nothing is drawn,
        and the draft's row that is subtracted, or -1. Without draft laws any row says that a draft was refused.
    taken : Tensor
        float32 [B]: the multiple of the draft's row.
    slot : Tensor
        int64 [B]: the place of the last token.
    laws : Tensor
        float32 [B, 4]: what is known of both rows.
    excluded : Tensor
        int32 [B, 1], of trees [B, N], without draft laws: the tokens that the last one cannot be; -1: none.
    asked : Tensor
        int32 [B, n, 2]: pairs of rows of which a walk has to know the sums; -1: none. A request that asks has no
        verdict yet.
    asked_subtracted : Tensor
        float32 [B, n].
    """

    tokens: torch.Tensor
    path: torch.Tensor | None
    num_accepted: torch.Tensor
    status: torch.Tensor
    row: torch.Tensor | None = None
    draft_row: torch.Tensor | None = None
    subtracted: torch.Tensor | None = None
    slot: torch.Tensor | None = None
    laws: torch.Tensor | None = None
    excluded: torch.Tensor | None = None
    asked: torch.Tensor | None = None
    asked_subtracted: torch.Tensor | None = None


WALK_TABLES = Op(
    "walk_tables",
    result=tuple,
    sizes=dict(zip(("batch", "places", "excluded", "nodes", "memory"), map(kinds.size, "BPXYZ"), strict=True)),
    draft_tokens=kinds.tokens("BK|D"),
    cu_drafts=kinds.ints(":c", optional=True, role="packs"),
    parents=kinds.tokens(optional=True),
    vocab=kinds.size(),
    request_index=kinds.tokens("B:c", optional=True),
    method=kinds.choice("rejection", "race", "traversal"),
    replacement=kinds.FLAG,
    temperature=kinds.number("B"),
    draft_prob=kinds.number("BK|BD", most=1.0),
    epsilon=kinds.number("B"),
    noise=kinds.noise("B"),
    row_status=kinds.ints(":c"),
    winners=kinds.tokens(optional=True),
    p_of_drafts=kinds.floats(":c", optional=True),
    known=kinds.floats(":f", optional=True),
    q_of_drafts=kinds.floats(":c", optional=True),
    draft_row_status=kinds.ints(":c", optional=True),
    draft_known=kinds.floats(":f", optional=True),
    draft_places=kinds.tokens(optional=True),
    answers=kinds.tokens("BY2:m", optional=True),
    tokens=kinds.Output(torch.int64, "tokens", "BP", role="status"),
    path=kinds.Output(torch.int32, "path", "BP", optional=True),
    num_accepted=kinds.Output(torch.int32, "num_accepted", "B", role="status"),
    status=kinds.Output(torch.int32, "status", "B", role="status"),
    row=kinds.Output(torch.int32, "row", "B", optional=True),
    draft_row=kinds.Output(torch.int32, "draft_row", "B", optional=True),
    subtracted=kinds.Output(torch.float32, "subtracted", "B", optional=True),
    slot=kinds.Output(torch.int64, "slot", "B", optional=True),
    laws=kinds.Output(torch.float32, "laws", "B4", optional=True),
    excluded=kinds.Output(torch.int32, "excluded", "BX", optional=True),
    asked=kinds.Output(torch.int32, "asked", "BY2", optional=True),
    asked_subtracted=kinds.Output(torch.float32, "asked_subtracted", "BY", optional=True),
    memory=kinds.Output(torch.int32, "memory", "BZ", optional=True),
)


def walk_tables(
    draft_tokens: torch.Tensor,
    row_status: torch.Tensor,
    *,
    vocab: int,
    places: int,
    method: TreeMethod,
    winners: torch.Tensor | None = None,
    p_of_drafts: torch.Tensor | None = None,
    known: torch.Tensor | None = None,
    q_of_drafts: torch.Tensor | None = None,
    draft_row_status: torch.Tensor | None = None,
    draft_known: torch.Tensor | None = None,
    draft_places: torch.Tensor | None = None,
    answers: torch.Tensor | None = None,
    parents: torch.Tensor | None = None,
    replacement: bool = False,
    cu_drafts: torch.Tensor | None = None,
    temperature: Number = 1.0,
    draft_prob: Number = 1.0,
    epsilon: Number = 0.0,
    seed: Counter = 0,
    position: Counter = 0,
    nonce: Counter = 0,
    request_index: torch.Tensor | None = None,
) -> Walked:
    """The walks of ``verify_chain`` and ``verify_tree`` where p and q of each draft are known, and the rows are away.

    A walk that has to know what is left of a pair of rows asks for it: ``residual_sums`` of all parts, added up, is the
    answer, and it is called again. In one call it asks for all that it may come to, as far as it can tell.

    Parameters
    ----------
    draft_tokens, parents, replacement, cu_drafts, draft_prob, epsilon, seed, position, nonce, request_index
        As for ``verify_chain``, or with ``parents`` for ``verify_tree``. Numbers are those of the B requests.
    row_status : Tensor
        int32 [target rows]: the status of each.
    vocab : int
    places : int
        Columns of the outputs.
    method : str
        ``"traversal"`` is ``"block"`` on chains.
    winners : Tensor, optional
        int64 [target rows]: of the race or, with the other methods, the argmax where a temperature is 0.
    p_of_drafts : Tensor
        float32: p of the draft that each target row decides; of trees of each node's token, under its parent. -1: not
        even over-acceptance accepts it. This and what follows is not for the race.
    known : Tensor
        float32 [target rows, 2], as by ``tile_laws``.
    q_of_drafts : Tensor, optional
        float32, of each draft, or each node: q. Without it there are no draft laws.
    draft_row_status : Tensor
        int32, beside it: the status of each draft's row, of trees of each node's own.
    draft_known : Tensor
        float32 [draft rows, 2].
    draft_places : Tensor, optional
        int64, beside it: the row of each draft or node, if they are not those in order.
    answers : Tensor
        int64 [B, n, 2], n = K + 1 or N, for trees and for traversal with draft laws: what was asked, in its place; -1.
    temperature : float or Tensor
        float32 [B]: 0 where the argmax decides.

    Returns
    -------
    Walked

    Raises
    ------
    TypeError, ValueError
        Naming the number, what was expected and what came. Tables are those of the sharded ops, which made them.

    Examples
    --------
    >>> import torch
    >>> from specdec_kernels.sharded.parts import walk_tables
    >>> row_status = torch.zeros(3, dtype=torch.int32)
    >>> walked = walk_tables(
    ...     torch.tensor([[5, 9]]), row_status, vocab=16, places=3, method="race", winners=torch.tensor([5, 7, 1])
    ... )
    >>> walked.tokens.tolist(), walked.num_accepted.tolist()
    ([[5, 7, -1]], [1])
    """
    drawn, asks = method != "race", answers is not None
    certain = q_of_drafts is None or q_of_drafts.numel() == 0
    wanted = [True, parents is not None, True, True, *[drawn] * 5, drawn and certain, asks, asks, method == "traversal"]
    device, packed = row_status.device, cu_drafts is not None
    batch = len(cu_drafts) - 1 if packed else len(draft_tokens)
    nodes = places if parents is None else draft_tokens.shape[1]
    sizes = batch, places, 1 if parents is None else nodes, nodes, NODE_WORDS * places
    found = WALK_TABLES.direct(
        False, *sizes, draft_tokens, cu_drafts, parents, vocab, request_index, method, replacement, temperature,
        draft_prob, epsilon, seed, position, nonce, row_status, winners, p_of_drafts, known, q_of_drafts,
        draft_row_status, draft_known, draft_places, answers, *(here or None for here in wanted),
    )  # fmt: skip
    if found is not None:
        found = iter(found)
        return Walked(*(next(found) if here else None for here in wanted[:-1]))
    by_letter = dict(zip("BPXYZ", sizes, strict=True), device=device, **({"packed": True} if packed else {}))
    WALK_TABLES.check(
        by_letter, draft_tokens=draft_tokens, cu_drafts=cu_drafts, parents=parents, request_index=request_index,
        row_status=row_status, winners=winners, p_of_drafts=p_of_drafts, known=known, q_of_drafts=q_of_drafts,
        draft_row_status=draft_row_status, draft_known=draft_known, draft_places=draft_places, answers=answers,
    )  # fmt: skip
    temperature = WALK_TABLES.number("temperature", temperature, (batch,), device)
    draft_prob = slot_numbers(WALK_TABLES, draft_prob, batch, tuple(draft_tokens.shape), packed, device)
    epsilon = WALK_TABLES.number("epsilon", epsilon, (batch,), device)
    counters = ("seed", seed), ("position", position), ("nonce", nonce)
    made = WALK_TABLES.new(by_letter, wanted)
    known, draft_known = (None if x is None else x.view(-1) for x in (known, draft_known))
    WALK_TABLES(
        draft_tokens, cu_drafts, parents, vocab, request_index, method, replacement, temperature, draft_prob, epsilon,
        Noise(*(inputs.counter(name, x, (batch,), device) for name, x in counters)),
        row_status, winners, p_of_drafts, known, q_of_drafts, draft_row_status, draft_known, draft_places,
        answers.flatten(1) if asks else None, *made[:10], made[10].flatten(1) if asks else None, *made[11:],
    )  # fmt: skip
    return Walked(*made[:12])
