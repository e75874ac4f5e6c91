"""Whether a verifier of speculative decoding keeps the target's law: a callable in, a report out.

`check` counts tokens, `exact` enumerates the verifier's random choices. Both need torch alone, and use no op of this
package. docs/conformance.md says what each check looks at.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch

from specdec_kernels.conformance.enumeration import BudgetExceeded, Law, Unfollowed, law, untracked

__all__ = [
    "Batch", "BudgetExceeded", "Contexts", "Finding", "Law", "Report", "Unfollowed", "check", "chi_squared", "exact",
    "exact_texts", "law", "per_request",
]  # fmt: skip

Text = tuple[int, ...]
Decide = Callable[[Text, torch.Tensor, torch.Tensor], dict[Text, float]]
DRAFTS = 2  # of most requests
PROMPT, OUTPUT = [0], [1, 1]  # of every request, before its drafts
CHUNK = 1 << 16  # requests of a batch
FEWEST = 25  # expected draws of a cell: simulated p-values of 1e-5 are then off by a third


def chi_squared(counts: torch.Tensor, law: torch.Tensor) -> tuple[float, int, float]:
    """Pearson's test of how often each token, or each text, was drawn.

    Parameters
    ----------
    counts : Tensor
        [n], or fewer: how often each was drawn.
    law : Tensor
        [n]: how probable each is; the sum may be any. Cells of fewer than 25 expected draws are thrown together.

    Returns
    -------
    statistic, degrees, p_value : float, int, float
        An infinite statistic, and a p-value of 0, if something was drawn that the law does not have.

    Examples
    --------
    >>> statistic, degrees, p_value = chi_squared(torch.tensor([480, 520]), torch.tensor([0.5, 0.5]))
    >>> round(statistic, 3), degrees, round(p_value, 3)
    (1.6, 1, 0.206)
    """
    counts, law = (torch.as_tensor(x, dtype=torch.float64, device="cpu") for x in (counts, law))
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
    degrees = len(expected) - 1
    if degrees == 0:  # too few draws to say anything
        return 0.0, 0, 1.0
    statistic = ((counts - expected) ** 2 / expected).sum()
    return statistic.item(), degrees, torch.special.gammaincc(counts.new_tensor(degrees / 2), statistic / 2).item()


def smallest_fault(degrees: int, threshold: float, trials: int) -> float:
    """The total variation from which on Pearson's test catches any fault nine times of ten."""
    # A total variation d moves the statistic by 4 d ** 2 trials at least (Cauchy, Schwarz).
    return math.sqrt(smallest_shift(degrees, threshold) / trials) / 2


@functools.lru_cache(maxsize=256)
def smallest_shift(degrees: int, threshold: float) -> float:
    """By how much a statistic has to be shifted to be caught nine times of ten."""

    def first(beyond: Callable[[float], bool]) -> float:
        low, high = 0.0, 1e6
        for _ in range(60):
            low, high = (low, (low + high) / 2) if beyond((low + high) / 2) else ((low + high) / 2, high)
        return high

    half = torch.tensor(degrees / 2, dtype=torch.float64, device="cpu")
    critical = first(lambda x: torch.special.gammaincc(half, half.new_tensor(x / 2)).item() < threshold)
    terms = torch.arange(2000, dtype=torch.float64, device="cpu")
    tails = torch.special.gammaincc(half + terms, half.new_tensor(critical / 2).expand(2000))

    def power(shift: float) -> float:  # of a noncentral statistic: a mixture by Poisson's law
        weights = (terms * math.log(max(shift / 2, 1e-300)) - shift / 2 - torch.lgamma(terms + 1)).exp()
        return float((weights * tails).sum())

    return first(lambda x: x > 2000 or power(x) > 0.9)


