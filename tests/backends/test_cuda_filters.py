"""Filters in the CUDA kernels on the played machine: the CPU backend's bits, however many blocks share a row."""

import pytest
import torch

import specdec_kernels
from specdec_kernels import Sampling, cutoff, logprobs, race_sample, race_topk
from tests.backends import test_cuda_ops
from tests.backends.host_cuda.played import MACHINES
from tests.backends.test_cuda_ops import OPTIONS, assert_same, assert_same_figures, called, on_cpu, rows_of
from tests.support.cases import DTYPES, UNTOUCHED, chain_call, ragged, seeds
from tests.support.ops import overlap, residual, verify_chain, verify_tree
from tests.support.trees import tree_call

pytestmark = test_cuda_ops.pytestmark

# temperature, top_k, top_p, min_p of one row after the other.
NUMBERS = [
    (0.8, 5, 1.0, 0.0), (1.0, 0, 0.9, 0.0), (1.3, 0, 1.0, 0.02), (0.7, 40, 0.95, 0.0), (1.0, 0, 1.0, 0.0),
    (0.0, 3, 0.5, 0.1), (1.0, 700, 0.5, 0.001), (2.0, 2200, 1.0, 0.0), (1.0, 0, 0.0, 0.0), (1.0, 0, 0.3, 0.0),
    (5.0, 2500, 0.99, 1e-6), (0.6, 1, 1.0, 0.0), (1.0, 0, 1 - 2.0**-24, 0.0),
]  # fmt: skip
RULES = {
    "in turn": {},
    "joint": {"top_p_after": ()},
    "ties": {"ties": "all"},
    "joint ties": {"top_p_after": (), "ties": "all"},
    "after top_k": {"top_p_after": ("top_k",)},
    "before the temperature": {"at_temperature": False},
}
LISTED = 1472  # cut.cuh


def sampling_of(count, rules, first=0):
    """Numbers for each row."""
    t, k, p, mu = zip(*(NUMBERS[(first + i) % len(NUMBERS)] for i in range(count)), strict=True)
    return Sampling(torch.tensor(t), torch.tensor(k), torch.tensor(p), torch.tensor(mu), **rules)


def with_status(op, rows, *arguments, **options):
    status = torch.full(rows.shape[:-1], UNTOUCHED, dtype=torch.int32)
    found = op(rows, *arguments, **options, status=status)
    return *(found if isinstance(found, tuple) else (found,)), status


def assert_same_rows(rows, sampling, k=40, edits=None):
    """Of every op of single rows: what is kept, who wins, what is told of it."""
    count, noise = len(rows), {"seed": seeds(len(rows)), "position": 3}
    tokens = rows.float().nan_to_num(-torch.inf).argsort(-1, descending=True)[:, min(3, rows.shape[1] - 1)]
    calls = [
        (cutoff, ()), (race_sample, (), noise), (race_topk, (min(k, rows.shape[1]),), noise), (logprobs, (tokens,)),
        (logprobs, (tokens.where(torch.arange(count) % 3 > 0, -1),), {"top": min(k, rows.shape[1])}),
    ]  # fmt: skip
    for op, arguments, *options in calls:
        call = {"sampling": sampling, "edits": edits, **(options[0] if options else {})}
        found = with_status(op, rows, *arguments, **call)
        assert_same(found, on_cpu(with_status, op, rows, *arguments, **call))
    return len(calls)


