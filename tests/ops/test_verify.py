"""verify_chain and verify_tree: what both say of rows, drafts and numbers that are none, and what neither touches."""

import pytest
import torch

from specdec_kernels import Sampling
from tests.ops.test_verify_chain import OPTIONS as CHAINS
from tests.ops.test_verify_tree import OPTIONS as TREES
from tests.ops.test_verify_tree import made
from tests.support.cases import UNTOUCHED, assert_same, chain_call, seeds
from tests.support.ops import verify_chain, verify_tree

METHODS = ({}, {"method": "race", "draft": None}, {"method": "block"})
GREEDY = {"temperature": 0.0}
BOTH = [(verify_chain, name) for name in CHAINS] + [(verify_tree, name) for name in TREES]
EVERY_CALL = pytest.mark.parametrize("op, name", BOTH, ids=[f"{op.__name__}, {name}" for op, name in BOTH])


def call_of(op, name, seed=23, **sizes):
    return chain_call(seed, **sizes) | CHAINS[name] if op is verify_chain else made(seed, TREES[name], **sizes)


def by_tree(draft_tokens, target, draft=None, method="rejection", **call):
    """The verdict of verify_tree, where each draft is the only child of the one before it."""
    tokens = torch.nn.functional.pad(draft_tokens, (1, 0), value=UNTOUCHED)  # the root's counts nowhere
    draft = None if draft is None else torch.nn.functional.pad(draft, (0, 0, 0, 1), value=torch.nan)  # the leaf's
    parents, method = torch.arange(-1, draft_tokens.shape[1]), {"block": "traversal"}.get(method, method)
    return verify_tree(tokens, target, draft, parents=parents, method=method, **call)


VERIFY = (verify_chain, by_tree)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("space", ["logits", "probs"])
@pytest.mark.parametrize("name", ["rejection", "race", "one-hot", "block", "block, one-hot"])
def test_a_chain_is_a_tree(name, space):
    """The same noise gives the same verdict, bit for bit."""
    call = chain_call(8, requests=96, slots=6, vocabulary=300, space=space) | CHAINS[name]
    chain, tree = verify_chain(**call), by_tree(**call)
    assert_same((tree.tokens, tree.num_accepted, tree.status), chain)
    depth = torch.arange(7)
    assert (tree.path == torch.where(depth <= tree.num_accepted[:, None], depth, -1)).all()


def verdicts(x, target, draft=None, **options):
    """What both ops return for one draft x, whose row and the next one are these."""
    rows = torch.tensor(target).expand(1, 2, -1)
    draft = None if draft is None or options.get("method") == "race" else torch.tensor(draft)[None, None]
    call = {"draft_tokens": torch.tensor([[x]]), "target": rows, "draft": draft, "seed": 1, "position": 0} | options
    return [verify(**call) for verify in VERIFY]


