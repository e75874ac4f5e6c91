"""Verification of trees: one launch for the race, two for rejection.

The first launch, ``scan``, goes over the rows of all nodes, split over programs. A row decides for itself which child
the walk goes to, if it ever comes there: the last program of a row compares its winner with the children, or tries them
one by one. Decisions that join up from the root move the front of the walk; programs take rows in order, ask for the
front before each, and pass over what does not hang on it. Nobody waits: where programs are many all rows are read at
once, where rows are many few off the path are read. The last program of a request follows the decisions. The second
launch, ``emit``, races over the row at the path's end, where rejection draws a token; rows of leaves are left to it.

int32 counters, zero before and after a call. Of row r, from 6 r: the best key (two words), programs done, status, the
child walked to plus 2 (1: none, 0: not yet known), T_m of tree.h as the bits of a float. Of request b, from 6 rows +
8 b: the best key, programs done, status, the last node, its T_m, whether a child of it was tried, the front.
"""

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _launch
from specdec_kernels.triton_kernels._math import (
    EMPTY_RESIDUAL,
    GROUP,
    INFINITY,
    LARGEST,
    NOBODY,
    NON_FINITE,
    PARAMETER,
    SMALLEST,
    STREAM_RACE,
    STREAM_RESIDUAL,
    TOKEN_RANGE,
    accept_coin,
    accepts,
    any_of,
    clean_probability,
    inverse_temperature,
    key_token,
    later,
    probability,
    residual_weight,
    scaled,
)
from specdec_kernels.triton_kernels._rows import (
    LOGITS,
    PROBS,
    finish_lse,
    group_tops,
    is_last,
    key_at,
    laws_at,
    load_tile,
    lse_tiles,
    noise_at,
    number,
    race_row,
    race_tiles,
    residual_tiles,
    row_at,
    unclean_groups,
    without_children,
)
from specdec_kernels.triton_kernels._trees import (
    NODES,
    child_with,
    next_child,
    next_node,
    status_of,
    strays,
)

ROW = tl.constexpr(6)  # words of a row's record
DONE, FLAGS, NEXT, TAKEN = tl.constexpr(2), tl.constexpr(3), tl.constexpr(4), tl.constexpr(5)
NODE, NODE_TAKEN, TRIED, FRONT = tl.constexpr(4), tl.constexpr(5), tl.constexpr(6), tl.constexpr(7)  # of a request's
NOWHERE = tl.constexpr(1)  # as a row's next: the walk goes no further
DRAFTED = tl.constexpr(1 << 16)  # beside the public bits: some token of the draft row has weight


@triton.jit
def decide(records, request, node, child, nodes):
    """Says that a walk at ``node`` goes on to ``child`` (-1: ends), and moves the front if it is there."""
    tl.atomic_max(records + node * ROW + NEXT, child + 2, sem="relaxed")
    if tl.atomic_max(request + FRONT, 0, sem="relaxed") == node:
        said = child + 2
        while said > NOWHERE:
            node = said - 2
            said = tl.atomic_max(records + node * ROW + NEXT, 0, sem="relaxed")
        tl.atomic_max(request + FRONT, tl.where(said == NOWHERE, nodes, node), sem="relaxed")


