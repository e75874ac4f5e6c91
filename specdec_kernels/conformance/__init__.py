"""Whether a verifier of speculative decoding keeps the target's law: a callable in, a report out.

`check` counts tokens, `exact` enumerates the verifier's random choices. Both need torch alone, and use no op of this
package. docs/conformance.md says what each check looks at.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product, takewhile
from statistics import NormalDist
from typing import Any, NamedTuple

import torch

from specdec_kernels.conformance.enumeration import BudgetExceeded, Law, Unfollowed, law

__all__ = [
    "Batch", "BudgetExceeded", "Contexts", "Finding", "Law", "Report", "Unfollowed", "check", "chi_squared", "exact",
    "exact_texts", "law", "per_request",
]  # fmt: skip

Text = tuple[int, ...]
Texts = tuple[Text, ...]
Outcome = tuple[Text, str, int]  # a text, what is wrong with it, and its drafts
Rows = Sequence[Callable[[Text], Any]]
DRAFTS = 2  # of most requests
PROMPT, OUTPUT = [0], [1, 1]  # of every request, before its drafts
CHUNK = 1 << 16  # requests of a batch
FEWEST = 25  # expected draws of a cell: simulated p-values of 1e-5 are then off by a third
NUMBERS: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
INDICES: dict[str, Any] = {"dtype": torch.int64, "device": "cpu"}


def chi_squared(counts: torch.Tensor, law: torch.Tensor) -> tuple[float, int, float]:
    """Pearson's test of how often each token, or each text, was drawn: statistic, degrees of freedom, p-value.

    ``counts`` [n] or fewer, ``law`` [n] of any sum. Cells of fewer than 25 expected draws are thrown together. What was
    drawn and the law does not have gives an infinite statistic and a p-value of 0.

    Examples
    --------
    >>> statistic, degrees, p_value = chi_squared(torch.tensor([480, 520]), torch.tensor([0.5, 0.5]))
    >>> round(statistic, 3), degrees, round(p_value, 3)
    (1.6, 1, 0.206)
    """
    counts, law = (torch.as_tensor(x, **NUMBERS) for x in (counts, law))
    there = law > 0
    if len(counts) > len(law) or counts[~there[: len(counts)]].any():
        return math.inf, 0, 0.0
    counts = torch.nn.functional.pad(counts, (0, len(law) - len(counts)))[there]
    expected, order = (law[there] * (counts.sum() / law.sum())).sort(descending=True)
    counts, large = counts[order], int((expected >= FEWEST).sum())
    if 0 < large < len(expected) and expected[large:].sum() < FEWEST:
        large -= 1
    if large < len(expected):
        counts, expected = (torch.cat((x[:large], x[large:].sum(0, keepdim=True))) for x in (counts, expected))
    if len(expected) == 1:  # too few draws to say anything
        return 0.0, 0, 1.0
    degrees, statistic = len(expected) - 1, ((counts - expected) ** 2 / expected).sum()
    return statistic.item(), degrees, torch.special.gammaincc(counts.new_tensor(degrees / 2), statistic / 2).item()


def smallest_fault(degrees: int, threshold: float, trials: int) -> float:
    """The total variation from which on Pearson's test catches any fault nine times of ten, or a few per cent less."""
    # A total variation d moves the statistic by 4 d ** 2 trials at least (Cauchy, Schwarz). What fails is by Wilson and
    # Hilferty's cube root; a statistic that is moved by s has mean k + s and variance 2 k + 4 s.
    k, rare, often = degrees, NormalDist().inv_cdf(threshold), NormalDist().inv_cdf(0.9) ** 2
    critical = k * (1 - 2 / (9 * k) - rare * math.sqrt(2 / (9 * k))) ** 3
    beyond = critical - k + 2 * often
    shift = beyond + math.sqrt(beyond**2 - (critical - k) ** 2 + 2 * often * k)
    return math.sqrt(shift / trials) / 2


