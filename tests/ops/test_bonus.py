"""OutputFormat.bonus: the token after the last draft comes with the call. It is as if its row held nothing else."""

import pytest
import torch

from specdec_kernels import InputPositions, LogitEdits, OutputFormat, Sampling
from tests.support.cases import assert_same, chain_call, poisoned, ragged
from tests.support.ops import verify_chain, verify_tree
from tests.support.trees import tree_call

B, K, V = 8, 3, 65
WORDS = -(-V // 32)
COUNTS = torch.tensor([3, 0, 2, 3, 1, 3, 0, 3])
MIXED = torch.tensor([1.0, 0.6, 0.0, 1.7]).repeat(2)
FILTERS = {"temperature": None, "sampling": Sampling(MIXED, top_k=20, top_p=0.9)}
PENALTIES = {
    "repetition": 1.3, "frequency": 0.5, "presence": torch.linspace(-1, 1, B),
    "pending": torch.arange(2 * B).view(B, 2) % V,
}  # fmt: skip


def allowed(generator):
    """A mask for each row of the target; everything is allowed in rows of given tokens."""
    mask = torch.randint(-(2**31), 2**31 - 1, (B, K + 1, WORDS), generator=generator, dtype=torch.int64).int()
    mask[:, -1] = -1
    return mask


METHODS = {
    "rejection": {},
    "by chance": {"draft_prob": torch.linspace(0.3, 1, B), "epsilon": 0.1},
    "race": {"method": "race", "draft": None},
    "block": {"method": "block"},
    "race, filtered and edited": {"method": "race", "draft": None, **FILTERS, "edits": LogitEdits(**PENALTIES)},
    "block, edited": {"method": "block", "edits": LogitEdits(**PENALTIES)},
}
FEW = pytest.mark.parametrize("method", ["rejection", "race"])


def calls(method, seed=1, space="logits"):
    """(an ordinary call whose last rows hold one token each, these tokens); drafts are often accepted, some are -1."""
    call = chain_call(seed, requests=B, slots=K, vocabulary=V, space=space) | METHODS[method]
    generator = torch.Generator().manual_seed(seed)
    bonus = torch.randint(0, V, (B,), generator=generator)
    one_hot = torch.nn.functional.one_hot(bonus, V).float()
    drafts = call["draft_tokens"]
    likely = call["target"][:, :-1].argmax(-1)
    drafts[::2] = likely[::2]
    for rows in (call["target"][::2, :-1], *([] if call["draft"] is None else [call["draft"][::2]])):
        rows.scatter_(-1, likely[::2, :, None], 1.0 if space == "probs" else 9.0)
    drafts[4, 1] = -1
    call["target"][:, -1] = one_hot if space == "probs" else one_hot.log()
    if space == "probs":
        call |= {name: call[name] / call[name].sum(-1, keepdim=True) for name in ("target", "draft")}
        call["temperature"] = None
    return call, bonus


def packed(call, counts=COUNTS):
    """Chains one after another, each with a row after its last draft: the ordinary call's last one."""
    last = torch.arange(B), counts
    target = call["target"].clone()
    target[last] = call["target"][:, -1]
    return ragged(call | {"target": target}, counts) | {"packing.max_drafts": K}


def without_last_rows(call, counts=None):
    """The call's target without the rows of given tokens: NaN where they would be, and all around."""
    if counts is None:
        target = call["target"].clone()
        target[:, -1] = torch.nan
        return call | {"target": poisoned(target)[:, :-1]}
    last = call["packing.cu_drafts"][1:] + torch.arange(B)
    kept = torch.ones(len(call["target"]), dtype=torch.bool)
    kept[last.long()] = False
    rows = torch.cat((call["target"][kept], torch.full((B, V), torch.nan)))
    return call | {"target": poisoned(rows)[:-B]}


LAYOUTS = pytest.mark.parametrize("layout", ["padded", "packed"])


def laid(method, layout):
    """(the ordinary call, that without the rows of given tokens, these tokens)."""
    call, bonus = calls(method)
    if isinstance(call.get("draft_prob"), torch.Tensor):
        call["draft_prob"] = call["draft_prob"][:, None]
    if layout == "padded":
        return call, without_last_rows(call), bonus
    call = packed(call)
    return call, without_last_rows(call, COUNTS), bonus


@pytest.mark.usefixtures("backend")
class TestBonus:
    @pytest.mark.costly
    @LAYOUTS
    @pytest.mark.interpreted
    @pytest.mark.parametrize("method", METHODS)
    def test_in_any_layout(self, method, layout):
        call, own, bonus = laid(method, layout)
        expected = verify_chain(**call)
        assert 0 < (expected.num_accepted == (COUNTS if layout == "packed" else K)).sum() < B
        assert_same(verify_chain(**own, output_format=OutputFormat(bonus=bonus)), expected)

    @LAYOUTS
    @pytest.mark.parametrize("method", METHODS)
    def test_lists_of_rows(self, method, layout):
        call, own, bonus = laid(method, layout)
        generator = torch.Generator().manual_seed(1)
        mask, spans = allowed(generator), torch.randint(0, 5, (B, K + 1, 1), generator=generator).int()
        spans[:, -1], spans[0, -2] = 0, 4
        bias = torch.tensor([3, 9, 20], dtype=torch.int32), torch.tensor([4.0, -2.0, 1.0])  # a span of 4 is too long
        without = mask[:, :-1], spans[:, :-1]
        if layout == "packed":
            kept, drafted = (torch.arange(K + 1) < ends[:, None] for ends in (COUNTS + 1, COUNTS))
            mask[torch.arange(B), COUNTS], spans[torch.arange(B), COUNTS] = -1, 0
            without = mask[drafted], spans[drafted]
            mask, spans = mask[kept], spans[kept]
        edits = [
            LogitEdits(allowed=rows, bias=(*bias, torch.cat((torch.zeros_like(ends), ends), -1)))
            for rows, ends in ((mask, spans), without)
        ]
        expected = verify_chain(**call | {"edits": edits[0]})
        assert (expected.status & 8).any()
        found = verify_chain(**own | {"edits": edits[1]}, output_format=OutputFormat(bonus=bonus))
        assert_same(found, expected)

    @FEW
    @pytest.mark.interpreted
    def test_by_index(self, method):
        """An idle request and one that points outside have no use for their tokens, which are not looked at."""
        call, bonus = calls(method)
        index = torch.tensor([0, -1, 2, 99, 4, 5, 6, 7])
        expected = verify_chain(**call, request_index=index)
        bonus[index == -1], bonus[index == 99] = 2**40, 2**40
        found = verify_chain(**without_last_rows(call), request_index=index, output_format=OutputFormat(bonus=bonus))
        assert_same(found, expected)

    @FEW
    @pytest.mark.interpreted
    def test_no_drafts(self, method):
        """The token alone, with no memory for rows; and with a stride of rows that are poison."""
        call, bonus = calls(method)
        call["draft_tokens"] = call["draft_tokens"][:, :0]
        call["draft"] = None if call["draft"] is None else call["draft"][:, :0]
        flat = {
            name: call[name] if call[name] is None else call[name].flatten(0, 1) for name in ("draft_tokens", "draft")
        }
        bounds = torch.zeros(B + 1, dtype=torch.int32)
        nothing = torch.full((1, V), torch.nan)
        for rows, more in (
            (nothing.expand(B, 1, V)[:, :0], {}),
            (torch.empty(B, 0, V), {}),
            (torch.empty(0, V), flat | {"packing.cu_drafts": bounds, "packing.max_drafts": 0}),
            (nothing[:0], flat | {"packing.cu_drafts": bounds, "packing.max_drafts": 2}),
        ):
            found = verify_chain(**call | {"target": rows} | more, output_format=OutputFormat(bonus=bonus))
            assert found.tokens[:, 0].tolist() == bonus.tolist()
            assert (found.tokens[:, 1:] == -1).all()
            assert not found.num_accepted.any()
            assert not found.status.any()

    @FEW
    @pytest.mark.interpreted
    def test_tokens_out_of_range(self, method):
        """Token 0 and a status where they are reached; elsewhere and for neighbours nothing."""
        call, bonus = calls(method)
        own, expected = without_last_rows(call), verify_chain(**call)
        bad = torch.tensor([V, 2**40, -1, -(2**33), V + 7, -9, bonus[6], bonus[7]])
        found = verify_chain(**own, output_format=OutputFormat(bonus=bad))
        reached = (expected.num_accepted == K) & (torch.arange(B) < 6)
        assert reached.any()
        assert torch.equal(found.num_accepted, expected.num_accepted)
        assert torch.equal(found.status, expected.status | 8 * reached.int())
        tokens = expected.tokens.clone()
        tokens[reached, K] = 0
        assert torch.equal(found.tokens, tokens)

    @FEW
    @pytest.mark.interpreted
    def test_cut_off(self, method):
        """A request with more drafts than there are places for has a row where it is cut off."""
        call, bonus = calls(method)
        call["draft_tokens"][:, :2] = call["target"][:, :2].argmax(-1)
        counts = torch.full((B,), K)
        call = packed(call, counts) | {"packing.max_drafts": 1}
        expected = verify_chain(**call)
        assert (expected.num_accepted == 1).any()
        assert (expected.status & 8).all()
        assert_same(verify_chain(**without_last_rows(call, counts), output_format=OutputFormat(bonus=bonus)), expected)


ORDINARY, PADDED, BONUS = laid("rejection", "padded")
FLAT, PACKED, _ = laid("rejection", "packed")
BY_ROWS = FLAT | {
    "draft_tokens": torch.zeros(len(FLAT["target"])).long(), "packing.cu_drafts": None,
    "packing.cu_rows": FLAT["packing.cu_drafts"] + torch.arange(B + 1, dtype=torch.int32),
}  # fmt: skip
FORM, SHORT = OutputFormat(bonus=BONUS), BONUS.int()
REFUSED = {
    "bonus": (verify_chain, PADDED | {"output_format": FORM}, [
        ({"output_format": OutputFormat(bonus=SHORT), "out": (None, SHORT, None)}, ValueError, ".*memory of its own"),
        ({"output_format": OutputFormat()}, ValueError, r"target: expected shape \[8, 4, V\]; got float32 \[8, 3"),
        ({"target": ORDINARY["target"]}, ValueError, r"target: expected shape \[8, 3, V\]; got float32 \[8, 4, 65\]"),
        ({"position": InputPositions(torch.zeros(B, K).int())}, ValueError,
         "position: expected an int or a tensor of int64 or int32 with output_format.bonus; got Input"),
    ]),
    "bonus, packed": (verify_chain, PACKED | {"output_format": FORM}, [
        (FLAT, ValueError, r"target: expected 15 rows \(D\); got float32 \[23, 65\]"),
        (BY_ROWS, ValueError, "packing.cu_rows: expected None with output_format.bonus; got"),
    ]),
    "bonus of trees": (verify_tree, tree_call(1, requests=B, nodes=4, vocabulary=V), [
        ({"output_format": FORM}, ValueError, r"output_format\.bonus: expected None for trees; got int64"),
    ]),
}  # fmt: skip
