"""The conformance kit passes our op and finds the faults that verifiers have had."""

import functools
import re
import runpy
from pathlib import Path

import pytest
import torch

import specdec_kernels as specdec
from specdec_kernels.conformance import Contexts, check, chi_squared, smallest_fault

EXAMPLE = runpy.run_path(str(Path(__file__).resolve().parents[1] / "examples" / "conformance.py"))
ours, race_draft = EXAMPLE["ours"], EXAMPLE["race_draft"]
TRIALS = 6000


def failed(report):
    return {finding.name for finding in report.findings if finding.verdict == "failed"}


@pytest.mark.usefixtures("fast_backend")
@pytest.mark.parametrize("method", ["rejection", "race", "block"])
def test_our_op_passes(method):
    report = check(lambda batch: ours(batch, method), draw=race_draft, trials=TRIALS)
    assert report.passed, str(report)


def vllm_on_a_cpu(batch, mended=False):
    """Rejection whose kernel writes the temperatures of drafts' rows into a copy of what it returns."""
    temperature = batch.temperature.clamp(min=1e-6)[:, None]
    expanded = torch.zeros(len(temperature), 2)  # the memory was not set; this is what it held
    (expanded if mended else expanded.clone())[:] = temperature
    p = (batch.target / torch.cat((expanded, temperature), dim=1)[..., None]).softmax(-1)
    race = torch.empty_like(p).exponential_()
    tokens = (torch.cat((p[:, :2] - batch.draft, p[:, 2:]), dim=1).clamp(min=0) / race).argmax(-1)
    p, q = (rows.gather(-1, batch.drafts[..., None])[..., 0] for rows in (p[:, :2], batch.draft))
    accepted = (torch.rand_like(p) * q < p).long().cumprod(-1)
    ends = accepted.sum(-1, keepdim=True)
    tokens[:, :2] = torch.where(accepted.bool(), batch.drafts, tokens[:, :2])
    return tokens.masked_fill(torch.arange(3) > ends, -1)


def hierarchical(drafts, p, q, capped=False):
    """{emitted: probability} by the public code of "hierarchical" verification: its last uniform is not capped."""
    ratios = [float(p[i, x] / q[i, x]) for i, x in enumerate(drafts)]
    w = [1.0, min(1.0, ratios[0])]
    last = min(1.0, (w[1] if capped else ratios[0]) * ratios[1])
    rest = [(w[i] * p[i] - q[i]).clamp(min=0) for i in range(2)]
    middle = float(rest[1].sum() / (rest[1].sum() + 1 - w[1])) if w[1] < 1 or rest[1].sum() > 0 else 1.0
    law = {}
    for count, chance in ((2, last), (1, (1 - last) * middle), (0, (1 - last) * (1 - middle))):
        row = p[2] if count == 2 else rest[count]
        for token, share in enumerate((row / row.sum()).nan_to_num().tolist()):
            law[(*drafts[:count], token)] = chance * share
    return law


def by_law(decide):
    """A verifier that draws from what ``decide`` says."""

    def verify(batch):
        tokens = torch.empty(len(batch.drafts), 3, dtype=torch.int64)
        kinds, kind = batch.drafts.unique(dim=0, return_inverse=True)
        for number, drafts in enumerate(kinds.tolist()):  # after the same drafts rows are the same
            (rows,) = (kind == number).nonzero(as_tuple=True)
            law = decide(drafts, batch.target[rows[0]].double().softmax(-1), batch.draft[rows[0]].double())
            texts = torch.tensor([[*text, *[-1] * (3 - len(text))] for text in law])
            chances = torch.tensor(list(law.values())).clamp(min=0)
            tokens[rows] = texts[torch.multinomial(chances, len(rows), replacement=True)]
        return tokens

    return verify


def test_the_cap_of_the_last_uniform_exactly():
    two = Contexts.of([1 / 3, 2 / 3], [2 / 3, 1 / 3])
    assert two.distance(two.round(2, hierarchical), 3) == pytest.approx(1 / 9, abs=1e-12)
    for contexts in (two, Contexts(4)):
        assert contexts.distance(contexts.round(2, functools.partial(hierarchical, capped=True)), 3) < 1e-12


def noise_of_the_draft(batch):
    """The residual drawn by the arrivals that drew the draft."""
    tokens = ours(batch)
    for slot in range(2):
        left = (batch.target[:, slot].softmax(-1) - batch.draft[:, slot]).clamp(min=0)
        again = specdec.race_sample(left, seed=batch.seed, position=batch.position + slot, space="probs")
        rejected = (tokens[:, slot] >= 0) & (tokens[:, slot + 1] < 0)
        tokens[rejected, slot] = again[rejected]
    return tokens


