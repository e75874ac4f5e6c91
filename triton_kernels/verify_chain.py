"""Verification of chains: one launch for the race, two for rejection, three for block.

The first, stage ``scan``, goes over rows: it races them where the winner alone decides (method race, temperature 0),
else it learns what probabilities need of them. A program takes its rows in order, and the last program of a row tells
the others if the walk ends there, so that rows behind it are not read. The second, ``emit``, walks all slots at once
and draws a token from the one row where that is needed. Where nothing has to be learned the second is enough. In block
a launch between them, ``walk``, decides how many drafts are accepted; all rows are learned for it.

int32 counters, zero before and after a call. Of row r, from 4 r: the best key (two words), programs done, status. Of
request b, from 4 rows + 8 b: the best key, programs done, status, where the walk ends (block: how many are accepted),
and what block takes off the law after them: T of walk.h as the bits of a float, whether it is anything.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels import (
    _arguments,
    _cuts,
    _edits,
    _filters,
    _kept,
    _launch,
    _laws,
    _math,
    _races,
    _rows,
    _traversal,
    _trees,
    _verdict,
)

CHUNK = tl.constexpr(32)  # slots handled at once
# Of a request's record: where the walk ends, and what block has to say of that place.
END, SUBTRACTED, TRIED = tl.constexpr(4), tl.constexpr(5), tl.constexpr(6)


class Drafts(NamedTuple):
    """The draft tokens [B, K], or packed; their shares; tokens that are given; the map of a draft vocabulary."""

    tokens: _arguments.Steps
    packing: _arguments.Packing
    most: int
    prob: _arguments.Number
    bonus: _arguments.Steps
    map: tl.tensor


class Memory(NamedTuple):
    """Counters, of so many rows; four floats that are known of each pair; mass tiles; what block keeps; cuts."""

    counters: tl.tensor
    count: int
    figures: tl.tensor
    items: tl.tensor
    kept: tl.tensor
    target_cuts: tl.tensor
    draft_cuts: tl.tensor


class Plan(NamedTuple):
    """What is compiled in. OWN_LAW: the draft has a temperature of its own. SCANS: the first launch is made."""

    METHOD: tl.constexpr
    TARGET: tl.constexpr
    DRAFT: tl.constexpr
    OWN_LAW: tl.constexpr
    LEARNS: tl.constexpr
    SCANS: tl.constexpr
    ALIGNED: tl.constexpr
    TILE: tl.constexpr
    TILES: tl.constexpr


class Request(NamedTuple):
    """One request: its entry, whether it is readable, its slots; the first rows and drafts where they are packed."""

    b: tl.tensor
    entry: tl.tensor
    live: tl.tensor
    idle: tl.tensor
    readable: tl.tensor
    slots: tl.tensor
    first_draft: tl.tensor
    first_row: tl.tensor
    first_token: tl.tensor
    flags: tl.tensor
    noise: _math.Noise


class Chain(NamedTuple):
    """The draft tokens of a request, how many, and their shares.

    ``given`` is the token after slot ``given_at``, which has no row then, and ``bad_given`` its status. All are None if
    no tokens are given.
    """

    slots: tl.tensor
    tokens: tl.tensor
    tokens_slot: tl.tensor
    prob: _arguments.Number
    prob_at: tl.tensor
    given_at: tl.tensor
    given: tl.tensor
    bad_given: tl.tensor


@triton.jit
def request_of(drafts, index, noise, entering, b):
    entry, live, idle = _arguments.entry_of(index, b)
    packed = _arguments.packed_of(drafts.packing, b, tl.cast(drafts.most, tl.int32))
    readable, slots, flags = packed.readable, packed.drafts, packed.flags
    if index.data is not None:
        readable = readable & live
        slots = tl.where(live, slots, tl.where(idle, -1, 0))
        flags |= tl.where(live, 0, _math.PARAMETER)
    own_noise = _arguments.noise_of(noise, entry, 0, live)
    row = packed.first_row if drafts.packing.cu_drafts is not None else 0
    own_noise = _arguments.entered(own_noise, entering, b, row, readable & live)
    return Request(
        b, entry, live, idle, readable, slots, packed.first_draft, packed.first_row, packed.first_token, flags,
        own_noise,
    )  # fmt: skip


@triton.jit
def from_end(slot):
    """Its own inverse: counts slots down, so that the first slot is a maximum, and 0 is beyond all."""
    return -slot + _math.NO_TOKEN


@triton.jit
def token_at(chain, slot):
    """The draft token of a slot or a block of slots; -1 behind the last."""
    return tl.load(chain.tokens + slot * chain.tokens_slot, mask=slot < chain.slots, other=-1).to(tl.int64)


@triton.jit
def tokens_of(drafts, request):
    """Pointer to the draft tokens of a request."""
    if drafts.packing.cu_drafts is None:
        return _arguments.at(drafts.tokens, request.b, 0)
    else:
        return drafts.tokens.data + request.first_token * drafts.tokens.inner


@triton.jit
def given_to(drafts, request, vocab):
    """(the slot that has a token in the place of a row, that token, its status). A token out of range is token 0."""
    # The slot is that behind all drafts of a request. One that is cut off before has a row there.
    whole = request.readable
    if drafts.packing.cu_drafts is not None:
        cu_drafts = drafts.packing.cu_drafts + request.b
        whole = whole & (tl.load(cu_drafts + 1) - tl.load(cu_drafts) == request.slots)
    token = tl.load(_arguments.at(drafts.bonus, request.b, 0)).to(tl.int64)
    good = (token >= 0) & (token < vocab)
    at = tl.where(whole, request.slots, _math.NO_TOKEN)
    return at, tl.where(good, token, 0), tl.where(good, 0, _math.PARAMETER)


@triton.jit
def rows_of(chain):
    """How many rows of the target a request has, as far as its slots go."""
    if chain.given_at is None:
        return chain.slots + 1
    else:
        return chain.slots + tl.where(chain.given_at == chain.slots, 0, 1)


@triton.jit
def share_at(chain, slot):
    """(h of the draft's law at a slot or a block of slots, status)."""
    if chain.prob.data is None:
        return _math.draft_prob_of(tl.where(slot >= 0, chain.prob.value, 1.0))
    else:
        at = chain.prob.data + chain.prob_at + slot * chain.prob.inner
        return _math.draft_prob_of(tl.load(at, mask=slot < chain.slots, other=1.0))


@triton.jit
def slot_accepts(slot, token, in_range, p_row, q_row, h, epsilon, noise):
    """(accepted, a bad probability met) at a slot or a block of slots."""
    x = _rows.value_at(p_row, token, in_range)
    p = tl.where(in_range, _laws.probabilities(x, token, p_row.law, p_row.known), 0.0)
    bad = in_range & _laws.unlike(x, p_row.law)
    epsilon = _laws.epsilon_at(epsilon, x, in_range, p_row.law)
    q = 1.0
    if q_row.at is not None:
        q, bad_draft = _rows.probability_at(q_row, token, in_range)
        bad |= bad_draft
    uniform = _math.accept_uniform(_math.later(noise, slot), slot)
    return in_range & _math.accepts(uniform, p, h * q, epsilon), bad


@triton.jit
def race_slot(row, noise, slot, token, alone, record, request, split, splits, TILE: tl.constexpr):
    """A program's part of the race of a row; the last one says whether the walk ends there."""
    # Unless the row is all that programs of it have: then nobody asks.
    _kept.race_part_of_row(row, record, noise, split, splits, TILE)
    if alone == 0:  # noqa: SIM102  `and` would take a ticket
        if _rows.is_last(record + _rows.DONE, splits):  # noqa: SIM102  `and` would load early
            if _math.key_token(tl.load(_rows.key_at(record), cache_modifier=".cg")) != token:
                tl.atomic_max(request + END, from_end(slot), sem="relaxed")


@triton.jit
def learn_slot(p, q, h, epsilon, noise, slot, token, record, request, figures, items, split, splits, plan):
    """A program's part of what is to be learned of a slot's rows."""
    # The last one says whether the walk ends there, if a slot decides for itself.
    last, p_known, q_known = _rows.learn_pair(p, None, q, record, items, figures, split, splits, plan.TILE, plan.TILES)
    if (plan.METHOD == "rejection") and last:
        in_range = (token >= 0) & (token < p.columns)
        p_row = _laws.Row(p.at, p.columns, p.law, None, p_known)
        q_row = _laws.Row(q.at, q.columns, q.law, q.map, q_known)
        accepted, _ = slot_accepts(slot, token, in_range, p_row, q_row, h, epsilon, noise)
        if accepted == 0:
            tl.atomic_max(request + END, from_end(slot), sem="relaxed")


@triton.jit
def clear_counters(chain, readable, records, request, WORDS: tl.constexpr):
    """Sets the counters of a request back to zero, and so many words of its own."""
    _rows.clear(records, tl.where(readable, 4 * (chain.slots + 1), 0))
    for word in tl.static_range(2, WORDS):
        tl.store(request + word, 0)


@triton.jit
def put_slots(writer, slot, n, width, tokens):
    """Writes the tokens after slots up to n, and nothing behind. Returns status bits."""
    there, behind = (slot < width) & (slot <= n), (slot < width) & (slot > n)
    _verdict.put_token(writer, slot, slot, tokens, there)
    reported = tl.max(_verdict.put_node(writer, slot, slot, there), axis=0)
    _verdict.clear_places(writer, slot, behind)
    _verdict.clear_nodes(writer, slot, behind)
    return reported


@triton.jit
def finish_race(chain, readable, flags, vocab, records, figures, request, writer, width):
    """The verdict of a request whose rows were all raced, and its counters back to zero."""
    # Or whose rows' argmax was found together with their cuts: then it is in ``figures``, else None.
    n = chain.slots
    for base in range(0, width, CHUNK):
        slot = base + tl.arange(0, CHUNK)
        held = slot <= tl.where(readable, chain.slots, -1)
        record = records + 4 * slot
        if figures is None:
            keys = tl.load(_rows.key_at(record), mask=held, other=_math.NOBODY, cache_modifier=".cg")
        else:
            top = tl.load(figures + 4 * slot, mask=held, other=0.0, cache_modifier=".cg").to(tl.int32, bitcast=True)
            keys = _math.key_of(tl.where(top >= 0, 0.0, -_math.INFINITY), top)
        row_status = tl.load(record + _rows.FLAGS, mask=held, other=0, cache_modifier=".cg")
        token, winner, unknown = token_at(chain, slot), _math.key_token(keys), keys == _math.NOBODY
        if chain.given_at is not None:
            winner, unknown = tl.where(slot == chain.given_at, chain.given, winner), unknown & (slot != chain.given_at)
        bad = (row_status & _math.NON_FINITE != 0) | unknown
        token = tl.where(unknown, -1, token)  # a row without weight ends the chain
        ends = held & (unknown | (winner != token))
        n = tl.minimum(n, tl.min(tl.where(ends, slot, _math.NO_TOKEN), axis=0))
        reached = held & (slot <= n)
        flags |= _math.any_of(reached & bad) * _math.NON_FINITE
        flags |= _math.any_of(reached & (row_status & _math.PARAMETER != 0)) * _math.PARAMETER
        flags |= _math.any_of(reached & ((token < -1) | (token >= vocab))) * _math.TOKEN_RANGE
        flags |= put_slots(writer, slot, n, width, winner)
    if chain.given_at is not None:
        flags |= tl.where(n == chain.given_at, chain.bad_given, 0)
    _verdict.put_count(writer, n)
    _verdict.put_status(writer, flags)
    clear_counters(chain, readable, records, request, 5)


@triton.jit
def walk(
    chain, edits, target, draft, epsilon, noise, records, figures, MET: tl.constexpr, ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """(accepted drafts n, the token refused at slot n or -1, h there, status) from what is known of all slots."""
    # Slots whose rows are edited are looked at one by one, for each row has lists of its own.
    SLOTS: tl.constexpr = CHUNK if edits.edits.by_row is None else 1
    n = chain.slots
    refused = tl.full([], -1, tl.int64)
    share = 1.0
    flags = 0
    base = chain.slots * 0
    while base < tl.minimum(chain.slots, n + 1):
        slot = base + tl.arange(0, SLOTS)
        here = slot < chain.slots
        token = token_at(chain, slot)
        known = figures + 4 * slot
        h = tl.full([SLOTS], 1.0, tl.float32)
        bad_h = tl.zeros([SLOTS], tl.int32)
        place, bad_bias = _edits.place_of(edits, base, edits.live, target.columns)
        flags |= bad_bias
        p_law = _laws.Law(target.inverse, None, target.cuts, target.row + slot, edits.edits.by_row, place, edits.edits)
        p_known = _laws.known_at(known, p_law, here)
        p_row = _laws.Row(_rows.of_side(target, slot, ALIGNED), target.columns, p_law, None, p_known)
        if target.inverse is not None:  # a row without weight ends the chain
            token = tl.where(p_known.log_sum == _math.INFINITY, -1, token)
        elif epsilon > 0.0:
            token = without_ended(chain, slot, token, target, p_row, ALIGNED, TILE)
        in_range = (token >= 0) & (token < target.columns)
        q_row = _laws.Row(None)
        if draft.at is not None:
            h, bad_h = share_at(chain, slot)
            q_law = _laws.Law(draft.inverse, draft.greedy, draft.cuts, draft.row + slot)
            q_known = _laws.known_at(known + 2, q_law, here)
            q_row = _laws.Row(_rows.of_side(draft, slot, ALIGNED), draft.columns, q_law, draft.map, q_known)
        accepted, bad = slot_accepts(slot, token, in_range, p_row, q_row, h, epsilon, noise)
        n = tl.minimum(n, tl.min(tl.where(here & (accepted == 0), slot, _math.NO_TOKEN), axis=0))
        reached = here & (slot <= n)
        if MET:  # what an earlier launch met, where a draft or its law was used
            row_status = tl.load(records + 4 * slot + _rows.FLAGS, mask=here, other=0) != 0
            bad |= row_status & ((token != -1) | (h < 1.0))
        flags |= _math.any_of(reached & bad) * _math.NON_FINITE
        flags |= _math.any_of(reached & (token != -1) & (in_range == 0)) * _math.TOKEN_RANGE
        flags |= tl.max(tl.where(reached, bad_h, 0), axis=0)
        refused += tl.sum(tl.where(here & (slot == n), token + 1, 0), axis=0)
        share += tl.sum(tl.where(here & (slot == n), h - 1.0, 0.0), axis=0)
        base += SLOTS
    return n, refused, share, flags


@triton.jit
def without_ended(chain, slot, token, target, p_row, ALIGNED: tl.constexpr, TILE: tl.constexpr):
    """The draft tokens of slots, -1 where the row of probabilities has no weight."""
    # Over-acceptance may accept a token of probability 0, but none of a row without weight. Rows are looked through
    # only where the token has no probability; elsewhere the draw finds whether there is weight.
    in_range = (token >= 0) & (token < target.columns)
    left = in_range & ((_rows.value_at(p_row, token, in_range) >= _math.SMALLEST) == 0)
    at = tl.min(tl.where(left, slot, _math.NO_TOKEN), axis=0)
    while at < _math.NO_TOKEN:
        row = _laws.Row(_rows.of_side(target, at, ALIGNED), target.columns, _laws.Law(None))
        token = tl.where((slot == at) & _rows.is_empty(row, TILE), -1, token)
        left = left & (slot > at)
        at = tl.min(tl.where(left, slot, _math.NO_TOKEN), axis=0)
    return token


@triton.jit
def count_passing(chain, readable, n, target, draft, noise, passed, output_format, ALIGNED: tl.constexpr):
    """Writes how many drafts pass their own test: n, and those behind the refused one, before the first -1."""
    end = chain.slots
    for base in range(0, chain.slots, CHUNK):
        slot = base + tl.arange(0, CHUNK)
        ends = (slot >= n) & (slot < end) & (token_at(chain, slot) == -1)
        end = tl.minimum(end, tl.min(tl.where(ends, slot, _math.NO_TOKEN), axis=0))
    count = tl.maximum(n, 0)
    known = _laws.Known(0.0, 0.0)
    for base in range(0, end, CHUNK):
        slot = base + tl.arange(0, CHUNK)
        token = token_at(chain, slot)
        there = _math.both((slot > n) & (slot < end) & (token >= 0) & (token < draft.columns), readable)
        p_law = _laws.Law(target.inverse, None, target.cuts, target.row)
        q_law = _laws.Law(draft.inverse, draft.greedy, draft.cuts, draft.row)
        p_row = _laws.Row(_rows.of_side(target, slot, ALIGNED), target.columns, p_law, None, known)
        q_row = _laws.Row(_rows.of_side(draft, slot, ALIGNED), draft.columns, q_law, draft.map, known)
        p, _ = _rows.probability_at(p_row, token, there)
        q, _ = _rows.probability_at(q_row, token, there)
        passes = there & _math.accepts(_math.accept_uniform(_math.later(noise, slot), slot), p, q, 0.0)
        count += tl.sum(passes.to(tl.int32), axis=0)
    before = tl.load(passed, mask=(output_format & _verdict.ADDED) != 0, other=0)
    tl.store(passed, before + count)


@triton.jit
def finish_draw(chain, readable, n, last_token, flags, records, request, writer, width):
    """The verdict of a request whose last token was drawn, or given, and its counters back to zero."""
    if chain.given_at is not None:
        last_token = tl.where(n == chain.given_at, chain.given, last_token)
        flags |= tl.where(n == chain.given_at, chain.bad_given, 0)
    for base in range(0, width, CHUNK):
        slot = base + tl.arange(0, CHUNK)
        flags |= put_slots(writer, slot, n, width, tl.where(slot == n, last_token, token_at(chain, slot)))
    _verdict.put_count(writer, n)
    _verdict.put_status(writer, flags)
    clear_counters(chain, readable, records, request, 7)


@_launch.kernel
def verify_chain_kernel(
    drafts: Drafts, target: _arguments.Rows, draft: _arguments.Rows, index: _arguments.Index,
    target_temperature: _arguments.Number, draft_temperature: _arguments.Number, epsilon: _arguments.Number,
    noise: _arguments.Noise, entering: _arguments.Entering, verdict: _verdict.Verdict, num_passed, memory: Memory,
    edits: _edits.LogitEdits, plan: Plan, STAGE: tl.constexpr,
):  # fmt: skip
    r = request_of(drafts, index, noise, entering, tl.program_id(0).to(tl.int64))
    b, readable, row, flags, vocab = r.b, r.readable, r.first_row, r.flags, target.vocab
    most = tl.cast(drafts.most, tl.int32)
    RAGGED: tl.constexpr = drafts.packing.cu_drafts is not None
    LEARNS: tl.constexpr = plan.LEARNS
    ALIGNED: tl.constexpr = plan.ALIGNED
    inverse, greedy, bad_temperature = _arguments.heat_of(target_temperature, r.entry, 0, r.live)
    share, bad_epsilon = _math.epsilon_of(_arguments.number(epsilon, r.entry, 0, r.live))
    flags |= bad_temperature | bad_epsilon
    q_inverse, q_greedy = inverse, None
    if plan.OWN_LAW:
        q_inverse, q_greedy, bad_temperature = _arguments.heat_of(draft_temperature, r.entry, 0, r.live)
        flags |= bad_temperature
    if index.data is not None:
        flags = tl.where(r.idle, 0, flags)
    first_row = row if drafts.bonus.data is None else row - b  # `row` is where its records are, with room for one more
    given_at, given, bad_given = None, None, None
    if drafts.bonus.data is not None:
        given_at, given, bad_given = given_to(drafts, r, vocab)
    prob_at = r.entry * drafts.prob.outer + (r.first_draft * drafts.prob.inner if RAGGED else 0)
    chain = Chain(r.slots, tokens_of(drafts, r), drafts.tokens.inner, drafts.prob, prob_at, given_at, given, bad_given)
    own_edits = _edits.RequestEdits(
        edits, r.entry, b, r.live, first_row if RAGGED else 0, r.first_token if RAGGED else 0, given_at
    )  # fmt: skip
    p_start = _rows.row_at(target.rows, first_row * target.inner if RAGGED else b * target.outer, ALIGNED)
    p_inverse = inverse if plan.TARGET == "logits" else None
    p_side = _rows.Side(p_start, target.inner, vocab, p_inverse, None, memory.target_cuts, row)
    q_side = _rows.Side(None)
    if draft.rows is not None:
        PACKED: tl.constexpr = RAGGED and index.data is None
        q_start = _rows.row_at(draft.rows, r.first_draft * draft.inner if PACKED else r.entry * draft.outer, ALIGNED)
        q_side = _rows.Side(
            q_start, draft.inner, draft.vocab, q_inverse if plan.DRAFT == "logits" else None, q_greedy,
            memory.draft_cuts, row, drafts.map,
        )  # fmt: skip
    records, request = memory.counters + 4 * row, memory.counters + 4 * memory.count + 8 * b
    figures = memory.figures + 4 * row
    FILTERED: tl.constexpr = memory.target_cuts is not None or memory.draft_cuts is not None
    if FILTERED:
        asks = tl.full([], 1, tl.int1)
        if STAGE == "emit":  # one program answers for a request at temperature 0, and sets this back
            asks = (greedy == 0) | (tl.program_id(1) == 0)
        flags |= tl.load(request + _rows.FLAGS, mask=asks, other=0) & _math.PARAMETER
    writer = _verdict.Writer(verdict, b)

    if STAGE == "scan":
        chunk, chunks = tl.program_id(1), tl.num_programs(1)
        split, splits = tl.program_id(2), tl.num_programs(2)
        if plan.METHOD == "race":
            racing = b >= 0
        else:
            racing = greedy
        slot = chunk
        rows_read = tl.where(racing, rows_of(chain), chain.slots if LEARNS else 0)
        walking = readable & (slot < rows_read)
        while walking:
            record = records + 4 * slot
            token = token_at(chain, slot)
            start = _rows.of_side(p_side, slot, ALIGNED)
            place, bad_bias = _edits.place_of(own_edits, slot, r.live, vocab)
            if racing:
                if edits.by_row is not None:  # noqa: SIM102  one is known when it is compiled
                    if bad_bias != 0:
                        tl.atomic_or(record + _rows.FLAGS, bad_bias, sem="relaxed")
                law = _laws.Law(p_inverse, greedy, memory.target_cuts, row + slot, edits.by_row, place, edits)
                race_slot(
                    _laws.Row(start, vocab, law), _arguments.race_noise(r.noise, entering, b, slot, slot), slot, token,
                    chunks > most, record, request, split, splits, plan.TILE,
                )  # fmt: skip
            elif LEARNS:
                h, q_row = 1.0, _laws.Row(None)
                if draft.rows is not None:
                    h, _ = share_at(chain, slot)
                    q_law = _laws.Law(q_side.inverse, q_side.greedy, q_side.cuts, row + slot)
                    q_row = _laws.Row(_rows.of_side(q_side, slot, ALIGNED), q_side.columns, q_law, q_side.map)
                walking = (token != -1) | (h < 1.0)
                if walking:
                    law = _laws.Law(p_inverse, None, memory.target_cuts, row + slot, edits.by_row, place, edits)
                    learn_slot(
                        _laws.Row(start, vocab, law), q_row, h, share, r.noise, slot, token, record, request,
                        figures + 4 * slot, memory.items + 2 * _rows.mass_items_of(vocab) * (row + slot), split, splits,
                        plan,
                    )  # fmt: skip
                walking = walking & (token != -1)
            slot += chunks
            walking = walking & (slot < rows_read)
            if walking:
                walking = slot <= from_end(tl.atomic_max(request + END, 0, sem="relaxed"))
        if racing:  # noqa: SIM102  `and` would take a ticket
            if _rows.is_last(request + _rows.DONE, splits * chunks):
                flags |= _edits.request_status(edits, r.entry, 0, r.live, vocab)
                finish_race(chain, readable, flags, vocab, records, None, request, writer, most + 1)
    elif STAGE == "walk":
        if greedy:
            return
        tree = _trees.Tree(None, 0, chain.tokens - chain.tokens_slot, chain.tokens_slot)
        walked = _traversal.traverse(
            tree, tl.where(readable, chain.slots + 1, 0), chain.slots, p_side, q_side, own_edits,
            _rows.Memory(records, figures, memory.kept + _traversal.KEPT * row), r.noise, 4, False, ALIGNED, plan.TILE,
        )  # fmt: skip
        tl.store(request + END, walked.node)
        tl.store(request + SUBTRACTED, walked.subtracted.to(tl.int32, bitcast=True))
        tl.store(request + TRIED, walked.tried.to(tl.int32))
        _verdict.put_status(writer, walked.flags)
    else:
        split, splits = tl.program_id(1), tl.num_programs(1)
        if greedy == 0:
            if plan.METHOD == "block":
                n, reported = tl.minimum(tl.load(request + END), chain.slots), _verdict.status_of(writer)
                h = tl.load(request + SUBTRACTED).to(tl.float32, bitcast=True)
                from_residual = tl.load(request + TRIED) != 0
                refused = tl.where(from_residual, token_at(chain, n), -1)
            else:
                n, refused, h, reported = walk(
                    chain,
                    own_edits,
                    p_side,
                    q_side,
                    share,
                    r.noise,
                    records,
                    figures,
                    LEARNS or FILTERED,
                    ALIGNED,
                    plan.TILE,
                )
                from_residual = (refused != -1) | (h < 1.0)
            q_row, excluded = _laws.Row(None), None
            if draft.rows is None:
                excluded = tl.where(refused < vocab, refused, -1)
            else:
                q_law = _laws.Law(q_side.inverse, q_side.greedy, q_side.cuts, row + n)
                q_row = _laws.Row(_rows.of_side(q_side, n, ALIGNED), q_side.columns, q_law, q_side.map)
            place, bad_bias = _edits.place_of(own_edits, n, r.live, vocab)
            p_law = _laws.Law(p_inverse, None, memory.target_cuts, row + n, edits.by_row, place, edits)
            if FILTERED:
                reported |= tl.load(records + 4 * n + _rows.FLAGS, mask=readable, other=0) & _math.NON_FINITE
            p_row = _laws.Row(_rows.of_side(p_side, n, ALIGNED), vocab, p_law)
            own_noise, draws = _math.later(r.noise, n), readable
            if drafts.bonus.data is not None:
                draws = readable & (n != given_at)
            if _races.draw_part(
                p_row, q_row, figures + 4 * n, h, from_residual, draws, excluded, None, request, own_noise, split,
                splits, plan.TILE,
            ):  # fmt: skip
                token, drawn_flags, empty = _races.drawn(
                    p_row, q_row, from_residual, draws, request, own_noise, plan.TILE
                )  # fmt: skip
                if plan.METHOD == "rejection":  # the draft refused at a row without weight counts as absent
                    reported = tl.where(empty, reported & _math.PARAMETER, reported)
                reported |= bad_bias | _edits.request_status(edits, r.entry, 0, r.live, vocab)
                flags |= reported | drawn_flags
                if num_passed is not None:
                    passed = num_passed + b
                    count_passing(chain, readable, n, p_side, q_side, r.noise, passed, verdict.output_format, ALIGNED)
                finish_draw(chain, readable, n, token, flags, records, request, writer, most + 1)
        elif not plan.SCANS:  # noqa: SIM102  the launch for cuts has found each argmax
            if split == 0:
                flags |= _edits.request_status(edits, r.entry, 0, r.live, vocab)
                finish_race(chain, readable, flags, vocab, records, figures, request, writer, most + 1)


verify_chain_kernel.most_registers = _races.most_registers


@_launch.kernel
def filtered_chain_kernel(
    drafts: Drafts, target: _arguments.Rows, index: _arguments.Index, law: _arguments.Law, epsilon: _arguments.Number,
    noise: _arguments.Noise, entering: _arguments.Entering, verdict: _verdict.Verdict, memory: Memory,
    search: _cuts.Search, edits: _edits.LogitEdits, tiling: _cuts.Tiling,
):  # fmt: skip
    """Races of rows with filters. The programs of a group go from row to row together only if there is one of them:
    the group has memory for one row."""
    r = request_of(drafts, index, noise, entering, tl.program_id(0).to(tl.int64))
    b, readable, row, flags, vocab = r.b, r.readable, r.first_row, r.flags, target.vocab
    RAGGED: tl.constexpr = drafts.packing.cu_drafts is not None
    inverse, greedy, bad_temperature = _arguments.heat_of(law.temperature, r.entry, 0, r.live)
    filter, bad_filter = _filters.filter_of(law, r.entry, 0, r.live, vocab, greedy)
    _, bad_epsilon = _math.epsilon_of(_arguments.number(epsilon, r.entry, 0, r.live))
    flags |= bad_temperature | bad_epsilon | tl.where(r.live, bad_filter, 0)
    if index.data is not None:
        flags = tl.where(r.idle, 0, flags)
    first_row = row if drafts.bonus.data is None else row - b  # records have room for one row more
    given_at, given, bad_given = None, None, None
    if drafts.bonus.data is not None:
        given_at, given, bad_given = given_to(drafts, r, vocab)
    chain = Chain(r.slots, tokens_of(drafts, r), drafts.tokens.inner, drafts.prob, 0, given_at, given, bad_given)
    own_edits = _edits.RequestEdits(
        edits, r.entry, b, r.live, first_row if RAGGED else 0, r.first_token if RAGGED else 0, given_at
    )  # fmt: skip
    start = _rows.row_at(target.rows, first_row * target.inner if RAGGED else b * target.outer, tiling.ALIGNED)
    records, request = memory.counters + 4 * row, memory.counters + 4 * memory.count + 8 * b
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    split, splits = tl.program_id(2), tl.num_programs(2)
    scratch = search.scratch + search.words * (b * chunks + chunk)
    slot = chunk
    walking = readable & (slot < rows_of(chain))
    while walking:
        record = records + 4 * slot
        place, bad_bias = _edits.place_of(own_edits, slot, r.live, vocab)
        if bad_bias != 0:
            tl.atomic_or(record + _rows.FLAGS, bad_bias, sem="relaxed")
        own_law = _laws.Law(inverse, greedy, None, row + slot, edits.by_row, place, edits)
        own = _laws.Row(_rows.row_at(start, slot * target.inner, tiling.ALIGNED), vocab, own_law)
        own_noise = _arguments.race_noise(r.noise, entering, b, slot, slot)
        _kept.begin_kept(own, filter, record, scratch, own_noise, split, splits, tiling)
        if _rows.is_last(record + _rows.DONE, splits):
            _kept.finish_kept(own, filter, record, scratch, search.cuts, own_noise, tiling)
            best = tl.atomic_max(_rows.key_at(record), tl.full([], 0, tl.uint64), sem="relaxed")
            if _math.key_token(best) != token_at(chain, slot):
                tl.atomic_max(request + END, from_end(slot), sem="relaxed")
        slot += chunks
        walking = slot < rows_of(chain)
        if walking:
            walking = slot <= from_end(tl.atomic_max(request + END, 0, sem="relaxed"))
    if _rows.is_last(request + _rows.DONE, splits * chunks):
        flags |= _edits.request_status(edits, r.entry, 0, r.live, vocab)
        writer, width = _verdict.Writer(verdict, b), tl.cast(drafts.most, tl.int32) + 1
        finish_race(chain, readable, flags, vocab, records, None, request, writer, width)


filtered_chain_kernel.most_registers = _cuts.most_registers


def shared_of(call, requests, width, edits, draft=None):
    """Arguments that both kernels have."""
    return dict(
        drafts=Drafts(_arguments.row_steps(call.draft_tokens), _arguments.packing_of(call, requests),
        width - 1, _arguments.number_of(call.draft_prob), _arguments.steps_or_none(call.bonus),
        None if draft is None else call.draft_map), target=_arguments.rows_of(call.target),
        epsilon=_arguments.number_of(call.epsilon), noise=_arguments.noise_numbers(call.noise),
        verdict=_verdict.verdict_of(call),
        entering=_arguments.entering_of(call, _arguments.row_steps(call.input_positions), call.input_nonces),
        **edits,
    )  # fmt: skip


def filtered_race(call, requests, width, rows):
    """All rows are raced under filters: one launch."""
    target, law = call.target, call.target_law
    vocab, device = target.shape[-1], target.device
    edits = _edits.arguments(call, call.draft_tokens, ragged=call.cu_drafts is not None)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    chunks = max(1, min(width, _cuts.groups_of(requests * width, device) // requests))
    splits = _launch.splits_of(requests * width, tiles, device) if chunks == width else 1
    words, cuts = _cuts.search_words_of(vocab), _laws.CUT.value * rows
    with _launch.on_device(target), _launch.whole_calls:
        counters, scratch = _launch.workspace(target, 4 * rows + 8 * requests, cuts + words * requests * chunks)
        arguments = shared_of(call, requests, width, edits) | dict(
            memory=Memory(counters, rows, None, None, None, None, None), law=_arguments.law_of(law),
            search=_cuts.Search(scratch, scratch[cuts:], words),
            tiling=_cuts.tiling_of(tile, tiles, _launch.aligned(target)), index=_arguments.index_of(call.request_index,
            *_launch.numbers_of(law), call.epsilon, *call.noise, edit=call.edits),
        )  # fmt: skip
        _launch.launch(filtered_chain_kernel, (requests, chunks, splits), warps, arguments)


def verify_chain(call):
    """The verdict of each request, as ``specdec_kernels.verify_chain`` has it."""
    requests, width = _verdict.shape_of(call)
    if requests == 0:
        return
    target, law, ragged = call.target, call.target_law, call.cu_drafts is not None
    vocab = target.shape[-1]
    rows = call.draft_tokens.shape[0] + requests * (1 - call.tokens_by_row) if ragged else requests * width
    edits = _edits.arguments(call, call.draft_tokens, ragged=ragged)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    # Where all requests are greedy the race is the whole of rejection.
    race = call.method == "race" or _launch.is_greedy(law)
    if race and _launch.is_filtered(law) and _launch.TICKETS_ORDER_STORES:
        return filtered_race(call, requests, width, rows)
    block = call.method == "block" and not race
    draft, packed = None if race else call.draft, ragged and call.request_index is None
    own_law = call.draft is not None and call.draft.numel() > 0 and _launch.is_own(call.draft_law, law)
    scanned = _launch.scanned_sides(call, draft)
    learns = not race and _launch.learns(call, draft, own_law, scanned)
    words = _cuts.words_of(vocab, rows, target.device, scanned)
    # Requests at temperature 0 race, unless the launch that finds cuts does all that one would do before the last.
    scans = race or learns or (isinstance(law.temperature, torch.Tensor) and not scanned[0])
    index = _arguments.index_of(
        call.request_index, None if packed else call.draft, *_launch.numbers_of(law),
        *_launch.numbers_of(call.draft_law), call.draft_prob, call.epsilon, *call.noise, edit=call.edits,
    )  # fmt: skip
    with _launch.on_device(target), _launch.whole_calls:
        figures = (4 * (learns or words > 0) + _launch.mass_items_of(vocab) * learns) * rows
        kept = figures + words
        counters, scratch = _launch.workspace(
            target, 4 * rows + 8 * requests, kept + _traversal.KEPT.value * rows * block
        )  # fmt: skip
        cuts = None, None
        if words:
            flags = _arguments.Steps(counters[4 * rows + _rows.FLAGS.value :], 8, 0)
            stored = _cuts.Stored(width, 4, counters, 4, flags, int(call.bonus is not None))
            cuts = _cuts.launch_pair(
                call, draft, scanned, index, edits, scratch, stored, scratch[figures:], requests, width
            )  # fmt: skip
        plan = (
            "race" if race else call.method, law.space, None if draft is None else call.draft_law.space, own_law,
            learns, scans, _launch.aligned(target, draft), tile, _launch.power_of_2(tiles),
        )  # fmt: skip
        items, own = scratch[4 * rows :] if learns else scratch, scratch[kept:] if block else None
        arguments = shared_of(call, requests, width, edits, draft) | dict(
            draft=_arguments.rows_of(draft), index=index, target_temperature=_arguments.temperature_of(law),
            draft_temperature=_arguments.temperature_of(call.draft_law if own_law else None),
            num_passed=call.num_passed, memory=Memory(counters, rows, scratch, items, own, *cuts),
            plan=_launch.constants(Plan, *plan),
        )  # fmt: skip
        splits = _launch.splits_of(requests, tiles, target.device)
        if scans:
            chunks = _launch.chunks_of(requests, splits, width, target.device)
            _launch.launch(verify_chain_kernel, (requests, chunks, splits), warps, arguments | {"STAGE": "scan"})
        if block:
            _launch.launch(
                verify_chain_kernel, (requests,), _traversal.MORE_WARPS * warps, arguments | {"STAGE": "walk"}
            )  # fmt: skip
        if not race:
            _launch.launch(verify_chain_kernel, (requests, splits), warps, arguments | {"STAGE": "emit"})