class Contexts:
    """Laws of a target and a draft that depend on all that was said, and what follows from them exactly.

    Parameters
    ----------
    vocabulary, depth, seed : int
        Random laws of V tokens, for every text of at most ``depth`` tokens.

    Attributes
    ----------
    p, q : dict
        ``{tokens before: float64 [V]}`` of the target and of the draft; they may be assigned.

    Examples
    --------
    The distance of the texts of a rule from the target's, over all drafts. One that accepts every draft:

    >>> contexts = Contexts.of([0.5, 0.5], [0.75, 0.25])
    >>> round(contexts.distance(contexts.round(2, lambda drafts, p, q: {drafts: 1.0}), 2), 4)
    0.3125
    """

    def __init__(self, vocabulary: int, depth: int = DRAFTS, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        prefixes = [x for length in range(depth + 1) for x in product(range(vocabulary), repeat=length)]
        rows = torch.randn(
            2, len(prefixes), vocabulary, generator=generator, dtype=torch.float64, device="cpu"
        ).softmax(-1)
        self.vocabulary = vocabulary
        self.p, self.q = (dict(zip(prefixes, laws, strict=True)) for laws in rows)

    @classmethod
    def of(cls, p: Sequence[float], q: Sequence[float], depth: int = DRAFTS) -> Contexts:
        """The same two laws whatever was said."""
        made, laws = cls(len(p), depth), [torch.as_tensor(law, dtype=torch.float64, device="cpu") for law in (p, q)]
        made.p, made.q = (dict.fromkeys(made.p, law / law.sum()) for law in laws)
        return made

    def rows(self, laws: dict[Text, torch.Tensor], tokens: Sequence[int], count: int) -> torch.Tensor:
        """[count, V]: the laws of the first tokens of a text."""
        return torch.stack([laws[tuple(tokens[:place])] for place in range(count)])

    def chance(self, laws: dict[Text, torch.Tensor], tokens: Sequence[int], begin: int = 0) -> float:
        """The probability of a text's tokens from ``begin`` on."""
        return math.prod(laws[tuple(tokens[:i])][tokens[i]].item() for i in range(begin, len(tokens)))

    def round(self, slots: int, decide: Decide) -> dict[Text, float]:
        """``{emitted tokens: probability}`` of a round of this many drafts.

        ``decide(drafts, p, q)``, for rows p [slots + 1, V] and q [slots, V], is the same of these drafts.
        """
        law: dict[Text, float] = {}
        for drafts in product(range(self.vocabulary), repeat=slots):
            p, q = self.rows(self.p, drafts, slots + 1), self.rows(self.q, drafts, slots)
            for emitted, probability in decide(drafts, p, q).items():
                law[emitted] = law.get(emitted, 0.0) + self.chance(self.q, drafts) * probability
        return law

    def completed(self, law: dict[Text, float], length: int) -> dict[Text, float]:
        """The law of texts of this length: what was emitted, continued by the target."""
        full = dict.fromkeys(product(range(self.vocabulary), repeat=length), 0.0)
        for emitted, probability in law.items():
            for rest in product(range(self.vocabulary), repeat=length - len(emitted)):
                full[emitted + rest] += probability * self.chance(self.p, emitted + rest, len(emitted))
        return full

    def distance(self, law: dict[Text, float], length: int) -> float:
        """The total variation between ``completed`` texts and the target's: 0 for a rule that is lossless."""
        return sum(abs(x - self.chance(self.p, text)) for text, x in self.completed(law, length).items()) / 2


class Batch(NamedTuple):
    """A round of B requests, as a verifier gets it.

    Attributes
    ----------
    drafts, target : Tensor
        int64 [B, K], the first -1 ends a request's drafts; float32 [B, K + 1, V], logits: row j is draft j's. `exact`
        gives float64.
    draft : Tensor, optional
        float32 [B, K, V], the probabilities that drafts were drawn with. None: they count as certain.
    repetition, frequency, presence : Tensor
        float32 [B], and first: z / r or z * r, by the sign of z, for tokens of the prompt and the output; z - f c for
        those that stand c times in the output; z - g for those that stand there. The drafts before a row are output.
    temperature, top_k, top_p, min_p : Tensor
        float32 [B], but top_k int64. Temperature 0 means the largest logit. Filters see logits over the temperature; 0,
        1 and 0 are off; no request has two of them.
    prompt, output, seed, position : Tensor
        int64 [B, n], the text before the drafts, -1 behind it; int64 [B], the seed and where its next token stands.
    """

    drafts: torch.Tensor
    target: torch.Tensor
    draft: torch.Tensor | None
    repetition: torch.Tensor
    frequency: torch.Tensor
    presence: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    prompt: torch.Tensor
    output: torch.Tensor
    seed: torch.Tensor
    position: torch.Tensor

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
        head = f"{len(self.findings)} checks; {rule}"
        return "\n".join([head, *(f"{x.verdict:<12}  {x.name}: {x.said}" for x in self.findings)])


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
Judged = tuple[Request, Finding]
Played = tuple[torch.Tensor, torch.Tensor]


def check(
    verify: Verify,
    checks: Iterable[str] = CHECKS,
    *,
    draw: Draw | None = None,
    redraws: bool = False,
    smallest: float = 0.005,
    trials: int | None = None,
    false_alarm: float = 1e-6,
) -> Report:
    """Whether what a verifier emits has the target's law, by counting.

    Parameters
    ----------
    verify : callable
        ``verify(batch)`` -> int32 or int64 [B, K + 1]: what each request of a `Batch` emits, accepted drafts and one
        token more, then -1. A ``NotImplementedError`` refuses a kind of requests.
    checks : iterable of str
        Some of "chain", "certain", "ends", "longer", "rounds", "temperatures", "filters", "penalties", "seeds" and
        "batch".
    draw : callable, optional
        ``draw(probs, seed, position)`` -> int64 [B] for probs [B, V]: how drafts are drawn where a drafter shares the
        verifier's noise. Default: by torch.
    redraws : bool
        An accepted token need not be the draft.
    smallest : float
        The total variation that is caught nine times of ten, by as many requests as that takes.
    trials : int, optional
        Requests of each kind, whatever they catch.
    false_alarm : float
        How probable it may be that a right verifier fails: shared out evenly among all that is counted.

    Returns
    -------
    Report

    Raises
    ------
    ValueError
        For an unknown check, and for tokens of another shape or dtype.

    Examples
    --------
    A verifier that refuses all drafts has the right law, and shows nothing:

    >>> def plain(batch):
    ...     first = torch.multinomial(batch.target[:, 0].softmax(-1), 1)
    ...     return torch.nn.functional.pad(first, (0, 2), value=-1)
    >>> [finding.verdict for finding in check(plain, ["chain"], trials=1000).findings]
    ['inconclusive', 'inconclusive', 'inconclusive']
    """
    checks = listed(checks, CHECKS)
    generator = torch.Generator().manual_seed(0)
    draw = draw or (lambda probs, seed, position: torch.multinomial(probs, 1, generator=generator)[:, 0])
    rounds = Rounds(verify, draw, generator, redraws)
    found, taken = [], []
    threshold = false_alarm / max(
        1, sum(len(x) for name in checks for _, x in KINDS.get(name, [])) + 2 * ("seeds" in checks)
    )

    def enough(cells: int) -> int:
        return trials or math.ceil((smallest_fault(cells - 1, threshold, 1) / smallest) ** 2)

    for name in checks:
        for contexts, requests in KINDS.get(name, []):
            count = enough(contexts.vocabulary ** length_of(name, requests))
            for request, finding in rounds.laws(name, contexts, requests, count, threshold):
                found.append(finding)
                if contexts is ALL_SAY and name != CERTAIN and finding.p_value is not None:
                    taken.append(request)
    if "seeds" in checks:
        found += rounds.seeds(enough(16), threshold)
    if "batch" in checks:
        found += rounds.neighbours(taken or [Request()])
    counted = max(1, sum(finding.p_value is not None for finding in found))
    for number, finding in enumerate(found):
        if finding.p_value is not None:
            failed = finding.p_value < false_alarm / counted
            found[number] = finding._replace(verdict="failed" if failed else finding.verdict)
    return Report(found, false_alarm, false_alarm / counted)


def exact(
    verify: Verify,
    checks: Iterable[str] = EXACT,
    *,
    draw: Draw | None = None,
    redraws: bool = False,
    dtype: torch.dtype = torch.float64,
    bound: float | None = None,
    ways: int = 100_000,
    seconds: float = 300.0,
) -> Report:
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

    Returns
    -------
    Report
        Its findings name the texts whose probabilities differ most.

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
    draw = draw or (lambda probs, seed, position: torch.multinomial(probs, 1)[:, 0])
    rounds = Rounds(verify, draw, torch.Generator(), redraws, dtype)
    bound = max(1e-6, 64 * torch.finfo(dtype).eps) if bound is None else bound
    kinds = [
        (name, contexts, [request], name)
        for name in listed(checks, EXACT)
        for contexts, requests in KINDS.get(name, [])
        for request in requests
    ]
    if "batch" in checks:
        kinds.append(("batch", REVERSED, [Request("", 2), Request("", 1)], "batch"))
    found = []
    for name, contexts, requests, _ in kinds:
        length = length_of(name, requests)

        def emit(name: str = name, contexts: Contexts = contexts, requests: list[Request] = requests) -> Any:
            tokens, played = rounds.played(name, contexts, requests, 1)
            with untracked():
                wrong = rounds.faults(played, contexts.vocabulary)
            return played[0][0] if name == CERTAIN else (), tokens, wrong, int((tokens[:, 1:] >= 0).any())

        shaped = []
        for request in requests:
            rows = rows_of(contexts, request)
            shaped.append(lambda said, rows=rows: rows[said])
        label = f"{name}, {requests[0].name or 'rows that accept different numbers'}"
        found.append(judged(label, emit, shaped, length, bound, ways, seconds, contexts if name == CERTAIN else None))
        if not requests[0].drafts and found[-1].verdict == "inconclusive" and found[-1].distance is not None:
            found[-1] = found[-1]._replace(verdict="passed")
    return Report(found, bound=bound)


def exact_texts(
    write: Callable[[], Any],
    target: Callable[[Text], Any] | Sequence[Callable[[Text], Any]],
    length: int,
    *,
    bound: float = 1e-6,
    ways: int = 100_000,
    seconds: float = 300.0,
) -> Report:
    """Whether the texts of a whole loop have the target's law, by enumeration.

    Parameters
    ----------
    write : callable
        Without arguments -> the new tokens, a list or a tensor [n]; or one for each row of a batch.
    target : callable
        ``target(tokens before)`` -> the probabilities [V] of the next one; for a batch one for each row.
    length : int
        Tokens of a text. Longer ones are cut, shorter ones go on by the target's law.
    bound, ways, seconds
        As in `exact`.

    Examples
    --------
    >>> exact_texts(lambda: torch.multinomial(torch.tensor([0.5, 0.5]), 1), lambda text: [0.5, 0.5], 2).passed
    True
    """
    targets = [target] if callable(target) else list(target)

    def emit() -> Any:
        rows = write()
        return (), [rows] if callable(target) else rows, "", 1

    return Report([judged("texts", emit, targets, length, bound, ways, seconds)], bound=bound)


def judged(
    name: str, emit: Callable[[], Any], targets: Sequence[Callable[[Text], Any]], length: int, bound: float, ways: int,
    seconds: float, certain: Contexts | None = None,
) -> Finding:  # fmt: skip
    """The law of what ``emit`` returns, (drafts, tokens of rows, what is wrong, whether any was accepted)."""
    try:
        outcomes = law(emit, ways=ways, seconds=seconds)
    except NotImplementedError as refusal:
        return Finding(name, "inconclusive", f"refused: {refusal}")
    except (Unfollowed, BudgetExceeded) as refusal:
        return Finding(name, "inconclusive", f"{type(refusal).__name__}: {refusal}")
    full: dict[Any, float] = {}
    raised, wrong, accepted = 0.0, "", 0.0
    texts = list(product(*(product(range(len(x(()))), repeat=length) for x in targets)))
    plain = [memory(x) for x in targets]
    for outcome, probability in outcomes.items():
        if outcome[0] == "raises":
            if outcome[1].startswith("NotImplementedError"):
                return Finding(name, "inconclusive", f"refused: {outcome[1].partition(': ')[2]}")
            raised, wrong = raised + probability, outcome[1]
            continue
        drafts, rows, fault, any_accepted = outcome
        wrong, accepted = wrong or fault, accepted + any_accepted * probability
        for text in texts:
            share = probability
            for row, chance, end in zip(rows, plain, text, strict=True):
                begin = tuple(x for x in row if x >= 0)[:length]
                share *= chance(end, len(begin)) if end[: len(begin)] == begin else 0.0
            if share:
                full[drafts, text] = full.get((drafts, text), 0.0) + share
    right: dict[Any, float] = {}
    for drafts in {key[0] for key in full} if certain else [()]:
        weight = certain.chance(certain.q, drafts[0]) if certain else 1.0  # type: ignore[misc]
        for text in texts:
            right[drafts, text] = weight * math.prod(chance(x, 0) for chance, x in zip(plain, text, strict=True))
    differ = sorted(((abs(full.get(x, 0.0) - p), x) for x, p in right.items()), reverse=True)
    distance = (sum(x for x, _ in differ) + raised) / 2
    said = f"total variation {distance:.2g} by {outcomes.ways} ways"
    verdict = "inconclusive" if not accepted else "passed"
    if distance > bound + outcomes.slack or wrong:
        verdict = "failed"
        most = [
            f"{x[1][0] if len(x[1]) == 1 else x[1]} {full.get(x, 0.0):.4g} for {right[x]:.4g}" for _, x in differ[:3]
        ]
        said += f"; {wrong}" * bool(wrong) + f"; {', '.join(most)}"
    return Finding(name, verdict, said, distance=distance)


def memory(target: Callable[[Text], Any]) -> Callable[[Text, int], float]:
    """The probability of a text's tokens from one on, by a target that is called once for each text."""
    rows: dict[Text, list[float]] = {}

    def chance(text: Text, begin: int) -> float:
        for end in range(begin, len(text)):
            if text[:end] not in rows:
                rows[text[:end]] = torch.as_tensor(target(text[:end]), dtype=None, device="cpu").tolist()
        return math.prod(rows[text[:end]][text[end]] for end in range(begin, len(text)))

    return chance


def per_request(verify: Callable[..., Sequence[Any]], *, logits: bool = False) -> Verify:
    """A verifier of batches, of one that takes one request.

    Parameters
    ----------
    verify : callable
        ``verify(drafts, target, draft)`` -> tokens, for drafts [k], target [k + 1, V] and the draft's probabilities
        [k, V]. What else it takes of a `Batch` goes by its parameters' names, as ``temperature``; requests that need
        what it does not take are refused, as are drafts without a law unless None is the default of ``draft``.
    logits : bool
        ``target`` are logits, not probabilities.
    """
    takes = inspect.signature(verify).parameters
    names = [name for name in Batch._fields[3:] if name in takes]
    certain = [*takes.values()][2].default is None

    def verify_all(batch: Batch) -> torch.Tensor:
        default = Request()._asdict()
        for name in Batch._fields[3:10]:
            if name not in takes and (getattr(batch, name) != default[name]).any():
                raise NotImplementedError(f"{name}, which is none of {', '.join(takes)}")
        if batch.draft is None and not certain:
            raise NotImplementedError("drafts without a law")
        rows = []
        for row, drafts in enumerate(batch.drafts):
            count = int((drafts >= 0).sum())
            target = batch.target[row, : count + 1]
            tokens = verify(
                drafts[:count], target if logits else target.softmax(-1),
                None if batch.draft is None else batch.draft[row, :count],
                **{name: getattr(batch, name)[row] for name in names},
            )  # fmt: skip
            rows.append([int(x) for x in tokens])
        width = max(batch.target.shape[1], *map(len, rows))
        return torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows], dtype=torch.int64, device="cpu")

    return verify_all


