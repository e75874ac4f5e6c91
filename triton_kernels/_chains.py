"""What the kernels of chains share: a request's drafts, and how its verdict is written.

Counters are int32, zero before and after a call. Row r has 4 words from 4 r on: the best key (two words), programs
done, status. Request b has 8 words from 4 rows + 8 b on: the best key, programs done, status, the end of the walk
(block: how many drafts are accepted), T of walk.h there as the bits of a float, and whether a draft was tried there.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import (
    _arguments,
    _laws,
    _math,
    _rows,
    _verdict,
)

CHUNK = tl.constexpr(32)  # drafts of a step
# Words of a request's record: the end of the walk, and in block T of walk.h there and whether a draft was tried.
END, SUBTRACTED, TRIED = tl.constexpr(4), tl.constexpr(5), tl.constexpr(6)


class Drafts(NamedTuple):
    """The drafts of a call."""

    tokens: _arguments.Steps  # [B, most], or packed [D]
    packing: _arguments.Packing
    most: int
    prob: _arguments.Number  # h [B, most]: the factor of q in p - h q
    bonus: _arguments.Steps  # [B]: tokens after all drafts, if they are given
    map: tl.tensor  # [V]: the token of each column of a draft row, or None


class Memory(NamedTuple):
    """Memory of a call with ``count`` rows."""

    counters: tl.tensor  # int32 [4 count + 8 B]
    count: int
    pair_stats: tl.tensor  # float32 [count, 4]
    items: tl.tensor  # float32 [count, 2 mass_items_of(V)]
    node_state: tl.tensor  # float32 [count, NODE_WORDS]: of the walk of block
    target_cuts: tl.tensor  # float32 [count, CUT], or None
    draft_cuts: tl.tensor  # float32 [count, CUT], or None


class Plan(NamedTuple):
    """What is compiled in."""

    METHOD: tl.constexpr
    TARGET: tl.constexpr  # space of the target's rows
    DRAFT: tl.constexpr
    SEPARATE_LAW: tl.constexpr  # the draft has its own temperature
    NEEDS_STATS: tl.constexpr  # ``scan`` stores ``RowStats``
    SCANS: tl.constexpr  # there is a launch ``scan``
    ALIGNED: tl.constexpr
    TILE: tl.constexpr
    TILES: tl.constexpr


class Request(NamedTuple):
    """One request."""

    b: tl.tensor
    entry: tl.tensor
    live: tl.tensor  # whether it has an entry
    idle: tl.tensor
    readable: tl.tensor  # whether it has an entry, and bounds that make sense
    num_drafts: tl.tensor
    first_draft: tl.tensor  # index among packed drafts
    first_row: tl.tensor
    first_token: tl.tensor
    flags: tl.tensor  # status bits
    noise: _math.Noise


class Chain(NamedTuple):
    """The drafts of a request. The last three fields are None if no bonus tokens are given."""

    num_drafts: tl.tensor
    tokens: tl.tensor  # [num_drafts], ``tokens_step`` elements apart
    tokens_step: tl.tensor
    prob: _arguments.Number
    prob_at: tl.tensor  # offset of the first h in ``prob``
    bonus_index: tl.tensor  # the index that has ``bonus_token`` and no row
    bonus_token: tl.tensor
    bad_bonus: tl.tensor  # status of that token


@triton.jit
def load_request(drafts, index, noise, inputs, b):
    entry, live, idle = _arguments.load_entry(index, b)
    packed = _arguments.locate_request(drafts.packing, b, tl.cast(drafts.most, tl.int32))
    readable, num_drafts, flags = packed.readable, packed.drafts, packed.flags
    if index.data is not None:
        readable = readable & live
        num_drafts = tl.where(live, num_drafts, tl.where(idle, -1, 0))
        flags |= tl.where(live, 0, _math.PARAMETER)
    request_noise = _arguments.load_noise(noise, entry, 0, live)
    row = packed.first_row if drafts.packing.cu_drafts is not None else 0
    request_noise = _arguments.noise_at_input(request_noise, inputs, b, row, readable & live)
    return Request(
        b, entry, live, idle, readable, num_drafts, packed.first_draft, packed.first_row, packed.first_token, flags,
        request_noise,
    )  # fmt: skip


@triton.jit
def from_end(draft_index):
    """Counts indices down, so that the lowest is a maximum and 0 is behind all. The function inverts itself."""
    return -draft_index + _math.NO_TOKEN


@triton.jit
def token_at(chain, draft_index):
    """The draft token at an index or a block of them; -1 behind the last."""
    at = chain.tokens + draft_index * chain.tokens_step
    return tl.load(at, mask=draft_index < chain.num_drafts, other=-1).to(tl.int64)


@triton.jit
def tokens_of(drafts, request):
    """Pointer to the draft tokens of a request."""
    if drafts.packing.cu_drafts is None:
        return _arguments.at(drafts.tokens, request.b, 0)
    else:
        return drafts.tokens.data + request.first_token * drafts.tokens.inner


@triton.jit
def load_bonus(drafts, request, vocab):
    """(the index behind all drafts, which has a token and no row; that token, 0 if it is out of range; its status)."""
    # A request whose drafts are more than are verified has a row behind them, so no index has the token.
    whole = request.readable
    if drafts.packing.cu_drafts is not None:
        cu_drafts = drafts.packing.cu_drafts + request.b
        whole = whole & (tl.load(cu_drafts + 1) - tl.load(cu_drafts) == request.num_drafts)
    token = tl.load(_arguments.at(drafts.bonus, request.b, 0)).to(tl.int64)
    good = (token >= 0) & (token < vocab)
    at = tl.where(whole, request.num_drafts, _math.NO_TOKEN)
    return at, tl.where(good, token, 0), tl.where(good, 0, _math.PARAMETER)


@triton.jit
def count_rows(chain):
    """How many rows of the target a request has."""
    if chain.bonus_index is None:
        return chain.num_drafts + 1
    else:
        return chain.num_drafts + tl.where(chain.bonus_index == chain.num_drafts, 0, 1)


@triton.jit
def load_draft_prob(chain, draft_index):
    """(h at an index or a block of them, status)."""
    if chain.prob.data is None:
        return _math.draft_prob_of(tl.where(draft_index >= 0, chain.prob.value, 1.0))
    else:
        at = chain.prob.data + chain.prob_at + draft_index * chain.prob.inner
        return _math.draft_prob_of(tl.load(at, mask=draft_index < chain.num_drafts, other=1.0))


@triton.jit
def accepts_draft(draft_index, token, in_range, p_row, q_row, h, epsilon, noise):
    """(whether the draft is accepted, whether a probability is bad) at an index or a block of them."""
    x = _rows.value_at(p_row, token, in_range)
    p = tl.where(in_range, _laws.probabilities(x, token, p_row.law, p_row.stats), 0.0)
    bad = in_range & _laws.unlike(x, p_row.law)
    epsilon = _laws.epsilon_at(epsilon, x, in_range, p_row.law)
    q = 1.0
    if q_row.at is not None:
        q, bad_draft = _rows.probability_at(q_row, token, in_range)
        bad |= bad_draft
    uniform = _math.accept_uniform(_math.later(noise, draft_index), draft_index)
    return in_range & _math.accepts(uniform, p, h * q, epsilon), bad


@triton.jit
def clear_counters(chain, readable, records, request, END: tl.constexpr):
    """Sets the counters of a request's rows back to zero, and words [2, END) of this program's record."""
    _rows.clear(records, tl.where(readable, 4 * (chain.num_drafts + 1), 0))
    for word in tl.static_range(2, END):
        tl.store(request + word, 0)


@triton.jit
def put_tokens(writer, draft_index, n, width, tokens):
    """Writes the tokens at indices up to n, and clears those behind. Returns status bits."""
    there, behind = (draft_index < width) & (draft_index <= n), (draft_index < width) & (draft_index > n)
    _verdict.put_token(writer, draft_index, draft_index, tokens, there)
    reported = tl.max(_verdict.put_node(writer, draft_index, draft_index, there), axis=0)
    _verdict.clear_columns(writer, draft_index, behind)
    _verdict.clear_nodes(writer, draft_index, behind)
    return reported


@triton.jit
def finish_race(chain, readable, flags, vocab, records, pair_stats, request, writer, width):
    """Writes the verdict of a request whose rows were all raced, and sets its counters back to zero."""
    # ``pair_stats`` has their argmax if the launch that cuts rows stored it; else it is None.
    n = chain.num_drafts
    for base in range(0, width, CHUNK):
        draft_index = base + tl.arange(0, CHUNK)
        held = draft_index <= tl.where(readable, chain.num_drafts, -1)
        record = records + 4 * draft_index
        if pair_stats is None:
            keys = tl.load(_rows.key_at(record), mask=held, other=_math.NO_CANDIDATE, cache_modifier=".cg")
        else:
            top = tl.load(pair_stats + 4 * draft_index, mask=held, other=0.0, cache_modifier=".cg")
            top = top.to(tl.int32, bitcast=True)
            keys = _math.key_of(tl.where(top >= 0, 0.0, -_math.INFINITY), top)
        row_status = tl.load(record + _rows.FLAGS, mask=held, other=0, cache_modifier=".cg")
        token, winner, unknown = token_at(chain, draft_index), _math.key_token(keys), keys == _math.NO_CANDIDATE
        if chain.bonus_index is not None:
            winner = tl.where(draft_index == chain.bonus_index, chain.bonus_token, winner)
            unknown = unknown & (draft_index != chain.bonus_index)
        bad = (row_status & _math.NON_FINITE != 0) | unknown
        token = tl.where(unknown, -1, token)  # a row without weight ends the chain
        ends = held & (unknown | (winner != token))
        n = tl.minimum(n, tl.min(tl.where(ends, draft_index, _math.NO_TOKEN), axis=0))
        reached = held & (draft_index <= n)
        flags |= _math.any_of(reached & bad) * _math.NON_FINITE
        flags |= _math.any_of(reached & (row_status & _math.PARAMETER != 0)) * _math.PARAMETER
        flags |= _math.any_of(reached & ((token < -1) | (token >= vocab))) * _math.TOKEN_RANGE
        flags |= put_tokens(writer, draft_index, n, width, winner)
    if chain.bonus_index is not None:
        flags |= tl.where(n == chain.bonus_index, chain.bad_bonus, 0)
    _verdict.put_count(writer, n)
    _verdict.put_status(writer, flags)
    clear_counters(chain, readable, records, request, 5)


def shared_of(call, requests, width, edits, draft=None):
    """The arguments that both kernels have."""
    return dict(
        drafts=Drafts(_arguments.row_steps(call.draft_tokens), _arguments.packing_of(call, requests),
        width - 1, _arguments.number_of(call.draft_prob), _arguments.steps_or_none(call.bonus),
        None if draft is None else call.draft_map), target=_arguments.rows_of(call.target),
        epsilon=_arguments.number_of(call.epsilon), noise=_arguments.noise_numbers(call.noise),
        verdict=_verdict.verdict_of(call),
        inputs=_arguments.inputs_of(call, _arguments.row_steps(call.input_positions), call.input_nonces),
        **edits,
    )  # fmt: skip
