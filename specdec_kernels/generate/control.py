"""A draft policy that learns while it runs: how many tokens to draft, whether at all, and in which tree.

It knows only rounds that have ended: how many tokens were planned and accepted, how long the round took and, for
randomised drafting, the ratio p/q of the first draft token. What it decides is therefore independent of the noise of
the round to come, and no method's output law is changed. (Accept decisions it has seen belong to positions already
committed; nothing is learned from drafts behind a rejection.)

`block` has no acceptance slot by slot: a later draft can save an earlier one. But it accepts i drafts or more with
probability w_i, their weight, however many are drafted. So its controller learns the weights of all drafts, also
of refused ones. Each round has other noise there, so they tell nothing of the round to come. In trees that
`traversal` verifies, a node's acceptance depends on what hangs below it. Acceptance by child index is counted all the
same, on the paths accepted: it is that of the trees in use, which the shapes to come are like.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

import specdec_kernels as specdec
from specdec_kernels.generate.checks import whole_number
from specdec_kernels.generate.noise import Noise, Sampling, at_rows, filtered, policy_uniform
from specdec_kernels.generate.policies import per_chain
from specdec_kernels.generate.protocols import DraftPlan
from specdec_kernels.generate.results import Round
from specdec_kernels.theory.chains import tokens_curve
from specdec_kernels.theory.randomised import drafted_mass
from specdec_kernels.theory.trees import optimal_nodes
from specdec_kernels.trees import DraftTree

# Before anything is known. The first round also reads the prompt, so its time is not counted.
FIRST_LENGTHS = (4, 2, 4, 0, 2, 4, 0, 2, 4, 0)
EXPLORE_EVERY = 12  # rounds; a length near the best costs a few percent of one of them
NO_DRAFT = -1  # the length of a round in which the uniform said not to draft; it still needs one draft row


class Tally:
    """Counts of trials and passes of n things, in which old rounds fade."""

    FADE = 0.995

    def __init__(self, n: int) -> None:
        self.tried, self.passed = np.zeros(n), np.zeros(n)

    def fade(self) -> None:
        """Reduce the weight of all counts a little."""
        self.tried *= self.FADE
        self.passed *= self.FADE


class Acceptance(Tally):
    """Acceptance by slot, given that the slots before it were accepted.

    A slot that is seldom reached is estimated to be like the one before it.

    Examples
    --------
    >>> seen = Acceptance(3)
    >>> for accepted in (2, 2, 2, 0): seen.add(planned=2, accepted=accepted)
    >>> [round(float(beta), 2) for beta in seen.rates()]
    [0.72, 0.84, 0.84]
    """

    PRIOR, WEIGHT = 0.7, 4.0

    def add(self, planned: int, accepted: int) -> None:
        """Count a round: its slots up to the first rejection were tried."""
        self.tried[: min(accepted + 1, planned)] += 1
        self.passed[:accepted] += 1

    def rates(self) -> np.ndarray:
        """Estimates, float64 [slots]."""
        rates, like = [], self.PRIOR
        for tried, passed in zip(self.tried.tolist(), self.passed.tolist(), strict=True):
            like = (passed + self.WEIGHT * like) / (tried + self.WEIGHT)
            rates.append(like)
        return np.array(rates)


class PrefixWeights(Tally):
    """The mean weight w of drafted prefixes, by length: how often `block` accepts as many tokens or more.

    It does not depend on how many tokens are drafted, nor on what was accepted. A length that is seldom drafted is
    estimated to fall as the one before it.

    Examples
    --------
    >>> seen = PrefixWeights(3)
    >>> for weights in 4 * [[0.5, 0.5]]: seen.add(weights)
    >>> [round(float(mean), 2) for mean in seen.means()]
    [0.6, 0.43, 0.31]
    """

    PRIOR, WEIGHT = 0.7, 4.0

    def add(self, weights: list[float]) -> None:
        """Count a round that drafted so many tokens."""
        self.tried[: len(weights)] += 1
        self.passed[: len(weights)] += weights

    def means(self) -> np.ndarray:
        """Estimates, float64 [slots], that do not rise."""
        means, last, fall = [], 1.0, self.PRIOR
        for tried, passed in zip(self.tried.tolist(), self.passed.tolist(), strict=True):
            mean = min(last, (passed + self.WEIGHT * last * fall) / (tried + self.WEIGHT))
            last, fall = mean, mean / last
            means.append(mean)
        return np.array(means)


class ChildAcceptance(Tally):
    """Acceptance by child index of a draft tree's nodes; falling, as the best trees need it.

    A child that is seldom offered is estimated to be accepted half as often as the one before it.

    Examples
    --------
    >>> seen = ChildAcceptance(3)
    >>> for taken in (0, 0, None, 1): seen.add(offered=2, taken=taken)
    >>> [round(float(rate), 2) for rate in seen.rates()]
    [0.55, 0.26, 0.13]
    """

    PRIOR, WEIGHT = 0.6, 4.0

    def add(self, offered: int, taken: int | None) -> None:
        """Count a visited node: how many children it offered, and the index of the accepted one, if any."""
        self.tried[:offered] += 1
        if taken is not None and taken < len(self.passed):
            self.passed[taken] += 1

    def rates(self) -> np.ndarray:
        """Estimates, float64 [children], that sum to 1 at most."""
        rates, like = [], self.PRIOR
        for tried, passed in zip(self.tried.tolist(), self.passed.tolist(), strict=True):
            rates.append((passed + self.WEIGHT * like) / (tried + self.WEIGHT))
            like = rates[-1] / 2
        falling = np.minimum.accumulate(rates)
        return falling / max(1.0, falling.sum())


class Times:
    """Seconds of a round by number of drafted tokens: lower quartiles where measured, a line through them elsewhere.

    Disturbances only make a measurement longer, so the lower quartile is steadier than mean or median; a length with
    fewer than three measurements counts as not measured.

    Examples
    --------
    >>> times = Times()
    >>> for length, seconds in 3 * [(0, 1.0), (2, 1.2)] + [(2, 9.0), (4, 9.0)]: times.add(length, seconds)
    >>> times.curve(4).round(2).tolist()
    [1.0, 1.1, 1.2, 1.3, 1.4]
    """

    LAST, LEAST, TRUST = 15, 3, 3.0

    def __init__(self) -> None:
        self.seconds: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=self.LAST))
        self.typical: dict[int, float] = {}

    def add(self, length: int, seconds: float) -> None:
        """Count a round that drafted `length` tokens."""
        seen = self.seconds[length]
        seen.append(seconds)
        if len(seen) >= self.LEAST:
            self.typical[length] = sorted(seen)[(len(seen) - 1) // 4]

    def measured(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The lengths with enough measurements, their seconds, and their counts: [lengths] each."""
        lengths = [length for length in self.typical if length >= 0]
        seconds = [self.typical[length] for length in lengths]
        return np.array(lengths), np.array(seconds), np.array([len(self.seconds[length]) for length in lengths])

    def curve(self, longest: int) -> np.ndarray:
        """Estimates for lengths 0 … `longest`, float64 [longest + 1]."""
        lengths, typical, weight = self.measured()
        base, slope = line(lengths, typical, weight)
        curve = base + slope * np.arange(longest + 1)
        curve[lengths] = (weight * typical + self.TRUST * curve[lengths]) / (weight + self.TRUST)
        return curve