@functools.lru_cache(maxsize=8)
def tables(
    contexts: Contexts, requests: tuple[Request, ...], count: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Logits of the target and laws of the draft after all texts, [n, V]; what else requests have."""
    with untracked():
        options = {}
        for name in Request._fields[1:]:
            kind = torch.int64 if name in ("drafts", "top_k") else torch.float32
            options[name] = torch.tensor([getattr(x, name) for x in requests], dtype=kind, device="cpu").repeat(count)
        for name, tokens in (("prompt", PROMPT), ("output", OUTPUT)):
            options[name] = torch.tensor(tokens, dtype=torch.int64, device="cpu").repeat(count * len(requests), 1)
        p, q = (torch.stack(list(laws.values())) for laws in (contexts.p, contexts.q))
        return (1 + p.log()).to(dtype), q.to(dtype), options


@functools.lru_cache(maxsize=64)
def rows_of(contexts: Contexts, request: Request) -> dict[Text, torch.Tensor]:
    """What a request makes of each row of the target."""
    return {said: law_of(1 + row.log(), request, said) for said, row in contexts.p.items()}


def listed(checks: Iterable[str], allowed: Sequence[str]) -> list[str]:
    checks = list(checks)
    if unknown := [name for name in checks if name not in allowed]:
        raise ValueError(f"checks: expected some of {', '.join(allowed)}; got {', '.join(map(repr, unknown))}")
    return checks


def length_of(name: str, requests: list[Request]) -> int:
    """Tokens of a text."""
    return 4 if name == ROUNDS else max(DRAFTS, *(x.drafts for x in requests)) + 1


class Rounds(NamedTuple):
    """A verifier's rounds, and what is found in them."""

    verify: Verify
    draw: Draw
    generator: torch.Generator
    redraws: bool = False
    dtype: torch.dtype = torch.float32

    def batch(
        self, contexts: Contexts, requests: list[Request], count: int, seed: int = 0, position: int = 0,
        said: torch.Tensor | None = None,
    ) -> Batch:  # fmt: skip
        """As many requests of each kind, in turns, from a seed and a position on, after what was ``said`` [B, n]."""
        vocabulary, width = contexts.vocabulary, max(DRAFTS, *(x.drafts for x in requests))
        p, q, options = tables(contexts, tuple(requests), count, self.dtype)
        with untracked():
            numbers = torch.arange(count * len(requests), dtype=torch.int64, device="cpu")
            said = numbers.new_empty(len(numbers), 0) if said is None else said
            seeds, positions = numbers + seed, numbers % 997 + position + (said >= 0).sum(1)
            node = numbers * 0  # of the tree of all texts: child x is V node + 1 + x
            for token in said.unbind(1):
                node = torch.where(token < 0, node, vocabulary * node + 1 + token)
            target, draft, drafts = [p[node]], [], []
        for column in range(width):
            draft.append(q[node])
            drafts.append(self.draw(draft[-1], seeds, positions + column).cpu().long())
            with untracked():
                node = vocabulary * node + 1 + drafts[-1]
                target.append(p[node])
        with untracked():
            absent = torch.arange(width, dtype=torch.int64, device="cpu") >= options["drafts"][:, None]
            output = torch.cat((options["output"], said), 1)
            rest = {name: x.clone() for name, x in options.items() if name not in ("drafts", "output")}
            tokens, target_rows, draft_rows = (torch.stack(x, 1) for x in (drafts, target, draft))
            return Batch(
                tokens.masked_fill(absent, -1),
                target_rows,
                draft_rows,
                **rest,
                output=output,
                seed=seeds,
                position=positions,
            )

    def emitted(self, batch: Batch) -> torch.Tensor:
        result, shape = self.verify(batch), batch.target.shape[:2]
        tokens = torch.as_tensor(result, dtype=None, device="cpu")
        if tokens.dtype not in (torch.int32, torch.int64) or tokens.shape != shape:
            raise ValueError(f"verify: expected int32 or int64 {list(shape)}; got {tokens.dtype} {list(tokens.shape)}")
        return tokens.cpu().long().clamp(min=-1)

    def played(
        self, name: str, contexts: Contexts, requests: list[Request], count: int, seed: int = 0
    ) -> tuple[torch.Tensor, list[Played]]:
        """The texts that were emitted, and (drafts, tokens) of the round, or of two where the text goes on."""
        batch = self.batch(contexts, requests, count, seed)
        tokens = self.emitted(batch._replace(draft=None) if name == CERTAIN else batch)
        if name != ROUNDS:
            return tokens, [(batch.drafts, tokens)]
        again = self.batch(contexts, requests, count, seed, said=tokens.clamp(max=contexts.vocabulary - 1))
        later = self.emitted(again)
        both = torch.cat((tokens, later), 1)
        order = (both < 0).to(torch.int8).argsort(dim=1, stable=True)  # what was emitted, without gaps
        return both.gather(1, order)[:, : length_of(name, requests)], [(batch.drafts, tokens), (again.drafts, later)]

    def faults(self, played: list[Played], vocabulary: int, rows: slice = slice(None)) -> str:
        """What is wrong with what some rows emitted, whatever its law."""
        faults = (fault_of(drafts[rows], tokens[rows], vocabulary, self.redraws) for drafts, tokens in played)
        return next(filter(None, faults), "")

    def laws(
        self, name: str, contexts: Contexts, requests: list[Request], trials: int, rate: float
    ) -> Iterator[Judged]:
        """Of each kind, all in the same batches: whether its texts, which the target completes, have its law."""
        length, vocabulary, done = length_of(name, requests), contexts.vocabulary, 0
        shaped = [torch.stack(list(rows_of(contexts, x).values())) for x in requests]
        counts = torch.zeros(len(requests), vocabulary**length, dtype=torch.int64, device="cpu")
        accepted, faults = [0] * len(requests), [""] * len(requests)
        first = (vocabulary**length - 1) // max(1, vocabulary - 1)  # node of the first text
        while done < trials and not all(faults):
            count = min(trials - done, max(1, CHUNK // len(requests)))
            try:
                tokens, played = self.played(name, contexts, requests, count, done * len(requests))
            except NotImplementedError as refusal:
                for request in requests:
                    if len(requests) > 1:  # it may take some of them
                        yield from self.laws(name, contexts, [request], trials, rate)
                    else:
                        yield request, Finding(f"{name}, {request.name}", "inconclusive", f"refused: {refusal}")
                return
            for kind, rows in enumerate(shaped):
                part = slice(kind, None, len(requests))
                faults[kind] = faults[kind] or self.faults(played, vocabulary, part)
                if faults[kind]:
                    continue
                node = torch.zeros(count, dtype=torch.int64, device="cpu")
                for token in tokens[part].unbind(1):
                    rest = torch.multinomial(rows[node], 1, generator=self.generator)[:, 0]
                    node = vocabulary * node + 1 + torch.where(token < 0, rest, token)
                counts[kind] += (node - first).bincount(minlength=counts.shape[1])
                accepted[kind] += int((played[0][1][part][:, 1:] >= 0).sum())
            done += count
        for kind, request in enumerate(requests):
            label = f"{name}, {request.name}"
            if faults[kind]:
                yield request, Finding(label, "failed", faults[kind])
                continue
            law = torch.ones(1, dtype=torch.float64, device="cpu")
            for column in range(length):
                begin = (vocabulary**column - 1) // max(1, vocabulary - 1)
                law = (law[:, None] * shaped[kind][begin : begin + len(law)]).flatten()
            fit = chi_squared(counts[kind], law)
            verdict = "passed" if accepted[kind] or not request.drafts else "inconclusive"
            yield (
                request,
                counted(
                    label, verdict, fit, rate, done, f"{accepted[kind] / done:.2f} of {request.drafts} drafts accepted"
                ),
            )

    def seeds(self, trials: int, rate: float) -> Iterator[Finding]:
        """Whether seeds and positions make what is random."""
        shifts = {"the next seed": (1, 0), "the next position": (0, 1)}
        counts, verdicts = {name: torch.zeros(16, dtype=torch.int64, device="cpu") for name in shifts}, {"inconclusive"}
        for begin in range(0, trials, CHUNK):
            size = min(CHUNK, trials - begin)
            batch = self.batch(ALL_SAY, [Request()], size, begin)
            tokens = self.emitted(batch)
            verdicts.add(verdict_of(tokens))
            if not begin:
                yield same("seeds, a second call", tokens, self.emitted(batch))
            for name, (seed, position) in shifts.items():
                later = self.emitted(
                    self.batch(ALL_SAY, [Request()], size, begin + seed, position)
                )  # with its own drafts
                counts[name] += (4 * tokens[:, 0] + later[:, 0]).bincount(minlength=16)
        pairs = torch.outer(ALL_SAY.p[()], ALL_SAY.p[()]).flatten()
        for name, count in counts.items():
            yield counted(
                f"seeds, {name}", max(verdicts), chi_squared(count, pairs), rate, trials, "of pairs of first tokens"
            )

    def neighbours(self, requests: list[Request]) -> Iterator[Finding]:
        """Whether a request emits the same whatever is beside it."""
        batch = self.batch(ALL_SAY, requests, 8)
        tokens, rows = (
            self.emitted(batch),
            torch.randperm(len(batch.drafts), generator=self.generator, dtype=torch.int64, device="cpu"),
        )
        for name, size in (("another order", len(rows)), ("parts of seven", 7), ("alone", 1)):
            found = torch.cat([self.emitted(batch.select(part)) for part in torch.split(rows, size)])
            yield same(f"batch, {name}", tokens[rows], found)


def law_of(logits: torch.Tensor, request: Request, said: Text) -> torch.Tensor:
    """What a request makes of a row after its drafts ``said``, float64 [V]."""
    counts, prompt = (
        torch.tensor(x, dtype=torch.int64, device="cpu").bincount(minlength=len(logits))
        for x in ([*OUTPUT, *said], PROMPT)
    )
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


def fault_of(drafts: torch.Tensor, tokens: torch.Tensor, vocabulary: int, redraws: bool) -> str:
    """What is wrong with what was emitted, whatever its law."""
    columns, there = torch.arange(tokens.shape[1], dtype=torch.int64, device="cpu"), tokens >= 0
    number = there.sum(1, keepdim=True)
    differ = torch.nn.functional.pad(drafts, (0, 1), value=-1) != tokens
    for wrong, said in (
        ((there != (columns < number)) | (number == 0), "no token, or one behind a -1"),
        (tokens >= vocabulary, f"a token that is none of {vocabulary}"),
        (differ & (columns < number - 1) & (not redraws), "an accepted token that is not the draft"),
    ):
        for row in wrong.any(1).nonzero()[:1, 0].tolist():
            return f"{said}: emitted {tokens[row].tolist()} for drafts {drafts[row].tolist()}"
    return ""


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
    return Finding(name, verdict, text + (f", catches {catches:.2%}" if catches else ""), p_value, catches)