class TestTheSameBits:
    @pytest.mark.parametrize("size, rules", list(zip((6000, 2049, 65, 4100, 1, 1025), RULES.values(), strict=True)))
    def test_of_odd_rows(self, machine, size, rules):
        rows = rows_of(size, DTYPES[size % 3])
        assert_same_rows(rows, sampling_of(len(rows), rules, first=size))

    @pytest.mark.costly
    def test_of_rows_that_no_list_holds(self, machine):
        """Values that are close to each other, and a boundary among thousands of equal ones."""
        normal = torch.randn(9000, generator=torch.Generator().manual_seed(1))
        tied = torch.full((9000,), -3.0)
        tied[torch.randperm(9000, generator=torch.Generator().manual_seed(2))[:6000]] = 1.0
        for row in (normal, 1e-4 * normal, tied, torch.zeros(9000), (4 * normal).round() / 4, 40 * normal):
            for rules in ({}, {"top_p_after": ()}, {"ties": "all"}):
                numbers = [(3000, 1.0, 0.0), (0, 0.7, 0.0), (0, 1.0, 1e-4), (8000, 0.95, 1e-9), (0, 0.02, 0.0)]
                k, p, mu = (torch.tensor(x) for x in zip(*numbers, strict=True))
                found = [
                    run(cutoff, row.expand(5, -1), sampling=Sampling(1.0, k, p, mu, **rules))
                    for run in (called, on_cpu)
                ]
                assert_same(*found)

    @pytest.mark.costly
    @pytest.mark.parametrize("tied", [LISTED + 1, LISTED])
    def test_of_lists_that_are_full_and_one_over(self, machine, tied):
        row = torch.full((5000,), -3.0)
        row[torch.randperm(5000, generator=torch.Generator().manual_seed(3))[:tied]] = 1.0
        rows = row.expand(3, -1).contiguous()
        numbers = Sampling(
            1.0, torch.tensor([0, 1000, 0]), torch.tensor([1.0, 0.5, 0.4]), torch.tensor([0.05, 0.5, 0.0])
        )
        for ties in ("first", "all"):
            assert_same_rows(rows, numbers._replace(ties=ties))

    def test_of_rows_of_a_vocabulary_of_the_drafts_own(self, machine):
        rows, draft_map = rows_of(1250, torch.bfloat16), torch.arange(0, 2500, 2, dtype=torch.int32)
        index = torch.tensor([3, -1, 0, 99, *range(len(rows) - 4)], dtype=torch.int32)
        sampling = sampling_of(len(rows), {})
        call = {
            "sampling": sampling,
            "seed": seeds(len(rows)),
            "position": 1,
            "draft_map": draft_map,
            "request_index": index,
        }
        for op, arguments in ((race_sample, ()), (race_topk, (9,))):
            assert_same(with_status(op, rows, *arguments, **call), on_cpu(with_status, op, rows, *arguments, **call))


CHAINS = {name: options for name, options in OPTIONS.items() if name != "block, one-hot"}
TREES = {
    "distinct": {},
    "independent": {"replacement": True},
    "race": CHAINS["race"],
    "certain": CHAINS["one-hot"],
    "traversal": {"method": "traversal"},
}


def sides(count, rules):
    """Filters of the target, of the draft, of both, each at its own temperature."""
    some, others = sampling_of(count, rules), sampling_of(count, rules, first=5)
    plain = Sampling(some.temperature)
    for target, draft in ((some, plain), (plain, others._replace(temperature=some.temperature)), (some, others)):
        yield {"sampling": target, "draft.sampling": draft}


def without(call, *names):
    return {name: value for name, value in call.items() if name not in names}


def pairs(call, rules):
    count = len(call["target"])
    return [without(call, "temperature") | law for law in sides(count, rules) if call["draft"] is not None] or [
        without(call, "temperature") | {"sampling": sampling_of(count, rules)}
    ]


class TestTheSameVerdict:
    @pytest.mark.parametrize("options, rules", list(zip(CHAINS.values(), RULES.values(), strict=False)), ids=CHAINS)
    def test_of_chains(self, machine, options, rules):
        dtype = DTYPES[len(rules)]
        for call in pairs(chain_call(1, requests=9, slots=3, vocabulary=2500, dtype=dtype) | options, rules):
            assert_same(verify_chain(**call), on_cpu(verify_chain, **call))

    @pytest.mark.parametrize("options", CHAINS.values(), ids=CHAINS)
    def test_of_ragged_chains(self, machine, options):
        call = ragged(chain_call(2, requests=4, slots=3, vocabulary=300), torch.tensor([0, 3, 1, 2])) | options
        call = without(call, "temperature") | {"sampling": sampling_of(4, {}, first=6)}
        assert_same(verify_chain(**call), on_cpu(verify_chain, **call))

    @pytest.mark.parametrize("options, rules", list(zip(TREES.values(), [*RULES.values()][1:], strict=True)), ids=TREES)
    def test_of_trees(self, machine, options, rules):
        made = tree_call(1, replacement=options.get("replacement", False), requests=5, nodes=9, vocabulary=700)
        for call in pairs(made | options, rules):
            assert_same(verify_tree(**call), on_cpu(verify_tree, **call))


