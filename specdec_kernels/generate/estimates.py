"""Estimates from past rounds: acceptance and time, for the controller and for measurements."""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np


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


class Passes:
    """Seconds of the target's forwards by the tokens they read, and the number of tokens that may therefore be pending.

    Pending tokens are read in every round until another forward settles them. With e tokens more a round, settled
    every n rounds, and ``base + slope * tokens`` seconds a forward, a round pays base / n + slope * e * n / 2 for that:
    least at n = sqrt(2 base / (slope e)), when n e tokens are pending.

    Examples
    --------
    >>> passes = Passes()
    >>> for tokens in 3 * [5, 9, 17]: passes.add([tokens], 1 + 0.02 * tokens, emitted=2.0)
    >>> passes.pending()  # sqrt(2 * 2 / 0.02)
    14
    """

    MOST = 64

    def __init__(self) -> None:
        self.times, self.rounds, self.emitted = Times(), 0, 0.0

    def add(self, read: list[int], seconds: float, emitted: float) -> None:
        """Count a round: the tokens of each forward, the seconds of all, and the tokens that a text got."""
        self.rounds, self.emitted = self.rounds + 1, self.emitted + emitted
        if len(read) == 1:
            self.times.add(read[0], seconds)

    def settle_at_once(self, batch: int) -> bool:
        """Whether a forward that settles the texts of a batch costs less than a round without drafts for each does.

        With a accepted drafts a round, the forward costs the 1 + a tokens that it does not emit, the rounds a tokens
        each: less for one text, whatever a is.
        """
        return (batch - 1) * (self.emitted - self.rounds) > self.rounds

    def pending(self) -> int | None:
        """The most tokens that are to be pending; None until two lengths have measured times."""
        measured = self.times.measured()
        if len(measured[0]) < 2:
            return None
        base, slope = line(*measured)
        return round(max(1.0, min(self.MOST, (2 * base / max(slope, 1e-12) * self.emitted / self.rounds) ** 0.5)))


def line(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Base and slope of the weighted least-squares line through (x, y), the slope not negative, the base positive."""
    middle = weight @ x / weight.sum()
    spread = weight @ (x - middle) ** 2
    slope = max(0.0, weight @ (y * (x - middle)) / spread) if spread > 0 else 0.0
    base = weight @ y / weight.sum() - slope * middle
    return (base, slope) if base > 0 else (y.min(), 0.0)