def completed(law: Mapping[Texts, Any], rows: Rows, length: int, split: Any = operator.mul) -> Counter[Texts]:
    """The law, or counts, of texts of this length, one for each row: what is longer is cut, others go on by rows.

    ``split(share, probabilities)`` -> the shares of the texts that have each token more.
    """
    texts, full = [(tuple(text[:length] for text in row), share) for row, share in law.items()], Counter[Texts]()
    for text, share in texts:
        short = [i for i, x in enumerate(text) if len(x) < length]
        if not short:
            full[text] += share
        for i in short[:1]:
            parts = split(share, torch.as_tensor(rows[i](text[i]), **NUMBERS))
            for token, part in enumerate(parts.tolist()):
                if part:
                    texts.append(((*text[:i], (*text[i], token), *text[i + 1 :]), part))
    return full


class Contexts:
    """Laws of a target and a draft that depend on all that was said, and what follows from them exactly.

    ``p``, ``q``: ``{tokens before: float64 [V]}`` of the target and the draft, random for each text of at most
    ``depth`` tokens; they may be assigned.

    Examples
    --------
    The distance of the texts of a rule from the target's, over all drafts. One that accepts every draft:

    >>> contexts = Contexts.of([0.5, 0.5], [0.75, 0.25])
    >>> round(contexts.distance(contexts.round(2, lambda drafts, p, q: {drafts: 1.0}), 2), 4)
    0.3125
    """

    def __init__(self, vocabulary: int, depth: int = DRAFTS, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        said = [x for length in range(depth + 1) for x in product(range(vocabulary), repeat=length)]
        rows = torch.randn(2, len(said), vocabulary, generator=generator, **NUMBERS).softmax(-1)
        self.vocabulary = vocabulary
        self.p, self.q = (dict(zip(said, laws, strict=True)) for laws in rows)

    @classmethod
    def of(cls, p: Sequence[float], q: Sequence[float], depth: int = DRAFTS) -> Contexts:
        """The same two laws whatever was said."""
        made, laws = cls(len(p), depth), [torch.as_tensor(law, **NUMBERS) for law in (p, q)]
        made.p, made.q = (dict.fromkeys(made.p, law / law.sum()) for law in laws)
        return made

    def chance(self, laws: dict[Text, torch.Tensor], tokens: Sequence[int]) -> float:
        """The probability of a text."""
        return math.prod(laws[tuple(tokens[:i])][x].item() for i, x in enumerate(tokens))

    def round(self, slots: int, decide: Callable[..., dict[Text, float]]) -> dict[Text, float]:
        """``{emitted tokens: probability}`` of a round of this many drafts.

        ``decide(drafts, p, q)``, for rows p [slots + 1, V] and q [slots, V], is the same of these drafts.
        """
        law: dict[Text, float] = {}
        for drafts in product(range(self.vocabulary), repeat=slots):
            p, q = (torch.stack([laws[drafts[:i]] for i in range(slots + 1)]) for laws in (self.p, self.q))
            for emitted, probability in decide(drafts, p, q[:slots]).items():
                law[emitted] = law.get(emitted, 0.0) + self.chance(self.q, drafts) * probability
        return law

    def completed(self, law: dict[Text, float], length: int) -> dict[Text, float]:
        """The law of texts of this length: what was emitted, continued by the target."""
        texts = completed({(text,): share for text, share in law.items()}, [self.p.__getitem__], length)
        return {text: share for (text,), share in texts.items()}

    def distance(self, law: dict[Text, float], length: int) -> float:
        """The total variation between ``completed`` texts and the target's: 0 for a rule that is lossless."""
        texts, right = self.completed(law, length), self.completed({(): 1.0}, length)
        return sum(abs(texts.get(x, 0.0) - right.get(x, 0.0)) for x in texts | right) / 2


class Batch(NamedTuple):
    """A round of B requests, as a verifier gets it.

    Penalties come first: z / r or z * r, by the sign of z, for tokens of the prompt and the output; z - f c for those
    that stand c times in the output; z - g for those that stand there. The drafts before a row are output. Filters see
    logits over the temperature; no request has two of them.
    """

    drafts: torch.Tensor  # int64 [B, K]; the first -1 ends a request's drafts
    target: torch.Tensor  # float32 [B, K + 1, V], float64 from `exact`: logits, row j is draft j's
    draft: torch.Tensor | None  # float32 [B, K, V]: the laws that drafts were drawn with; None: they are certain
    repetition: torch.Tensor  # float32 [B]: r
    frequency: torch.Tensor  # float32 [B]: f
    presence: torch.Tensor  # float32 [B]: g
    temperature: torch.Tensor  # float32 [B]; 0 means the largest logit
    top_k: torch.Tensor  # int64 [B]; 0 is off
    top_p: torch.Tensor  # float32 [B]; 1 is off
    min_p: torch.Tensor  # float32 [B]; 0 is off
    prompt: torch.Tensor  # int64 [B, n], -1 behind it
    output: torch.Tensor  # int64 [B, n], -1 behind it: the text between the prompt and the drafts
    seed: torch.Tensor  # int64 [B]
    position: torch.Tensor  # int64 [B]: where the next token stands

    def select(self, rows: torch.Tensor) -> Batch:
        """The batch of these requests."""
        return self._replace(**{name: x[rows] for name, x in self._asdict().items() if x is not None})


class Finding(NamedTuple):
    """What one check found of one kind of requests, and why.

    The verdict is "passed", "failed" or "inconclusive": no draft was accepted, requests were refused, or random
    numbers could not be followed. ``p_value`` is of a count, which ``catches`` a fault of this total variation nine
    times of ten; ``distance`` is the total variation itself.
    """

    name: str
    verdict: str
    said: str
    p_value: float | None = None
    catches: float | None = None
    distance: float | None = None


class Report(NamedTuple):
    """What `check` or `exact` found, as a table by ``str``: small p-values fail, and distances above the bound.

    A verifier that is right fails any count with probability ``false_alarm``.
    """

    findings: list[Finding]
    false_alarm: float = 0.0
    threshold: float = 0.0
    bound: float | None = None

    @property
    def passed(self) -> bool:
        """Whether every check did."""
        return all(finding.verdict == "passed" for finding in self.findings)

    def __str__(self) -> str:
        rule = f"p below {self.threshold:.1e} fails, {self.false_alarm:g} false alarms"
        if self.bound is not None:
            rule = f"a total variation above {self.bound:.1e} fails"
        lines = [f"{x.verdict:<12}  {x.name}: {x.said}" for x in self.findings]
        return "\n".join([f"{len(self.findings)} checks; {rule}", *lines])


class Request(NamedTuple):
    """What requests of one kind ask for."""

    name: str = "three tokens"
    drafts: int = DRAFTS
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


ALL_SAY = Contexts(4, seed=3)  # 6,000 texts show each kind of request that is not kept to
REVERSED = Contexts.of([1 / 3, 2 / 3], [2 / 3, 1 / 3], 6)
CERTAIN, ROUNDS = "certain", "rounds"
KINDS = {
    "chain": [
        (ALL_SAY, [Request()]),
        (REVERSED, [Request("p and q reversed")]),
        (Contexts.of([0.5, 0.3, 0.2, 0.0], [0.0, 0.2, 0.3, 0.5]), [Request("zeros in p and q")]),
    ],
    CERTAIN: [(ALL_SAY, [Request("drafts without a law")])],
    "ends": [(ALL_SAY, [Request("no draft", 0), Request("one draft", 1), Request("two drafts", 2)])],
    "longer": [(Contexts(3, 4, seed=5), [Request("three drafts", 3), Request("four drafts", 4)])],
    ROUNDS: [(Contexts(2, 6, seed=8), [Request("the text goes on")])],
    "temperatures": [(ALL_SAY, [Request(f"T = {value}", temperature=value) for value in (0.0, 0.5, 1.0, 2.0)])],
    "filters": [(ALL_SAY, [
        Request("none"), Request("top-k", top_k=2), Request("top-p", top_p=0.7), Request("min-p", min_p=0.4),
        Request("top-k, T = 0.5", temperature=0.5, top_k=3), Request("top-p, T = 2", temperature=2.0, top_p=0.6),
    ])],
    "penalties": [(ALL_SAY, [
        Request("none"), Request("repetition", repetition=1.8), Request("frequency", frequency=0.7),
        Request("presence", presence=0.9), Request("all three, T = 0.7", DRAFTS, 1.3, 0.4, 0.5, 0.7),
    ])],
}  # fmt: skip
CHECKS = (*KINDS, "seeds", "batch")
EXACT = (*KINDS, "batch")
Verify = Callable[[Batch], torch.Tensor]
Draw = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def check(
    verify: Verify, checks: Iterable[str] = CHECKS, *, draw: Draw | None = None, redraws: bool = False,
    smallest: float = 0.005, trials: int | None = None, false_alarm: float = 1e-6,
) -> Report:  # fmt: skip
    """Whether what a verifier emits has the target's law, by counting.

    Parameters
    ----------
    verify : callable
        ``verify(batch)`` -> int32 or int64 [B, K + 1]: what each request of a `Batch` emits, accepted drafts and one
        token more, then -1. A ``NotImplementedError`` refuses a kind of requests.
    checks : iterable of str
        Some of `CHECKS`; docs/conformance.md has what each is of.
    draw : callable, optional
        ``draw(probs, seed, position)`` -> int64 [B] for probs [B, V]: how drafts are drawn where a drafter shares the
        verifier's noise. Default: by torch.
    redraws : bool
        An accepted token need not be the draft.
    smallest, trials : float, int, optional
        The total variation that is caught nine times of ten, by as many requests as that takes; or how many there are.
    false_alarm : float
        How probable it may be that a right verifier fails: shared out evenly among all that is counted.
    """
    generator = torch.Generator().manual_seed(0)
    draw = draw or (lambda probs, seed, position: torch.multinomial(probs, 1, generator=generator)[:, 0])
    rounds, results, taken = Rounds(verify, draw, generator, redraws), list[Finding](), list[Request]()
    checks = listed(checks, CHECKS)
    kinds = [Kind(name, *kind) for name in checks for kind in KINDS.get(name, [])]
    threshold = false_alarm / max(1, sum(len(kind.requests) for kind in kinds) + 2 * ("seeds" in checks))

    def enough(cells: int) -> int:
        return trials or math.ceil((smallest_fault(cells - 1, threshold, 1) / smallest) ** 2)

    for kind in kinds:
        findings = list(rounds.laws(kind, enough(kind.contexts.vocabulary**kind.length), threshold))
        if kind.contexts is ALL_SAY and kind.name != CERTAIN:
            taken += [x for x, finding in zip(kind.requests, findings, strict=True) if finding.p_value is not None]
        results += findings
    if "seeds" in checks:
        results += rounds.seeds(enough(16), threshold)
    if "batch" in checks:
        results += rounds.neighbours(taken or [Request()])
    return Report(results, false_alarm, threshold)


def exact(
    verify: Verify, checks: Iterable[str] = EXACT, *, draw: Draw | None = None, redraws: bool = False,
    dtype: torch.dtype = torch.float64, bound: float | None = None, ways: int = 100_000, seconds: float = 300.0,
) -> Report:  # fmt: skip
    """Whether what a verifier emits has the target's law, by enumeration of all its random choices (see `law`).

    Parameters
    ----------
    verify, checks, draw, redraws
        As in `check`, without "seeds". "batch" is of rows that accept different numbers. ``draw`` draws by torch.
    dtype : torch.dtype
        Of what the verifier gets.
    bound : float, optional
        The total variation above which a law is wrong. Default: 1e-6, or 64 eps of the dtype if that is more.
    ways, seconds : int, float
        The budget of each kind of requests. One that is exceeded is inconclusive, as is what cannot be followed.
    """
    draw = draw or (lambda probs, seed, position: torch.multinomial(probs, 1)[:, 0])
    rounds = Rounds(verify, draw, torch.Generator(), redraws, dtype)
    bound = max(1e-6, 64 * torch.finfo(dtype).eps) if bound is None else bound
    checks = listed(checks, EXACT)
    kinds = [Kind(name, x, [request]) for name in checks for x, y in KINDS.get(name, []) for request in y]
    if "batch" in checks:
        kinds.append(Kind("batch", REVERSED, [Request("rows that accept different numbers", 2), Request("", 1)]))
    return Report([rounds.exactly(kind, bound, {"ways": ways, "seconds": seconds}) for kind in kinds], bound=bound)


def exact_texts(
    write: Callable[[], Any], target: Callable[[Text], Any] | Sequence[Callable[[Text], Any]], length: int, *,
    bound: float = 1e-6, ways: int = 100_000, seconds: float = 300.0,
) -> Report:  # fmt: skip
    """Whether the texts of a whole loop have the target's law, by enumeration.

    ``write()`` -> the new tokens, a list or a tensor [n], or one for each row of a batch; ``target(tokens before)`` ->
    the probabilities [V] of the next one, for a batch one for each row. Of texts longer than ``length`` the rest is
    cut, shorter ones go on by the target's law.

    Examples
    --------
    >>> exact_texts(lambda: torch.multinomial(torch.tensor([0.5, 0.5]), 1), lambda text: [0.5, 0.5], 2).passed
    True
    """
    one, rows = callable(target), [target] if callable(target) else list(target)
    emit = lambda: [(text, "", 1) for text in ([write()] if one else write())]  # noqa: E731
    return Report([judged("texts", emit, rows, length, bound, {"ways": ways, "seconds": seconds})], bound=bound)


def judged(
    name: str, emit: Callable[[], Any], rows: Rows, length: int, bound: float, budget: dict[str, Any]
) -> Finding:
    """Whether the texts of the outcomes that ``emit`` returns, one for each row, have the rows' law."""
    try:
        outcomes = law(emit, **budget)
    except (Unfollowed, BudgetExceeded) as refusal:
        return Finding(name, "inconclusive", f"{type(refusal).__name__}: {refusal}")
    errors = {outcome[1]: share for outcome, share in outcomes.items() if outcome[0] == "raises"}
    for error in errors:
        if error.startswith("NotImplementedError"):
            return Finding(name, "inconclusive", f"refused: {error.partition(': ')[2]}")
    emitted, wrong, accepted = gathered((x, share) for x, share in outcomes.items() if x[0] != "raises")
    wrong = wrong or next(iter(errors), "")
    texts, right = completed(emitted, rows, length), completed({((),) * len(rows): 1.0}, rows, length)
    differ = sorted(((abs(texts[x] - right[x]), x) for x in texts | right), reverse=True)
    distance = (sum(x for x, _ in differ) + sum(errors.values())) / 2
    said = f"total variation {distance:.2g} by {outcomes.ways} ways"
    if distance <= bound + outcomes.slack and not wrong:
        return Finding(name, "passed" if accepted else "inconclusive", said, distance=distance)
    most = [f"{x[0] if len(x) == 1 else x} {texts[x]:.4g} for {right[x]:.4g}" for _, x in differ[:3]]
    return Finding(name, "failed", "; ".join(filter(None, (said, wrong, ", ".join(most)))), distance=distance)


def gathered(outcomes: Iterable[tuple[Sequence[Outcome], Any]]) -> tuple[Counter[Texts], str, float]:
    """What was emitted how often, something that is wrong with it, and how many drafts were accepted."""
    emitted, wrong, accepted = Counter[Texts](), "", 0.0
    for rows, share in outcomes:
        emitted[tuple(tuple(x for x in text if x >= 0) for text, _, _ in rows)] += share
        wrong = wrong or next((fault for _, fault, _ in rows if fault), "")
        accepted += share * sum(drafts for _, _, drafts in rows)
    return emitted, wrong, accepted


def per_request(verify: Callable[..., Sequence[Any]], *, logits: bool = False) -> Verify:
    """A verifier of batches, of ``verify(drafts, target, draft)`` -> tokens of one request.

    It gets drafts [k], target [k + 1, V], probabilities or ``logits``, and the draft's probabilities [k, V]. What else
    it takes of a `Batch` goes by its parameters' names, as ``temperature``; requests that need what it does not take
    are refused, as are drafts without a law unless None is the default of ``draft``.

    Examples
    --------
    >>> def textbook(drafts, p, q):
    ...     for i, x in enumerate(drafts.tolist()):
    ...         if torch.rand(()) * q[i, x] >= p[i, x]:
    ...             return [*drafts[:i].tolist(), torch.multinomial((p[i] - q[i]).clamp(min=0), 1)]
    ...     return [*drafts.tolist(), torch.multinomial(p[-1], 1)]
    >>> exact(per_request(textbook), ["chain"]).passed
    True
    """
    takes, default = inspect.signature(verify).parameters, Request()._asdict()
    names = [name for name in Batch._fields[3:] if name in takes]

    def verify_all(batch: Batch) -> torch.Tensor:
        for name in Batch._fields[3:10]:
            if name not in takes and (getattr(batch, name) != default[name]).any():
                raise NotImplementedError(f"{name}, which is none of {', '.join(takes)}")
        if batch.draft is None and [*takes.values()][2].default is not None:
            raise NotImplementedError("drafts without a law")
        rows = []
        for row, drafts in enumerate(batch.drafts):
            count, options = int((drafts >= 0).sum()), {name: getattr(batch, name)[row] for name in names}
            target, draft = batch.target[row, : count + 1], None if batch.draft is None else batch.draft[row, :count]
            tokens = verify(drafts[:count], target if logits else target.softmax(-1), draft, **options)
            rows.append([int(x) for x in tokens])
        width = max(batch.target.shape[1], *map(len, rows))
        return torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows], **INDICES)

    return verify_all


