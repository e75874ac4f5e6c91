"""The parts of sharded ops: what a rank computes from its slice of rows, and what all ranks combine.

These are private ops of every backend but the reference, whose ops on whole rows are the oracle. None communicates,
each is one launch, and csrc/include/specdec_sharded.h has their contracts. Little is checked, for the sharded ops make
the arguments.

Rows are logits, float32, bfloat16 or float16 [..., n], of the tokens from ``vocab_start`` on; ``edits`` are of these
columns. Rows of an idle request, or of one whose index is out of range, are not read.
"""

from typing import NamedTuple

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.values import Law, Noise
from specdec_kernels.ops import _edits as edit
from specdec_kernels.ops import _laws as laws
from specdec_kernels.ops._rows import RowOp

NODE_WORDS = 8  # int32 words a node on the path of a traversal (PathNode in csrc/include/specdec/walk.h)


class Tables(NamedTuple):
    """The rows' tables for ``walk_tables`` of specdec_sharded.h, with ``row_stats`` [rows, 2]; None: no table."""

    row_status: torch.Tensor
    winners: torch.Tensor | None = None
    p_of_drafts: torch.Tensor | None = None
    row_stats: torch.Tensor | None = None
    q_of_drafts: torch.Tensor | None = None
    draft_row_status: torch.Tensor | None = None
    draft_row_stats: torch.Tensor | None = None
    draft_row_indices: torch.Tensor | None = None


class Walked(NamedTuple):
    """The outputs of ``walk_tables`` of specdec_sharded.h: verdicts, or requested sums; None if a method has none."""

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
    requested_rows: torch.Tensor | None = None
    requested_subtracted: torch.Tensor | None = None


COUNT_AT_LEAST = RowOp(
    "count_at_least",
    direct=False,
    figures=True,
    rows=kinds.rows("*V"),
    request_index=kinds.REQUEST_INDEX,
    law=kinds.law("~"),
    edits=kinds.EDITS,
    least=kinds.floats("*:c"),
    counts=kinds.Output(torch.int32, "out", "*"),
)
FIRST_ARRIVALS = Op(
    "first_arrivals",
    direct=False,
    result=tuple,
    packed=kinds.ints("P*3:c"),
    tokens=kinds.Output(torch.int64, "tokens", "*"),
    status=kinds.Output(torch.int32, "status", "*"),
    empty=kinds.Output(torch.int32, "empty", "*"),
)
MASS_TILES = RowOp(
    "mass_tiles",
    direct=False,
    result=tuple,
    figures=True,
    rows=kinds.rows("*V"),
    request_index=kinds.REQUEST_INDEX,
    law=kinds.law("~"),
    edits=kinds.EDITS,
    tiles=kinds.Output(torch.int32, "out", "*3J"),
    status=kinds.Output(torch.int32, "status", "*"),
)
TILE_LAWS = Op(
    "tile_laws",
    direct=False,
    result=tuple,
    figures=True,
    tiles=kinds.ints("*3Q:c"),
    raw=kinds.rows("*U:c"),
    temperature=kinds.number(),
    row_stats=kinds.Output(torch.float32, "row_stats", "*2"),
    probs=kinds.Output(torch.float32, "out", "*U"),
)
TOKEN_LOGITS = Op(
    "token_logits",
    direct=False,
    figures=True,
    rows=kinds.rows("*V"),
    vocab_start=kinds.size(least=0),
    row_indices=kinds.tokens("P", optional=True),
    tokens=kinds.tokens(),
    edits=kinds.edits("~"),
    logits=kinds.Output(torch.float32, "out"),
)
RESIDUAL_RACE = Op(
    "residual_race",
    direct=False,
    result=tuple,
    target=kinds.rows("*V"),
    vocab_start=kinds.size(least=0),
    draft=kinds.rows("*V", optional=True),
    row=kinds.ints("R:c"),
    draft_row=kinds.ints("R:c", optional=True),
    excluded=kinds.ints("RX:u", optional=True),
    cuts=kinds.ints("R6:c", optional=True),
    row_stats=kinds.floats("R4"),
    target_law=kinds.law("R"),
    draft_law=kinds.law("R", shown="draft"),
    edits=kinds.edits("~"),
    subtracted=kinds.number("R"),
    noise=kinds.noise("R"),
    tokens=kinds.Output(torch.int64, "tokens", "R"),
    status=kinds.Output(torch.int32, "status", "R"),
    scores=kinds.Output(torch.float32, "scores", "R"),
)
RESIDUAL_SUMS = Op(
    "residual_sums",
    direct=False,
    result=tuple,
    figures=True,
    target=kinds.rows("*V"),
    draft=kinds.rows("*V"),
    row=kinds.ints("R:c"),
    draft_row=kinds.ints("R:c"),
    cuts=kinds.ints("R6:c", optional=True),
    row_stats=kinds.floats("R4"),
    target_law=kinds.law("R"),
    draft_law=kinds.law("R", shown="draft"),
    edits=kinds.edits("~"),
    subtracted=kinds.number("R"),
    sums=kinds.Output(torch.int64, "sums", "R2"),
    status=kinds.Output(torch.int32, "status", "R"),
)
WALK_TABLES = Op(
    "walk_tables",
    direct=False,
    result=tuple,
    sizes=dict(zip(("batch", "width", "excluded", "nodes", "memory"), map(kinds.size, "BPXYZ"), strict=True)),
    draft_tokens=kinds.tokens("BK|D"),
    cu_drafts=kinds.ints(":c", optional=True),
    parents=kinds.tokens(optional=True),
    vocab=kinds.size(),
    request_index=kinds.REQUEST_INDEX,
    method=kinds.choice("rejection", "race", "traversal"),
    replacement=kinds.FLAG,
    temperature=kinds.number("B"),
    draft_prob=kinds.number("BK|BD", most=1.0),
    epsilon=kinds.number("B"),
    noise=kinds.noise("B"),
    row_status=kinds.ints(":c"),
    winners=kinds.tokens(optional=True),
    p_of_drafts=kinds.floats(":c", optional=True),
    row_stats=kinds.floats(":c", optional=True),
    q_of_drafts=kinds.floats(":c", optional=True),
    draft_row_status=kinds.ints(":c", optional=True),
    draft_row_stats=kinds.floats(":c", optional=True),
    draft_row_indices=kinds.tokens(optional=True),
    answers=kinds.tokens("BY2", optional=True),
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
    requested_rows=kinds.Output(torch.int32, "requested_rows", "BY2", optional=True),
    requested_subtracted=kinds.Output(torch.float32, "requested_subtracted", "BY", optional=True),
    memory=kinds.Output(torch.int32, "memory", "BZ", optional=True),
)


