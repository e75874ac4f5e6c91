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
    walk = Walk(drafts, target_law, draft_law, edits, counters, race, slots)
    walk.arrive(walk.everyone)
    for child in range(1, drafts.tokens.shape[1]):
        walk.try_child(child)
    walk.emit()
    return walk.tokens, walk.path, walk.depth, walk.status


class Walk:
    """All walks, each from the root to the first child accepted, as long as there is one; then one token more."""

    # Children come after their parents and in the order of their trials, so one pass over the nodes is the walk. A
    # child x is accepted iff ``u h q(x) < p(x) + epsilon``; a refused one leaves ``norm((p - h q)+)``. h and epsilon
    # are those of ``slots``.
    def __init__(self, drafts, target_law, draft_law, edits, counters, race, slots):
        self.drafts, self.target_law, self.draft_law, self.edits = drafts, target_law, draft_law, edits
        self.counters, self.race, self.slots = counters, race, slots
        count, self.vocabulary, device = len(drafts.tokens), drafts.target.shape[-1], drafts.target.device
        self.everyone = torch.arange(count, device=device, dtype=torch.int64)
        self.certain = target_law.temperature == 0
        self.tokens, self.path = torch.full((2, count, drafts.width), -1, device=device, dtype=torch.int64)
        self.node, self.depth, self.tries, self.status = torch.zeros(4, count, dtype=torch.int64, device=device)
        # The laws p^m and h q^m at each request's node, and the tokens tried there.
        self.p, self.q = torch.zeros(2, count, self.vocabulary, dtype=torch.float64, device=device)
        self.tried = torch.zeros(count, self.vocabulary, dtype=torch.bool, device=device)
        self.ended = torch.zeros(count, dtype=torch.bool, device=device)  # the target's row there has no weight

    def noise_at(self, subset):
        if self.counters.seed.ndim == 2:  # a seed for each node
            return Noise(*(value[subset, self.node[subset]] for value in self.counters))
        return noise.at(self.counters, subset, self.depth[subset])

    def pair_at(self, subset):
        """The rows at the nodes of these requests."""
        drafts, index = self.drafts, (subset, self.node[subset])
        target, bad = self.edits.rows_at(drafts.target[index], subset, drafts.row_indices[index])
        self.status[subset] |= bad.int() * Status.PARAMETER
        pair = Pair(target, laws.at(self.target_law, subset), self.edits.on)
        if drafts.draft is None:
            return pair
        draft_law = laws.at(self.draft_law, subset)
        return pair._replace(draft=drafts.draft[index], draft_law=draft_law, draft_map=drafts.draft_map)

    def with_row(self, subset):
        """The requests of ``subset`` whose node has a row."""
        return subset if self.slots is None else subset[~self.slots.given[subset, self.node[subset]]]

    def arrive(self, subset):
        """Begin at the nodes of these requests."""
        self.path[subset, self.depth[subset]] = self.node[subset]
        self.tries[subset], self.tried[subset], self.ended[subset] = 0, False, False
        subset = self.with_row(subset)
        pair, certain = self.pair_at(subset), self.certain[subset]
        self.ended[subset] = pair.empty()
        self.q[subset] = 0.0
        if self.race:
            # With p one-hot on the race's winner, the walk accepts or emits just that token.
            winner, flags = race_step(pair.target, pair.target_law, self.noise_at(subset))
            self.p[subset] = one_hot(winner, self.vocabulary)
            self.status[subset] |= flags
            return
        self.p[subset] = pair.p()
        if self.drafts.draft is not None:
            self.q[subset] = torch.where(certain.unsqueeze(-1), 0.0, pair.q())
        if self.slots is not None:
            index = subset, self.node[subset]
            drawn = self.slots.follows[index] & ~certain
            self.q[subset] *= (self.slots.share[index] * drawn).unsqueeze(-1)
            self.status[subset] |= (self.slots.bad_share[index] & drawn).int() * Status.PARAMETER

    def report_read(self, subset, x, glance):
        """Report a read of the node's pair of rows in the status: only token x where ``glance``."""
        drafted = (self.tries[subset] > 0) & ~self.certain[subset]
        self.status[subset] |= self.pair_at(subset).unfit(drafted, glance, x).int() * Status.NON_FINITE

    def accepts(self, subset, x, valid, uniform):
        p_x, q_x = (law[subset].gather(-1, x.unsqueeze(-1)).squeeze(-1) for law in (self.p, self.q))
        # A token without weight in the draft's law was not drawn from it. A race and an argmax have none.
        certain = self.certain[subset]
        drawn_from_q = valid if self.race else (q_x > 0) | certain
        if self.slots is not None and bool(self.slots.epsilon.any()) and len(subset):
            lossy = ~certain & self.pair_at(subset).in_support(x)
            p_x = p_x + torch.where(lossy, self.slots.epsilon[subset], 0.0)
        return valid & drawn_from_q & (uniform * q_x < p_x)

    def candidates(self, child):
        """(the requests at whose node ``child`` is tried, its tokens there, whether these are in the vocabulary)."""
        drafts, x = self.drafts, self.drafts.tokens[:, child]
        is_child = (drafts.parents[:, child] == self.node) & (x != -1)
        no_room = is_child & (self.depth == drafts.width - 1)
        is_child &= ~self.ended & ~no_room
        valid = (x >= 0) & (x < self.vocabulary)
        x = torch.where(valid, x, 0)
        self.status |= no_room.int() * Status.PARAMETER | (is_child & ~valid).int() * Status.TOKEN_RANGE
        if drafts.draft is None or not drafts.replacement:
            is_child &= ~(valid & self.tried.gather(-1, x.unsqueeze(-1)).squeeze(-1))
        subset = is_child.nonzero().squeeze(-1)
        return subset, x[subset], valid[subset]

    def try_child(self, child):
        subset, x, valid = self.candidates(child)
        tried, at_x, without_draft = self.tried[subset], x.unsqueeze(-1), self.drafts.draft is None
        self.tries[subset] += 1
        self.tried[subset] = tried.scatter(-1, at_x, valid.unsqueeze(-1) | tried.gather(-1, at_x))
        if not self.race:
            self.report_read(subset, x, glance=(self.tries[subset] == 1) | without_draft)
            if without_draft:
                self.q[subset] = one_hot(x, self.vocabulary) * (valid & ~self.certain[subset]).unsqueeze(-1)
        accepted = self.accepts(subset, x, valid, noise.uniforms(self.noise_at(subset), noise.UNIFORM, child - 1))
        refused = subset[~accepted]
        self.p[refused] = normalised((self.p[refused] - self.q[refused]).clamp(min=0.0))
        if not self.drafts.replacement:
            self.q[refused] = normalised(torch.where(self.tried[refused], 0.0, self.q[refused]))

        subset, x = subset[accepted], x[accepted]
        self.tokens[subset, self.depth[subset]] = x
        self.node[subset], self.depth[subset] = child, self.depth[subset] + 1
        self.edits.count(subset, x)
        self.arrive(subset)

    def emit(self):
        """Draw the token after the last accepted node."""
        subset, slots = self.with_row(self.everyone), self.slots
        if slots is not None and self.drafts.draft is not None and not self.race:
            index = self.everyone, self.node  # of slots that could be drafted and were not
            undrafted = slots.follows[index] & (slots.share[index] < 1) & (self.tries == 0) & ~self.certain
            self.tries[undrafted] = 1
            self.p[undrafted] = normalised((self.p[undrafted] - self.q[undrafted]).clamp(min=0.0))
        if not self.race:
            self.report_read(subset, torch.zeros_like(subset), glance=torch.zeros_like(subset, dtype=torch.bool))
        empty = (self.p[subset] == 0).all(dim=-1)
        weights = torch.where(empty.unsqueeze(-1), self.pair_at(subset).p(), self.p[subset])
        self.status[subset] |= (empty & (self.tries[subset] > 0) & ~self.ended[subset]).int() * Status.EMPTY_RESIDUAL
        arrivals = noise.arrivals(self.noise_at(subset), noise.RESIDUAL, self.vocabulary)
        self.tokens[subset, self.depth[subset]] = laws.draw(weights, arrivals)


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
