"""Parents that make no tree, in verify_tree, tree_mask and tree_positions: the host refuses them by name, and where it
cannot look, their nodes are absent.
"""

import pytest
import torch

from specdec_kernels import tree_mask, tree_positions
from tests.ops.test_verify_tree import OPTIONS, made
from tests.support.cases import UNTOUCHED, assert_same
from tests.support.ops import verify_tree

GOOD = [-1, 0, 0]
BAD = ([-1, 1, 0], [-1, 2, 1], [-1, 0, 7], [-1, 0, -2], [0, 0, 0], [1, 0, 0], [-1, -5, 2**31 - 1])
EACH = pytest.mark.parametrize("parents", BAD, ids=str)
PREFIX = {"prefix_len": torch.tensor([3, 5, 0, 2])}
LAYOUTS = [(tree_positions, PREFIX)] + [
    (tree_mask, PREFIX | {"layout": layout, "columns": 20}) for layout in ("bool", "additive", "bits")
]


def trees(parents, dtype=torch.int64):
    """Those of four requests, of which one has these parents."""
    return torch.tensor([GOOD, GOOD, parents, GOOD], dtype=dtype)


def valid(parents):
    return [parent if 0 <= parent < node else -1 for node, parent in enumerate(parents)]


@pytest.fixture
def unseen(monkeypatch):
    """Returns a function after which the host looks into no tensor, as on a device."""
    return lambda: monkeypatch.setattr("specdec_kernels.ops._trees.host_sees", lambda tensor: False)


@EACH
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.one_backend
def test_refused(parents, dtype):
    node = next(node for node, parent in enumerate(parents) if parent != -1 and not 0 <= parent < node)
    for op, call in (*LAYOUTS, (verify_tree, made(24, requests=4, nodes=3, parents=GOOD))):
        with pytest.raises(ValueError, match=rf"^parents\[{node}\]: expected -1 .*; got {parents[node]}"):
            op(**call | {"parents": torch.tensor(parents, dtype=dtype)})
        with pytest.raises(ValueError, match=rf"^parents\[2, {node}\]: expected"):
            op(**call | {"parents": trees(parents, dtype)})


@EACH
@pytest.mark.interpreted
def test_absent_in_masks_and_positions(backend, parents, unseen):
    expected = [op(**call, parents=trees(valid(parents))) for op, call in LAYOUTS]
    unseen()
    for (op, call), wanted in zip(LAYOUTS, expected, strict=True):
        status = torch.full((4,), UNTOUCHED, dtype=torch.int32)
        assert torch.equal(op(**call, parents=trees(parents), status=status), wanted)
        assert status.tolist() == [0, 0, 8, 0]


@EACH
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_absent_in_verdicts(backend, parents, options, unseen):
    call = made(25, options, requests=4, nodes=3, parents=GOOD) | {"max_depth": 2}
    expected = verify_tree(**call | {"parents": trees(valid(parents))})
    unseen()
    verdict = verify_tree(**call | {"parents": trees(parents)})
    assert_same(verdict[:3], expected[:3])
    assert (verdict.status == expected.status | torch.tensor([0, 0, 8, 0])).all()


def test_one_among_many_nodes(backend, unseen):
    call = made(35, nodes=60, requests=3, parents=[-1, 0] + 58 * [-1])
    expected = verify_tree(**call)
    parents = call["parents"].repeat(3, 1)
    parents[1, 47] = 99
    unseen()
    verdict = verify_tree(**call | {"parents": parents}, max_depth=1)
    assert_same(verdict[:3], expected[:3])
    assert (verdict.status == expected.status | torch.tensor([0, 8, 0])).all()
