"""Whether a verifier of speculative decoding keeps the target's law: a callable in, a report out.

It needs torch alone, and uses no op of this package. docs/conformance.md says what each check looks at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import torch

__all__ = ["Batch", "Contexts", "Finding", "Report", "check", "chi_squared"]

Text = tuple[int, ...]
Decide = Callable[[Text, torch.Tensor, torch.Tensor], dict[Text, float]]
DRAFTS = 2  # of a request
PROMPT, OUTPUT = [0], [1, 1]  # of every request, before its drafts
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
        int64 [B, 2], the first -1 ends a request's drafts; float32 [B, 3, V], logits: row j is of draft j's place.
    draft : Tensor, optional
        float32 [B, 2, V], the probabilities that drafts were drawn with. None: they count as certain.
    repetition, frequency, presence : Tensor
        float32 [B], and first: z / r or z * r, by the sign of z, for tokens of the prompt and the output; z - f c for
        those that stand c times in the output; z - g for those that stand there. The drafts before a row are output.
    temperature, top_k, top_p, min_p : Tensor
        float32 [B], but top_k int64. Temperature 0 means the largest logit. Filters see logits over the temperature; 0,
        1 and 0 are off; no request has two of them.
    prompt, output, seed, position : Tensor
        int64 [B, n], the text before the drafts; int64 [B], the request's seed and where its next token stands.
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
    """What one check found of one kind of requests, and why; no ``p_value`` where nothing was counted.

    The verdict is "passed", "failed" or "inconclusive": no draft was accepted, or the requests were refused.
    """

    name: str
    verdict: str
    said: str
    p_value: float | None = None


class Report(NamedTuple):
    """What `check` found, as a table by ``str``. p-values below the threshold fail.

    A verifier that is right fails any of it with probability ``false_alarm``.
    """

    findings: list[Finding]
    false_alarm: float
    threshold: float

    @property
    def passed(self) -> bool:
        """Whether every check did."""
        return all(finding.verdict == "passed" for finding in self.findings)

    def __str__(self) -> str:
        head = f"{len(self.findings)} checks; p below {self.threshold:.1e} fails, {self.false_alarm:g} false alarms"
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
CERTAIN = "certain"
KINDS = {
    "chain": [
        (ALL_SAY, [Request()]),
        (Contexts.of([1 / 3, 2 / 3], [2 / 3, 1 / 3]), [Request("p and q reversed")]),
        (Contexts.of([0.5, 0.3, 0.2, 0.0], [0.0, 0.2, 0.3, 0.5]), [Request("zeros in p and q")]),
    ],
    CERTAIN: [(ALL_SAY, [Request("drafts without a law")])],
    "ends": [(ALL_SAY, [Request("no draft", 0), Request("one draft", 1), Request("two drafts", 2)])],
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
Verify = Callable[[Batch], torch.Tensor]
Draw = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Judged = tuple[Request, Finding]


def check(
    verify: Verify,
    checks: Iterable[str] = CHECKS,
    *,
    draw: Draw | None = None,
    trials: int = 20_000,
    false_alarm: float = 1e-6,
) -> Report:
    """Whether what a verifier emits has the target's law.

    Parameters
    ----------
    verify : callable
        ``verify(batch)`` -> int32 or int64 [B, 3]: what each request of a `Batch` emits, accepted drafts and one token
        more, then -1. A ``NotImplementedError`` refuses a kind of requests.
    checks : iterable of str
        Some of "chain", "certain", "ends", "temperatures", "filters", "penalties", "seeds", "batch".
    draw : callable, optional
        ``draw(probs, seed, position)`` -> int64 [B] for probs [B, V]: how drafts are drawn where a drafter shares the
        verifier's noise. Default: by torch.
    trials : int
        Requests of each kind.
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
    >>> [finding.verdict for finding in check(plain, ["chain"]).findings]
    ['inconclusive', 'inconclusive', 'inconclusive']
    """
    checks = list(checks)
    if unknown := [name for name in checks if name not in CHECKS]:
        raise ValueError(f"checks: expected some of {', '.join(CHECKS)}; got {', '.join(map(repr, unknown))}")
    generator = torch.Generator().manual_seed(0)
    draw = draw or (lambda probs, seed, position: torch.multinomial(probs, 1, generator=generator)[:, 0])
    rounds = Rounds(verify, draw, generator)
    found, taken = [], []
    for name in checks:
        for contexts, requests in KINDS.get(name, []):
            for request, finding in rounds.laws(name, contexts, requests, trials):
                found.append(finding)
                if contexts is ALL_SAY and name != CERTAIN and finding.p_value is not None:
                    taken.append(request)
    if "seeds" in checks:
        found += rounds.seeds(trials)
    if "batch" in checks:
        found += rounds.neighbours(taken or [Request()])
    threshold = false_alarm / max(1, sum(finding.p_value is not None for finding in found))
    for number, finding in enumerate(found):
        if finding.p_value is not None and finding.p_value < threshold:
            found[number] = finding._replace(verdict="failed")
    return Report(found, false_alarm, threshold)


class Rounds(NamedTuple):
    """A verifier's rounds, and what is found in them."""

    verify: Verify
    draw: Draw
    generator: torch.Generator

    def batch(self, contexts: Contexts, requests: list[Request], count: int, seed: int = 0, place: int = 0) -> Batch:
        """As many requests of each kind, in turns, with seeds and positions from here on."""
        size = count * len(requests)
        seeds, places = (
            torch.arange(size, dtype=torch.int64, device="cpu") + seed,
            torch.arange(size, dtype=torch.int64, device="cpu") % 997 + place,
        )
        text, drafts, target, draft = torch.zeros(size, dtype=torch.int64, device="cpu"), [], [], []
        for slot in range(DRAFTS + 1):
            target.append(1 + table(contexts.p, slot).log()[text])
            if slot < DRAFTS:
                draft.append(table(contexts.q, slot)[text].float())
                drafts.append(self.draw(draft[-1], seeds, places + slot).cpu().long())
                text = text * contexts.vocabulary + drafts[-1]
        asked = {}
        for name in Request._fields[1:]:
            dtype = torch.int64 if name in ("drafts", "top_k") else torch.float32
            asked[name] = torch.tensor([getattr(x, name) for x in requests], dtype=dtype, device="cpu").repeat(count)
        absent = torch.arange(DRAFTS, dtype=torch.int64, device="cpu") >= asked.pop("drafts")[:, None]
        before = {
            "prompt": torch.tensor([PROMPT] * size, dtype=torch.int64, device="cpu"),
            "output": torch.tensor([OUTPUT] * size, dtype=torch.int64, device="cpu"),
        }
        tokens, p, q = (torch.stack(x, 1) for x in (drafts, target, draft))
        return Batch(tokens.masked_fill(absent, -1), p.float(), q, **asked, **before, seed=seeds, position=places)

    def emitted(self, batch: Batch) -> torch.Tensor:
        found, shape = self.verify(batch), (len(batch.drafts), DRAFTS + 1)
        tokens = torch.as_tensor(found, dtype=None, device="cpu")
        if tokens.dtype not in (torch.int32, torch.int64) or tokens.shape != shape:
            raise ValueError(f"verify: expected int32 or int64 {list(shape)}; got {tokens.dtype} {list(tokens.shape)}")
        return tokens.cpu().long().clamp(min=-1)

    def laws(self, name: str, contexts: Contexts, requests: list[Request], trials: int) -> Iterator[Judged]:
        """Of each kind, all in one batch: whether its texts have the target's law."""
        batch = self.batch(contexts, requests, trials)
        try:
            tokens = self.emitted(batch._replace(draft=None) if name == CERTAIN else batch)
        except NotImplementedError as refusal:
            for request in requests:
                if len(requests) > 1:  # it may take some of them
                    yield from self.laws(name, contexts, [request], trials)
                else:
                    yield request, Finding(f"{name}, {request.name}", "inconclusive", f"refused: {refusal}")
            return
        for kind, request in enumerate(requests):
            own = slice(kind, None, len(requests))
            finding = self.law(contexts, request, batch.drafts[own], tokens[own])
            yield request, finding._replace(name=f"{name}, {request.name}")

    def law(self, contexts: Contexts, request: Request, drafts: torch.Tensor, tokens: torch.Tensor) -> Finding:
        """Of one kind; the target goes on where a round ended."""
        if fault := fault_of(drafts, tokens, contexts.vocabulary):
            return Finding("", "failed", fault)
        shaped = {said: law_of(1 + row.log(), request, said) for said, row in contexts.p.items()}
        text, law = (
            torch.zeros(len(tokens), dtype=torch.int64, device="cpu"),
            torch.ones(1, dtype=torch.float64, device="cpu"),
        )
        for slot in range(DRAFTS + 1):
            rows = table(shaped, slot)
            rest = torch.multinomial(rows[text], 1, generator=self.generator)[:, 0]
            text = text * contexts.vocabulary + torch.where(tokens[:, slot] < 0, rest, tokens[:, slot])
            law = (law[:, None] * rows).flatten()
        fit = chi_squared(text.bincount(minlength=len(law)), law)
        accepted = (tokens[:, 1:] >= 0).sum().item() / len(tokens)
        verdict = verdict_of(tokens) if request.drafts else "passed"
        return Finding("", verdict, f"{shown(fit)}, {accepted:.2f} of {request.drafts} drafts accepted", fit[2])

    def seeds(self, trials: int) -> Iterator[Finding]:
        """Whether seeds and positions make what is random."""
        batch = self.batch(ALL_SAY, [Request()], trials)
        tokens = self.emitted(batch)
        yield same("seeds, a second call", tokens, self.emitted(batch))
        pairs = torch.outer(ALL_SAY.p[()], ALL_SAY.p[()]).flatten()
        for name, shift in (("the next seed", (1, 0)), ("the next position", (0, 1))):
            later = self.emitted(self.batch(ALL_SAY, [Request()], trials, *shift))  # with drafts of its own
            fit = chi_squared((4 * tokens[:, 0] + later[:, 0]).bincount(minlength=16), pairs)
            yield Finding(f"seeds, {name}", verdict_of(later), f"{shown(fit)}, of pairs of first tokens", fit[2])

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


def table(laws: dict[Text, torch.Tensor], length: int) -> torch.Tensor:
    """[V ** length, V]: the laws after all texts of a length, which are in order."""
    return torch.stack([law for text, law in laws.items() if len(text) == length])


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


def fault_of(drafts: torch.Tensor, tokens: torch.Tensor, vocabulary: int) -> str:
    """What is wrong with what was emitted, whatever its law."""
    places, there = torch.arange(tokens.shape[1], dtype=torch.int64, device="cpu"), tokens >= 0
    number = there.sum(1, keepdim=True)
    differ = torch.nn.functional.pad(drafts, (0, 1), value=-1) != tokens
    for wrong, said in (
        ((there != (places < number)) | (number == 0), "no token, or one behind a -1"),
        (tokens >= vocabulary, f"a token that is none of {vocabulary}"),
        (differ & (places < number - 1), "an accepted token that is not the draft"),
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


def shown(fit: tuple[float, int, float]) -> str:
    return f"chi-squared {fit[0]:.1f} of {fit[1]} degrees, p = {fit[2]:.2g}"