def listed(checks: Iterable[str], allowed: Sequence[str]) -> list[str]:
    checks = list(checks)
    if unknown := [name for name in checks if name not in allowed]:
        raise ValueError(f"checks: expected some of {', '.join(allowed)}; got {', '.join(map(repr, unknown))}")
    return checks


class Kind(NamedTuple):
    """Requests that stand in one batch, in turns, and the laws of what they ask for."""

    name: str
    contexts: Contexts
    requests: list[Request]

    @property
    def width(self) -> int:
        """Drafts of a round."""
        return max(DRAFTS, *(x.drafts for x in self.requests))

    @property
    def length(self) -> int:
        """Tokens of a text."""
        return 4 if self.name == ROUNDS else self.width + 1

    def rows(self) -> list[Callable[[Text], torch.Tensor]]:
        """The law of each request's next token."""
        return [functools.partial(row_of, self.contexts, request) for request in self.requests]


@functools.lru_cache(maxsize=1 << 14)
def row_of(contexts: Contexts, request: Request, said: Text) -> torch.Tensor:
    return law_of(1 + contexts.p[said].log(), request, said)


def law_of(logits: torch.Tensor, request: Request, said: Text) -> torch.Tensor:
    """What a request makes of a row after its drafts ``said``, float64 [V]."""
    counts, prompt = (torch.tensor(x, **INDICES).bincount(minlength=len(logits)) for x in ([*OUTPUT, *said], PROMPT))
    repeated = torch.where(logits > 0, logits / request.repetition, logits * request.repetition)
    logits = torch.where(counts + prompt > 0, repeated, logits)
    logits = logits - request.frequency * counts - request.presence * (counts > 0)
    if request.temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(), len(logits)).double()
    law, order = (logits / request.temperature).softmax(-1).sort(descending=True)
    keep = (law.cumsum(-1) - law < request.top_p) & (law >= request.min_p * law[0])
    keep[request.top_k or len(law) :] = False
    law = torch.zeros_like(law).scatter(-1, order, law * keep)
    return law / law.sum()


