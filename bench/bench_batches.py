"""64 requests on all cores, rows in memory and in no cache: GB/s of each call, beside a plain sum of rows."""

import functools

import bench_verify
import pytest
import torch
from bench_verify import NODES, K
from harness import BATCHES, DTYPES, OURS, READ, SEED, VOCABULARY

import specdec_kernels as sd

BATCH = 64
FILTERED = sd.Sampling(top_k=50, top_p=0.9)


@functools.cache
def rows_of(dtype):
    """Rows of the target and of the draft, [BATCH, NODES, V] each. Σ min(p, q) is about 0.7."""
    if dtype != torch.float32:
        return [rows.to(dtype) for rows in rows_of(torch.float32)]
    generator = torch.Generator().manual_seed(SEED)
    target, noise = (torch.randn(BATCH, NODES, VOCABULARY, generator=generator) for _ in range(2))
    return target.mul_(2), noise.mul_(0.77).add_(target)


def chains(method):
    def inputs(target, draft):
        seed, position = SEED + torch.arange(BATCH), torch.full((BATCH,), 1000)
        p, q = target[:, : K + 1], draft[:, :K]
        from_rows = p[:, :K] if method == "race" else q
        tokens = sd.race_sample(from_rows, seed=seed[:, None], position=position[:, None] + torch.arange(K))
        if method == "race":
            wrong = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(SEED)) >= 0.7
            tokens = (tokens + wrong) % VOCABULARY
        return [(tokens, p, q, seed, position)]

    call = bench_verify.CHAINS[method]
    return call, inputs, lambda calls: bench_verify.chain_bytes(method, call, calls)


def trees(method):
    def inputs(target, draft):
        position = 1000 * torch.arange(BATCH)
        return [(bench_verify.tree_tokens(draft, position), target, draft, position)]

    call = bench_verify.TREES[method]
    return call, inputs, lambda calls: bench_verify.tree_bytes(method, call, calls)


def on_rows(call, read=1, written=0):
    """A call on ``read`` rows of each request, node after node of the trees; it writes so many bytes for each token."""

    def inputs(target, draft):
        at = torch.arange(BATCH)
        return [(target[:, i], draft[:, i], 1000 * at + i) for i in range(NODES)]

    return call, inputs, lambda calls: read * calls[0][0].nbytes + written * calls[0][0].numel()


RESIDUALS = functools.cache(lambda: sd.residual(*(torch.zeros(BATCH, VOCABULARY) for _ in range(2))))


def residual(p, q, at):
    return sd.residual(p, q, out=RESIDUALS() if len(p) == BATCH else None)


CALLS = {
    "race_sample": on_rows(lambda p, q, at: sd.race_sample(p, seed=SEED, position=at)),
    **{f"verify_chain, {method}": chains(method) for method in ("race", "rejection", "block")},
    **{f"verify_tree, {method}": trees(method) for method in ("race", "rejection", "traversal")},
    "residual": on_rows(residual, 2, written=4),
    "overlap": on_rows(lambda p, q, at: sd.overlap(p, q), 2),
    "cutoff": on_rows(lambda p, q, at: sd.cutoff(p, sampling=FILTERED)),
    "logprobs": on_rows(lambda p, q, at: sd.logprobs(p, at % VOCABULARY)),
}
ALL_CORES = pytest.mark.parametrize("threads", [torch.get_num_threads()], indirect=True)


def case_of(call, dtype, threads):
    return {"call": call, "dtype": dtype, "B": BATCH, "threads": threads}


@ALL_CORES
def bench_read(measure, threads):
    chunks = [(rows,) for rows in rows_of(torch.float32)[0].chunk(8)]
    measure(BATCHES, READ, case_of("sum", "float32", threads), torch.sum, chunks, bytes=chunks[0][0].nbytes)


@ALL_CORES
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def bench_batches(measure, name, dtype, threads):
    call, inputs_of, bytes_of = CALLS[name]
    inputs = inputs_of(*rows_of(getattr(torch, dtype)))

    def check(_):
        with sd.backend("reference"):
            expected = call(*(rows[:2] for rows in inputs[0]))
        result = call(*inputs[0])
        for one, exact in zip(*([x] if torch.is_tensor(x) else x for x in (result, expected)), strict=True):
            tolerance = {"rtol": 1e-4, "atol": 1e-6} if one.is_floating_point() else {"rtol": 0, "atol": 0}
            torch.testing.assert_close(one[:2], exact, **tolerance)

    measure(BATCHES, OURS, case_of(name, dtype, threads), call, inputs, check, bytes=bytes_of(inputs))