def count_at_least(rows, least, *, temperature=None, edits=None, request_index=None):
    """int32 [...]: how many tokens of each row have ``logit / temperature >= least``; none where it is -inf or NaN."""
    return COUNT_AT_LEAST.direct(False, rows, request_index, "logits", temperature, None, edits, least, None)


def first_arrivals(packed):
    """(tokens int64, status, empty), [...] each: the best score of all parts' candidates; ties by the lower token."""
    # ``packed`` int32 [parts, ..., 3]: a token, the bits of its score, the status. A score of -inf is no candidate;
    # +inf marks an idle request.
    if (arrived := FIRST_ARRIVALS.direct(False, packed, None, None, None)) is not None:
        return arrived
    lead = packed.shape[1:-1]
    sizes = {"*": [lead.numel()], "device": packed.device}
    return tuple(x.view(lead) for x in FIRST_ARRIVALS.finish(sizes, {}, packed=packed.view(len(packed), -1)))


def mass_tiles(rows, *, temperature=None, edits=None, request_index=None):
    """(int32 [..., 3, tiles], status [...]): the weight of each tile of 1,024 tokens, for ``tile_laws``."""
    # The bits of its largest logit, then the low and the high words of its weight in units of 2**-30 of that; -inf and
    # 0 for a tile without weight. Status: 1 a NaN or +inf, 8 a temperature, an index or an edit out of range.
    return MASS_TILES.direct(False, rows, request_index, "logits", temperature, None, edits, None, None)