@functools.lru_cache(maxsize=8)
def tables(
    contexts: Contexts, requests: tuple[Request, ...], count: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Logits of the target and laws of the draft after all texts, [n, V]; what else requests have."""
    options = {}
    for name in Request._fields[1:]:
        kind = torch.int64 if name in ("drafts", "top_k") else torch.float32
        options[name] = torch.tensor([getattr(x, name) for x in requests], dtype=kind, device="cpu").repeat(count)
    for name, tokens in (("prompt", PROMPT), ("output", OUTPUT)):
        options[name] = torch.tensor(tokens, **INDICES).repeat(count * len(requests), 1)
    p, q = (torch.stack(list(laws.values())) for laws in (contexts.p, contexts.q))
    return (1 + p.log()).to(dtype), q.to(dtype), options


class Rounds(NamedTuple):
    """A verifier's rounds, and what is found in them."""

    verify: Verify
    draw: Draw
    generator: torch.Generator
    redraws: bool = False
    dtype: torch.dtype = torch.float32

    def batch(self, kind: Kind, count: int, seed: int = 0, position: int = 0, said: Any = None) -> Batch:
        """As many of each request, from a seed and a position on, after what was ``said`` [B, n]."""
        size, width = kind.contexts.vocabulary, kind.width
        p, q, options = tables(kind.contexts, tuple(kind.requests), count, self.dtype)
        numbers = torch.arange(count * len(kind.requests), **INDICES)
        said = numbers.new_empty(len(numbers), 0) if said is None else said
        seeds, positions = numbers + seed, numbers % 997 + position + (said >= 0).sum(1)
        nodes = [numbers * 0]  # of the tree of all texts: child x is V node + 1 + x
        for token in said.unbind(1):
            nodes = [nodes[0].where(token < 0, size * nodes[0] + 1 + token)]
        for column in range(width):
            drawn = self.draw(q[nodes[-1]], seeds, positions + column).cpu().long()
            nodes.append(size * nodes[-1] + 1 + drawn)
        rows, absent = torch.stack(nodes, 1), torch.arange(width, **INDICES) >= options["drafts"][:, None]
        drafts = ((rows[:, 1:] - 1) % size).masked_fill(absent, -1)
        rest: dict[str, Any] = {name: x.clone() for name, x in options.items() if name != "drafts"}
        rest |= {"output": torch.cat((options["output"], said), 1), "seed": seeds, "position": positions}
        return Batch(drafts, p[rows], q[rows[:, :-1]], **rest)

    def emitted(self, batch: Batch) -> torch.Tensor:
        tokens, shape = torch.as_tensor(self.verify(batch), dtype=None, device="cpu"), batch.target.shape[:2]
        if tokens.dtype not in (torch.int32, torch.int64) or tokens.shape != shape:
            raise ValueError(f"verify: expected int32 or int64 {list(shape)}; got {tokens.dtype} {list(tokens.shape)}")
        return tokens.long().clamp(min=-1)

    def played(self, kind: Kind, count: int, seed: int = 0) -> list[list[int]]:
        """Drafts and tokens of each request's round, or of two where the text goes on."""
        batch = self.batch(kind, count, seed)
        tokens = self.emitted(batch._replace(draft=None) if kind.name == CERTAIN else batch)
        rounds = [batch.drafts, tokens]
        if kind.name == ROUNDS:
            again = self.batch(kind, count, seed, said=tokens.clamp(max=kind.contexts.vocabulary - 1))
            rounds += [again.drafts, self.emitted(again)]
        rows: list[list[int]] = torch.cat(rounds, 1).tolist()
        return rows

    def outcome(self, kind: Kind, row: Sequence[int]) -> Outcome:
        """What a row of `played` comes to."""
        text, fault, accepted = tuple[int, ...](), "", 0
        for begin in range(0, len(row), 2 * kind.width + 1):
            drafts, tokens = row[begin:][: kind.width], row[begin + kind.width :][: kind.width + 1]
            said = tuple(takewhile(lambda x: x >= 0, tokens))
            if not said or max(tokens[len(said) :], default=-1) >= 0:
                fault = "no token, or one behind a -1"
            elif max(said) >= kind.contexts.vocabulary:
                fault = f"a token that is none of {kind.contexts.vocabulary}"
            elif said[:-1] != tuple(drafts[: len(said) - 1]) and not self.redraws:
                fault = "an accepted token that is not the draft"
            if fault:
                return (), f"{fault}: emitted {list(tokens)} for drafts {list(drafts)}", 0
            text, accepted = text + said, accepted + len(said) - 1
        return text, fault, accepted

    def exactly(self, kind: Kind, bound: float, budget: dict[str, Any]) -> Finding:
        """Whether the texts of one batch, which the target completes, have its law, by enumeration."""
        rows, length, request = kind.rows(), kind.length, kind.requests[0]

        def emit() -> list[Outcome]:
            played = self.played(kind, 1)
            outcomes = [self.outcome(kind, row) for row in played]
            if kind.name == CERTAIN:  # for each draft, not for all together
                outcomes = [((*played[0][: kind.width], *outcomes[0][0]), *outcomes[0][1:])]
            return outcomes if request.drafts else [(text, fault, 1) for text, fault, _ in outcomes]

        if kind.name == CERTAIN:
            target, q, length = rows[0], kind.contexts.q, length + kind.width
            rows = [lambda text: q[text] if len(text) < kind.width else target(text[kind.width :])]
        return judged(f"{kind.name}, {request.name}", emit, rows, length, bound, budget)

    def laws(self, kind: Kind, trials: int, rate: float) -> Iterator[Finding]:
        """Whether the texts of each request, which the target completes, have its law."""
        played, several = [Counter[Text]() for _ in kind.requests], len(kind.requests)
        size = max(1, CHUNK // several)
        try:
            for begin in range(0, trials, size):
                rows = self.played(kind, min(size, trials - begin), begin * several)
                for i, counts in enumerate(played):
                    counts.update(map(tuple, rows[i::several]))
        except NotImplementedError as refusal:
            for request in kind.requests:
                if several > 1:  # it may take some of them
                    yield from self.laws(kind._replace(requests=[request]), trials, rate)
                else:
                    yield Finding(f"{kind.name}, {request.name}", "inconclusive", f"refused: {refusal}")
            return

        def split(count: int, row: torch.Tensor) -> torch.Tensor:
            return torch.multinomial(row, count, True, generator=self.generator).bincount(minlength=len(row))

        for request, target, counts in zip(kind.requests, kind.rows(), played, strict=True):
            label = f"{kind.name}, {request.name}"
            emitted, wrong, accepted = gathered(([self.outcome(kind, row)], n) for row, n in counts.items())
            right = completed({((),): 1.0}, [target], kind.length)
            texts = completed(emitted, [target], kind.length, split)
            cells = [*right, *(texts.keys() - right.keys())]
            fit = chi_squared(*(torch.tensor([x[text] for text in cells], **NUMBERS) for x in (texts, right)))
            verdict = "passed" if accepted or not request.drafts else "inconclusive"
            finding = counted(label, verdict, fit, rate, trials, f"{accepted / trials:.2f} drafts accepted")
            yield Finding(label, "failed", wrong) if wrong else finding

    def seeds(self, trials: int, rate: float) -> Iterator[Finding]:
        """Whether seeds and positions make what is random."""
        kind, shifts = Kind("seeds", ALL_SAY, [Request()]), {"the next seed": (1, 0), "the next position": (0, 1)}
        counts, verdicts = {name: torch.zeros(16, **INDICES) for name in shifts}, {"inconclusive"}
        for begin in range(0, trials, CHUNK):
            size = min(CHUNK, trials - begin)
            batch = self.batch(kind, size, begin)
            tokens = self.emitted(batch)
            verdicts.add(verdict_of(tokens))
            if not begin:
                yield same("seeds, a second call", tokens, self.emitted(batch))
            for name, (seed, position) in shifts.items():  # with other drafts
                later = self.emitted(self.batch(kind, size, begin + seed, position))
                counts[name] += (4 * tokens[:, 0] + later[:, 0]).bincount(minlength=16)
        pairs = torch.outer(ALL_SAY.p[()], ALL_SAY.p[()]).flatten()
        for name, count in counts.items():
            fit = chi_squared(count, pairs)
            yield counted(f"seeds, {name}", max(verdicts), fit, rate, trials, "of pairs of first tokens")

    def neighbours(self, requests: list[Request]) -> Iterator[Finding]:
        """Whether a request emits the same whatever is beside it."""
        batch = self.batch(Kind("batch", ALL_SAY, requests), 8)
        tokens, rows = self.emitted(batch), torch.randperm(len(batch.drafts), generator=self.generator, **INDICES)
        for name, size in (("another order", len(rows)), ("parts of seven", 7), ("alone", 1)):
            apart = torch.cat([self.emitted(batch.select(part)) for part in torch.split(rows, size)])
            yield same(f"batch, {name}", tokens[rows], apart)


def verdict_of(tokens: torch.Tensor) -> str:
    """Rounds that accept no drafts say nothing of them."""
    return "passed" if (tokens[:, 1] >= 0).any() else "inconclusive"


def same(name: str, one: torch.Tensor, other: torch.Tensor) -> Finding:
    alike = int((one == other).all(1).sum())
    verdict = verdict_of(one) if alike == len(one) else "failed"
    return Finding(name, verdict, f"{alike} of {len(one)} requests emit the same")


def counted(name: str, verdict: str, fit: tuple[float, int, float], rate: float, trials: int, said: str) -> Finding:
    statistic, degrees, p_value = fit
    catches = smallest_fault(degrees, rate, trials) if degrees else None
    text = f"chi-squared {statistic:.1f} of {degrees} degrees, p = {p_value:.2g}, {said}"
    verdict = "failed" if p_value < rate else verdict
    return Finding(name, verdict, text + (f", catches {catches:.2%}" if catches else ""), p_value, catches)