@triton.jit
def masses(
    target, draft, p_top, p_log_sum, q_top, q_log_sum, vocab, draft_vocab, inverse, taken, children, marks,
    SPACE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """(sum of (p - taken q)^+, sum of q but for the tokens of ``children``, status), by one program in one order.

    ``marks`` has the bits of the tiles, modulo 64, in which children have tokens.
    """
    NOTHING: tl.constexpr = -INFINITY if SPACE == "logits" else 0.0
    GROUPS: tl.constexpr = TILE // GROUP
    left, untried = tl.zeros([GROUPS], tl.float32), tl.zeros([GROUPS], tl.float32)
    p_all, q_all = tl.zeros([GROUPS], tl.float32), tl.zeros([GROUPS], tl.float32)
    bad = tl.zeros([GROUPS], tl.int1)
    for tile in range(0, tl.cdiv(vocab, TILE)):
        start = tl.cast(tile, tl.int32) * TILE
        x = load_tile(target, start, vocab, NOTHING, TILE)
        y = load_tile(draft, start, draft_vocab, NOTHING, TILE)
        if SPACE == "logits":
            p = probability(scaled(x, inverse), p_top, p_log_sum)
            q = probability(scaled(y, inverse), q_top, q_log_sum)
        else:
            p, q = clean_probability(x), clean_probability(y)
            bad = bad | unclean_groups(x, group_tops(x), PROBS) | unclean_groups(y, group_tops(y), PROBS)
            p_all += tl.sum(p, axis=1)
            q_all += tl.sum(q, axis=1)
        left += tl.sum(residual_weight(p, taken * q), axis=1)
        if (marks >> (start // TILE % 64).to(tl.uint64)) & 1 == 1:
            q = without_children(q, start, 0.0, children, TILE)
        untried += tl.sum(q, axis=1)
    flags = 0
    if SPACE == "probs":
        weightless = (any_of(p_all > 0.0) == 0) | (any_of(q_all > 0.0) == 0)
        flags = tl.where((any_of(bad) > 0) | weightless, NON_FINITE, 0)
    return tl.sum(left, axis=0), tl.sum(untried, axis=0), flags


@triton.jit
def try_children(
    tree, node, nodes, target, draft, p_top, p_log_sum, q_top, q_log_sum, vocab, draft_vocab, inverse, noise,
    REPLACEMENT: tl.constexpr, SPACE: tl.constexpr, HAS_DRAFT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """tree.h's: (the child accepted or -1, T_m after the last one tried, status)."""
    tokens, tokens_node = tree[2], tree[3]
    REPEATS: tl.constexpr = HAS_DRAFT and REPLACEMENT
    accepted, flags = -1 + 0 * node, 0 * node
    taken, share = tl.full([], 0.0, tl.float32), tl.full([], 1.0, tl.float32)
    marks = tl.full([], 0, tl.uint64)
    tried = node < 0
    child = next_child(tree, node, node, nodes)
    while child < nodes:
        token = tl.load(tokens + child * tokens_node).to(tl.int64)
        in_range = (token >= 0) & (token < vocab)
        flags |= tl.where(in_range, 0, TOKEN_RANGE)
        if (REPEATS == 0) & tried & in_range:  # a repeated sibling is no draw from q^m, which has it no more
            again = child_with(tree, node, token, child) < child
        else:
            again = node < 0
        if again == 0:
            if HAS_DRAFT and tried:
                left, untried, met = masses(
                    target, draft, p_top, p_log_sum, q_top, q_log_sum, vocab, draft_vocab, inverse, taken,
                    (tree, node, child), marks, SPACE, TILE,
                )  # fmt: skip
                flags |= met
                if REPEATS:
                    untried = 1.0
                share = tl.where(
                    untried >= SMALLEST, tl.minimum(tl.div_rn(left, tl.maximum(untried, SMALLEST)), LARGEST), 0.0
                )
            tried = node >= 0
            p, q, bad = laws_at(
                token, in_range, target, draft, p_top, p_log_sum, q_top, q_log_sum, inverse, draft_vocab, SPACE,
                HAS_DRAFT,
            )  # fmt: skip
            if SPACE == "probs":
                flags |= tl.where(bad, NON_FINITE, 0)
            if in_range & accepts(accept_coin(noise, child - 1), p - taken * q, share * q, 0.0):
                accepted = child
            elif HAS_DRAFT:
                taken = tl.minimum(taken + share, LARGEST)
            else:  # one-hot drafts: the mass not yet tried
                share = tl.maximum(share - tl.where(in_range, p, 0.0), 0.0)
            marks |= tl.full([], 1, tl.uint64) << (tl.where(in_range, token, 0) // TILE % 64).to(tl.uint64)
        child = tl.where(accepted < 0, next_child(tree, node, child, nodes), nodes)
    return accepted, taken, flags


@triton.jit
def finish_walk(
    tree, nodes, flags, records, request, vocab, racing, tokens, path, num_accepted, status, max_depth
):  # fmt: skip
    """Follows the decisions from the root; what is left for the other launch is the last token, unless ``racing``."""
    node, depth = nodes * 0, nodes * 0
    child = nodes * 0
    while child >= 0:
        node = child
        record = records + node * ROW
        child = tl.load(record + NEXT, cache_modifier=".cg") - 2
        flags |= tl.load(record + FLAGS, cache_modifier=".cg")
        tl.store(path + depth, node)
        if racing:
            key = tl.load(key_at(record), cache_modifier=".cg")
            flags |= tl.where(key == NOBODY, NON_FINITE, 0)
            tl.store(tokens + depth, key_token(key).to(tl.int64))
        elif child >= 0:
            tl.store(tokens + depth, tl.load(tree[2] + child * tree[3]).to(tl.int64))
        depth += 1
    depth -= 1
    tried = next_child(tree, node, node, nodes) < nodes
    flags |= tl.where(tried & (depth == max_depth), PARAMETER, 0) | status_of(tree[0], tree[1], nodes)
    tl.store(num_accepted, depth)
    tl.store(status, flags)
    taken = tl.load(records + node * ROW + TAKEN, cache_modifier=".cg")
    if racing == 0:
        tl.store(request + NODE, node)
        tl.store(request + NODE_TAKEN, taken)
        tl.store(request + TRIED, (tried & (depth < max_depth)).to(tl.int32))
    for base in range(0, max_depth + 1, NODES):
        at = base + tl.arange(0, NODES)
        beyond = (at <= max_depth) & (at > depth)
        tl.store(path + at, tl.full([NODES], -1, tl.int32), mask=beyond)
        tl.store(tokens + at, tl.full([NODES], -1, tl.int64), mask=beyond)
    tl.debug_barrier()  # all warps have read
    for base in range(0, nodes * ROW, 128):
        word = base + tl.arange(0, 128)
        tl.store(records + word, tl.zeros([128], tl.int32), mask=word < nodes * ROW)
    tl.store(request + DONE, 0)
    tl.store(request + FRONT, 0)


@_launch.kernel
def scan_kernel(
    draft_tokens, draft_tokens_request: tl.int64, draft_tokens_node: tl.int64,
    parents, parents_request: tl.int64, parents_node: tl.int64,
    target, target_request: tl.int64, target_row: tl.int64, draft, draft_request: tl.int64, draft_row: tl.int64,
    nodes: tl.int32, max_depth: tl.int32, dense: tl.int32, vocab: tl.int32, draft_vocab: tl.int32,
    temperature, temperature_request: tl.int64, temperature_value: tl.float32,
    seed, seed_request: tl.int64, seed_value: tl.int64, position, position_request: tl.int64, position_value: tl.int64,
    nonce, nonce_request: tl.int64, nonce_value: tl.int64,
    tokens, tokens_request: tl.int64, path, path_request: tl.int64, num_accepted, status, counters, figures, partials,
    METHOD: tl.constexpr, REPLACEMENT: tl.constexpr, SPACE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    split, splits = tl.program_id(2), tl.num_programs(2)
    noise = noise_at(
        seed, seed_value, b * seed_request, position, position_value, b * position_request, nonce, nonce_value,
        b * nonce_request,
    )  # fmt: skip
    inverse, greedy, flags = inverse_temperature(number(temperature, temperature_value, b * temperature_request))
    if METHOD == "race":
        racing = b >= 0
    else:
        racing = greedy
    HAS_DRAFT: tl.constexpr = draft is not None
    records = counters + nodes * ROW * b
    request = counters + nodes * ROW * tl.num_programs(0).to(tl.int64) + 8 * b
    tree = (
        parents + b * parents_request, parents_node, draft_tokens + b * draft_tokens_request, draft_tokens_node
    )  # fmt: skip
    tiles = tl.cdiv(vocab, TILE)
    first, last = split * tiles // splits, (split + 1) * tiles // splits

    end = nodes + 0
    if SPACE == "probs":  # nothing to be split where probabilities are tried
        end = tl.where(racing | (split == 0), nodes, 0)
    node, depth = next_node(tree, chunk, chunks, 0, end)
    while node < end:
        record = records + node * ROW
        below = tl.where(depth < max_depth, nodes, 0)  # where children end
        row = row_at(target, b * target_request + node * target_row, ALIGNED)
        if racing:
            best, bad = race_tiles(
                row, vocab, first, last, key_at(record), inverse, greedy, dense, later(noise, depth),
                None, None, STREAM_RACE, LOGITS if SPACE == "logits" else PROBS, TILE,
            )  # fmt: skip
            tl.atomic_max(key_at(record), best, sem="relaxed")
            if bad:
                tl.atomic_or(record + FLAGS, NON_FINITE, sem="relaxed")
            if is_last(record + DONE, splits):
                winner = key_token(tl.load(key_at(record), cache_modifier=".cg"))
                child = child_with(tree, node, winner, below)
                if strays(tree, node, child, vocab):
                    tl.atomic_or(record + FLAGS, TOKEN_RANGE, sem="relaxed")
                decide(records, request, node, tl.where(child < below, child, -1), nodes)
        elif METHOD == "rejection":  # noqa: SIM102  `and` would look for children in a race, too
            if next_child(tree, node, node, below) < below:
                draft_node = row_at(draft, b * draft_request + node * draft_row, ALIGNED) if HAS_DRAFT else None
                p_top, p_log_sum, q_top, q_log_sum = 0.0, 0.0, 0.0, 0.0
                if SPACE == "logits":
                    sums = partials + 4 * tiles * (nodes * b + node)
                    draft_tiles = tl.cdiv(draft_vocab, TILE)
                    bad = lse_tiles(row, vocab, first, last, inverse, sums, TILE)
                    if HAS_DRAFT:
                        bad |= lse_tiles(
                            draft_node, draft_vocab, split * draft_tiles // splits,
                            (split + 1) * draft_tiles // splits, inverse, sums + 2 * tiles, TILE,
                        )  # fmt: skip
                    if bad:
                        tl.atomic_or(record + FLAGS, NON_FINITE, sem="relaxed")
                    decides = is_last(record + DONE, splits)
                    if decides:
                        own = figures + 4 * (nodes * b + node)
                        p_top, p_log_sum, weightless = finish_lse(sums, tiles, TILES)
                        tl.store(own, p_top)
                        tl.store(own + 1, p_log_sum)
                        if HAS_DRAFT:
                            q_top, q_log_sum, draft_weightless = finish_lse(sums + 2 * tiles, draft_tiles, TILES)
                            tl.store(own + 2, q_top)
                            tl.store(own + 3, q_log_sum)
                            weightless |= draft_weightless
                        if weightless:
                            tl.atomic_or(record + FLAGS, NON_FINITE, sem="relaxed")
                        # The walk may have gone elsewhere since.
                        front = tl.atomic_max(request + FRONT, 0, sem="relaxed")
                        decides = next_node(tree, node, nodes, front, nodes)[0] == node
                else:
                    decides = node >= 0
                if decides:
                    child, taken, met = try_children(
                        tree, node, below, row, draft_node, p_top, p_log_sum, q_top, q_log_sum, vocab, draft_vocab,
                        inverse, later(noise, depth), REPLACEMENT, SPACE, HAS_DRAFT, TILE,
                    )  # fmt: skip
                    tl.store(record + TAKEN, taken.to(tl.int32, bitcast=True))
                    if met != 0:
                        tl.atomic_or(record + FLAGS, met, sem="relaxed")
                    decide(records, request, node, child, nodes)
        front = tl.atomic_max(request + FRONT, 0, sem="relaxed")
        node, depth = next_node(tree, node + chunks, chunks, front, end)

    if is_last(request + DONE, splits * chunks):
        finish_walk(
            tree, nodes, flags, records, request, vocab, racing, tokens + b * tokens_request, path + b * path_request,
            num_accepted + b, status + b, max_depth,
        )  # fmt: skip


@_launch.kernel
def emit_kernel(
    draft_tokens, draft_tokens_request: tl.int64, draft_tokens_node: tl.int64,
    parents, parents_request: tl.int64, parents_node: tl.int64,
    target, target_request: tl.int64, target_row: tl.int64, draft, draft_request: tl.int64, draft_row: tl.int64,
    nodes: tl.int32, dense: tl.int32, vocab: tl.int32, draft_vocab: tl.int32,
    temperature, temperature_request: tl.int64, temperature_value: tl.float32,
    seed, seed_request: tl.int64, seed_value: tl.int64, position, position_request: tl.int64, position_value: tl.int64,
    nonce, nonce_request: tl.int64, nonce_value: tl.int64,
    tokens, tokens_request: tl.int64, num_accepted, status, counters, figures,
    SPACE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    split, splits = tl.program_id(1), tl.num_programs(1)
    inverse, greedy, _ = inverse_temperature(number(temperature, temperature_value, b * temperature_request))
    if greedy:  # the other launch did it all
        return
    HAS_DRAFT: tl.constexpr = draft is not None
    KIND: tl.constexpr = LOGITS if SPACE == "logits" else PROBS
    request = counters + nodes * ROW * tl.num_programs(0).to(tl.int64) + 8 * b
    node, tried = tl.load(request + NODE), tl.load(request + TRIED) != 0
    depth = tl.load(num_accepted + b)
    noise = later(noise_at(
        seed, seed_value, b * seed_request, position, position_value, b * position_request, nonce, nonce_value,
        b * nonce_request,
    ), depth)  # fmt: skip
    tiles = tl.cdiv(vocab, TILE)
    first, last = split * tiles // splits, (split + 1) * tiles // splits
    row = row_at(target, b * target_request + node * target_row, ALIGNED)
    children = None
    if HAS_DRAFT == 0:
        tree = (
            parents + b * parents_request, parents_node, draft_tokens + b * draft_tokens_request, draft_tokens_node
        )  # fmt: skip
        children = (tree, node, tl.where(tried, nodes, 0))
    if HAS_DRAFT and tried:
        p_top, p_log_sum, q_top, q_log_sum = 0.0, 0.0, 0.0, 0.0
        if SPACE == "logits":
            own = figures + 4 * (nodes * b + node)
            p_top, p_log_sum, q_top, q_log_sum = tl.load(own), tl.load(own + 1), tl.load(own + 2), tl.load(own + 3)
        best, bad, drafted = residual_tiles(
            row, row_at(draft, b * draft_request + node * draft_row, ALIGNED), p_top, p_log_sum, q_top, q_log_sum,
            vocab, draft_vocab, first, last, key_at(request), inverse,
            tl.load(request + NODE_TAKEN).to(tl.float32, bitcast=True), dense, noise,
            STREAM_RESIDUAL, KIND, TILE,
        )  # fmt: skip
        if drafted:
            tl.atomic_or(request + FLAGS, DRAFTED, sem="relaxed")
    else:
        best, bad = race_tiles(
            row, vocab, first, last, key_at(request), inverse, False, dense, noise, None, children,
            STREAM_RESIDUAL, KIND, TILE,
        )  # fmt: skip
    tl.atomic_max(key_at(request), best, sem="relaxed")
    if bad:
        tl.atomic_or(request + FLAGS, NON_FINITE, sem="relaxed")

    if is_last(request + DONE, splits):
        best = tl.atomic_xchg(key_at(request), best * 0)
        met = tl.load(request + FLAGS, cache_modifier=".cg")
        flags = tl.load(status + b) | (met & NON_FINITE)
        if HAS_DRAFT and SPACE == "probs":
            flags |= tl.where(tried & (met & DRAFTED == 0), NON_FINITE, 0)
        if (best == NOBODY) & tried:
            flags |= EMPTY_RESIDUAL
            best, bad = race_row(row, vocab, inverse, noise, STREAM_RESIDUAL, KIND, TILE)
            flags |= tl.where(bad, NON_FINITE, 0)
        flags |= tl.where(best == NOBODY, NON_FINITE, 0)
        tl.debug_barrier()  # all warps have read
        tl.store(tokens + b * tokens_request + depth, key_token(best).to(tl.int64))
        tl.store(status + b, flags)
        tl.store(key_at(request), best * 0)
        for i in tl.static_range(2, 7):
            tl.store(request + i, 0)


def verify_tree(
    draft_tokens, target, draft, parents, method, replacement, space, temperature, seed, position, nonce,
    tokens, path, num_accepted, status,
):  # fmt: skip
    """The verdict of each request, as ``specdec_kernels.verify_tree`` has it."""
    requests, nodes, vocab = target.shape
    if requests == 0:
        return
    rows = requests * nodes
    tile, tiles, warps = _launch.tile_of(vocab)
    # Where all requests are greedy the race's kernel is the whole of rejection.
    number = not isinstance(temperature, torch.Tensor)
    race = method == "race" or (number and not temperature >= 2.0**-126)
    draft = None if race else draft
    lse = not race and space == "logits"
    with _launch.on_device(target), _launch.whole_calls():
        counters, scratch = _launch.workspace(target, 6 * rows + 8 * requests, (4 + 4 * tiles) * rows if lse else 0)
        arguments = dict(
            **_launch.nodes("draft_tokens", draft_tokens), **_launch.nodes("parents", parents),
            **_launch.rows("target", target), **_launch.rows("draft", draft), nodes=nodes,
            dense=_launch.is_dense(rows * tiles, target.device), vocab=vocab,
            draft_vocab=vocab if draft is None else draft.shape[-1],
            **_launch.number("temperature", temperature, "request"),
            **_launch.number("seed", seed, "request"),
            **_launch.number("position", position, "request"),
            **_launch.number("nonce", nonce, "request"),
            tokens=tokens, tokens_request=tokens.stride(0), num_accepted=num_accepted, status=status,
            counters=counters, figures=scratch, SPACE=space, TILE=tile, ALIGNED=_launch.aligned(target, draft),
        )  # fmt: skip
        splits = _launch.splits_of(requests, tiles, target.device)
        scan_splits = splits if race or lse or not number else 1
        _launch.launch(
            scan_kernel, (requests, _launch.chunks_of(requests, scan_splits, nodes, target.device), scan_splits), warps,
            **arguments, path=path, path_request=path.stride(0), max_depth=tokens.shape[1] - 1,
            partials=scratch[4 * rows :], METHOD="race" if race else "rejection",
            REPLACEMENT=replacement and draft is not None, TILES=triton.next_power_of_2(tiles),
        )  # fmt: skip
        if not race:
            _launch.launch(emit_kernel, (requests, splits), warps, **arguments)