@pytest.mark.usefixtures("backend")
@pytest.mark.interpreted
class TestStatus:
    @pytest.mark.parametrize("bad", [torch.nan, torch.inf])
    @pytest.mark.parametrize("options", [*METHODS, GREEDY])
    def test_non_finite_logits(self, bad, options):
        for verdict in verdicts(-1, [0.0, bad, 1.0], **options):
            assert verdict.status.item() == 1
            assert verdict.tokens[0, 0] == 1 if bad == torch.inf else verdict.tokens[0, 0] in (0, 2)

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf])
    def test_non_finite_draft_logits(self, bad):
        row, draft = [0.0, 0.0, 0.0], [0.0, bad, 0.0]
        assert [verdict.status.item() for verdict in verdicts(0, row, draft)] == [1, 1]
        assert [verdict.status.item() for verdict in verdicts(3, row, draft)] == [5, 5]
        call = {
            "target": torch.tensor(row).expand(1, 2, 3),
            "draft": torch.tensor(draft)[None, None],
            "draft_prob": 0.5,
        }
        assert verify_chain(torch.tensor([[-1]]), **call, seed=1, position=0).status.item() == 1

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf, -0.5])
    def test_probabilities_that_are_none(self, bad):
        for verdict in verdicts(-1, [0.5, bad, 0.5], space="probs"):
            assert verdict.status.item() == 1
            assert verdict.tokens[0, 0] == 1 if bad == torch.inf else verdict.tokens[0, 0] in (0, 2)

    def test_minus_infinity_is_an_ordinary_logit(self):
        for seed in range(20):
            for verdict in verdicts(-1, [-torch.inf, 0.0, -torch.inf], seed=seed):
                assert (verdict.tokens[0, 0], verdict.status) == (1, 0)

    @pytest.mark.parametrize(
        "target, space", [([-torch.inf] * 3, "logits"), ([torch.nan] * 3, "logits"), ([0.0] * 3, "probs")]
    )
    @pytest.mark.parametrize("options", [*METHODS, GREEDY])
    def test_a_row_without_weight_gives_token_0(self, target, space, options):
        for verdict in verdicts(-1, target, space=space, **options):
            assert verdict.tokens[0, 0] == 0
            assert verdict.status & 1

    @pytest.mark.parametrize("draft, space", [([-torch.inf] * 3, "logits"), ([0.0] * 3, "probs")])
    def test_a_draft_row_without_weight_leaves_the_target(self, draft, space):
        target = [0.0, 1.0, 0.0] if space == "probs" else [-torch.inf, 0.0, -torch.inf]
        for verdict in verdicts(0, target, draft, space=space):
            assert verdict.tokens[0, 0] == 1
            assert verdict.status.item() == 1

    @pytest.mark.parametrize("method", ["rejection", "block"])
    def test_an_empty_residual_draws_from_the_target(self, method):
        """q covers p but x is no token of p: nothing is left to draw from but p."""
        for verdict in verdicts(2, [0.5, 0.5, 0.0], [0.5, 0.5, 0.0], space="probs", method=method):
            assert (verdict.num_accepted.item(), verdict.status.item()) == (0, 2)
            assert verdict.tokens[0, 0] in (0, 1)

    @pytest.mark.parametrize("options", [*METHODS, GREEDY])
    def test_tokens_out_of_range_are_rejected(self, options):
        tokens = torch.tensor([[x] for x in (3, -2, 2**40, -(2**40), -1)])
        call = {"target": torch.tensor([0.0, 1.0, 2.0]).expand(5, 2, -1), "draft": torch.zeros(5, 1, 3)} | options
        for verify in VERIFY:
            verdict = verify(tokens, **call, seed=seeds(5), position=0)
            assert verdict.status.tolist() == [4, 4, 4, 4, 0]
            assert not verdict.num_accepted.any()
            assert ((verdict.tokens[:, 0] >= 0) & (verdict.tokens[:, 0] < 3)).all()

    @pytest.mark.parametrize("bad", [torch.nan, -1.0])
    @pytest.mark.interpreted(False)
    def test_temperatures_out_of_range_are_greedy(self, bad):
        """In a tensor, which the host does not look into, they have a meaning and a status."""
        call = chain_call(17)
        for verify in VERIFY:
            verdict = verify(**call | {"temperature": torch.full((32,), bad)})
            expected = verify(**call | {"temperature": 0.0})
            assert_same(verdict[:-1], expected[:-1])
            assert (verdict.status == expected.status | 8).all()

    @pytest.mark.parametrize("name, bad, meant", [
        ("draft_prob", torch.nan, 1.0), ("draft_prob", 1.5, 1.0), ("draft_prob", -0.5, 0.0),
        ("epsilon", torch.nan, 0.0), ("epsilon", -0.5, 0.0),
    ])  # fmt: skip
    @pytest.mark.interpreted(False)
    def test_parameters_of_a_chain_out_of_range(self, name, bad, meant):
        call = chain_call(17) | {"temperature": 1.0}
        verdict, expected = (verify_chain(**call | {name: x}) for x in (torch.full((32,), bad), meant))
        assert_same(verdict[:-1], expected[:-1])
        assert (verdict.status == expected.status | 8).all()

    def test_a_draft_without_rows_has_no_temperature(self):
        call = chain_call(17, slots=0) | {"draft.sampling": Sampling(torch.full((32,), torch.nan))}
        assert not verify_chain(**call).status.any()

    @pytest.mark.parametrize("op, name", [(verify_chain, "rejection"), (verify_tree, "distinct")])
    def test_a_bad_request_harms_no_other(self, op, name):
        call = call_of(op, name)
        clean = op(**call)
        bad = torch.arange(32) % 3 == 0
        for rows in ("target", "draft"):
            call[rows][bad] = torch.nan
        call["draft_tokens"][bad] = 10**12
        verdict = op(**call)
        assert_same([got[~bad] for got in verdict], [expected[~bad] for expected in clean])
        assert (verdict.status[bad] & 1 == 1).all()
        assert ((verdict.tokens[bad, 0] >= 0) & (verdict.tokens[bad, 0] < 65)).all()