def line(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
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


class Learner(ABC):
    """Chooses the number of draft tokens with the most tokens per second, estimated from the rounds seen so far."""

    def __init__(self, max_k: int) -> None:
        self.max_k, self.times, self.rounds = whole_number("max_k", max_k), Times(), 0

    @abstractmethod
    def tokens(self) -> np.ndarray:
        """Expected tokens of a round by number of drafted tokens, float64 [max_k + 1]."""

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

    def choose(self) -> Choice:
        """The best length by the estimates of this moment."""
        rates = self.tokens() / self.times.curve(self.max_k)
        return Choice(int(rates.argmax()), 1.0, float(rates.max()))

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

    def count_round(self, length: int, seconds: float) -> None:
        """Learn what a round of `length` draft tokens took; not from the first one, which read the prompt, too."""
        if self.rounds:
            self.times.add(length, seconds)
        self.rounds += 1


class Controller(Learner):
    """A `ChainPolicy` that learns how many tokens to draft and, for randomised drafting, whether to draft at all.

    Parameters
    ----------
    max_k : int
        The longest draft considered; 0 … max_k are.
    randomised : bool
        Also choose a probability of drafting at all (one uniform a round, h = (a, 1, 1, …)); for method "rejection"
        with a model as drafter. Needs `look`, which learns p(x)/q(x) of first draft tokens; without it a stays 1.
    block : bool
        Rounds are verified by method "block": learn from the weights of all drafts instead of acceptance by slot.
    parallel : bool
        The draft row that a round without draft needs is computed beside the target's pass and costs no time. Only the
        first guess: what such rounds take is measured.

    Examples
    --------
    >>> from types import SimpleNamespace as Round
    >>> controller = Controller(max_k=8)
    >>> for _ in range(40):
    ...     (count,), _ = controller.plan(None, [100])
    ...     controller.observe([Round(accepted=count, drafted=count, seconds={"all": 1 + 0.05 * count})])
    >>> controller.choose().k
    8
    """

    def __init__(
        self, max_k: int = 16, *, randomised: bool = False, block: bool = False, parallel: bool = False
    ) -> None:
        super().__init__(max_k)
        if randomised and block:
            raise ValueError("randomised: expected False with block, which drafts all its tokens for certain; got True")
        self.randomised, self.block, self.parallel = randomised, block, parallel
        self.acceptance, self.weights = Acceptance(self.max_k), PrefixWeights(self.max_k)
        self.ratios: deque[float] = deque(maxlen=256)
        self.planned: list[int] = []

    def tokens(self) -> np.ndarray:
        if self.block:
            return 1 + np.append(0.0, np.cumsum(self.weights.means()))
        betas = self.acceptance.rates()
        if self.ratios:  # also right where a below 1 let more tokens pass
            betas[0] = np.minimum(1, self.ratios).mean()
        return tokens_curve(betas)

    def choose(self) -> Choice:
        """The best length and draft probability by the estimates of this moment."""
        best, ratios = super().choose(), np.array(self.ratios)
        if not (self.randomised and self.max_k and ratios.any()):
            return best
        tokens, seconds = self.tokens(), self.times.curve(self.max_k)
        corners, mass = drafted_mass(ratios, np.ones(len(ratios)), prompts=len(ratios))
        skip = self.times.typical.get(NO_DRAFT, seconds[0 if self.parallel else 1])
        after_first = (tokens[1:, None] - 1) / (tokens[1] - 1)  # accepted tokens once the first is
        rates = (1 + after_first * mass) / (corners * seconds[1:, None] + (1 - corners) * skip)
        k, corner = np.unravel_index(rates.argmax(), rates.shape)
        return max(best, Choice(int(k) + 1, float(corners[corner]), float(rates.max())), key=lambda choice: choice.rate)

    def plan(self, noise: Noise, limit: list[int]) -> DraftPlan:
        k, a, _ = self.next_choice()
        if not self.randomised:
            self.planned = [min(k, most) for most in limit]
            return DraftPlan(self.planned, 1.0)
        drafts = [per_chain(k, a, lambda slot, head=head: head) for head in policy_uniform(noise, 0)]
        none = NO_DRAFT if a < 1 and k else 0
        self.planned = [
            min(draft.length, most) if draft.length else none for draft, most in zip(drafts, limit, strict=True)
        ]
        h = [[*draft.h, *[1.0] * (self.max_k - k)] for draft in drafts]
        h = torch.tensor(h, device=noise.seed.device, dtype=torch.float32)
        return DraftPlan([max(count, 0) for count in self.planned], h)

    def look(
        self, drafts: torch.Tensor, target_logits: torch.Tensor, draft_logits: torch.Tensor | None, sampling: Sampling
    ) -> None:
        """Learn p(x)/q(x) of the first draft tokens or, for `block`, the weights of all prefixes."""
        if self.block:
            self.weights.fade()
            counts = (drafts >= 0).long().cumprod(1).sum(1).tolist()
            weights = prefix_weights(drafts, target_logits, draft_logits, sampling).tolist()
            for row, count in zip(weights, counts, strict=True):
                self.weights.add(row[:count])
        if not self.randomised or draft_logits is None or not drafts.shape[1]:
            return
        rows = ((drafts[:, 0] >= 0) & (sampling.temperature > 0)).nonzero()[:, 0]
        first, shared = drafts[rows, 0], at_rows(sampling, rows)
        logs = [log_probability(logits[rows, 0], first, shared) for logits in (target_logits, draft_logits)]
        self.ratios.extend((logs[0] - logs[1]).exp().tolist())

    def observe(self, rounds: Sequence[Round]) -> None:
        """Learn acceptance by slot, and the time."""
        self.acceptance.fade()
        for planned, entry in zip(self.planned, rounds, strict=True):
            self.acceptance.add(max(planned, 0), entry.accepted)
        self.count_round(max(self.planned), sum(rounds[0].seconds.values()))


def log_probability(logits: torch.Tensor, tokens: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Of tokens [B] by the laws that logits [B, V] make; every backend can do it for laws without filters."""
    if filtered(sampling):
        return specdec.logprobs(logits, tokens, sampling=sampling).logprob
    return (logits.float() / sampling.temperature[:, None]).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]


def prefix_weights(
    drafts: torch.Tensor, target_logits: torch.Tensor, draft_logits: torch.Tensor | None, sampling: Sampling
) -> torch.Tensor:
    """w_i = min(1, w_(i-1) p(x_i) / q(x_i)) of drafts [B, K] (-1: none), float64 [B, K]; q is 1 for certain drafts."""
    weight, weights = torch.ones(len(drafts), dtype=torch.float64, device=drafts.device), []
    for slot in range(drafts.shape[1]):
        x = drafts[:, slot].clamp(min=0)
        ratio = log_probability(target_logits[:, slot], x, sampling).double()
        if draft_logits is not None:
            ratio = ratio - log_probability(draft_logits[:, slot], x, sampling)
        greedy = (target_logits[:, slot].argmax(-1) == x).double()
        ratio = torch.where(sampling.temperature > 0, ratio.exp().nan_to_num(0.0), greedy)
        weight = (weight * ratio).clamp(max=1.0)
        weights.append(weight)
    return torch.stack(weights, 1) if weights else weight.new_empty(len(drafts), 0)


class TreeController(Learner):
    """A `TreePolicy` that learns how many nodes to draft, and in which shape.

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

    def __init__(self, max_nodes: int = 32, children: int = 8) -> None:
        super().__init__(max_nodes)
        self.children, self.parents = ChildAcceptance(children), [-1]

    def tokens(self) -> np.ndarray:
        return 1 + np.append(0.0, np.cumsum(optimal_nodes(self.children.rates(), self.max_k).values))

    def plan_tree(self) -> list[int]:
        self.parents = optimal_nodes(self.children.rates(), self.next_choice().k).parents
        return self.parents

    def observe_tree(self, path: list[int], seconds: float) -> None:
        """Learn acceptance by child index, and the time."""
        self.children.fade()
        for node, following in zip(path, [*path[1:], None], strict=True):
            offered = [child for child, parent in enumerate(self.parents) if parent == node]
            if offered:
                self.children.add(len(offered), None if following is None else offered.index(following))
        self.count_round(len(self.parents) - 1, seconds)


class Chains(Learner):
    """Learns how long so many chains are to be. `paths` accepts i tokens or more as often of longer chains."""

    def __init__(self, n: int, max_k: int) -> None:
        super().__init__(max_k)
        self.n, self.weights = whole_number("paths", n, 1), PrefixWeights(self.max_k)

    def tokens(self) -> np.ndarray:
        return 1 + np.append(0.0, np.cumsum(self.weights.means()))


class PathController:
    """A `TreePolicy` for method "paths" that learns how many chains to draft, and how long.

    Parameters
    ----------
    max_k : int
        The longest chains considered; 0 … max_k tokens are.
    paths : list of int
        The numbers of chains considered.

    Examples
    --------
    >>> controller = PathController(max_k=6, paths=(1, 2))
    >>> for _ in range(80):  # a second chain brings a token more, and costs less
    ...     tree = DraftTree.from_parents(controller.plan_tree())
    ...     accepted = min(tree.depth, len(tree.children[0]))
    ...     controller.observe_tree([0] * (accepted + 1), seconds=1 + 0.05 * tree.size)
    >>> controller.choose()
    (2, 2)
    """

    def __init__(self, max_k: int = 8, paths: Sequence[int] = (1, 2, 4)) -> None:
        self.learners = [Chains(n, max_k) for n in paths]
        self.max_k, self.rounds = max(learner.n * learner.max_k for learner in self.learners), 0

    def best(self) -> Chains:
        return max(self.learners, key=lambda learner: learner.choose().rate)

    def choose(self) -> tuple[int, int]:
        """The best number of chains and their length by the estimates of this moment."""
        return self.best().n, self.best().choose().k

    def plan_tree(self) -> tuple[int, ...]:
        turn, phase = divmod(self.rounds, EXPLORE_EVERY)
        new = [learner for learner in self.learners if not learner.informed]
        self.now = new[0] if new else self.best() if phase else self.learners[turn % len(self.learners)]
        self.k = self.now.next_choice().k
        return DraftTree.chains(self.now.n, self.k).parents

    def observe_tree(self, path: list[int], seconds: float) -> None:
        """Learn how many tokens were accepted, and the time."""
        self.now.weights.fade()
        self.now.weights.add([float(i < len(path) - 1) for i in range(self.k)])
        self.now.count_round(self.k, seconds)
        self.rounds += 1
