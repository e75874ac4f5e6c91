"""walk_tables: walks by what is known of rows that lie elsewhere."""

import pytest
import torch

import specdec_kernels
from specdec_kernels.calls.values import Noise
from specdec_kernels.sharded import _parts

INTS = torch.int32


def walk_tables(draft_tokens, **given):
    """With tables and counters by name."""
    tables = {name: given.pop(name) for name in _parts.Tables._fields if name in given}
    noise = Noise(*(given.pop(name, 0) for name in Noise._fields))
    return _parts.walk_tables(draft_tokens, _parts.Tables(**tables), noise=noise, **given)


walk_tables.__module__ = _parts.__name__  # which is private


def tables(rows, drafts, draft_rows=None):
    """What is known of rows: each draft has all of p and half of q."""
    draft_rows = drafts if draft_rows is None else draft_rows
    return {
        "row_status": torch.zeros(rows, dtype=INTS), "p_of_drafts": torch.ones(rows),
        "row_stats": torch.arange(2.0 * rows).view(-1, 2),
        "q_of_drafts": torch.full((drafts,), 0.5), "draft_row_status": torch.zeros(drafts, dtype=INTS),
        "draft_row_stats": 100 + torch.arange(2.0 * draft_rows).view(-1, 2),
    }  # fmt: skip


def noise(batch):
    return {"seed": torch.arange(batch), "position": torch.full((batch,), 5), "nonce": torch.zeros(batch).long()}


BATCH, SLOTS = 3, 2
ROWS = BATCH * (SLOTS + 1)
CHAINS = {"draft_tokens": torch.tensor([[5, 9], [3, 4], [7, 70]]), "vocab": 64, "width": 3, "method": "rejection"}
CHAINS |= tables(ROWS, 6) | noise(BATCH)
TREE = {"draft_tokens": torch.tensor([[-1, 5, 5, 9]] * BATCH), "parents": torch.tensor([-1, 0, 0, 1]), "width": 3}
TREE |= {"vocab": 64, "method": "rejection", "answers": torch.full((BATCH, 4, 2), -1)}
TREE |= tables(12, 12) | noise(BATCH)
NUMBERS = {"temperature": torch.ones(BATCH), "epsilon": torch.zeros(BATCH), "request_index": torch.arange(BATCH).int()}
CALLS = {
    "walk_tables": (
        walk_tables,
        CHAINS | NUMBERS | {
            "method": "traversal", "answers": torch.full((BATCH, SLOTS + 1, 2), 1 << 41), "winners": torch.arange(ROWS),
            "draft_prob": torch.ones(BATCH, SLOTS), "draft_row_indices": torch.arange(6),
        },
    ),
    "walk_tables, tree": (walk_tables, TREE | NUMBERS | {"winners": torch.arange(12)}),
    "walk_tables, race": (walk_tables, {x: CHAINS[x] for x in ("draft_tokens", "vocab", "width", "row_status")}
                          | {"method": "race", "winners": torch.arange(ROWS)}),
}  # fmt: skip


def lists(walked, *names):
    return [getattr(walked, name).tolist() for name in names]


def refused(probs, *columns):
    return probs.index_fill(0, torch.tensor(columns), 0.0)


def test_a_refused_draft_a_bonus_and_a_token_out_of_range(parts_backend):
    chains = CHAINS | {"p_of_drafts": refused(CHAINS["p_of_drafts"], 1)}
    walked = walk_tables(**chains)
    assert walked.tokens.tolist() == [[5, 0, -1], [3, 4, 0], [7, 0, -1]]
    assert lists(walked, "row", "draft_row", "slot") == [[1, 5, 7], [1, -1, 5], [1, 2, 1]]
    assert walked.status.tolist() == [0, 0, 4]
    assert walked.laws.tolist() == [[2, 3, 102, 103], [10, 11, 10, 11], [14, 15, 110, 111]]
    walked = walk_tables(**chains | {"q_of_drafts": None, "draft_row_status": None, "draft_row_stats": None})
    assert lists(walked, "excluded", "num_accepted") == [[[9], [-1], [-1]], [1, 2, 1]]
    assert walked.laws[:, 2:].tolist() == walked.laws[:, :2].tolist()
    shared = chains | {"draft_tokens": torch.tensor([[5, -1], [3, 4], [-1, 7]])}
    shared["draft_prob"] = torch.tensor([[1.0, 0.25], [1.0, 1.0], [torch.nan, 1.0]])
    walked = walk_tables(**shared)  # a slot that could have been drafted is decided like a refused draft
    assert lists(walked, "draft_row", "subtracted", "status") == [[1, -1, -1], [0.25, 1.0, 1.0], [0, 0, 8]]


