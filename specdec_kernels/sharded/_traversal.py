"""The walk of traversal verification (walk_traversal of csrc/include/specdec/walk.h) on the host, where rows are away.

It has p and q of every draft. A sum over a pair of rows it asks for, and waits.
"""

from typing import NamedTuple

import numpy as np

from specdec_kernels.sharded._weights import SMALLEST
from specdec_kernels.status import Status

ONE, NOTHING, LARGEST = np.float32(1), np.float32(0), np.finfo(np.float32).max


class Drafts(NamedTuple):
    """A request's tree: of each node its parent, its token, whether that is one of the vocabulary, p and q of it under
    its parent (float32), the units of that q, and the coin of the node as a leaf."""

    parents: list
    tokens: list
    there: list
    inside: list
    p: np.ndarray
    q: np.ndarray
    units: list
    coins: np.ndarray


class End:
    """Where a walk ended, and what it met."""

    def __init__(self):
        self.path, self.left, self.taken, self.status = [0], False, ONE, 0
        self.read, self.draft_read = set(), set()


class Place:
    """A node on the path: a, T, W and R of walk.h."""

    def __init__(self, node, weight=ONE, p=NOTHING):
        self.node = self.after = node
        self.weight, self.p, self.summed = weight, p, True
        self.taken, self.left, self.untried = NOTHING, ONE, ONE


class Traversal:
    """One request. ``walk()`` is a generator of questions (node, T); the answers are W and the sum of q, in units."""

    def __init__(self, drafts, certain, replacement, max_depth):
        self.drafts, self.certain, self.repeats = drafts, certain, not certain and replacement
        self.max_depth, self.end = max_depth, End()
        self.children = [[] for _ in drafts.parents]
        for node, there in enumerate(drafts.there):
            if there:
                self.children[drafts.parents[node]].append(node)

    def walk(self):
        drafts, path, end = self.drafts, [Place(0)], self.end
        while True:
            here, child = path[-1], self._next(path)
            while child is not None and here.after != here.node and not self.repeats and self._has_elder(child):
                child = self._next(path, child)
            if child is not None and here.after != here.node:
                yield from self._sum_up(here)
                child = child if here.weight >= SMALLEST else None
            if child is not None:
                leaf = Place(child, self._weight_of(here, child), drafts.p[child])
                if leaf.weight >= SMALLEST:
                    path.append(leaf)
                else:
                    self._take_off(here, leaf)
                continue
            if len(path) > 1:
                accepted = drafts.coins[here.node] < here.weight
                if accepted and here.weight < 1:  # weights do not grow: only a leaf that may stay asks for its sums
                    yield from self._sum_up(here)
                    accepted = drafts.coins[here.node] < here.weight
                if not accepted:
                    path.pop()
                    self._take_off(path[-1], here)
                    continue
            end.path = [place.node for place in path]
            end.left, end.taken = here.after != here.node, here.taken
            self._reads(here.node, draft=end.left)
            return

    def _reads(self, node, draft=True):
        self.end.read.add(node)
        if draft and not self.certain:
            self.end.draft_read.add(node)

    def _next(self, path, after=None):
        here = path[-1]
        after = here.after if after is None else after
        child = next((child for child in self.children[here.node] if child > after), None)
        if child is None or len(path) - 1 < self.max_depth:
            return child
        self.end.status |= Status.PARAMETER
        return None

    def _has_elder(self, child):
        drafts = self.drafts
        elders = [x for x in self.children[drafts.parents[child]] if x < child]
        return drafts.inside[child] and any(drafts.tokens[x] == drafts.tokens[child] for x in elders)

    def _sum_up(self, here):
        if here.summed:
            return
        left, whole = yield here.node, here.taken
        self._reads(here.node)
        left = np.float32(left) * np.float32(2.0**-42)
        here.weight = weight_after(here.weight, here.left, left)
        here.left = left
        if not self.repeats:
            drafts = self.drafts
            tried = [x for x in self.children[here.node] if x <= here.after and drafts.inside[x]]
            units = {drafts.tokens[x]: drafts.units[x] for x in tried}
            here.untried = np.float32(whole - sum(units.values())) * np.float32(2.0**-42)
        here.summed = True

    def _weight_of(self, here, child):
        if not self.drafts.inside[child]:
            self.end.status |= Status.TOKEN_RANGE
            return NOTHING
        self._reads(here.node)
        p, q = self.drafts.p[child], ONE if self.certain else self.drafts.q[child]
        drafted = (here.left if self.certain else share_of(here.left, here.untried)) * q
        if not drafted > 0:
            return NOTHING
        weight = p - here.taken * q
        weight = weight if weight >= SMALLEST else NOTHING
        return min(here.weight * (weight / drafted), ONE)

    def _take_off(self, here, leaf):
        here.after = leaf.node
        if not self.certain:
            here.taken = min(here.taken + share_of(here.left, here.untried) / here.weight, LARGEST)
            here.summed = False
            return
        p = leaf.p if self.drafts.inside[leaf.node] else NOTHING
        left = max(here.left - max(p, NOTHING), NOTHING)
        here.weight, here.left = weight_after(here.weight, here.left, left), left


def share_of(left, untried):
    return min(left / untried, LARGEST) if untried >= SMALLEST else NOTHING


def weight_after(weight, before, left):
    if weight >= 1:
        return ONE
    s = weight * (left / before if before >= SMALLEST else NOTHING)
    return s / (s + (ONE - weight))


def traverse(walks, sums):
    """Play the walks, a list of Traversal or None, to their ends: one round for each question of the slowest."""
    asked, answers = {}, {}
    running = {b: walk.walk() for b, walk in enumerate(walks) if walk is not None}
    with np.errstate(all="ignore"):
        while running:
            for b in list(running):
                try:
                    asked[b] = running[b].send(answers.get(b))
                except StopIteration:
                    del running[b]
                    asked.pop(b, None)
            if asked:
                answers = dict(zip(asked, sums([(b, *asked[b]) for b in asked]), strict=True))