CHAINS = {"chain, three tokens", "chain, p and q reversed", "chain, zeros in p and q"}
# A verifier, the checks it goes through, and those in which it fails.
FAULTS = {
    "temperatures lost": (vllm_on_a_cpu, ["temperatures"], {f"temperatures, T = {t}" for t in (0.0, 0.5, 1.0, 2.0)}),
    "last uniform not capped": (by_law(hierarchical), ["chain"], CHAINS),
    "noise of the draft": (noise_of_the_draft, ["chain"], {"chain, zeros in p and q"}),
    "certain drafts as if drawn": (
        lambda batch: ours(batch._replace(draft=torch.full_like(batch.target[:, :2], 0.25))),
        ["certain"], {"certain, drafts without a law"},
    ),
    "-1 as if rejected": (
        lambda batch: ours(batch._replace(drafts=batch.drafts.masked_fill(batch.drafts < 0, 99))),
        ["ends"], {"ends, no draft", "ends, one draft"},
    ),
    "top-p left out": (
        lambda batch: ours(batch._replace(top_p=1.0)), ["filters"], {"filters, top-p", "filters, top-p, T = 2"},
    ),
    "prompt not counted": (
        lambda batch: ours(batch._replace(prompt=torch.full_like(batch.prompt, -1))),
        ["penalties"], {"penalties, repetition", "penalties, all three, T = 0.7"},
    ),
    "seeds by row": (
        lambda batch: ours(batch._replace(seed=torch.arange(len(batch.seed)))), ["chain", "seeds", "batch"],
        {"seeds, the next seed", "batch, another order", "batch, parts of seven", "batch, alone"},
    ),
    "one position": (lambda batch: ours(batch._replace(position=0)), ["seeds"], {"seeds, the next position"}),
    "another token than the draft": (
        lambda batch: (lambda tokens: tokens.where(tokens < 0, (tokens + 1) % 2))(ours(batch)),
        ["ends"], {"ends, no draft", "ends, one draft", "ends, two drafts"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name):
    verify, checks, expected = FAULTS[name]
    report = check(verify, checks, draw=race_draft, trials=TRIALS)
    assert failed(report) == expected, str(report)


# A kit that passes a wrong verifier is worse than none: of all that it finds, each finding has a verifier that fails in
# it alone. Whoever takes a check away, or what it looks at, sees one of these pass.


def plain(batch):
    """Requests without any numbers."""
    off = (batch.repetition == 1) & (batch.frequency == 0) & (batch.presence == 0) & (batch.temperature == 1)
    return off & (batch.top_k == 0) & (batch.top_p == 1) & (batch.min_p == 0)


def wrong_where(where):
    """A verifier whose last token of these requests is the likeliest one, where it is not a draft."""

    def verify(batch):
        tokens = ours(batch)
        last = (tokens >= 0).sum(1) - 1
        rows = where(batch).nonzero()[:, 0]
        tokens[rows, last[rows]] = batch.target[rows, last[rows]].argmax(-1).to(tokens.dtype)
        return tokens

    return verify


def changed(**numbers):
    """A verifier that has other numbers than it was given: name -> function of a batch."""
    return lambda batch: ours(batch._replace(**{name: number(batch) for name, number in numbers.items()}))


def large(batch):
    return len(batch.drafts) > 500


def mixed(what):
    """Plain requests of a large batch in which some differ in this, and in nothing else that batches differ in."""
    return lambda batch: plain(batch) & bool(large(batch) and what(batch))


def wrong_bonus(batch):
    """In a large batch of plain requests what follows two accepted drafts is drawn from the row before."""
    tokens = ours(batch)
    if batch.draft is not None and large(batch) and plain(batch).all() and (batch.drafts >= 0).all():
        laws = batch.target[:, 1].softmax(-1)
        if laws.shape[1] == 4 and (laws > 0).all():
            again = specdec.race_sample(laws, seed=batch.seed, position=batch.position, nonce=5, space="probs")
            tokens[:, 2] = torch.where(tokens[:, 2] >= 0, again, tokens[:, 2])
    return tokens


class Remembering:
    """The second of two calls of the same requests is another one."""

    def __init__(self):
        self.seen = None

    def __call__(self, batch):
        again, self.seen = self.seen is not None and torch.equal(self.seen, batch.seed), batch.seed
        return ours(batch._replace(seed=batch.seed + 10**6) if again else batch)


def of_size(sizes, which, ordered=None):
    """A verifier with other tokens behind the first for such requests, in batches of these sizes, in order or not."""

    def verify(batch):
        rising = bool((batch.seed.diff() > 0).all())
        wrong = which(batch) & (len(batch.seed) in sizes and ordered in (None, rising))
        first, other = ours(batch)[:, :1], ours(batch._replace(seed=batch.seed + 10**6 * wrong))[:, 1:]
        return torch.cat((first, other), dim=1)

    return verify


def is_constant(target):
    """Whether laws do not depend on the text."""
    return bool((target - target[:1, :1]).abs().max() < 1e-6)


TOGETHER = 8 * 19  # requests of the check "batch": all that there are, eight times
SINGLE = {
    "chain, three tokens": wrong_bonus,
    "chain, p and q reversed": wrong_where(
        lambda batch: torch.full(batch.seed.shape, batch.target.shape[-1] == 2 and is_constant(batch.target))
    ),
    "chain, zeros in p and q": changed(target=lambda batch: batch.target.clamp(min=-5.0)),
    "certain, drafts without a law": wrong_where(lambda batch: torch.full(batch.seed.shape, batch.draft is None)),
    "ends, no draft": wrong_where(lambda batch: batch.drafts[:, 0] < 0),
    "ends, one draft": wrong_where(lambda batch: (batch.drafts[:, 0] >= 0) & (batch.drafts[:, 1] < 0)),
    "ends, two drafts": wrong_where(
        lambda batch: mixed(lambda batch: (batch.drafts < 0).any())(batch) & (batch.drafts[:, :3] >= 0).sum(1).eq(2)
    ),
    "longer, three drafts": wrong_where(lambda batch: (batch.drafts >= 0).sum(1) == 3),
    "longer, four drafts": wrong_where(lambda batch: (batch.drafts >= 0).sum(1) == 4),
    "rounds, the text goes on": wrong_where(lambda batch: torch.full(batch.seed.shape, batch.output.shape[1] > 2)),
    "temperatures, T = 0.0": changed(temperature=lambda batch: batch.temperature.clamp(min=0.3)),
    "temperatures, T = 0.5": changed(
        temperature=lambda batch: batch.temperature.where((batch.temperature != 0.5) | (batch.top_k > 0), 0.8)
    ),
    "temperatures, T = 1.0": wrong_where(mixed(lambda batch: (batch.temperature == 0).any())),
    "temperatures, T = 2.0": changed(
        temperature=lambda batch: batch.temperature.where((batch.temperature != 2) | (batch.top_p < 1), 0.7)
    ),
    "filters, none": wrong_where(mixed(lambda batch: (batch.min_p > 0).any())),
    "filters, top-k": changed(top_k=lambda batch: batch.top_k.where(batch.temperature != 1, 0)),
    "filters, top-p": changed(top_p=lambda batch: batch.top_p.where(batch.temperature != 1, 1.0)),
    "filters, min-p": changed(min_p=lambda batch: batch.min_p * 0),
    "filters, top-k, T = 0.5": changed(top_k=lambda batch: batch.top_k.where(batch.temperature == 1, 0)),
    "filters, top-p, T = 2": changed(  # of the law before the temperature
        top_p=lambda batch: batch.top_p.where((batch.temperature == 1) | (batch.top_p == 1), 0.3)
    ),
    "penalties, none": wrong_where(mixed(lambda batch: (batch.presence > 0).any())),
    "penalties, repetition": changed(repetition=lambda batch: batch.repetition.where(batch.frequency > 0, 1.0)),
    "penalties, frequency": changed(frequency=lambda batch: batch.frequency.where(batch.repetition > 1, 0.0)),
    "penalties, presence": changed(presence=lambda batch: batch.presence.where(batch.repetition > 1, 0.0)),
    "penalties, all three, T = 0.7": changed(presence=lambda batch: batch.presence.where(batch.temperature == 1, 0.0)),
    "seeds, a second call": Remembering(),
    "seeds, the next seed": changed(seed=lambda batch: batch.seed // 4),
    "seeds, the next position": changed(position=lambda batch: batch.position // 4),
    "batch, another order": of_size([TOGETHER], lambda batch: batch.repetition > 1, ordered=False),
    "batch, parts of seven": of_size([5, 7], lambda batch: batch.temperature == 2),
    "batch, alone": of_size([1], lambda batch: batch.drafts[:, 1] < 0),
}


@pytest.mark.parametrize("name", SINGLE)
def test_what_one_check_alone_catches(name):
    report = check(SINGLE[name], trials=3000 if "all three" in name else 1000)
    assert failed(report) == {name}, str(report)
    assert [finding.verdict for finding in report.findings].count("passed") == len(SINGLE) - 1, str(report)


def test_every_finding_has_such_a_verifier():
    assert [finding.name for finding in check(ours, trials=60).findings] == list(SINGLE)


def of_target(batch):
    """Three tokens of the target, one after the other, of laws that do not depend on the text."""
    return torch.multinomial(batch.target[:, 0].softmax(-1), 3, replacement=True)


def with_gaps(batch):
    return of_target(batch).masked_fill(torch.arange(3) == 1, -1)


def cut_short(batch):
    """Texts of the right law, of which nothing was emitted."""
    return ours(batch).masked_fill((batch.seed % 50 == 0)[:, None], -1)


def too_large(batch):
    return ours(batch).masked_fill((batch.seed % 50 == 0)[:, None] & (torch.arange(3) == 0), batch.target.shape[-1])


@pytest.mark.parametrize(
    "verify, said",
    [
        (of_target, "an accepted token that is not the draft: emitted"),
        (with_gaps, "no token, or one behind a -1: emitted"),
        (cut_short, "no token, or one behind a -1: emitted \\[-1, -1, -1\\]"),
        (too_large, "a token that is none of 2: emitted \\[2, "),
    ],
    ids=["not the draft", "gaps", "nothing", "no token of these"],
)
def test_texts_of_the_right_law_that_no_round_emits(verify, said):
    (finding,) = (x for x in check(verify, ["chain"], trials=TRIALS).findings if "reversed" in x.name)
    assert finding.verdict == "failed"
    assert re.match(said, finding.said), finding.said


@pytest.mark.parametrize(
    "name", ["chain", "certain", "ends", "longer", "rounds", "temperatures", "filters", "penalties", "seeds", "batch"]
)
def test_a_verifier_that_accepts_no_draft_says_nothing(name):
    """What it emits is right, and would be if it looked at no draft."""

    def alone(batch):
        return ours(batch._replace(drafts=torch.full_like(batch.drafts, -1)))

    findings = check(alone, [name], trials=300).findings
    silent = {x.name for x in findings if x.verdict == "inconclusive"}
    assert silent == {x.name for x in findings} - {"ends, no draft"}


def test_vllm_without_its_fault_passes():
    assert check(functools.partial(vllm_on_a_cpu, mended=True), ["chain", "temperatures"], trials=TRIALS).passed


def test_what_is_refused_is_inconclusive_and_the_rest_is_not():
    def no_min_p(batch):
        if (batch.min_p > 0).any():
            raise NotImplementedError("min_p with drafts")
        return ours(batch)

    report = check(no_min_p, ["filters", "batch"], trials=TRIALS)
    wrong = {finding.name: finding.said for finding in report.findings if finding.verdict != "passed"}
    assert wrong == {"filters, min-p": "refused: min_p with drafts"}
    assert not report.passed
    assert "inconclusive  filters, min-p: refused: min_p with drafts" in str(report)


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"checks: expected some of chain, .*; got 'chains'"):
        check(ours, ["chains"])
    with pytest.raises(ValueError, match=r"verify: expected int32 or int64 \[20, 3\]; got torch.int64 \[20, 2\]"):
        check(lambda batch: batch.drafts, ["chain"], trials=20)


def test_few_false_alarms():
    """Of a right law as many are called wrong as is said, with rare cells in it."""
    law = Contexts(20, 0, seed=1).p[()] ** 2
    counts = torch.distributions.Multinomial(2000, law)
    torch.manual_seed(0)
    alarms = sum(chi_squared(drawn, law)[2] < 0.01 for drawn in counts.sample((1000,)))
    assert 2 <= alarms <= 25


def test_the_false_alarm_is_shared_out():
    report = check(ours, ["ends", "batch"], trials=300, false_alarm=0.03)
    assert report.threshold == pytest.approx(0.01)  # three are counted, three compared
    few = {"checks": ["ends"], "trials": 300}
    found = check(SINGLE["ends, one draft"], **few).findings[1].p_value
    assert found > 0
    for false_alarm, verdict in ((2.9 * found, "passed"), (3.1 * found, "failed")):
        assert check(SINGLE["ends, one draft"], false_alarm=false_alarm, **few).findings[1].verdict == verdict


def test_the_smallest_fault_is_caught_nine_times_of_ten():
    """By 200 counts of a fault that moves all cells alike, the hardest kind; 5 standard deviations are 0.11."""
    law, trials, threshold = torch.full((16,), 1 / 16, dtype=torch.float64), 50_000, 1e-4
    distance = smallest_fault(15, threshold, trials)
    wrong = law + distance / 8 * torch.tensor([1.0, -1.0] * 8, dtype=torch.float64)
    assert (wrong - law).abs().sum() / 2 == pytest.approx(distance)
    torch.manual_seed(0)
    counts = torch.distributions.Multinomial(trials, wrong).sample((200,))
    caught = sum(chi_squared(drawn, law)[2] < threshold for drawn in counts) / 200
    assert 0.79 < caught < 1.0
    assert smallest_fault(15, threshold, 4 * trials) == pytest.approx(distance / 2, rel=1e-6)


def test_as_many_requests_as_a_fault_takes():
    rows = []

    def counted(batch):
        rows.append(len(batch.drafts))
        return ours(batch)

    report = check(counted, ["ends"], smallest=0.05)
    assert all(0.04 < finding.catches <= 0.05 for finding in report.findings), str(report)
    assert max(rows) <= 1 << 16
    assert "accepted, catches 4." in str(report)
