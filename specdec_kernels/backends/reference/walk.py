"""Rejection and races on trees of drafts, node by node, all requests at once. A chain is a tree of one child a node."""

from typing import NamedTuple

import torch

from specdec_kernels.backends.reference import laws, noise
from specdec_kernels.calls.values import Law, Noise
from specdec_kernels.status import Status


class Slots(NamedTuple):
    """A chain's nodes beyond a tree's fields, [n, N]."""

    follows: torch.Tensor  # bool: whether a draft may follow the node
    share: torch.Tensor  # float64: the probability that one does
    bad_share: torch.Tensor  # bool: it is no probability
    given: torch.Tensor  # bool: the node's token is an argument, and its row is not read
    epsilon: torch.Tensor  # float64 [n]


class Pair(NamedTuple):
    """Rows of the target and, if there is one, of the draft, and their laws."""

    target: torch.Tensor
    target_law: Law
    edited: bool  # whether the target's rows are edited
    draft: torch.Tensor | None = None
    draft_law: Law | None = None
    draft_map: torch.Tensor | None = None

    def p(self):
        return laws.probabilities(self.target, self.target_law)

    def q(self):
        """Draft probabilities over the target's vocabulary."""
        return laws.widened(laws.probabilities(self.draft, self.draft_law), self.target.shape[-1], self.draft_map)

    def in_support(self, x):
        """Whether the target's filters and edits keep token x."""
        return laws.in_support(self.target, self.target_law, self.edited).gather(-1, x.unsqueeze(-1)).squeeze(-1)

    def empty(self):
        """Rows of the target without a token that has weight: they end the chain or branch."""
        return laws.empty(self.target, self.target_law)

    def unfit(self, drafted, glance, x):
        """Pairs with a row that was read and is no law; the draft's rows are read where ``drafted``."""
        # ``glance``: of rows of probabilities only token x is read. An argmax reads a whole row.
        target = unfit_where_read(self.target, self.target_law, glance, x)
        if self.draft is None:
            return target
        column = laws.columns(x, self.draft.shape[-1], self.target.shape[-1], self.draft_map)
        return target | drafted & unfit_where_read(self.draft, self.draft_law, glance, column)


def unfit_where_read(rows, law, glance, column):
    """Rows with an impossible value: in this column (-1: none) at a ``glance``, else anywhere."""
    at = column.clamp(min=0).unsqueeze(-1)
    glanced = laws.non_finite(rows.gather(-1, at), law.space).squeeze(-1) & (column >= 0)
    return torch.where(glance & (law.space == "probs") & (law.temperature > 0), glanced, laws.unfit(rows, law.space))


