"""Verification of chains of draft tokens: slot by slot, all requests that still walk at once; ``block`` as on trees."""

from typing import NamedTuple

import torch

from specdec_kernels.backends.reference import form, laws, noise, requests, traversal
from specdec_kernels.backends.reference.edits import Edits
from specdec_kernels.calls.values import ADDED, Law
from specdec_kernels.status import Status


def verify_chain(call):
    """Accept drafts until the method rejects one or none is left; every slot that is reached emits one token."""
    batch, width = form.shape_of(call)
    device, vocabulary = call.target.device, call.target.shape[-1]
    bounds, outside = slot_bounds(call, batch)
    who = requests.of(call, batch, device, outside=outside)
    target_law, bad_temperature = laws.decoded(call.target_law, who)
    draft_law, bad_draft_temperature = laws.decoded(call.draft_law, who)
    epsilon, bad_epsilon = laws.epsilons(who.numbers(call.epsilon, torch.float32))
    draft_prob, bad_draft_prob = laws.draft_probs(who.numbers(call.draft_prob, torch.float32))
    whose = who.noise(call.noise)

    start, count = bounds[:-1][who.live], bounds.diff()[who.live]
    if call.input_positions is not None:
        first = start + who.live if call.cu_drafts is not None else who.live * call.input_positions.shape[-1]
        whose = whose._replace(position=call.input_positions.reshape(-1)[first].long() + 1)
    if call.input_nonces is not None:
        whose = whose._replace(nonce=call.input_nonces[who.live].long())
    node, drafted = torch.arange(width, device=device, dtype=torch.int64), count.clamp(max=width - 1)
    draft_tokens = call.draft_tokens.reshape(-1).long()
    tokens_from = start + who.live + 1 if call.tokens_by_row else start
    target = call.target.reshape(-1, vocabulary)
    # Padded draft_prob is ordered by entry, ragged one by slot; so are draft rows, but by entry with an index, too.
    draft = None if call.draft is None or not call.draft.numel() else call.draft.reshape(-1, call.draft.shape[-1])
    by_entry = call.draft is not None and call.draft.ndim == 3
    drafts_from = who.entry * call.draft.shape[1] if by_entry else start
    rows_from = start if call.bonus is not None else start + who.live
    shares_from = start if call.cu_drafts is not None else torch.zeros_like(start)

    edits = Edits(call, who, target)
    bad = bad_temperature | bad_epsilon | (count > width - 1) | edits.bad
    if draft is not None:
        bad |= bad_draft_temperature
    status = bad.int() * Status.PARAMETER
    if call.method == "block":
        drafts = as_trees(call, rows_from, tokens_from, count, target, draft, drafts_from)
        tokens, _, num_accepted, found = traversal.decide(drafts, target_law, draft_law, edits, whose)
        found[is_given(call, 0, count)] = 0  # nothing was read
        last = is_given(call, num_accepted, count).nonzero().squeeze(-1)
        tokens[last, num_accepted[last]], flags = given(call, who, last)
        found[last] |= flags
        return form.write(call, who, tokens, node.expand_as(tokens), num_accepted, status | found)
    tokens = torch.full((len(start), width), -1, device=device, dtype=torch.int64)
    num_accepted = torch.zeros_like(start)
    walking = torch.arange(len(start), device=device, dtype=torch.int64)
    for slot in range(width):
        ends = is_given(call, slot, count[walking])
        last, here = walking[ends], walking[~ends]
        tokens[last, slot], flags = given(call, who, last)
        status[last] |= flags
        within = slot < drafted[here]
        x = torch.full_like(here, -1)
        x[within] = draft_tokens[tokens_from[here][within] + slot]
        out_of_range = (x < -1) | (x >= vocabulary)

        place = rows_from[here] + slot
        rows, bad_edits = edits.rows_at(target[place], here, place)
        law, now = laws.at(target_law, here), noise.at(whose, here, slot)
        if call.method == "race":
            token, flags = race_step(rows, law, now)
            accepted, bad = x == token, bad_edits
        else:
            within &= law.temperature > 0
            h, bad = torch.ones_like(here, dtype=torch.float64), bad_edits
            if draft_prob.ndim == 1:
                h[within], bad_h = draft_prob[here][within], bad_draft_prob[here][within]
            else:
                place = here[within], shares_from[here][within] + slot
                h[within], bad_h = draft_prob[place], bad_draft_prob[place]
            bad[within] |= bad_h
            # A slot without a token still has a draft law if h < 1. If h = 1 the chain ends there.
            has_law = within & ((x != -1) | (h < 1))
            pair = Pair(rows, law, edits.on)
            if draft is not None:
                draft_rows = rows_where(has_law, draft, drafts_from[here] + slot, draft_law.space)
                pair = Pair(rows, law, edits.on, draft_rows, laws.at(draft_law, here), call.draft_map)
            coin = noise.coins(now, noise.COIN, slot)
            token, accepted, flags = rejection_step(pair, has_law, x, h, epsilon[here], coin, now)
        status[here] |= flags | bad.int() * Status.PARAMETER | out_of_range.int() * Status.TOKEN_RANGE
        tokens[here, slot] = token
        num_accepted[here] += accepted.int()
        walking = here[accepted]
        edits.count(walking, x[accepted])
    form.write(call, who, tokens, node.expand_as(tokens), num_accepted, status)
    if call.num_passed is not None:
        found = passing(
            draft_tokens, tokens_from, rows_from, drafted, target, draft, drafts_from, whose, num_accepted
        )  # fmt: skip
        passed = torch.zeros_like(call.num_passed)
        who.write(passed, found)
        call.num_passed.copy_(call.num_passed + passed if call.form & ADDED else passed)


