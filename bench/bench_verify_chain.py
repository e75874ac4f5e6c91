"""verify_chain from float32 logits against transformers' speculative sampling, K = 5, at acceptance 0, ~0.7 and 1."""

from functools import partial

import pytest
import torch
from harness import KINDS, OURS, SEED, VOCABULARY, draft_near, logits

import specdec_kernels as sd

K = 5
NONE_ACCEPTED = -1e30  # a target logit whose token has probability 0


def rejection(draft_tokens, target, draft, seed, position):
    return sd.verify_chain(draft_tokens, target, draft, seed=seed, position=position)


def block(draft_tokens, target, draft, seed, position):
    return sd.verify_chain(draft_tokens, target, draft, method="block", seed=seed, position=position)


def race(draft_tokens, target, draft, seed, position):
    return sd.verify_chain(draft_tokens, target, method="race", seed=seed, position=position)


def transformers(draft_tokens, target, draft, seed, position):
    """It takes one request; a batch is a loop, as its own generate would have to do."""
    from transformers.generation.utils import _speculative_sampling

    return [
        _speculative_sampling(tokens[None], q[None], K, p[None])
        for tokens, p, q in zip(draft_tokens, target, draft, strict=True)
    ]


def served(method, tokens, target, draft, seed, position):
    """As engines keep chains: packed drafts, an index of requests, temperatures and seeds in tensors."""
    batch = len(tokens)
    return sd.verify_chain(
        tokens.flatten(), target.flatten(0, 1), None if method == "race" else draft, method=method,
        temperature=torch.ones(batch), seed=seed, position=position, request_index=torch.arange(batch).int(),
        packing=sd.Packing(cu_drafts=K * torch.arange(batch + 1).int(), max_drafts=K),
    )  # fmt: skip


OUR_CALLS = {"rejection": rejection, "block": block, "race": race}


def rejection_inputs(kind, batch, acceptance, sets):
    """Draft and target logits with that overlap, and tokens drawn from the draft (0: tokens the target never takes)."""
    result = []
    for number in range(sets):
        target = logits(kind, (batch, K + 1, VOCABULARY), SEED + number)
        draft = target[:, :K].clone() if acceptance == 1 else draft_near(target[:, :K], 0.7, SEED + 100 + number)
        result.append((target, draft))
    entries = []
    for turn in range(32):
        target, draft = result[turn % sets]
        seed = SEED + torch.arange(batch)
        position = torch.full((batch,), 1000 * turn)
        steps = position[:, None] + torch.arange(K)
        tokens = sd.race_sample(draft, seed=seed[:, None], position=steps)
        entries.append([tokens, target, draft, seed, position])
    if acceptance == 0:
        for tokens, target, *_ in entries:
            target[:, :K].scatter_(-1, tokens[..., None], NONE_ACCEPTED)
    return [tuple(entry) for entry in entries]


def race_inputs(kind, batch, acceptance, sets):
    """The target's own winners, each replaced by another token with probability 1 - acceptance."""
    targets = [logits(kind, (batch, K + 1, VOCABULARY), SEED + number) for number in range(sets)]
    generator = torch.Generator().manual_seed(SEED)
    entries = []
    for turn in range(32):
        target = targets[turn % sets]
        seed = SEED + torch.arange(batch)
        position = torch.full((batch,), 1000 * turn)
        steps = position[:, None] + torch.arange(K)
        winners = sd.race_sample(target[:, :K], seed=seed[:, None], position=steps)
        wrong = torch.rand(winners.shape, generator=generator) >= acceptance
        entries.append(((winners + wrong) % VOCABULARY, target, target[:, :K], seed, position))
    return entries


INPUTS = {"rejection": rejection_inputs, "block": rejection_inputs, "race": race_inputs}


def check_of(call, inputs):
    def check(_):
        for arguments in inputs[:4]:
            with sd.backend("reference"):
                expected = call(*arguments)
            found = call(*arguments)
            assert torch.equal(found.tokens, expected.tokens)
            assert torch.equal(found.num_accepted, expected.num_accepted)
            assert not found.status.any()

    return check


def bytes_read(call, inputs, method):
    """Mean bytes of the rows that a verification cannot do without.

    They are those up to and including the first rejection. A block needs every pair, as later drafts decide about
    earlier ones, unless a draft has no probability.
    """
    accepted = torch.cat([call(*arguments).num_accepted for arguments in inputs]).long()
    rows = accepted + 1 if method == "race" else accepted + 1 + (accepted + 1).clamp(max=K)
    if method == "block":
        possible = torch.cat([(a[1][:, :K].gather(-1, a[0][..., None]) > NONE_ACCEPTED).all(1)[:, 0] for a in inputs])
        rows = torch.where(possible, 2 * K + (accepted == K), rows)
    return int(rows.sum() / len(inputs)) * VOCABULARY * inputs[0][1].element_size()


def run(measure, contender, kind, method, batch, acceptance, threads, sweep):
    inputs = INPUTS[method](kind, batch, acceptance, sets=4 if batch == 1 else 1)
    call = partial(served, method) if sweep == "serving" else OUR_CALLS[method]
    check = check_of(call, inputs) if contender == OURS else None
    case = {"sweep": sweep, "method": method, "kind": kind, "B": batch, "acceptance": acceptance, "threads": threads}
    timed = call if contender == OURS else transformers
    measure("verify_chain", contender, case, timed, inputs, check, bytes=bytes_read(call, inputs, method))


@pytest.mark.parametrize("contender", [OURS, "transformers"])
@pytest.mark.parametrize("acceptance", [0, 0.7, 1])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", OUR_CALLS)
def bench_peers(measure, contender, method, kind, acceptance, threads):
    run(measure, contender, kind, method, 1, acceptance, threads, "peers")


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
@pytest.mark.parametrize("method", OUR_CALLS)
def bench_threads(measure, method, threads):
    run(measure, OURS, "normal", method, 8, 0.7, threads, "threads")


@pytest.mark.parametrize("contender", [OURS, "transformers"])
@pytest.mark.parametrize("batch", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("method", OUR_CALLS)
def bench_batch(measure, contender, method, batch, threads):
    run(measure, contender, "normal", method, batch, 0.7, threads, "B")


@pytest.mark.parametrize("method", OUR_CALLS)
def bench_serving(measure, method, threads):
    run(measure, OURS, "normal", method, 8, 0.7, threads, "serving")