def decide(drafts, target_law, draft_law, edits, counters, race, slots=None):
    """(tokens [n, width], path [n, width], num_accepted [n], status [n]) of ``traversal.Trees``."""
    # From the root to the first child accepted, as long as there is one; then one token more. Children come after their
    # parents and in the order of their trials, so one pass over the nodes is the walk. A child x is accepted iff
    # ``u h q(x) < p(x) + epsilon``; a refused one leaves ``norm((p - h q)+)``. h and epsilon are those of ``slots``.
    (count, nodes), vocabulary, device = drafts.tokens.shape, drafts.target.shape[-1], drafts.target.device
    everyone, certain = torch.arange(count, device=device, dtype=torch.int64), target_law.temperature == 0
    tokens, path = torch.full((2, count, drafts.width), -1, device=device, dtype=torch.int64)
    node, depth, tries, status = torch.zeros(4, count, dtype=torch.int64, device=device)
    # The laws p^m and h q^m at each request's node, and the tokens tried there.
    p, q = torch.zeros(2, count, vocabulary, dtype=torch.float64, device=device)
    tried = torch.zeros(count, vocabulary, dtype=torch.bool, device=device)
    ended = torch.zeros(count, dtype=torch.bool, device=device)  # the target's row there has no weight

    def now(subset):
        if counters.seed.ndim == 2:  # a seed for each node
            return Noise(*(value[subset, node[subset]] for value in counters))
        return noise.at(counters, subset, depth[subset])

    def pair_at(subset):
        """The rows at the nodes of these requests."""
        index = subset, node[subset]
        target, bad = edits.rows_at(drafts.target[index], subset, drafts.row_indices[index])
        status[subset] |= bad.int() * Status.PARAMETER
        law = laws.at(target_law, subset)
        if drafts.draft is None:
            return Pair(target, law, edits.on)
        return Pair(target, law, edits.on, drafts.draft[index], laws.at(draft_law, subset), drafts.draft_map)

    def with_row(subset):
        """The requests of ``subset`` whose node has a row."""
        return subset if slots is None else subset[~slots.given[subset, node[subset]]]

    def arrive(subset):
        path[subset, depth[subset]] = node[subset]
        tries[subset], tried[subset], ended[subset] = 0, False, False
        subset = with_row(subset)
        pair = pair_at(subset)
        ended[subset] = pair.empty()
        if race:
            # With p one-hot on the race's winner, the walk accepts or emits just that token.
            winner, flags = race_step(pair.target, pair.target_law, now(subset))
            p[subset], q[subset] = one_hot(winner, vocabulary), 0.0
            status[subset] |= flags
            return
        p[subset], q[subset] = pair.p(), 0.0
        if drafts.draft is not None:
            q[subset] = torch.where(certain[subset].unsqueeze(-1), 0.0, pair.q())
        if slots is not None:
            index = subset, node[subset]
            drawn = slots.follows[index] & ~certain[subset]
            q[subset] *= (slots.share[index] * drawn).unsqueeze(-1)
            status[subset] |= (slots.bad_share[index] & drawn).int() * Status.PARAMETER

    def read(subset, x, glance):
        """Report a read of the node's pair of rows in the status: only token x where ``glance``."""
        drafted = (tries[subset] > 0) & ~certain[subset]
        status[subset] |= pair_at(subset).unfit(drafted, glance, x).int() * Status.NON_FINITE

    def accepts(subset, x, valid, uniform):
        p_x, q_x = (law[subset].gather(-1, x.unsqueeze(-1)).squeeze(-1) for law in (p, q))
        # A token without weight in the draft's law was not drawn from it. A race and an argmax have none.
        drawn_from_q = valid if race else (q_x > 0) | certain[subset]
        if slots is not None and bool(slots.epsilon.any()) and len(subset):
            p_x = p_x + torch.where(~certain[subset] & pair_at(subset).in_support(x), slots.epsilon[subset], 0.0)
        return valid & drawn_from_q & (uniform * q_x < p_x)

    arrive(everyone)
    for child in range(1, nodes):
        x = drafts.tokens[:, child]
        is_child = (drafts.parents[:, child] == node) & (x != -1)
        no_room = is_child & (depth == drafts.width - 1)
        is_child &= ~ended | no_room
        valid = (x >= 0) & (x < vocabulary)
        x = torch.where(valid, x, 0)
        status |= no_room.int() * Status.PARAMETER | (is_child & ~no_room & ~valid).int() * Status.TOKEN_RANGE
        if drafts.draft is None or not drafts.replacement:
            is_child = is_child & ~(valid & tried.gather(-1, x.unsqueeze(-1)).squeeze(-1))

        subset = (is_child & ~no_room).nonzero().squeeze(-1)
        x, valid = x[subset], valid[subset]
        at_x = x.unsqueeze(-1)
        tries[subset] += 1
        tried[subset] = tried[subset].scatter(-1, at_x, valid.unsqueeze(-1) | tried[subset].gather(-1, at_x))
        if not race:
            read(subset, x, glance=(tries[subset] == 1) | (drafts.draft is None))
            if drafts.draft is None:
                q[subset] = one_hot(x, vocabulary) * (valid & ~certain[subset]).unsqueeze(-1)
        accepted = accepts(subset, x, valid, noise.uniforms(now(subset), noise.UNIFORM, child - 1))
        refused = subset[~accepted]
        p[refused] = normalised((p[refused] - q[refused]).clamp(min=0.0))
        if not drafts.replacement:
            q[refused] = normalised(torch.where(tried[refused], 0.0, q[refused]))

        subset, x = subset[accepted], x[accepted]
        tokens[subset, depth[subset]] = x
        node[subset], depth[subset] = child, depth[subset] + 1
        edits.count(subset, x)
        arrive(subset)

    subset = with_row(everyone)
    if slots is not None and drafts.draft is not None and not race:  # a slot that could be drafted was not
        index = everyone, node
        undrafted = slots.follows[index] & (slots.share[index] < 1) & (tries == 0) & ~certain
        tries[undrafted], p[undrafted] = 1, normalised((p[undrafted] - q[undrafted]).clamp(min=0.0))
    if not race:
        read(subset, torch.zeros_like(subset), glance=torch.zeros_like(subset, dtype=torch.bool))
    empty = (p[subset] == 0).all(dim=-1)
    weights = torch.where(empty.unsqueeze(-1), pair_at(subset).p(), p[subset])
    status[subset] |= (empty & (tries[subset] > 0) & ~ended[subset]).int() * Status.EMPTY_RESIDUAL
    tokens[subset, depth[subset]] = laws.draw(weights, noise.arrivals(now(subset), noise.RESIDUAL, vocabulary))
    return tokens, path, depth, status


def race_step(rows, law, now):
    """The winner of the target's race, in which the draft took part, and status bits."""
    arrivals = noise.arrivals(now, noise.RACE, rows.shape[-1])
    token = laws.scores(laws.log_weights(rows, law), arrivals, law.temperature).argmax(dim=-1)
    return token, laws.unfit(rows, law.space).int() * Status.NON_FINITE


def one_hot(token, vocabulary):
    return torch.nn.functional.one_hot(token, vocabulary).double()


def normalised(weights):
    """Weights divided by their sum; all zero if they have none."""
    weights = torch.where(weights < laws.SMALLEST, 0.0, weights)
    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=laws.SMALLEST)