def passing(draft_tokens, tokens_from, rows_from, drafted, target, draft, drafts_from, whose, num_accepted):
    """How many drafts were accepted, or pass their own test behind the first rejection and before the first -1."""
    count, ended = num_accepted.clone(), torch.zeros_like(num_accepted, dtype=torch.bool)
    for slot in range(int(drafted.max()) if len(drafted) else 0):
        within = (slot < drafted).nonzero().squeeze(-1)
        x = draft_tokens[tokens_from[within] + slot]
        ended[within] |= (x == -1) & (slot >= num_accepted[within])
        valid = (x >= 0) & (x < draft.shape[-1]) & ~ended[within] & (slot > num_accepted[within])
        within, x = within[valid], x[valid]
        p = laws.weights(target[rows_from[within] + slot, x])
        q = laws.weights(draft[drafts_from[within] + slot, x])
        coin = noise.coins(noise.at(whose, within, slot), noise.COIN, slot)
        count[within] += (q > 0) & (coin * q < p)
    return count


def is_given(call, slot, count):
    """Whether a request's token after ``slot`` drafts is given: after all of ``count``, if any are."""
    return (count == slot) & (call.bonus is not None)


def given(call, who, last):
    """(the given tokens of these requests, status bits). One out of the vocabulary is token 0."""
    if call.bonus is None:
        return torch.zeros_like(last), torch.zeros_like(last)
    token = call.bonus[who.live[last]].long()
    bad = (token < 0) | (token >= call.target.shape[-1])
    return token.masked_fill(bad, 0), bad.int() * Status.PARAMETER


def as_trees(call, rows_from, tokens_from, count, target, draft, drafts_from):
    """Each chain as a tree whose nodes have one child each: slot j is node j + 1.

    A node whose token is given has no row: it gets one that is a law, and the place of the row before.
    """
    node, count = torch.arange(form.shape_of(call)[1], device=count.device, dtype=torch.int64), count.unsqueeze(-1)
    first = tokens_from.unsqueeze(-1) + node
    drafted, drawn_from = (node > 0) & (node <= count), node < count
    tokens = torch.full_like(first, -1)
    tokens[drafted] = call.draft_tokens.reshape(-1)[first[drafted] - 1].long()
    draft_rows = None
    if draft is not None:
        draft_rows = draft.new_zeros(*first.shape, draft.shape[-1])
        draft_rows[drawn_from] = draft[(drafts_from.unsqueeze(-1) + node)[drawn_from]]
    has_row = node <= count
    places = rows_from.unsqueeze(-1) + torch.minimum(node, count)
    if call.bonus is not None:
        has_row, places = node < count, (places - (node >= count).long()).clamp(min=0)
    rows = target.new_ones(*first.shape, target.shape[-1])
    rows[has_row] = target[places[has_row]]
    parents = (node - 1).expand_as(tokens)
    return traversal.Trees(
        parents, tokens, rows, places, draft_rows, call.draft_map, replacement=False, width=len(node)
    )