@pytest.mark.usefixtures("backend")
@EVERY_CALL
class TestNothingElseIsTouched:
    @pytest.mark.parametrize("space", ["logits", "probs"])
    def test_rows_that_decide_nothing(self, op, name, space):
        """Behind the first refusal, and off the path; block and traversal look further."""
        if "block" in name or "traversal" in name:
            return
        call = call_of(op, name, space=space)
        clean = op(**call)
        nodes = call["target"].shape[1]
        if op is verify_chain:
            read = torch.arange(nodes) <= clean.num_accepted[:, None]
            call["draft_tokens"][~read[:, :-1]] = 2**40
        else:
            read = torch.zeros(32, nodes + 1, dtype=torch.bool).scatter_(1, clean.path.long() % (nodes + 1), True)
            read = read[:, :-1]
            call["draft_tokens"][:, 0] = 2**40
        for rows in ("target", "draft"):
            if call[rows] is not None:
                call[rows][~read[:, : call[rows].shape[1]]] = torch.nan
        assert_same(op(**call), clean)


@pytest.mark.usefixtures("backend")
class TestRowsThatMeanNothing:
    def test_draft_row_of_the_slot_that_ended_the_chain(self):
        """With certain drafting a -1 ends the chain: its draft row means nothing."""
        call = chain_call(20)
        clean = verify_chain(**call)
        call["draft"][call["draft_tokens"] == -1] = torch.nan
        assert_same(verify_chain(**call), clean)

    def test_drafts_of_greedy_requests(self):
        call = chain_call(21)
        for verify in VERIFY:
            clean = verify(**call)
            spoilt = torch.where((call["temperature"] == 0)[:, None, None], torch.nan, call["draft"])
            assert_same(verify(**call | {"draft": spoilt}), clean)

    def test_from_probabilities_only_what_the_rule_meets(self):
        """Accepted slots read p(x) and q(x); NaN elsewhere in these rows is never seen."""
        call = chain_call(22, space="probs") | {"temperature": 1.0}
        clean = verify_chain(**call)
        accepted = torch.arange(4) < clean.num_accepted[:, None]
        for name in ("target", "draft"):
            rows = call[name][:, :4]
            keep = torch.zeros_like(rows, dtype=torch.bool)
            keep.scatter_(-1, call["draft_tokens"].clamp(0, 64).unsqueeze(-1), True)
            call[name][:, :4] = torch.where(accepted.unsqueeze(-1) & ~keep, torch.nan, rows)
        assert_same(verify_chain(**call), clean)


@pytest.mark.usefixtures("backend")
@EVERY_CALL
def test_types_and_no_requests(op, name):
    call = call_of(op, name)
    whole = op(**call)
    assert_same(op(**call | {"draft_tokens": call["draft_tokens"].int()}), whole)
    none = op(**{argument: x[:0] if isinstance(x, torch.Tensor) else x for argument, x in call.items()})
    for verdict in (whole, none):
        assert [part.dtype for part in verdict] == [torch.int64] + (len(verdict) - 1) * [torch.int32]
    assert [len(part) for part in none] == len(none) * [0]