def tile_laws(tiles, raw, *, temperature=1.0):
    """(float32 [..., 2], [..., k]): each row's maximum, log-sum-exp less that, and the probabilities of logits ``raw``.

    ``tiles`` are all tiles of a row, [..., 3, any], in any order. A row without weight has 0 and inf.
    """
    if (learned := TILE_LAWS.direct(False, tiles, raw, temperature, None, None)) is not None:
        return learned
    lead, device = raw.shape[:-1], raw.device
    temperature = TILE_LAWS.number("temperature", temperature, lead, device)
    if isinstance(temperature, torch.Tensor):
        temperature = temperature.reshape(1, -1)
    count, some = lead.numel(), raw.shape[-1]
    row_stats, probs = TILE_LAWS.finish(
        {"*": [count], "U": some, "device": device}, {}, tiles=tiles.reshape(count, 3 * tiles.shape[-1]),
        raw=raw.reshape(count, some), temperature=temperature,
    )  # fmt: skip
    return row_stats.view(*lead, 2), probs.view(raw.shape)


def token_logits(rows, tokens, *, row_indices=None, vocab_start=0, edits=None):
    """float32, like ``tokens`` [...] or [..., m]: their logits, after edits; 0 where the part lacks the token."""
    # With ``row_indices`` [P] tokens are [P] or [P, m], of these rows. 0 has no bit set, so parts combine by an or.
    if (logits := TOKEN_LOGITS.direct(False, rows, vocab_start, row_indices, tokens, edits, None)) is not None:
        return logits
    inputs.check_rows("rows", rows)
    folded = inputs.rows3("rows", rows)
    changes = edit.of_rows(edits, Law("logits", 1.0), rows, folded, rows.shape[:-1], folded.shape[:2])
    of_rows = rows.shape[:-1] if row_indices is None else row_indices.shape
    logits = TOKEN_LOGITS.output("logits", None, tokens.shape, rows.device)
    shape = of_rows.numel(), tokens.shape[-1] if tokens.ndim > len(of_rows) else 1
    TOKEN_LOGITS(folded, vocab_start, row_indices, tokens.reshape(shape), changes, logits.view(shape))
    return logits


def residual_race(
    target, draft, row, *, vocab_start, row_stats, seed, position, nonce=0, draft_row=None, excluded=None,
    subtracted=1.0, temperature=None, draft_temperature=None, cuts=None, edits=None,
):  # fmt: skip
    """(tokens, scores, status), [B] each: the first arrivals of one row of each request, over ``(p - subtracted q)^+``.

    ``row`` and ``draft_row`` int32 [B], among all rows: -1 is idle, and no draft. ``excluded`` int32 [B] or [B, n]:
    tokens without weight where the race is over p. ``row_stats`` float32 [B, 4]: of both rows, from ``tile_laws``.
    ``cuts`` int32 [B, 6]: the filters' cuts of both. LogitEdits are of all rows of ``target``.
    """
    of_draft = temperature if draft_temperature is None else draft_temperature
    if (arrived := RESIDUAL_RACE.direct(
        False, target, vocab_start, draft, row, draft_row, excluded, cuts, row_stats, "logits", temperature, None,
        "logits", of_draft, None, edits, subtracted, seed, position, nonce, None, None, None,
    )) is None:  # fmt: skip
        device, shape = target.device, (len(row),)
        if excluded is not None and excluded.ndim == 1:
            excluded = excluded.unsqueeze(-1)
        pair = _pair(RESIDUAL_RACE, target, draft, temperature, of_draft, edits, subtracted, shape)
        arrived = RESIDUAL_RACE.finish(
            {"R": len(row), "device": device}, {}, **pair, vocab_start=vocab_start, row=row, draft_row=draft_row,
            excluded=excluded, cuts=cuts, row_stats=row_stats,
            noise=laws.noise_of(1, seed, position, nonce, shape, device),
        )  # fmt: skip
    tokens, status, scores = arrived
    return tokens, scores, status


def residual_sums(
    target, draft, row, draft_row, *, row_stats, subtracted=1.0, temperature=None, draft_temperature=None, cuts=None,
    edits=None,
):  # fmt: skip
    """(int64 [P, 2], status [P]): ``(p - subtracted q)^+`` and q, summed over parts of rows, in units of 2**-42."""
    # Arguments as in ``residual_race``. A pair of which a row is -1 weighs nothing.
    of_draft = temperature if draft_temperature is None else draft_temperature
    if (sums := RESIDUAL_SUMS.direct(
        False, target, draft, row, draft_row, cuts, row_stats, "logits", temperature, None, "logits", of_draft, None,
        edits, subtracted, None, None,
    )) is not None:  # fmt: skip
        return sums
    pair = _pair(RESIDUAL_SUMS, target, draft, temperature, of_draft, edits, subtracted, (len(row),))
    return RESIDUAL_SUMS.finish(
        {"R": len(row), "device": target.device}, {}, **pair, row=row, draft_row=draft_row, cuts=cuts,
        row_stats=row_stats,
    )  # fmt: skip


