"""The conformance kit passes our op and finds the faults that verifiers have had."""

import functools
import runpy
from pathlib import Path

import pytest
import torch

import specdec_kernels as specdec
from specdec_kernels.conformance import Contexts, check, chi_squared

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
    """{emitted: probability} by the public code of "hierarchical" verification: its last coin is not capped."""
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


def test_the_cap_of_the_last_coin_exactly():
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
    "last coin not capped": (by_law(hierarchical), ["chain"], CHAINS),
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
    assert alarms <= 25