def test_a_tree_asks_for_the_sums_after_a_refused_child(parts_backend):
    """Of the node it stopped at, and of nodes below it that it may come to; never of others."""
    tokens = torch.tensor([[-1, 1, 2, 3, 4, 5, 6]])
    tree = TREE | tables(7, 7) | noise(1)
    tree |= {"draft_tokens": tokens, "parents": torch.tensor([-1, 0, 0, 1, 1, 2, 2])}
    tree["p_of_drafts"] = refused(torch.ones(7), 1, 3, 5)
    tree["answers"] = torch.full((1, 7, 2), -1)
    walked = walk_tables(**tree)
    assert walked.requested_rows[0].tolist() == [[-1, -1], [0, 0], [-1, -1], [1, 1], [-1, -1], [2, 2], [-1, -1]]
    assert walked.requested_subtracted[0].tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert lists(walked, "tokens", "num_accepted", "row") == [[[-1, -1, -1]], [0], [-1]]
    tree["answers"][0, [1, 3, 5]] = 1 << 41  # of p and of q, so none of q is left once the tokens tried are off
    walked = walk_tables(**tree)
    assert lists(walked, "path", "draft_row", "subtracted") == [[[0, -1, -1]], [0], [1.0]]
    tree["answers"][0, 1, 1] = 1 << 42
    walked = walk_tables(**tree)  # the second child is accepted, and its second child refused
    assert lists(walked, "path", "draft_row", "subtracted") == [[[0, 2, -1]], [2], [1.0]]


@pytest.mark.parametrize("method", ["rejection", "traversal", "race"])
@pytest.mark.parametrize("kind", ["chains", "trees", "certain trees", "with replacement"])
def test_any_tables(parts_backend, method, kind):
    """Round by round: the same as on the CPU, whatever the tables say."""
    batch, nodes = (12 if parts_backend == "triton" else 100), 7
    draw = torch.Generator().manual_seed(len(method) + len(kind))
    slots = nodes - (kind == "chains")

    def some(high, *shape, dtype=INTS):
        return torch.randint(0, high, shape, dtype=dtype, generator=draw)

    rows, drafts = batch * nodes, batch * slots
    call = {
        "draft_tokens": some(9, batch, 2 * slots, dtype=torch.int64)[:, ::2] - 1, "vocab": 7, "method": method,
        "width": nodes, "row_status": some(16, rows), "winners": some(7, rows, dtype=torch.int64), **noise(batch),
        "request_index": some(batch + 2, batch) - 1, "temperature": (some(6, batch) > 0).float(),
    }  # fmt: skip
    if kind != "chains":
        parents = torch.stack([torch.zeros(batch).long()] + [some(node, batch) for node in range(1, nodes)], dim=1)
        call |= {"parents": parents.index_fill(1, torch.tensor([0]), -1), "width": 4}
        call["replacement"] = kind == "with replacement"
    elif method == "rejection":
        call |= {"draft_prob": some(5, batch, slots) / 4, "epsilon": some(2, batch) * 0.1}

    def law(count):
        """Of each draft; siblings that share a token share it."""
        whole, tokens = torch.rand(batch, count, 9, generator=draw) ** 2, call["draft_tokens"].unsqueeze(-1) + 1
        if kind == "chains":
            of_drafts = whole[:, :slots].gather(2, tokens).squeeze(-1)
            return torch.nn.functional.pad(of_drafts, (0, count - slots)).flatten()
        own = whole.gather(1, call["parents"].clamp(min=0).unsqueeze(-1).expand(whole.shape))
        return own.gather(2, tokens).flatten()

    if method != "race":
        call |= {"p_of_drafts": law(nodes), "row_stats": torch.randn(rows, 2, generator=draw)}
    if method != "race" and kind != "certain trees":
        call |= {
            "q_of_drafts": law(slots), "draft_row_status": some(16, drafts),
            "draft_row_stats": torch.randn(drafts, 2, generator=draw),
            "draft_row_indices": drafts - 1 - torch.arange(drafts),
        }  # fmt: skip
    answers = some(1 << 42, batch, nodes, 2, dtype=torch.int64)
    answers[..., 1] += 6 << 42  # more than all tokens tried have of q
    has_answers = "q_of_drafts" in call and (kind != "chains" or method == "traversal")
    rounds = 0
    call |= {"answers": torch.full_like(answers, -1)} if has_answers else {}
    while True:
        found = walk_tables(**call)
        with specdec_kernels.backend("cpu"):
            for x, expected in zip(found, walk_tables(**call), strict=True):
                assert (x is expected is None) or torch.equal(x, expected)
        if not has_answers or (found.requested_rows < 0).all():
            break
        call["answers"] = torch.where(found.requested_rows[..., :1] >= 0, answers, call["answers"])
        rounds += 1
    if batch == 100:  # of few requests some kinds of ends may be missing
        assert rounds > 0 or not has_answers
        assert len(set(found.num_accepted.tolist())) > 1
