"""LogitEdits in Triton against the CPU backend's: all results of calls with all that edits can have, and all that is
bad."""

import pytest
import torch

pytest.importorskip("triton")

from specdec_kernels.triton_kernels import _launch

import specdec_kernels
from specdec_kernels import Sampling, cutoff, logprobs, race_sample, race_topk
from tests.backends.test_triton_filters import mixed, on_grid
from tests.backends.test_triton_ops import assert_near, assert_same, both, on_device, untouched
from tests.support.cases import chain_call, ragged
from tests.support.edits import bits_of, random_edits
from tests.support.ops import overlap, residual, verify_chain, verify_tree
from tests.support.trees import tree_call

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
V = 70  # no whole number of words
MOST = 2**31 - 1


def spoiled(edits):
    """LogitEdits of six places or more, with values out of range in each, and whatever else is rare."""
    repetition, frequency, presence = (x.clone() for x in (edits.repetition, edits.frequency, edits.presence))
    repetition[1], frequency[2], presence[3] = 0.0, torch.nan, torch.inf
    repetition[5], frequency[5], presence[5] = 1.0, 0.0, 0.0  # off
    tokens, values, cu = (x.clone() for x in edits.bias)
    begins = cu[..., 0].flatten() if cu.ndim > 1 else cu[:-1]
    for begin, bad in zip(begins.tolist()[::2], (3, -1, V, 4, 5), strict=False):
        tokens[begin + 5] = bad  # the ones after it may still rise
    cu.view(-1)[-1] = MOST
    counts = torch.where(edits.output_counts > 3, MOST - 1, edits.output_counts)
    pending = edits.pending.clone()
    pending[:, -1] = pending[:, 0]
    pending[0, 1], pending[4, 1] = V, -2
    return edits._replace(
        bias=(tokens, values, cu), repetition=repetition, frequency=frequency, presence=presence, output_counts=counts,
        pending=pending,
    )  # fmt: skip


def edits_of(*lead, seed=1, **options):
    """LogitEdits that change many tokens: a span has ten entries, and a third of the tokens was seen."""
    edits = random_edits(*lead, vocabulary=V, seed=seed, **options)
    places = lead if options.get("bias_by_row") else lead[:1]
    count, size = torch.Size(places).numel(), 10
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.rand(count, V, generator=generator).topk(size, -1).indices.sort(-1).values
    begins = size * torch.arange(count + 1, dtype=torch.int32)
    spans = torch.stack([begins[:-1], begins[1:]], -1).view(*places, 2) if options.get("bias_by_row") else begins
    seen = torch.rand(lead[0], V, generator=generator) < 0.3
    counts = torch.where(seen, torch.randint(1, 5, seen.shape, generator=generator), -1).int()
    return edits._replace(
        bias=(tokens.flatten().int(), torch.randn(count * size, generator=generator), spans),
        output_mask=bits_of([row.nonzero().flatten().tolist() for row in seen], V), output_counts=counts,
    )  # fmt: skip


def rows_of(*lead, seed=0):
    """Logits on a grid, so that they tie; a NaN and an infinity, and in the last row nothing else."""
    rows = 2 * torch.randn(*lead, V, generator=torch.Generator().manual_seed(seed))
    rows = (4 * rows).round() / 4
    rows[1, ..., 7], rows[2, ..., 8] = torch.nan, torch.inf
    rows[-1, ..., 3:] = -torch.inf
    return rows


def noise(rows):
    return {"seed": 5, "position": torch.arange(len(rows), device=rows.device)}


def listed(rows, edits, **_):
    """A token of each row that has a bias, if the row has a list of ten."""
    return torch.arange(len(rows), device=rows.device) if edits is None else edits.bias[0][1::10][: len(rows)].long()


ON_ROWS = {
    "race_sample": lambda rows, **options: race_sample(rows, **noise(rows), **options),
    "race_topk": lambda rows, **options: race_topk(rows, 3, **noise(rows), **options),
    "cutoff": cutoff,
    "logprobs": lambda rows, **options: logprobs(rows, listed(rows, **options), top=2, **options),
    "residual": lambda rows, **options: residual(rows, rows.flip(-1), draft_prob=0.9, **options),
    "overlap": lambda rows, **options: overlap(rows, rows.flip(-1), **options),
}


@pytest.mark.parametrize("op", ON_ROWS)
def test_rows(op):
    edits, rows = spoiled(edits_of(6, bias_by_row=True)), rows_of(6)
    check = assert_near if op in ("residual", "overlap") else assert_same
    for sampling in (Sampling(torch.tensor([1.0, 0.0, 0.7]).repeat(2)), mixed(6)):
        check(ON_ROWS[op], rows, edits=edits, sampling=sampling, status=untouched(6))


CHAINS = {
    "race": {"draft": None, "method": "race"},
    "rejection": {"epsilon": torch.tensor([0.3, 0.0, 0.0]).repeat(6), "draft_prob": 0.8},
    "one-hot": {"draft": None},
    "race, filtered": {"draft": None, "method": "race", "temperature": None, "sampling": mixed(6)},
    "block": {"method": "block"},
    "block, filtered": {"method": "block", "temperature": None, "sampling": mixed(6)},
    "rejection, filtered": {"temperature": None, "sampling": mixed(6), "draft.sampling": mixed(6, 1)},
}