def _pair(op, target, draft, temperature, draft_temperature, edits, subtracted, shape):
    """Rows of both sides, their laws, the edits and the share to subtract, by the fields of the op."""
    for name, rows in ({"target": target} | ({} if draft is None else {"draft": draft})).items():
        inputs.check_rows(name, rows)
    law = laws.target_law("logits", temperature, None, shape, target.device)
    q_law = law
    if draft_temperature is not temperature:
        number = laws.NUMBERS["temperature"].taken("draft_temperature", draft_temperature, shape, target.device)
        q_law = Law("logits", number)
    rows = inputs.rows3("target", target)
    changes = edit.of_rows(edits, law, target, rows, target.shape[:-1], rows.shape[:2])
    subtracted = op.number("subtracted", subtracted, shape, target.device)
    of_draft = None if draft is None else inputs.rows3("draft", draft)
    return {
        "target": rows, "draft": of_draft, "target_law": law, "draft_law": q_law, "edits": changes,
        "subtracted": subtracted,
    }  # fmt: skip


def walk_tables(
    draft_tokens, tables, *, vocab, width, method, answers=None, parents=None, replacement=False, cu_drafts=None,
    temperature=1.0, draft_prob=1.0, epsilon=0.0, noise=Noise(0, 0, 0), request_index=None,  # noqa: B008
):  # fmt: skip
    """``Walked``: the walks of chains, or with ``parents`` of trees, from p and q of each draft."""
    # A walk that needs the residual's mass over a pair of rows writes a request: ``residual_sums`` of all parts, added
    # up, are its answer, int64 [B, n, 2], and the op is called again. One call requests all sums that the walk may
    # still need.
    drawn, has_answers = method != "race", answers is not None
    certain = tables.q_of_drafts is None or tables.q_of_drafts.numel() == 0
    wanted = [
        True, parents is not None, True, True, *[drawn] * 5, drawn and certain, has_answers, has_answers,
        method == "traversal",
    ]  # fmt: skip
    device, packed = draft_tokens.device, cu_drafts is not None
    batch = len(cu_drafts) - 1 if packed else len(draft_tokens)
    nodes = width if parents is None else draft_tokens.shape[1]
    sizes = batch, width, 1 if parents is None else nodes, nodes, NODE_WORDS * width
    walked = WALK_TABLES.direct(
        False, *sizes, draft_tokens, cu_drafts, parents, vocab, request_index, method, replacement, temperature,
        draft_prob, epsilon, *noise, *tables, answers, *(is_output or None for is_output in wanted),
    )  # fmt: skip
    if walked is not None:
        given = iter(walked)
        return Walked(*(next(given) if is_output else None for is_output in wanted[:-1]))
    by_letter = dict(zip("BPXYZ", sizes, strict=True), device=device)
    temperature = WALK_TABLES.number("temperature", temperature, (batch,), device)
    draft_prob = laws.slot_numbers(WALK_TABLES, draft_prob, batch, tuple(draft_tokens.shape), packed, device)
    epsilon = WALK_TABLES.number("epsilon", epsilon, (batch,), device)
    noise = Noise(*(inputs.counter(name, x, (batch,), device) for name, x in noise._asdict().items()))
    made = WALK_TABLES.new(by_letter, wanted)
    row_stats, draft_row_stats = (None if x is None else x.view(-1) for x in (tables.row_stats, tables.draft_row_stats))
    WALK_TABLES(
        draft_tokens, cu_drafts, parents, vocab, request_index, method, replacement, temperature, draft_prob, epsilon,
        noise, *tables._replace(row_stats=row_stats, draft_row_stats=draft_row_stats),
        answers.flatten(1) if has_answers else None, *made[:10], made[10].flatten(1) if has_answers else None,
        *made[11:],
    )  # fmt: skip
    return Walked(*made[:12])
