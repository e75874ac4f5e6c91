"""On a GPU: graphs, streams, whole vocabularies, and what must not happen on the host. Skipped by name without one.

The tests of every op run there, too, by the backend ``cuda-device`` (tests/conftest.py).
"""

import importlib

import pytest
import torch

import specdec_kernels
from specdec_kernels import (
    compact_kv,
    race_sample,
    residual,
    tree_mask,
    tree_positions,
    verify_chain,
    verify_tree,
)
from specdec_kernels.ops import Verdict
from tests.support.cases import FAR_ELEMENTS, chain_call, far_chain, poisoned, seeds
from tests.support.cuda_device import Copied
from tests.support.trees import tree_call

SLOTS = 4
METHODS = {"rejection": {}, "race": {"method": "race", "draft": None}}
BACKENDS = ("cuda", "triton")


def on_gpu(call):
    return {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in call.items()}


def wide_call(requests, vocabulary=128_256, dtype=torch.bfloat16, seed=1):
    """Like chain_call, for many wide rows; the CPU backend drafts."""
    generator = torch.Generator().manual_seed(seed)
    target = 2 * torch.randn(requests, SLOTS + 1, vocabulary, generator=generator)
    draft = (target[:, :-1] + 0.7 * torch.randn(target[:, :-1].shape, generator=generator)).to(dtype)
    noise = {"seed": seeds(requests, 100 * seed), "position": torch.arange(requests) * 1000}
    steps = noise["position"][:, None] + torch.arange(SLOTS)
    drafts = race_sample(draft, seed=noise["seed"][:, None], position=steps)
    law = {"target": target.to(dtype), "draft": draft, "space": "logits", "temperature": torch.ones(requests)}
    return {"draft_tokens": drafts, **law, **noise}


def out_for(requests):
    counts = torch.empty(2, requests, dtype=torch.int32, device="cuda")
    return Verdict(torch.empty(requests, SLOTS + 1, dtype=torch.int64, device="cuda"), *counts)


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.cpu(), other.cpu())


