"""request_index: state of requests by number, without a gather."""

import pytest
import torch

from specdec_kernels import Sampling, cutoff, logprobs, race_sample, race_topk
from tests.support.cases import chain_call, ragged
from tests.support.ops import overlap, residual, verify_chain, verify_tree
from tests.support.trees import tree_call

V, STATES = 33, 5
INDEX = torch.tensor([3, 0, 3, 4, 1, 1, 2], dtype=torch.int32)
BATCH = len(INDEX)
IDLE, OUTSIDE = -1, (-2, STATES, 2**31 - 1, -(2**31))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def uniform(*shape, seed):
    return torch.rand(*shape, generator=generator(seed))


def logits(*shape, seed):
    return 2 * torch.randn(*shape, V, generator=generator(seed))


def noise(*inner):
    shape = (STATES, *inner)
    return {
        "seed": torch.randint(-(2**63), 2**63 - 1, shape, generator=generator(1)),
        "position": torch.randint(0, 2**31 - 1, shape, generator=generator(2), dtype=torch.int32),
        "nonce": torch.randint(0, 9, shape, generator=generator(3)),
    }


def chain(**options):
    """What a batch row has, and what each state has."""
    rows = chain_call(1, requests=BATCH, slots=3, vocabulary=V)
    states = {"draft": logits(STATES, 3, seed=4), "temperature": torch.tensor([1.0, 0.5, 0.0, 1.7, 0.9]), **noise()}
    return {name: rows[name] for name in ("draft_tokens", "target")}, states | options


def tree(**options):
    rows = tree_call(1, requests=BATCH, nodes=5, vocabulary=V)
    states = {"draft": logits(STATES, 5, seed=4), "temperature": torch.tensor([1.0, 0.5, 0.0, 1.7, 0.9]), **noise()}
    return {name: rows[name] for name in ("draft_tokens", "target", "parents")}, states | options


def race(name, *inner, **options):
    states = {"temperature": uniform(STATES, *inner, seed=5), **noise(*inner)}
    return {name: logits(BATCH, *inner, seed=6)}, states | options


def pair(*inner, **options):
    states = {"draft": logits(STATES, *inner, seed=4), "temperature": uniform(STATES, *inner, seed=5)}
    return {"target": logits(BATCH, *inner, seed=6)}, states | options


def rows_alone(**more):
    filters = Sampling(
        torch.tensor([1.0, 0.7, 0.0, 1.3, 0.9]), torch.tensor([5, 0, 2, 0, 9]), torch.tensor([1.0, 0.9, 0.5, 0.7, 1.0]),
        torch.tensor([0.0, 0.05, 0.0, 0.0, 0.1]),
    )  # fmt: skip
    return {"rows": logits(BATCH, seed=6)} | more, {"sampling": filters}


# name -> (op, (what each batch row has, what each state has), what all share)
CALLS = {
    "verify_chain": (verify_chain, chain(), {}),
    "verify_chain race": (verify_chain, chain(draft=None), {"method": "race"}),
    "verify_chain randomised": (
        verify_chain,
        chain(draft_prob=uniform(STATES, seed=7), epsilon=0.1 * uniform(STATES, seed=8)),
        {},
    ),
    "verify_chain by slot": (verify_chain, chain(draft_prob=uniform(STATES, 3, seed=7), epsilon=0.1), {}),
    "verify_chain two laws": (
        verify_chain,
        chain(**{"draft.sampling": Sampling(2 * uniform(STATES, seed=9))}),
        {},
    ),
    "verify_tree": (verify_tree, tree(), {}),
    "verify_tree traversal": (verify_tree, tree(), {"method": "traversal"}),
    "verify_tree race": (verify_tree, tree(draft=None), {"method": "race"}),
    "race_sample": (race_sample, race("target"), {}),
    "race_sample rows": (race_sample, race("target", 4), {}),
    "race_sample shared": (race_sample, race("target", 4, temperature=uniform(4, seed=5), nonce=0), {}),
    "race_topk": (race_topk, race("draft"), {"k": 3}),
    "residual": (residual, pair(draft_prob=uniform(STATES, seed=7)), {}),
    "overlap": (overlap, pair(), {}),
    "cutoff": (cutoff, rows_alone(), {}),
    "logprobs": (logprobs, rows_alone(tokens=torch.arange(BATCH)), {"top": 2}),
}
# What an op finds of a row that is not read, where it is neither 0 nor -1.
NOTHING = {cutoff: (-torch.inf, -1, 0, 0, -torch.inf), logprobs: (-torch.inf, 0, -1, -torch.inf)}
EVERY_CALL = pytest.mark.parametrize("op, arguments, shared", CALLS.values(), ids=CALLS)


def indexed(states, index):
    """The states that an index names, as batch rows."""

    def taken(x):
        if isinstance(x, Sampling):
            return Sampling(*map(taken, x))
        return x[index.long()] if isinstance(x, torch.Tensor) and x.shape[0] == STATES else x

    return {name: taken(x) for name, x in states.items()}


def run(op, *arguments, **options):
    """All results of a call, with its status."""
    call = {name: value for part in arguments for name, value in part.items()} | options
    if op in (verify_chain, verify_tree):
        return [*op(**call)]
    rows = next(call[name] for name in ("target", "draft", "rows") if name in call)
    status = torch.full(rows.shape[:-1], -77, dtype=torch.int32)
    found = op(**call, status=status)
    return [*(found if isinstance(found, tuple) else (found,)), status]


