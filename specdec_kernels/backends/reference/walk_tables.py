"""Walks of chains and trees by tables: request by request, in float32 as the other backends round."""

import contextlib

import numpy as np
import torch

from specdec_kernels import _constants
from specdec_kernels.backends.reference import laws, noise
from specdec_kernels.calls.values import Noise
from specdec_kernels.status import Status

ONE, NOTHING, UNIT = np.float32(1), np.float32(0), np.float32(_constants.UNIT)
SMALLEST, LARGEST = np.float32(_constants.SMALLEST), np.float32(_constants.LARGEST)


class Asked(Exception):
    """The walk has to know the sums of a pair of rows, and they are no answer yet."""


def walk_tables(call):
    """The verdicts of all requests, or what they ask."""
    behind = {"tokens": -1, "path": -1, "row": -1, "draft_row": -1, "subtracted": 1, "excluded": -1, "asked": -1}
    for name in ("tokens", "path", "num_accepted", "status", "row", "draft_row", "subtracted", "slot", "laws",
                 "excluded", "asked", "asked_subtracted"):  # fmt: skip
        if (output := getattr(call, name)) is not None:
            output.fill_(behind.get(name, 0))
    with np.errstate(all="ignore"):
        for b in range(len(call.tokens)):
            Request(call, b).run()


class Place:
    """A node on the path of a traversal: its weight, what of q is taken from its p, and what is left of both."""

    def __init__(self, node, weight=ONE, p=NOTHING):
        self.node = self.after = node
        self.weight, self.p, self.summed = weight, p, True
        self.subtracted, self.residual_mass, self.untried_mass = NOTHING, ONE, ONE


