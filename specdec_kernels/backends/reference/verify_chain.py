"""Verification of chains of draft tokens, as of trees whose nodes have one child each."""

import torch

from specdec_kernels.backends.reference import laws, noise, output_format, requests, traversal, walk
from specdec_kernels.backends.reference.edits import LogitEdits
from specdec_kernels.calls import typed
from specdec_kernels.calls.values import ADDED
from specdec_kernels.status import Status


def verify_chain(call: "typed.VerifyChain"):
    """Accept drafts until the method rejects one or none is left; every slot on the way emits one token."""
    batch, width = output_format.shape_of(call)
    device, vocabulary = call.target.device, call.target.shape[-1]
    bounds, outside = slot_bounds(call, batch)
    active = requests.of(call, batch, device, outside=outside)
    target_law, bad_temperature = laws.decoded(call.target_law, active)
    draft_law, bad_draft_temperature = laws.decoded(call.draft_law, active)
    epsilon, bad_epsilon = laws.epsilons(active.numbers(call.epsilon, torch.float32))
    draft_prob, bad_draft_prob = laws.draft_probs(active.numbers(call.draft_prob, torch.float32))
    counters = active.noise(call.noise)

    start, count = bounds[:-1][active.rows], bounds.diff()[active.rows]
    if call.input_positions is not None:
        first = start + active.rows if call.cu_drafts is not None else active.rows * call.input_positions.shape[-1]
        counters = counters._replace(position=call.input_positions.reshape(-1)[first].long() + 1)
    if call.input_nonces is not None:
        counters = counters._replace(nonce=call.input_nonces[active.rows].long())
    if call.row_seeds is not None:
        counters = noise.by_node(call, active)
    node, drafted = torch.arange(width, device=device, dtype=torch.int64), count.clamp(max=width - 1)
    draft_tokens = call.draft_tokens.reshape(-1).long()
    tokens_from = start + active.rows + 1 if call.tokens_by_row else start
    target = call.target.reshape(-1, vocabulary)
    # Padded draft_prob is ordered by entry, ragged one by slot; so are draft rows, but by entry with an index, too.
    draft = None if call.draft is None or not call.draft.numel() else call.draft.reshape(-1, call.draft.shape[-1])
    drafts_from = active.entry * call.draft.shape[1] if call.draft is not None and call.draft.ndim == 3 else start
    rows_from = start if call.bonus is not None else start + active.rows
    shares_from = start if call.cu_drafts is not None else torch.zeros_like(start)

    edits = LogitEdits(call, active, target)
    bad = bad_temperature | bad_epsilon | (count > width - 1) | edits.bad
    if draft is not None:
        bad |= bad_draft_temperature
    drafts = as_trees(call, rows_from, tokens_from, count, target, draft, drafts_from)
    ends = is_given(call, node, count.unsqueeze(-1))
    if call.method == "block":
        tokens, _, num_accepted, status = traversal.decide(drafts, target_law, draft_law, edits, counters)
        status[ends[:, 0]] = 0  # no row was read
    else:
        share, bad_share = (shares_of(x, shares_from, drafted, width) for x in (draft_prob, bad_draft_prob))
        slots = walk.Slots(node < drafted.unsqueeze(-1), share, bad_share, ends, epsilon)
        tokens, _, num_accepted, status = walk.decide(
            drafts, target_law, draft_law, edits, counters, call.method == "race", slots
        )  # fmt: skip
    last = is_given(call, num_accepted, count).nonzero().squeeze(-1)
    tokens[last, num_accepted[last]], flags = bonus_tokens(call, active, last)
    status[last] |= flags
    output_format.write(
        call, active, tokens, node.expand_as(tokens), num_accepted, status | bad.int() * Status.PARAMETER
    )
    if call.num_passed is not None:
        count = passing(
            draft_tokens, tokens_from, rows_from, drafted, target, draft, drafts_from, counters, num_accepted
        )
        passed = torch.zeros_like(call.num_passed)
        active.write(passed, count)
        call.num_passed.copy_(call.num_passed + passed if call.output_format & ADDED else passed)