@pytest.mark.usefixtures("backend")
@EVERY_CALL
class TestEveryOp:
    @pytest.mark.parametrize("wrong", [IDLE, *OUTSIDE])
    def test_idle_requests_and_indices_that_point_outside(self, op, arguments, shared, wrong):
        """Nothing of them is read: their rows are NaN, and there are no numbers for them."""
        rows, states = arguments
        left_out = torch.arange(BATCH) % 3 == 1
        rows = {name: x.clone() for name, x in rows.items()}
        for x in rows.values():
            x[left_out] = torch.nan if x.is_floating_point() else -1
        found = run(op, rows, states, shared, request_index=INDEX.masked_fill(left_out, wrong))
        for one, other in zip(found, run(op, rows, indexed(states, INDEX), shared), strict=True):
            assert torch.equal(one[~left_out], other[~left_out])
        *figures, status = (part[left_out] for part in found)
        assert (status == (0 if wrong == IDLE else 8)).all()
        if wrong != IDLE and op in (verify_chain, verify_tree, race_topk):
            for tokens in figures[: 2 if op is verify_tree else 1]:
                assert (tokens[..., 0] == 0).all()
                assert (tokens[..., 1:] == -1).all()
            figures = figures[-1:] if op is not race_topk else []
        nothing = NOTHING.get(op, len(figures) * [-1 if wrong == IDLE and op not in (residual, overlap) else 0])
        assert all((figure == value).all() for figure, value in zip(figures, nothing, strict=True))

    @pytest.mark.interpreted
    def test_no_requests(self, op, arguments, shared):
        rows, states = arguments
        none = {name: x[:0] for name, x in rows.items()}
        for part in run(op, none, states, shared, request_index=INDEX[:0]):
            assert part.shape[0] == 0


@pytest.mark.interpreted
@pytest.mark.usefixtures("backend")
class TestRagged:
    def test_draft_rows_of_the_wrong_shape(self):
        call = ragged(chain_call(1, requests=3, slots=2, vocabulary=V), torch.tensor([2, 0, 1]))
        for draft in (torch.zeros(4, 1, V), torch.zeros(4, 2, V)):
            call["draft"] = draft
            with pytest.raises(ValueError, match=r"draft: expected shape \[4, 3, 'V'\]"):
                verify_chain(**call, request_index=INDEX[:3], **{"packing.max_drafts": 3})
        call["draft"] = torch.zeros(3, V)
        with pytest.raises(ValueError, match=r"draft: expected 3 dimensions"):
            verify_chain(**call, request_index=INDEX[:3])


@pytest.mark.interpreted
@pytest.mark.usefixtures("backend")
class TestWithoutStates:
    """Where all requests have the same numbers an index only says whether a request is idle."""

    @pytest.mark.parametrize("index, token, status", [(7, None, 0), (0, None, 0), (-1, -1, 0), (-2, 0, 8)])
    def test_one_request(self, index, token, status):
        row = logits(1, seed=6)
        found, bits = run(
            race_sample, {"target": row, "seed": 5, "position": 2}, request_index=torch.tensor([index]).int()
        )
        expected = race_sample(row, seed=5, position=2) if token is None else torch.tensor([token])
        assert torch.equal(found, expected)
        assert bits.tolist() == [status]

    def test_one_entry_is_one_entry(self):
        """A tensor with one entry has one entry, even where it could be broadcast to all."""
        call = {"target": logits(1, seed=6), "seed": torch.tensor([5]), "position": 2}
        tokens, status = run(race_sample, call, request_index=torch.tensor([1]).int())
        assert (tokens.tolist(), status.tolist()) == ([0], [8])


@pytest.mark.usefixtures("backend")
class TestNoEntries:
    """There are no draft rows: every index points outside."""

    @pytest.mark.parametrize("index, status", [(0, 8), (-1, 0)])
    def test_of_a_draft(self, index, status):
        call = {"target": logits(1, seed=6), "draft": logits(0, seed=4)}
        *figures, bits = run(overlap, call, request_index=torch.tensor([index]).int())
        assert bits.tolist() == [status]
        assert not any(figure.any() for figure in figures)


def sample(**changes):
    rows, states = race("target")
    return race_sample(**rows | states | {"request_index": INDEX} | changes)


def chain_of(**changes):
    rows, states = chain()
    return verify_chain(**rows | states | {"request_index": INDEX} | changes)


def tree_of(**changes):
    rows, states = tree()
    return verify_tree(**rows | states | {"request_index": INDEX} | changes)


def pair_of(**changes):
    rows, states = pair()
    return overlap(**rows | states | {"request_index": INDEX} | changes)


BY_INDEX = [
    ({"request_index": INDEX.repeat_interleave(2)[::2]}, ValueError, "request_index: expected a contiguous tensor"),
    ({"temperature": torch.ones(4)}, ValueError,
     r"temperature: expected shape \[5\]; got float32 \[4\]|seed: expected shape \[4\]; got int64 \[5\]"),
]  # fmt: skip
REFUSED = {
    "rows by index": (sample, {}, [
        *BY_INDEX,
        ({"seed": 1, "position": 1, "nonce": 1}, ValueError, "seed: expected one seed per request"),
        ({"target": logits(7, 1, 1, seed=1)}, ValueError,
         r"request_index: expected None, or rows \[B, V\] or \[B, R, V\]; got float32 \[7, 1, 1, 33\]"),
    ]),
    "chains by index": (chain_of, {}, [
        *BY_INDEX,
        ({"draft": logits(5, 2, seed=1)}, ValueError, r"draft: expected shape \[5, 3, 'V'\]; got"),
    ]),
    "trees by index": (tree_of, {}, [
        *BY_INDEX, ({"draft": logits(5, 4, seed=1)}, ValueError, r"draft: expected shape \[5, 5, 'V'\]; got"),
    ]),
    "pairs by index": (pair_of, {}, [
        *BY_INDEX, ({"draft": logits(5, 1, seed=1)}, ValueError, r"draft: expected shape \['S', 'V'\]; got float32"),
    ]),
}  # fmt: skip
