"""A draft policy that learns while it runs: how many tokens to draft, whether at all, and in which tree.

It knows only rounds that have ended: how many tokens were planned and accepted, how long the round took and, for
randomised drafting, the ratio p/q of the first draft token. What it decides is therefore independent of the noise of
the round to come, and no method's output law is changed. (Accept decisions it has seen belong to positions already
committed; nothing is learned from drafts behind a rejection.)
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import NamedTuple

import numpy as np
import torch

from specdec_kernels.backends.reference import noise
from specdec_kernels.generate.drafting import DraftPlan
from specdec_kernels.generate.policy import coin_per_chain
from specdec_kernels.ops import Noise
from specdec_kernels.theory.chains import tokens_curve
from specdec_kernels.theory.randomised import drafted_mass
from specdec_kernels.theory.trees import optimal_nodes

FIRST_LENGTHS = (4, 2, 4, 0, 2, 4, 0, 2, 4, 0)  # before anything is known; the first reads the prompt and tells no time
EXPLORE_EVERY = 12  # rounds; a length near the best costs a few percent of one of them
NO_DRAFT = -1  # stands for the length of a round that a coin left without draft: it still needs one row of the draft


class Tally:
    """How often each of n things was tried and passed, with old rounds fading."""

    FADE = 0.995

    def __init__(self, n):
        self.tried, self.passed = np.zeros(n), np.zeros(n)

    def fade(self):
        """Let what was seen so far count a little less."""
        self.tried *= self.FADE
        self.passed *= self.FADE


class Acceptance(Tally):
    """Acceptance by slot, given that the slots before it were accepted.

    A slot seldom reached is thought to be like the one before it.

    Examples
    --------
    >>> seen = Acceptance(3)
    >>> for accepted in (2, 2, 2, 0): seen.add(planned=2, accepted=accepted)
    >>> [round(float(beta), 2) for beta in seen.rates()]
    [0.72, 0.84, 0.84]
    """

    PRIOR, WEIGHT = 0.7, 4.0

    def add(self, planned, accepted):
        """Count a round: its slots up to the first rejection were tried."""
        self.tried[: min(accepted + 1, planned)] += 1
        self.passed[:accepted] += 1

    def rates(self):
        """Estimates, float64 [slots]."""
        rates, like = [], self.PRIOR
        for tried, passed in zip(self.tried.tolist(), self.passed.tolist(), strict=True):
            like = (passed + self.WEIGHT * like) / (tried + self.WEIGHT)
            rates.append(like)
        return np.array(rates)


class ChildAcceptance(Tally):
    """Acceptance by child index of a draft tree's nodes; falling, as the best trees need it.

    A child seldom offered is thought to be accepted half as often as the one before it.

    Examples
    --------
    >>> seen = ChildAcceptance(3)
    >>> for taken in (0, 0, None, 1): seen.add(offered=2, taken=taken)
    >>> [round(float(rate), 2) for rate in seen.rates()]
    [0.55, 0.26, 0.13]
    """

    PRIOR, WEIGHT = 0.6, 4.0

    def add(self, offered, taken):
        """Count a node that was reached: how many children it offered, and the index of the accepted one, if any."""
        self.tried[:offered] += 1
        if taken is not None and taken < len(self.passed):
            self.passed[taken] += 1

    def rates(self):
        """Estimates, float64 [children], that sum to 1 at most."""
        rates, like = [], self.PRIOR
        for tried, passed in zip(self.tried.tolist(), self.passed.tolist(), strict=True):
            rates.append((passed + self.WEIGHT * like) / (tried + self.WEIGHT))
            like = rates[-1] / 2
        rates = np.minimum.accumulate(rates)
        return rates / max(1.0, rates.sum())


class Times:
    """Seconds of a round by number of drafted tokens: lower quartiles where measured, a line through them elsewhere.

    Whatever disturbs a measurement makes it longer, so the lower quartile is steadier than mean or median; fewer than
    three measurements of a length are not believed.

    Examples
    --------
    >>> times = Times()
    >>> for length, seconds in 3 * [(0, 1.0), (2, 1.2)] + [(2, 9.0), (4, 9.0)]: times.add(length, seconds)
    >>> times.curve(4).round(2).tolist()
    [1.0, 1.1, 1.2, 1.3, 1.4]
    """

    LAST, LEAST, TRUST = 15, 3, 3.0

    def __init__(self):
        self.seconds = defaultdict(lambda: deque(maxlen=self.LAST))
        self.typical = {}

    def add(self, length, seconds):
        """Count a round that drafted `length` tokens."""
        seen = self.seconds[length]
        seen.append(seconds)
        if len(seen) >= self.LEAST:
            self.typical[length] = sorted(seen)[(len(seen) - 1) // 4]

    def curve(self, longest):
        """Estimates for lengths 0 … `longest`, float64 [longest + 1]."""
        lengths = [length for length in self.typical if length >= 0]
        typical = np.array([self.typical[length] for length in lengths])
        weight = np.array([len(self.seconds[length]) for length in lengths])
        base, slope = line(np.array(lengths), typical, weight)
        curve = base + slope * np.arange(longest + 1)
        curve[lengths] = (weight * typical + self.TRUST * curve[lengths]) / (weight + self.TRUST)
        return curve


def line(x, y, weight):
    """Base and slope of the weighted least-squares line through (x, y), the slope not negative, the base positive."""
    middle = weight @ x / weight.sum()
    spread = weight @ (x - middle) ** 2
    slope = max(0.0, weight @ (y * (x - middle)) / spread) if spread > 0 else 0.0
    base = weight @ y / weight.sum() - slope * middle
    return (base, slope) if base > 0 else (y.min(), 0.0)


class Choice(NamedTuple):
    """Tokens to draft, the probability of drafting them at all, and the tokens per second expected of it."""

    k: int
    draft_prob: float
    rate: float


class Controller:
    """A draft policy (see `FixedLength`) that maximises tokens per second, estimated from the rounds seen so far.

    Parameters
    ----------
    max_k : int
        The longest draft considered; 0 … max_k are.
    randomised : bool
        Also choose a probability of drafting at all (one coin a round, h = (a, 1, 1, …)); for method "rejection" with
        a model as drafter. Needs `look`, which learns p(x)/q(x) of first draft tokens; without it a stays 1.
    parallel : bool
        The draft row that a round without draft needs is computed beside the target's pass and costs no time. Only the
        first guess: what such rounds take is measured.

    Examples
    --------
    >>> from types import SimpleNamespace as Round
    >>> controller = Controller(max_k=8)
    >>> for _ in range(40):
    ...     (count,), _ = controller.plan(None, None, [100])
    ...     controller.observe([Round(accepted=count, drafted=count, seconds={"all": 1 + 0.05 * count})])
    >>> controller.choose().k
    8
    """

    def __init__(self, max_k: int = 16, *, randomised: bool = False, parallel: bool = False):
        if max_k < 0:
            raise ValueError(f"max_k: expected a number of draft tokens >= 0, got {max_k}")
        self.max_k, self.randomised, self.parallel = max_k, randomised, parallel
        self.acceptance, self.times, self.ratios = Acceptance(max_k), Times(), deque(maxlen=256)
        self.rounds, self.planned = 0, []

    @property
    def informed(self) -> bool:
        """Whether the first lengths were tried, and some length often enough: limits may have cut them."""
        return self.rounds >= len(FIRST_LENGTHS) and any(length >= 0 for length in self.times.typical)

    @property
    def cost_ratio(self) -> float | None:
        """c: what one more draft token adds to a round over the time of a round without; None while unknown."""
        if not self.informed:
            return None
        curve = self.times.curve(self.max_k)
        return float((curve[-1] - curve[0]) / (curve[0] * self.max_k)) if self.max_k else 0.0

    def tokens(self) -> np.ndarray:
        """Expected tokens of a round by number of drafted tokens, float64 [max_k + 1]."""
        betas = self.acceptance.rates()
        if self.ratios:  # also right where a below 1 let more tokens pass
            betas[0] = np.minimum(1, self.ratios).mean()
        return tokens_curve(betas)

    def choose(self) -> Choice:
        """The best length and draft probability by the estimates of this moment."""
        ratios = np.array(self.ratios)
        tokens, seconds = self.tokens(), self.times.curve(self.max_k)
        rates = tokens / seconds
        best = Choice(int(rates.argmax()), 1.0, float(rates.max()))
        if not (self.randomised and self.max_k and ratios.any()):
            return best
        corners, mass = drafted_mass(ratios, np.ones(len(ratios)), prompts=len(ratios))
        skip = self.times.typical.get(NO_DRAFT, seconds[0 if self.parallel else 1])
        after_first = (tokens[1:, None] - 1) / (tokens[1] - 1)  # accepted tokens once the first is
        rates = (1 + after_first * mass) / (corners * seconds[1:, None] + (1 - corners) * skip)
        k, corner = np.unravel_index(rates.argmax(), rates.shape)
        return max(best, Choice(int(k) + 1, float(corners[corner]), float(rates.max())), key=lambda choice: choice.rate)

    def next_choice(self) -> Choice:
        """What the next round does: a first length, the best choice or, now and then, a length near it."""
        if not self.informed:
            return Choice(min(FIRST_LENGTHS[self.rounds % len(FIRST_LENGTHS)], self.max_k), 1.0, 0.0)
        choice = self.choose()
        turn, phase = divmod(self.rounds, EXPLORE_EVERY)
        if phase:
            return choice
        other = (choice.k + 1, choice.k - 1, 2 * choice.k, choice.k // 2)[turn % 4]
        return choice._replace(k=min(max(other, 0 if choice.k else 1), self.max_k))

    def plan(self, seed: torch.Tensor, position: torch.Tensor, limit: list[int]) -> DraftPlan:
        """Plan a round for requests that decide `position` next and can use at most limit[b] drafts."""
        k, a, _ = self.next_choice()
        if not self.randomised:
            self.planned = [min(k, most) for most in limit]
            return DraftPlan(self.planned, 1.0)
        heads = noise.coins(Noise(seed, position, torch.zeros_like(seed)), noise.POLICY, 0).tolist()
        drafts = [coin_per_chain(k, a, lambda slot, head=head: head) for head in heads]
        self.planned = [min(draft.count, most) for draft, most in zip(drafts, limit, strict=True)]
        if a < 1 and k:
            self.planned = [
                count if draft.count else NO_DRAFT for count, draft in zip(self.planned, drafts, strict=True)
            ]
        h = torch.ones(len(limit), self.max_k, device=seed.device)
        h[:, :k] = torch.tensor([draft.h for draft in drafts], device=seed.device).view(len(limit), k)
        return DraftPlan([max(count, 0) for count in self.planned], h)

    def look(self, drafts, target_logits, draft_logits, temperature) -> None:
        """Learn p(x)/q(x) of the first draft tokens of a verification that has ended.

        Parameters
        ----------
        drafts : int64 [B, K], -1 where nothing was drafted
        target_logits, draft_logits : [B, K + 1, V] and [B, K, V], or None for the draft
        temperature : float32 [B]
        """
        if not self.randomised or draft_logits is None or not drafts.shape[1]:
            return
        rows = ((drafts[:, 0] >= 0) & (temperature > 0)).nonzero()[:, 0]
        logs = [
            (logits[rows, 0].float() / temperature[rows, None]).log_softmax(-1).gather(-1, drafts[rows, :1])
            for logits in (target_logits, draft_logits)
        ]
        self.ratios.extend((logs[0] - logs[1]).exp()[:, 0].tolist())

    def observe(self, rounds) -> None:
        """Learn from the rounds of one verification, in the order they were planned."""
        self.acceptance.fade()
        for planned, entry in zip(self.planned, rounds, strict=True):
            self.acceptance.add(max(planned, 0), entry.accepted)
        if self.rounds:
            self.times.add(max(self.planned), sum(rounds[0].seconds.values()))
        self.rounds += 1


class TreeController(Controller):
    """As `Controller` for draft trees: how many nodes, and in which shape.

    Parameters
    ----------
    max_nodes : int
        The largest tree considered, without its root; 0 … max_nodes are.
    children : int
        The most children a node may have.

    Examples
    --------
    >>> controller = TreeController(max_nodes=6)
    >>> for _ in range(60):
    ...     parents = controller.plan_tree()
    ...     controller.observe_tree([0, 1] if len(parents) > 1 else [0], seconds=1 + 0.01 * len(parents))
    >>> int(controller.children.rates().argmax()), len(controller.plan_tree()) > 1
    (0, True)
    """

    def __init__(self, max_nodes: int = 32, children: int = 8):
        super().__init__(max_nodes)
        self.children, self.parents = ChildAcceptance(children), [-1]

    def tokens(self) -> np.ndarray:
        """Expected tokens of a round by number of nodes, float64 [max_nodes + 1]."""
        return 1 + np.append(0.0, np.cumsum(optimal_nodes(self.children.rates(), self.max_k).values))

    def plan_tree(self) -> list[int]:
        """The parents of the next round's tree: the root's -1 first, children of a node in draft order."""
        self.parents = optimal_nodes(self.children.rates(), self.next_choice().k).parents
        return self.parents

    def observe_tree(self, path: list[int], seconds: float) -> None:
        """Learn from a round of the planned tree: the accepted nodes, from the root's 0 on, and the round's seconds."""
        self.children.fade()
        for node, following in zip(path, [*path[1:], None], strict=True):
            offered = [child for child, parent in enumerate(self.parents) if parent == node]
            if offered:
                self.children.add(len(offered), None if following is None else offered.index(following))
        if self.rounds:
            self.times.add(len(self.parents) - 1, seconds)
        self.rounds += 1