@pytest.fixture(params=BACKENDS)
def gpu(request):
    """Calls on CUDA tensors go to this backend."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if reason := importlib.import_module(f"specdec_kernels.backends.{request.param}").unavailable():
        pytest.skip(reason)
    with specdec_kernels.backend(request.param):
        yield request.param


@pytest.fixture(params=METHODS.values(), ids=METHODS)
def options(request):
    return request.param


class TestWholeVocabularies:
    @pytest.mark.parametrize("vocabulary", [32_000, 128_256, 151_936, 262_147])
    @pytest.mark.parametrize("requests", [1, 3, 40])
    def test_chains_are_the_cpus(self, gpu, options, requests, vocabulary):
        with specdec_kernels.backend("cpu"):
            call = wide_call(requests, vocabulary) | options
            expected = verify_chain(**call)
        assert_same(verify_chain(**on_gpu(call)), expected)

    def test_every_batch_size(self, gpu, options):
        """A block a request, clusters, software clusters: one answer."""
        with specdec_kernels.backend("cpu"):
            call = wide_call(300, 8_200) | options
        together = verify_chain(**on_gpu(call))
        for requests in (1, 2, 7, 16, 33, 64, 100, 150, 299):
            part = {name: x[:requests] if isinstance(x, torch.Tensor) else x for name, x in on_gpu(call).items()}
            assert_same(verify_chain(**part), [x[:requests] for x in together])

    def test_rows_far_apart(self, gpu, options):
        """Offsets past 2^31 elements and 2^32 bytes."""
        room = torch.empty(FAR_ELEMENTS, dtype=torch.bfloat16, device="cuda")
        expected = verify_chain(**on_gpu(far_chain() | options))
        assert expected.num_accepted == 2
        assert_same(verify_chain(**far_chain(room) | options), expected)


class TestTheHost:
    def test_graph_replays_with_new_noise(self, gpu, options):
        """Seeds, positions, drafts and logits are read when the graph runs."""
        with specdec_kernels.backend("cpu"):
            rounds = [on_gpu(wide_call(7, 9_000, seed=seed) | options) for seed in range(1, 5)]
        call, out = {k: x.clone() if isinstance(x, torch.Tensor) else x for k, x in rounds[0].items()}, out_for(7)
        verify_chain(**call, out=out)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            verify_chain(**call, out=out)
        seen = set()
        for fresh in [*rounds, *rounds]:
            for name, value in fresh.items():
                if isinstance(value, torch.Tensor):
                    call[name].copy_(value)
            graph.replay()
            assert_same(out, verify_chain(**fresh))
            seen.add(tuple(out.tokens.flatten().tolist()))
        assert len(seen) == len(rounds)

    def test_graphs_of_many_sizes(self, gpu, options):
        """Captured from large to small with calls between, as engines do; replayed in any order, two at a time."""
        graphs = []
        for requests in (40, 33, 28, 8, 1):
            with specdec_kernels.backend("cpu"):
                call = on_gpu(wide_call(requests, 60_000, seed=requests) | options)
            out, expected = out_for(requests), verify_chain(**call)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                verify_chain(**call, out=out)
            graphs.append((graph, out, expected, call))  # a capture frees what torch keeps of freed tensors
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        for turn in range(20):
            pair = graphs[turn % 5], graphs[(turn + 1 + turn % 4) % 5]
            torch.cuda.synchronize()
            for stream, (graph, out, *_) in zip(streams, pair, strict=True):
                with torch.cuda.stream(stream):
                    for part in out:
                        part.fill_(99)
                    graph.replay()
            torch.cuda.synchronize()
            for _, out, expected, _ in pair:
                assert_same(out, expected)

    def test_no_synchronisation_and_no_allocation(self, gpu, options):
        call, out = on_gpu(chain_call(1, requests=5, slots=SLOTS) | options), out_for(5)
        verify_chain(**call, out=out)
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        torch.cuda.set_sync_debug_mode("error")
        try:
            verify_chain(**call, out=out)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before

    def test_streams_do_not_share_workspace(self, gpu, options):
        with specdec_kernels.backend("cpu"):
            calls = [on_gpu(wide_call(2, 60_000, seed=seed) | options) for seed in range(1, 5)]
        expected = [verify_chain(**call) for call in calls]
        outs = [out_for(2) for _ in calls]
        streams = [torch.cuda.Stream() for _ in calls]
        torch.cuda.synchronize()
        for _ in range(50):
            for call, out, stream in zip(calls, outs, streams, strict=True):
                with torch.cuda.stream(stream):
                    verify_chain(**call, out=out)
        torch.cuda.synchronize()
        for out, known in zip(outs, expected, strict=True):
            assert_same(out, known)

    def test_another_device_than_the_current_one(self, gpu):
        if torch.cuda.device_count() < 2:
            pytest.skip("one CUDA device")
        row = torch.randn(9_000, device="cuda:1")
        token = race_sample(row, seed=1, position=0)
        assert token.device == row.device
        assert_same([token], [race_sample(row.to("cuda:0"), seed=1, position=0)])


def tree_round(call, prefix_len, caches):
    """What is done about one forward over a tree; the caches are moved in place."""
    verdict = verify_tree(**call, max_depth=8)
    parents = call["parents"]
    compact_kv(caches, verdict.path, prefix_len=prefix_len)
    return (
        tree_mask(parents, prefix_len=prefix_len, columns=100),
        tree_positions(parents, prefix_len=prefix_len),
        *verdict,
        *caches,
    )


class TestTrees:
    @pytest.mark.parametrize("requests, vocabulary", [(1, 128_256), (7, 9_000), (300, 700)])
    @pytest.mark.parametrize("replacement", [False, True], ids=["distinct", "independent"])
    def test_a_round_in_a_graph(self, gpu, options, replacement, requests, vocabulary):
        """Everything but the forward, captured at once; the CPU's results at every replay."""
        prefix_len = torch.arange(requests) % 80
        caches = list(torch.randn(3, requests, 2, 100, 64).to(torch.bfloat16))
        rounds = []
        for seed in (1, 2, 3):
            sizes = {"requests": requests, "nodes": 9, "vocabulary": vocabulary, "dtype": torch.bfloat16}
            rounds.append(tree_call(seed, replacement=replacement, **sizes) | options)
        call, moved = on_gpu(rounds[0]), [x.cuda() for x in caches]
        there = prefix_len.cuda()
        tree_round(call, there, moved)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = tree_round(call, there, moved)
        for fresh in rounds:
            for name, value in fresh.items():
                if isinstance(value, torch.Tensor):
                    call[name].copy_(value)
            for x, y in zip(moved, caches, strict=True):
                x.copy_(y)
            graph.replay()
            with specdec_kernels.backend("cpu"):
                expected = tree_round(fresh, prefix_len, [x.clone() for x in caches])
            assert_same(found, expected)


class TestTheCopies:
    """tests/support/cuda_device.py itself, by the CPU backend."""

    def test_keep_layout_and_bring_results_back(self):
        specdec_kernels.backends.register("copied", Copied("cpu", "cpu"), ("cpu",))
        call = chain_call(3, requests=8)
        call = {**call, "target": poisoned(call["target"]), "draft": poisoned(call["draft"], pad=1, start=1)}
        with specdec_kernels.backend("copied"):
            found = verify_chain(**call), residual(call["target"][:, 1:], call["draft"])
        with specdec_kernels.backend("cpu"):
            expected = verify_chain(**call), residual(call["target"][:, 1:], call["draft"])
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
