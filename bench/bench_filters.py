"""Filters and edits inside of race_sample and verify_chain against the same calls without, and filters against those of
others: transformers' warpers and a draw, and torch.topk and a draw.
"""

import pytest
import torch
from harness import OURS, SEED, VOCABULARY, draft_near, logits

import specdec_kernels as sd
from specdec_kernels import Edits, Sampling

UNFILTERED, UNEDITED = "unfiltered", "unedited"
FILTERS = {
    "top_k 50": {"top_k": 50},
    "top_k 50, top_p 0.9": {"top_k": 50, "top_p": 0.9},
    "joint": {"top_k": 50, "top_p": 0.9, "top_p_after": ()},
    "min_p 0.05": {"min_p": 0.05},
    "top_p 0.9": {"top_p": 0.9},
}
KINDS = ("normal", "zipf", "peaked")
K = 5


def rows_of(kind, shape):
    """``peaked``: a head of 20 tokens anywhere in the row has most of the mass."""
    generator = torch.Generator().manual_seed(SEED)
    if kind == "normal":
        return logits("normal", shape, SEED)
    rows, vocabulary = torch.Size(shape[:-1]).numel(), shape[-1]
    order = torch.rand(rows, vocabulary, generator=generator).argsort(-1)
    if kind == "zipf":
        values = (-1.2 * torch.arange(1, vocabulary + 1).log()).expand(rows, -1)
    else:
        values = torch.randn(rows, vocabulary, generator=generator) * 1.5
        values[:, :20] += torch.linspace(14, 8, 20)
    return values.gather(-1, order).reshape(shape)


def ours(row, position, sampling):
    return sd.race_sample(row, seed=SEED, position=position, sampling=sampling)


def unfiltered(row, position, sampling):
    return sd.race_sample(row, seed=SEED, position=position)


def transformers(row, position, sampling):
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    if sampling.top_k:
        row = TopKLogitsWarper(sampling.top_k)(None, row)
    if sampling.top_p < 1:
        row = TopPLogitsWarper(sampling.top_p)(None, row)
    if sampling.min_p:
        row = MinPLogitsWarper(sampling.min_p)(None, row)
    return torch.multinomial(torch.softmax(row, -1), 1)


def topk_draw(row, position, sampling):
    values, tokens = torch.topk(row, sampling.top_k)
    law = torch.softmax(values, -1)
    if sampling.top_p < 1:
        law = law.masked_fill(law.cumsum(-1) - law >= sampling.top_p, 0)
    return tokens.gather(-1, torch.multinomial(law, 1))


CONTENDERS = {OURS: ours, UNFILTERED: unfiltered, "transformers": transformers, "torch.topk": topk_draw}
CASES = [
    (filters, contender)
    for filters in FILTERS
    for contender in CONTENDERS
    if contender != "torch.topk" or "top_k" in FILTERS[filters]
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("filters, contender", CASES)
def bench_race_sample(measure, contender, filters, kind, threads):
    sampling = Sampling(**FILTERS[filters])
    rows = rows_of(kind, (8, 1, VOCABULARY))
    inputs = [(rows[i % 8], 1000 + i, sampling) for i in range(64)]

    def check(call):
        for row, position, _ in inputs[:8]:
            with sd.backend("reference"):
                expected = ours(row, position, sampling)
            assert torch.equal(ours(row, position, sampling), expected)

    case = {"filters": filters, "kind": kind, "V": VOCABULARY, "threads": threads}
    check = check if contender == OURS else None
    measure("filters: race_sample", contender, case, CONTENDERS[contender], inputs, check, bytes=4 * VOCABULARY)


def edits_of(name):
    """Half of all tokens allowed, or 1,500 tokens of the output with all penalties; anywhere in the vocabulary."""
    generator = torch.Generator().manual_seed(SEED)
    words = VOCABULARY // 32
    if name == "grammar":
        return Edits(allowed=torch.randint(-(2**31), 2**31, (1, words), generator=generator).int())
    counts = torch.zeros(VOCABULARY, dtype=torch.int32)
    counts[torch.randperm(VOCABULARY, generator=generator)[:1500]] = 2
    bits = ((counts > 0).view(words, 32).long() << torch.arange(32)).sum(-1)
    mask = torch.where(bits < 2**31, bits, bits - 2**32).int()
    return Edits(repetition=1.1, frequency=0.1, presence=0.2, output_mask=mask[None], output_counts=counts[None])


@pytest.mark.parametrize("contender", [OURS, UNEDITED])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edits", ["grammar", "penalties"])
def bench_edits(measure, contender, edits, kind, threads):
    rows = rows_of(kind, (8, 1, VOCABULARY))
    edited = edits_of(edits) if contender == OURS else None
    inputs = [(rows[i % 8], 1000 + i) for i in range(64)]

    def call(row, position):
        return sd.race_sample(row, seed=SEED, position=position, edits=edited)

    def check(_):
        for row, position in inputs[:8]:
            with sd.backend("reference"):
                expected = call(row, position)
            assert torch.equal(call(row, position), expected)

    case = {"edits": edits, "kind": kind, "V": VOCABULARY, "threads": threads}
    measure("edits: race_sample", contender, case, call, inputs, check if contender == OURS else None)


@pytest.mark.parametrize("contender", [OURS, UNFILTERED])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("filters", ["top_k 50", "top_k 50, top_p 0.9", "top_p 0.9"])
@pytest.mark.parametrize("method", ["race", "rejection"])
def bench_verify_chain(measure, contender, method, filters, kind, threads):
    sampling = Sampling(**FILTERS[filters])
    target = rows_of(kind, (1, K + 1, VOCABULARY))
    draft = None if method == "race" else draft_near(target[:, :K], 0.7, SEED)
    tokens = sd.race_sample(
        target[:, :K] if draft is None else draft, seed=SEED, position=1000 + torch.arange(K), sampling=sampling
    )

    def verify(position, sampling):
        return sd.verify_chain(
            tokens, target, None if draft is None else sd.Draft(draft, sampling=sampling), method=method, seed=SEED,
            position=position, sampling=sampling,
        )  # fmt: skip

    def call(position):
        return verify(position, sampling if contender == OURS else Sampling())

    # Positions where filters leave the number of rows read as it is.
    alike = [
        p for p in range(1000, 1200) if verify(p, sampling).num_accepted == verify(p, Sampling()).num_accepted
    ][:8]  # fmt: skip
    inputs = [(alike[i % len(alike)],) for i in range(16)]

    def check(_):
        for (position,) in inputs[:4]:
            with sd.backend("reference"):
                expected = call(position)
            assert torch.equal(call(position).num_accepted, expected.num_accepted)

    case = {"method": method, "filters": filters, "kind": kind, "threads": threads}
    measure("filters: verify_chain", contender, case, call, inputs, check if contender == OURS else None)