def shares_of(values, shares_from, drafted, width):
    """Values of slots, by request and node: [n, width], zeros behind the slots."""
    by_node = values.new_zeros(len(drafted), width)
    if values.ndim == 1:
        by_node[:] = values.unsqueeze(-1)
        return by_node
    node = torch.arange(width, device=drafted.device, dtype=torch.int64)
    row, slot = (node < drafted.unsqueeze(-1)).nonzero().unbind(1)
    by_node[row, slot] = values[row, shares_from[row] + slot]
    return by_node


def passing(draft_tokens, tokens_from, rows_from, drafted, target, draft, drafts_from, counters, num_accepted):
    """The number of accepted drafts, or of those that pass their test behind the first rejection, up to a -1."""
    count, ended = num_accepted.clone(), torch.zeros_like(num_accepted, dtype=torch.bool)
    for slot in range(int(drafted.max()) if len(drafted) else 0):
        within = (slot < drafted).nonzero().squeeze(-1)
        x = draft_tokens[tokens_from[within] + slot]
        ended[within] |= (x == -1) & (slot >= num_accepted[within])
        valid = (x >= 0) & (x < draft.shape[-1]) & ~ended[within] & (slot > num_accepted[within])
        within, x = within[valid], x[valid]
        p = laws.weights(target[rows_from[within] + slot, x])
        q = laws.weights(draft[drafts_from[within] + slot, x])
        uniform = noise.uniforms(noise.at(counters, within, slot), noise.UNIFORM, slot)
        count[within] += (q > 0) & (uniform * q < p)
    return count


def is_given(call, slot, count):
    """Whether a request's token after ``slot`` drafts is given: after all of ``count``, if any are."""
    return (count == slot) & (call.bonus is not None)


def bonus_tokens(call, active, last):
    """(the given tokens of these requests, status bits). A token out of the vocabulary becomes 0."""
    if call.bonus is None:
        return torch.zeros_like(last), torch.zeros_like(last)
    token = call.bonus[active.rows[last]].long()
    bad = (token < 0) | (token >= call.target.shape[-1])
    return token.masked_fill(bad, 0), bad.int() * Status.PARAMETER


def as_trees(call, rows_from, tokens_from, count, target, draft, drafts_from):
    """Each chain as a tree whose nodes have one child each: draft j is node j + 1."""
    # A node whose token is given has no row: it gets one that is a law, and the index of the row before.
    node, count = (
        torch.arange(output_format.shape_of(call)[1], device=count.device, dtype=torch.int64),
        count.unsqueeze(-1),
    )
    first = tokens_from.unsqueeze(-1) + node
    drafted, drawn_from = (node > 0) & (node <= count), node < count
    tokens = torch.full_like(first, -1)
    tokens[drafted] = call.draft_tokens.reshape(-1)[first[drafted] - 1].long()
    draft_rows = None
    if draft is not None:
        draft_rows = draft.new_zeros(*first.shape, draft.shape[-1])
        draft_rows[drawn_from] = draft[(drafts_from.unsqueeze(-1) + node)[drawn_from]]
    has_row = node <= count
    row_indices = rows_from.unsqueeze(-1) + torch.minimum(node, count)
    if call.bonus is not None:
        has_row, row_indices = node < count, (row_indices - (node >= count).long()).clamp(min=0)
    rows = target.new_ones(*first.shape, target.shape[-1])
    rows[has_row] = target[row_indices[has_row]]
    parents = (node - 1).expand_as(tokens)
    return traversal.Trees(
        parents, tokens, rows, row_indices, draft_rows, call.draft_map, replacement=False, width=len(node)
    )


def slot_bounds(call, batch):
    """(bounds, outside): request b has the slots bounds[b] .. bounds[b + 1]; outside: bounds out of range."""
    # Padded or ragged, target row i + b verifies slot i.
    if call.cu_drafts is None:
        each = torch.arange(batch + 1, device=call.draft_tokens.device, dtype=torch.int64)
        return each * call.draft_tokens.shape[-1], None
    bounds, drafts = call.cu_drafts.long(), len(call.draft_tokens)
    if call.tokens_by_row:
        bounds, drafts = bounds - torch.arange(batch + 1, device=bounds.device, dtype=torch.int64), drafts - batch
    begin, end = bounds[:-1], bounds[1:]
    outside = (begin < 0) | (end < begin) | (end > drafts)
    outside[:1] |= begin[:1] != 0
    return bounds, outside