@pytest.mark.parametrize(
    "kind, bias_by_row", [*((kind, True) for kind in CHAINS), ("race", False), ("rejection", False)]
)
def test_chains(kind, bias_by_row):
    count = 18 if kind == "rejection" else 6
    call = on_grid(chain_call(3, requests=count, slots=2, vocabulary=V))
    call["temperature"] = torch.tensor([1.0, 0.0, 0.7]).repeat(count // 3)
    edits = spoiled(edits_of(count, 3, bias_by_row=bias_by_row))
    assert_same(verify_chain, **call | CHAINS[kind], edits=edits)


@pytest.mark.parametrize("kind", ["race", "one-hot"])
def test_packed_chains(kind):
    """Masks by row; then by request, each with the entry of another."""
    call = on_grid(chain_call(4, requests=6, slots=2, vocabulary=V)) | {"temperature": 0.9}
    counts, index = torch.arange(6) % 3, torch.tensor([2, 0, -1, 5, 6, 1], dtype=torch.int32)
    edits = spoiled(edits_of(6, 3))
    by_row = edits._replace(allowed=torch.cat([own[: n + 1] for own, n in zip(edits.allowed, counts, strict=True)]))
    call = ragged(call | CHAINS[kind], counts) | {"epsilon": 0.0}
    assert_same(verify_chain, **call, edits=by_row)
    assert_same(verify_chain, **call, edits=edits._replace(allowed=edits.allowed[:, :1]), request_index=index)


@pytest.mark.parametrize("kind", ["race", "rejection", "race, filtered", "block", "block, filtered"])
def test_trees(kind):
    call = on_grid(tree_call(3, requests=6, nodes=5, vocabulary=V)) | {"temperature": 0.9} | CHAINS[kind]
    call = {name: x for name, x in call.items() if name not in ("epsilon", "draft_prob")}
    if call.get("method") == "block":
        call["method"] = "traversal"
    for b in range(0, 6, 2):
        call["parents"][b] = torch.tensor([-1, 0, 0, 2, 3])
    call["draft_tokens"][:, 0] = call["target"][:, 0].nan_to_num(-9.0).argmax(-1)  # counts nowhere
    edits = edits_of(6, 5, bias_by_row=kind != "race")
    assert_same(verify_tree, **call, edits=spoiled(edits._replace(presence=4 * edits.presence)))


@pytest.mark.slow
@pytest.mark.usefixtures("programs")
def test_rows_of_several_tiles():
    """However many programs share a row. Four rows have their winners at the ends of tiles."""
    size, entries = 3000, 300
    ends = torch.tensor([0, 1023, 1024, 2999])
    tokens = torch.cat([ends, 1100 + torch.arange(entries - 4)]).sort().values.repeat(6, 1)
    values = torch.randn(6, entries, generator=torch.Generator().manual_seed(1))
    values[:4][tokens[:4] == ends[:, None]] = 40.0
    tokens[4, 140:142] = tokens[4, 140:142].flip(0)
    tokens[5, 0] = size - 1  # nothing after it rises
    bias = tokens.flatten().int(), values.flatten(), entries * torch.arange(7, dtype=torch.int32)
    edits = random_edits(6, vocabulary=size, seed=4)._replace(bias=bias, allowed=None)
    rows = 2 * torch.randn(6, size, generator=torch.Generator().manual_seed(1))

    expected, found = both(ON_ROWS["race_sample"], rows, edits=edits, status=untouched(6))
    assert all(map(torch.equal, expected, found))
    assert torch.equal(found[0][:4], ends)
    assert found[1].tolist() == [0, 0, 0, 0, 8, 8]


def launches_of(launched, run):
    """(launches, words of scratch memory) of a call."""
    launched.clear()
    _launch._workspaces.__dict__.clear()
    with specdec_kernels.backend("triton"):
        run()
    return len(launched), [x.numel() for pair in _launch._workspaces.__dict__.values() for x in pair]


@pytest.mark.costly
@pytest.mark.parametrize("sampling", [Sampling(0.8), Sampling(0.8, top_k=9)], ids=["plain", "filtered"])
def test_launches_and_memory_are_those_without_edits(sampling, launched):
    chain = on_device(chain_call(1, requests=2, slots=1, vocabulary=V) | {"temperature": None})
    rows = chain["target"][:, 0]
    edits = on_device(edits_of(2, 2))
    of_rows = edits._replace(allowed=edits.allowed[:, 0])
    calls = [(ON_ROWS[name], of_rows) for name in ("race_sample", "logprobs", "overlap")]
    calls.append((lambda _, **options: verify_chain(**chain, **options), edits))
    for op, own in calls:
        found = [
            launches_of(launched, lambda op=op, given=given: op(rows, edits=given, sampling=sampling))
            for given in (None, own)
        ]
        assert found[0] == found[1]