class Request:
    """A request, its tables, and the status found so far. A chain is a tree whose nodes have one child each."""

    def __init__(self, call, b):
        self.call, self.b, self.status = call, b, 0
        self.max_depth, self.entry, self.live = call.tokens.shape[1] - 1, b, True
        if call.request_index is not None:
            self.entry = int(call.request_index[b])
            self.live = 0 <= self.entry < self._entries()
            self.status |= Status.PARAMETER * (not self.live and self.entry != -1)
        self.idle = not self.live and self.entry == -1
        if call.parents is None:
            self._as_chain()
        else:
            nodes = call.draft_tokens.shape[1]
            parents = call.parents.expand(len(call.tokens), nodes)[b].tolist()
            fit = [parent if -1 <= parent < node else -2 for node, parent in enumerate(parents)]
            self.parents, self.tokens = fit, call.draft_tokens[b].tolist()
            self.status |= Status.PARAMETER * (self.live and -2 in fit)
            self.first_row = self.first_draft = self.first_p = self.first_q = b * nodes
        if self.live:
            self.epsilon = self._number(call.epsilon, 0, 1)
            self.noise = [int(x[self.entry] if isinstance(x, torch.Tensor) else x) for x in call.noise]
            temperature = self._raw(call.temperature)
            self.status |= Status.PARAMETER * (not temperature >= 0)
            self.by_winners = call.method == "race" or not temperature >= laws.SMALLEST

    def _as_chain(self):
        call, b, most = self.call, self.b, self.max_depth
        drafts, first, own, tokens = most, b * most, b * (most + 1), call.draft_tokens
        if call.cu_drafts is not None:
            first, end = call.cu_drafts[b : b + 2].tolist()
            own, drafts, fits = first + b, min(most, end - first), 0 <= first <= end <= len(tokens)
            self.status |= Status.PARAMETER * (self.live and not (fits and end - first <= most))
            self.live, drafts = self.live and fits, max(drafts, 0)
            tokens = tokens[first : first + drafts]
        else:
            tokens = tokens[b]
        self.tokens, self.parents = [-1, *tokens.tolist()], list(range(-1, drafts))
        self.first_row, self.first_draft, self.first_p, self.first_q = own, first, own - 1, first - 1

    def _entries(self):
        """How many entries numbers have; without tensors of numbers any index is good."""
        call = self.call
        numbers = (call.temperature, call.draft_prob, call.epsilon, *call.noise)
        return max((len(x) for x in numbers if isinstance(x, torch.Tensor)), default=2**31)

    def _raw(self, x, *place):
        return float(x[(self.entry, *place)] if isinstance(x, torch.Tensor) else x)

    def _number(self, x, least, most, *place):
        x = self._raw(x, *place)
        self.status |= Status.PARAMETER * (not x >= least)
        return np.float32(min(x, most) if x >= least else least)

    # ---- what the tables say ----------------------------------------------------------------------------------------

    def has_draft(self):
        return self.call.q_of_drafts is not None and self.call.q_of_drafts.numel() > 0

    def repeats(self):
        return self.has_draft() and self.call.replacement

    def inside(self, child):
        return 0 <= self.tokens[child] < self.call.vocab

    def p(self, child):
        return np.float32(float(self.call.p_of_drafts[self.first_p + child]))

    def q(self, child):
        return np.float32(float(self.call.q_of_drafts[self.first_q + child])) if self.has_draft() else ONE

    def draft_row(self, node):
        draft = self.first_draft + node
        return draft if self.call.draft_places is None else int(self.call.draft_places[draft])

    def read(self, node, draft=True):
        """The status of the rows of a node counts."""
        self.status |= int(self.call.row_status[self.first_row + node])
        if draft and self.call.draft_row_status is not None:
            self.status |= int(self.call.draft_row_status[self.first_draft + node])

    def share_drafted(self, node):
        """The probability that a draft was made after a node."""
        x = self.call.draft_prob
        if self.call.parents is not None or not self.has_draft() or node >= len(self.tokens) - 1:
            return ONE
        slot = node if self.call.cu_drafts is None else self.first_draft + node
        share = self._raw(x, slot)
        self.status |= Status.PARAMETER * (not 0 <= share <= 1)
        return ONE if not share <= 1 else np.float32(max(share, 0))

    def coin(self, depth, index):
        seed, position, nonce = (torch.tensor(x) for x in self.noise)
        return np.float32(float(noise.coins(Noise(seed, position + depth, nonce), noise.COIN, index)))

    def children(self, node, depth):
        """The drafts after a node, in order; none where the outputs have no place for them."""
        after = range(node + 1, len(self.parents))
        found = [child for child in after if self.parents[child] == node and self.tokens[child] != -1]
        if found and depth >= self.max_depth:
            self.status |= Status.PARAMETER
            return []
        return found

    def has_elder(self, child):
        parent, token = self.parents[child], self.tokens[child]
        return any(self.parents[x] == parent and self.tokens[x] == token for x in range(child))

    def sums(self, node, child, subtracted):
        """What is left of p, and of q but for the tokens of the children before ``child``."""
        place, call = child - 1, self.call
        width = call.asked_subtracted.shape[1]
        residual_mass, untried_mass = (int(call.answers.reshape(-1, width, 2)[self.b, place, i]) for i in range(2))
        if residual_mass < 0:
            asked = call.asked.view(-1, width, 2)[self.b, place]
            asked[0], asked[1] = self.first_row + node, self.draft_row(node)
            call.asked_subtracted[self.b, place] = float(subtracted)
            raise Asked
        tried = [x for x in range(node + 1, child) if self.parents[x] == node and self.inside(x)]
        for x in tried:
            untried_mass -= 0 if self.has_elder(x) else round(min(float(self.q(x)), 1.0) / _constants.UNIT)
        self.read(node)
        return np.float32(residual_mass) * UNIT, ONE if self.repeats() else np.float32(untried_mass) * UNIT

    # ---- walks ------------------------------------------------------------------------------------------------------

    def run(self):
        call, b = self.call, self.b
        if not self.live:
            call.num_accepted[b], call.status[b] = -1 if self.idle else 0, self.status
            if not self.idle:
                call.tokens[b, 0] = 0
                if call.path is not None:
                    call.path[b, 0] = 0
            return
        self.path = [Place(0)]
        try:
            if self.by_winners:
                self.follow_winners()
            else:
                last = self.traverse() if call.method in ("traversal", "block") else self.reject()
                self.draw_later(*last)
        except Asked:
            self.ask_ahead()
            return
        nodes = [place.node for place in self.path]
        last = len(nodes) - 1
        call.tokens[b, :last] = torch.tensor([self.tokens[node] for node in nodes[1:]], dtype=torch.int64)
        call.tokens[b, last] = self.winner(nodes[-1]) if self.by_winners else 0
        if call.path is not None:
            call.path[b, : last + 1] = torch.tensor(nodes)
        call.num_accepted[b], call.status[b] = last, self.status

    def draw_later(self, node, refused, subtracted):
        """What the last token is drawn from."""
        call, b, row = self.call, self.b, self.first_row + node
        self.read(node, draft=refused)
        beside = self.draft_row(node) if refused else -1
        call.row[b], call.draft_row[b], call.slot[b] = row, beside, len(self.path) - 1
        call.subtracted[b] = float(subtracted) if refused and self.has_draft() else 1.0
        known = call.known.view(-1, 2)
        call.laws[b, :2] = call.laws[b, 2:] = known[row]
        if refused and call.draft_known is not None and beside < len(call.draft_known) // 2:
            call.laws[b, 2:] = call.draft_known.view(-1, 2)[beside]
        if refused and call.excluded is not None:
            after = range(node + 1, len(self.parents))
            tried = [self.tokens[x] for x in after if self.parents[x] == node and self.inside(x)]
            call.excluded[b, : len(tried)] = torch.tensor(tried, dtype=torch.int32)

    def ask_ahead(self):
        """The other questions that the walk may come to, whatever the answer to this one is."""
        stopped, depth = self.path[-1].node, len(self.path) - 1
        if self.call.method == "rejection":
            depths = {stopped: depth}
            for node in range(stopped + 1, len(self.parents)):
                if self.parents[node] in depths:
                    depths[node] = depths[self.parents[node]] + 1
                    with contextlib.suppress(Asked):
                        self.first_accepted(node, depths[node])
            return
        while len(self.path) > 1:  # as if it went back
            leaf = self.path.pop()
            self.take_off(self.path[-1], leaf)
            with contextlib.suppress(Asked):
                self.traverse()
                return

    def winner(self, node):
        return 0 if self.call.winners is None else int(self.call.winners[self.first_row + node])

    def follow_winners(self):
        while True:
            node = self.path[-1].node
            self.read(node, draft=False)
            for child in self.children(node, len(self.path) - 1):
                if self.tokens[child] == self.winner(node):
                    break
                self.status |= Status.TOKEN_RANGE * (not self.inside(child))
            else:
                return
            self.path.append(Place(child))

    def reject(self):
        """(last node, whether something was taken from its row, how much)."""
        while True:
            node = self.path[-1].node
            child, tried, subtracted = self.first_accepted(node, len(self.path) - 1)
            if child is None:
                subtracted = subtracted if tried else self.share_drafted(node)
                return node, tried or subtracted < 1, subtracted
            self.path.append(Place(child))

    def first_accepted(self, node, depth):
        """(the first child accepted or None, whether any was tried, the multiple of q that is taken from p)."""
        tried, subtracted, share = False, NOTHING, self.share_drafted(node) if self.children(node, depth) else ONE
        for child in self.children(node, depth):
            p = NOTHING
            self.status |= Status.TOKEN_RANGE * (not self.inside(child))
            if tried and not self.repeats() and self.inside(child) and self.has_elder(child):
                continue
            if tried and self.has_draft():
                share = share_of(*self.sums(node, child, subtracted))
            if self.inside(child):
                p, drafted = self.p(child), share * self.q(child)
                self.read(node)
                spared = p - subtracted * self.q(child) + self.epsilon
                if drafted > 0 and self.coin(depth, child - 1) * drafted < spared:
                    return child, tried, subtracted
            tried = True
            if self.has_draft():
                subtracted = min(subtracted + share, LARGEST)
            else:
                share = max(share - max(p, NOTHING), NOTHING)
        return None, tried, subtracted

    def traverse(self):
        """(the leaf accepted, whether something was taken from its row, how much)."""
        while True:
            here = self.path[-1]
            child = self.first_left(here)
            if child is not None:
                leaf = Place(child, self.weight_of(here, child), self.p(child) if self.inside(child) else NOTHING)
                if leaf.weight >= SMALLEST:
                    self.path.append(leaf)
                else:
                    self.take_off(here, leaf)
                continue
            if len(self.path) == 1 or self.stays(here):
                return here.node, here.after != here.node, here.subtracted
            self.path.pop()
            self.take_off(self.path[-1], here)

    def first_left(self, here):
        later = [child for child in self.children(here.node, len(self.path) - 1) if child > here.after]
        if here.after == here.node:
            return later[0] if later else None
        later = [x for x in later if self.repeats() or not self.inside(x) or not self.has_elder(x)]
        if not later:
            return None
        self.sum_up(here)
        return later[0] if here.weight >= SMALLEST else None

    def stays(self, here):
        """Whether a leaf is accepted. Weights do not grow: only one that may stay asks for its sums."""
        coin = self.coin(len(self.path) - 2, _constants.LEAF_COINS + here.node - 1)
        if coin < here.weight < 1:
            self.sum_up(here)
        return coin < here.weight

    def sum_up(self, here):
        if not here.summed:
            residual_mass, untried_mass = self.sums(here.node, here.after + 1, here.subtracted)
            here.weight = weight_after(here.weight, here.residual_mass, residual_mass)
            here.residual_mass = residual_mass
            here.untried_mass, here.summed = untried_mass, True

    def weight_of(self, here, child):
        if not self.inside(child):
            self.status |= Status.TOKEN_RANGE
            return NOTHING
        self.read(here.node)
        p, q = self.p(child), self.q(child)
        drafted = (share_of(here.residual_mass, here.untried_mass) if self.has_draft() else here.residual_mass) * q
        weight = p - here.subtracted * q
        return min(here.weight * (weight / drafted), ONE) if drafted > 0 and weight >= SMALLEST else NOTHING

    def take_off(self, here, leaf):
        here.after = leaf.node
        if self.has_draft():
            share = share_of(here.residual_mass, here.untried_mass)
            here.subtracted = min(here.subtracted + share / here.weight, LARGEST)
            here.summed = False
            return
        residual_mass = max(here.residual_mass - max(leaf.p, NOTHING), NOTHING)
        here.weight = weight_after(here.weight, here.residual_mass, residual_mass)
        here.residual_mass = residual_mass


def share_of(residual_mass, untried_mass):
    return min(residual_mass / untried_mass, LARGEST) if untried_mass >= SMALLEST else NOTHING


def weight_after(weight, before, residual_mass):
    if weight >= 1:
        return ONE
    s = weight * (residual_mass / before if before >= SMALLEST else NOTHING)
    return s / (s + (ONE - weight))