class Pair(NamedTuple):
    """Rows of the target and, if there is one, of the draft, and how they become laws."""

    target: torch.Tensor
    target_law: Law
    edited: bool  # whether the target's rows are edited ones
    draft: torch.Tensor = None
    draft_law: Law = None
    draft_map: torch.Tensor = None

    def p(self):
        return laws.probabilities(self.target, self.target_law)

    def q(self):
        """Over the target's vocabulary."""
        return laws.widened(laws.probabilities(self.draft, self.draft_law), self.target.shape[-1], self.draft_map)

    def kept(self, x):
        """Whether the target's filters and edits keep token x."""
        return laws.kept(self.target, self.target_law, self.edited).gather(-1, x.unsqueeze(-1)).squeeze(-1)

    def unfit(self, drafted, glance, x):
        """Which pairs have a row that was read and is no law; the draft's rows are read where ``drafted``.

        ``glance``: of rows of probabilities only token x was read. An argmax reads a whole row.
        """
        found = unfit_where_read(self.target, self.target_law, glance, x)
        if self.draft is None:
            return found
        column = laws.columns(x, self.draft.shape[-1], self.target.shape[-1], self.draft_map)
        return found | drafted & unfit_where_read(self.draft, self.draft_law, glance, column)


def unfit_where_read(rows, law, glance, column):
    """Which rows hold an impossible value: looked for in this column (-1: none) at a ``glance``, else everywhere."""
    at = column.clamp(min=0).unsqueeze(-1)
    glanced = laws.non_finite(rows.gather(-1, at), law.space).squeeze(-1) & (column >= 0)
    return torch.where(glance & (law.space == "probs") & (law.temperature > 0), glanced, laws.unfit(rows, law.space))


def slot_bounds(call, batch):
    """(bounds, outside): request b has the slots bounds[b] .. bounds[b + 1]; which requests' bounds point outside.

    Padded or ragged, target row i + b verifies slot i.
    """
    if call.cu_drafts is None:
        return torch.arange(batch + 1, device=call.target.device, dtype=torch.int64) * call.draft_tokens.shape[-1], None
    bounds, drafts = call.cu_drafts.long(), len(call.draft_tokens)
    if call.tokens_by_row:
        bounds, drafts = bounds - torch.arange(batch + 1, device=bounds.device, dtype=torch.int64), drafts - batch
    begin, end = bounds[:-1], bounds[1:]
    return bounds, (begin < 0) | (end < begin) | (end > drafts)


def rows_where(drafted, values, index, space):
    """Rows values[index]; those without a draft are not read, and have no weight."""
    rows = values.new_full((len(drafted), values.shape[-1]), 0.0 if space == "probs" else -torch.inf)
    rows[drafted] = values[index[drafted]]
    return rows


def race_step(rows, law, now):
    """The target's own winner of the race in which the draft took part, and status bits."""
    arrivals = noise.arrivals(now, noise.RACE, rows.shape[-1])
    token = laws.scores(laws.log_weights(rows, law), arrivals, law.temperature).argmax(dim=-1)
    return token, laws.unfit(rows, law.space).int() * Status.NON_FINITE


def rejection_step(pair, drafted, x, h, epsilon, coin, now):
    """Accept x iff u h q(x) < p(x) + eps, else draw from norm((p - h q)+); at temperature 0 p is one-hot and q is 0.

    For a token that filters drop or edits forbid, p and eps are 0.
    """
    p, sampled = pair.p(), pair.target_law.temperature > 0
    vocabulary = p.shape[-1]
    valid = (x >= 0) & (x < vocabulary)
    x = torch.where(valid, x, 0)
    at_x = x.unsqueeze(-1)
    if pair.draft is None:
        q = torch.zeros_like(p).scatter_(-1, at_x, (drafted & valid).double().unsqueeze(-1))
    else:
        q = drafted.unsqueeze(-1) * pair.q()

    p_x, q_x = p.gather(-1, at_x).squeeze(-1), q.gather(-1, at_x).squeeze(-1)
    # A token without weight in the draft's law was not drawn from it. Where the target is an argmax there is no q.
    drawn_from_q = (h * q_x > 0) | ~sampled
    epsilon = torch.where(sampled & pair.kept(x), epsilon, 0.0)
    accepted = valid & drawn_from_q & (coin * (h * q_x) < p_x + epsilon)
    weights = laws.residual_weights(p, q, h)
    empty = (weights == 0).all(dim=-1)
    weights = torch.where(empty.unsqueeze(-1), p, weights)
    drawn = laws.draw(weights, noise.arrivals(now, noise.RESIDUAL, vocabulary))

    # From probabilities an accepted slot reads p(x) and q(x) alone; whole rows are read to draw.
    flags = pair.unfit(drafted, accepted, x)
    empty &= drafted & ~accepted
    flags = flags.int() * Status.NON_FINITE | empty.int() * Status.EMPTY_RESIDUAL
    return torch.where(accepted, x, drawn), accepted, flags