@pytest.mark.parametrize("vocabulary, multiprocessors, blocks", [(262_144, 1, 1), (201_088, 16, 32)])
def test_trees_of_wide_rows_in_little_memory(device, vocabulary, multiprocessors, blocks):
    """A block has 99 KB. Wider cells take less: one block has room for a row, two share a multiprocessor."""
    call = tree_call(1, requests=1, nodes=3, vocabulary=vocabulary, dtype=torch.bfloat16)
    (call,) = pairs(call, {})[2:]
    expected, found = on_cpu(verify_tree, **call), []
    device.play("lone", multiprocessors=multiprocessors)
    count = device.counted(lambda: found.append(verify_tree(**call)))
    assert_same(found[0], expected)
    assert count["blocks"] == blocks


@pytest.mark.parametrize("rules", [RULES["joint ties"], RULES["before the temperature"]], ids=str)
def test_figures_of_pairs(machine, rules):
    rows = 2 * torch.randn(2, 13, 2500, generator=torch.Generator().manual_seed(0))
    for law in sides(13, rules):
        for op, options in ((residual, {"draft_prob": 0.9}), (overlap, {})):
            found, expected = (run(op, *rows, **law, **options) for run in (called, on_cpu))
            assert_same_figures(op, found, expected)


@pytest.mark.slow
def test_no_result_depends_on_how_rows_are_shared(device):
    rows = 3 * torch.randn(2, 3, 9000, generator=torch.Generator().manual_seed(0))
    (law,) = list(sides(3, {"top_p_after": ()}))[2:]
    found = []
    for name in MACHINES:
        for schedule in (1, 2):
            device.play(name, schedule=schedule)
            found.append((*residual(*rows, **law), *overlap(*rows, **law)))
    for other in found[1:]:
        assert_same(other, found[0])


def every_op():
    """Calls of each op, small and odd, against the CPU backend; gives how many calls that were."""
    count = 0
    with specdec_kernels.backend("cuda-host"):
        for dtype, rules in zip(DTYPES, RULES.values(), strict=False):
            rows = rows_of(777, dtype)
            count += assert_same_rows(rows, sampling_of(len(rows), rules), k=3)
            chain = chain_call(3, requests=3, slots=2, vocabulary=1500, dtype=dtype)
            tree = tree_call(5, requests=3, nodes=7, vocabulary=300, dtype=dtype)
            for op, call in ((verify_chain, chain), (verify_chain, chain | CHAINS["race"]), (verify_tree, tree)):
                for one in pairs(call, rules)[-1:]:
                    assert_same(op(**one), on_cpu(op, **one))
            (law,) = list(sides(len(rows), rules))[2:]
            residual(rows, rows.roll(1, 0), **law)
            overlap(rows, rows.roll(1, 0), **law)
            count += 5
    return count


class TestTheLaunch:
    @pytest.mark.parametrize("name", ["top_k", "top_k, top_p", "min_p", "joint"])
    def test_a_race_streams_its_row_once(self, machine, name):
        """What few cells hold is read from there, and only what is kept races."""
        sampling = {
            "top_k": Sampling(top_k=50),
            "top_k, top_p": Sampling(top_k=50, top_p=0.9),
            "min_p": Sampling(min_p=0.05),
            "joint": Sampling(0.5, 50, 0.9, top_p_after=()),
        }[name]
        rows = 2 * torch.randn(3, 8192, generator=torch.Generator().manual_seed(0)).bfloat16()
        found = machine.counted(lambda: race_sample(rows, seed=seeds(3), position=0, sampling=sampling))
        assert found["bytes_read"] == rows.numel() * 2
        target = rows[None].expand(2, -1, -1)
        call = {"method": "race", "seed": seeds(2), "position": 0, "sampling": sampling}
        found = machine.counted(lambda: verify_chain(torch.zeros(2, 2).long(), target, **call))
        assert found["bytes_read"] <= target.numel() * 2

    @pytest.mark.parametrize(
        "rows, vocabulary",
        [
            pytest.param(1, 262_144, marks=pytest.mark.slow),
            pytest.param(5, 128_256, marks=pytest.mark.slow),
            (100, 8192),
            (265, 4100),
        ],
    )
    def test_no_block_comes_late(self, device, rows, vocabulary):
        device.play("large", multiprocessors=132)
        logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(0)).bfloat16().expand(rows, -1)
        call = {"seed": seeds(rows), "position": 0, "sampling": Sampling(top_k=9)}
        found = device.counted(lambda: race_sample(logits, **call))
        assert found["blocks"] <= max(264, rows)
