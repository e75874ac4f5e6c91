"""LogitEdits in every op that reads target rows: they act as if the rows had come edited."""

import pytest
import torch

from specdec_kernels import LogitEdits, Sampling, cutoff, logprobs, race_sample, race_topk
from tests.support.cases import assert_same, chain_call, ragged, seeds
from tests.support.edits import Place, bias_of, bits_of, packed, random_allowed, random_places
from tests.support.ops import overlap, residual, verify_chain, verify_tree
from tests.support.trees import depths, tree_call

pytestmark = pytest.mark.usefixtures("backend")

V = 70  # no whole number of words
ROWS = 12
SAMPLING = Sampling(0.8, top_k=12, top_p=0.9, min_p=0.01)


def rows_of(*lead, seed=0, dtype=torch.float32):
    """Logits on a grid, so that they tie."""
    rows = 2 * torch.randn(*lead, V, generator=torch.Generator().manual_seed(seed))
    return ((4 * rows).round() / 4).to(dtype)


def edited_rows(rows, places, allowed):
    return torch.stack([place.edited(row, (), own) for row, place, own in zip(rows, places, allowed, strict=True)])


SEEN = ("prompt_mask", "output_mask", "output_counts")


def in_slots(edits, seed):
    """These edits, by indices to lists that lie in other places, beside lists that no row has."""
    generator = torch.Generator().manual_seed(seed)

    def moved(index, names):
        lead = getattr(edits, names[0]).shape[:-1]
        slots = torch.randperm(4 * lead.numel(), generator=generator)[: lead.numel()]
        lists = {name: getattr(edits, name).flatten(0, -2) for name in names}
        for name, own in lists.items():
            lists[name] = own.new_full((4 * len(own), own.shape[-1]), -1)
            lists[name][slots] = own
        return lists | {index: slots.view(lead).int()}

    return edits._replace(**moved("seen_index", SEEN), **moved("allowed_index", ["allowed"]))


NOISE = {"seed": seeds(ROWS), "position": 5}
ON_ROWS = {
    "race_sample": lambda rows, **options: race_sample(rows, **NOISE, **options),
    "race_topk": lambda rows, **options: race_topk(rows, 20, **NOISE, **options),
    "residual": lambda rows, **options: residual(rows, rows_of(ROWS, seed=1), **options),
    "overlap": lambda rows, **options: overlap(rows, rows_of(ROWS, seed=1), **options),
    "cutoff": cutoff,
    "logprobs": lambda rows, **options: logprobs(rows, seeds(ROWS), top=5, **options),
}


# Changes nothing, but the rows count as edited: no epsilon accepts a token of logit -inf.
EVERYTHING = LogitEdits(allowed=torch.full((1, 3), -1, dtype=torch.int32))


class TestRows:
    @pytest.mark.parametrize("op", ON_ROWS.values(), ids=ON_ROWS)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_act_as_edited_rows(self, op, dtype):
        """Whatever is edited, each row as itself."""
        rows, places = rows_of(ROWS, dtype=dtype), random_places(ROWS, V, seed=1)
        allowed, sets = random_allowed(ROWS, vocabulary=V, seed=2)
        edits, by_hand = packed(places, V, allowed), edited_rows(rows, places, sets)
        for options in ({"sampling": Sampling(1.3)}, {"sampling": Sampling(0.0)}, {"sampling": SAMPLING}):
            status, wanted = (torch.full((ROWS,), -77, dtype=torch.int32) for _ in range(2))
            expected = op(by_hand, edits=EVERYTHING, status=wanted, **options)
            for own in (edits, in_slots(edits, seed=3)):
                assert_same(op(rows, edits=own, status=status, **options), expected)
                assert torch.equal(status, wanted)

    def test_leading_dimensions_and_entries(self):
        """Rows [B, R, V] of entries: masks of what is allowed are the row's own, all else is the entry's."""
        index = torch.tensor([2, -1, 0, 2, 4], dtype=torch.int32)
        rows, places = rows_of(5, 2), random_places(6, V, seed=3)
        allowed, sets = random_allowed(5, 2, vocabulary=V, seed=4)
        edits = packed(places, V)

        def shaped(x):
            return x.unflatten(0, (3, 2)) if isinstance(x, torch.Tensor) else x

        edits = LogitEdits(allowed, edits.bias, *(shaped(x) for x in edits[2:]))
        noise = {"seed": torch.arange(6).view(3, 2), "position": 3}
        status = torch.empty(5, 2, dtype=torch.int32)
        found = race_sample(rows, request_index=index, edits=edits, status=status, **noise)
        for b, entry in enumerate(index.tolist()):
            for r in range(2):
                if not 0 <= entry < 3:
                    assert (found[b, r], status[b, r]) == ((-1, 0) if entry == -1 else (0, 8))
                    continue
                row = places[2 * entry + r].edited(rows[b, r], (), sets[2 * b + r])
                assert found[b, r] == race_sample(row, seed=2 * entry + r, position=3)

    def test_shared_by_broadcasting(self):
        """One mask for all rows, numbers for all rows, bias by row."""
        place = Place({3: 1.5, 60: -1.0}, 1.5, 0.25, 0.5, [1, 2], [3, 4, 4])
        one = packed([place], V)
        rows = rows_of(3, 4)
        wide = torch.tensor([0, 2], dtype=torch.int32).expand(3, 4, 2)
        edits = LogitEdits(None, (*one.bias[:2], wide), 1.5, 0.25, 0.5, *one[5:8])
        found = race_sample(rows, seed=torch.arange(12).view(3, 4), position=0, edits=edits)
        by_hand = torch.stack([place.edited(row) for row in rows.view(-1, V)]).view(rows.shape)
        assert torch.equal(found, race_sample(by_hand, seed=torch.arange(12).view(3, 4), position=0))

    def test_nothing_given_changes_nothing(self):
        rows = rows_of(ROWS)
        plain = race_sample(rows, **NOISE)
        state = packed(random_places(ROWS, V, seed=5), V)
        nothing = LogitEdits(
            prompt_mask=state.prompt_mask, output_mask=state.output_mask, output_counts=state.output_counts
        )
        for edits in (LogitEdits(), nothing, LogitEdits(bias=bias_of([{}] * ROWS)), packed([Place()] * ROWS, V)):
            assert torch.equal(race_sample(rows, edits=edits, **NOISE), plain)
        probs = rows.softmax(-1)
        plain = race_sample(probs, space="probs", **NOISE)
        for edits in (LogitEdits(), nothing, LogitEdits(pending=torch.ones(ROWS, 2, dtype=torch.int64))):
            assert torch.equal(race_sample(probs, space="probs", edits=edits, **NOISE), plain)


class Chain:
    """A verify_chain call with edits, and the same with each row edited by hand along the drafts."""

    def __init__(self, seed, requests=24, slots=4, **options):
        call = chain_call(seed, requests=requests, slots=slots, vocabulary=V) | options
        call["target"] = (4 * call["target"]).round() / 4
        self.places = random_places(requests, V, seed)
        self.allowed, sets = random_allowed(requests, slots + 1, vocabulary=V, seed=seed)
        self.sets = [sets[b * (slots + 1) : (b + 1) * (slots + 1)] for b in range(requests)]
        self.call, self.edits = call, packed(self.places, V, self.allowed)

    def rows(self):
        rows = []
        for target, drafts, place, sets in zip(
            self.call["target"], self.call["draft_tokens"].tolist(), self.places, self.sets, strict=True
        ):
            rows.append(torch.stack([place.edited(row, drafts[:j], sets[j]) for j, row in enumerate(target)]))
        return torch.stack(rows)

    def by_hand(self):
        return self.call | {"target": self.rows(), "edits": EVERYTHING}


RACE = {"draft": None, "method": "race"}


class TestChains:
    @pytest.mark.parametrize("options", [
        {}, {"draft": None}, RACE, {"method": "block"}, {"epsilon": 0.1}, {"draft_prob": 0.7},
        {"temperature": None, "sampling": SAMPLING}, RACE | {"temperature": None, "sampling": SAMPLING},
    ])  # fmt: skip
    def test_act_as_edited_rows(self, options):
        """The row of each slot is edited as the drafts before it have it."""
        for seed in (1, 2):
            chain = Chain(seed, **options)
            expected = verify_chain(**chain.by_hand())
            assert expected.num_accepted.max() > 1
            for edits in (chain.edits, in_slots(chain.edits, seed=4)):
                assert_same(verify_chain(**chain.call, edits=edits), expected)

    @pytest.mark.parametrize("options", [{}, RACE])
    def test_ragged(self, options):
        """One mask for each row, or for each request."""
        chain = Chain(4, **options)
        counts = torch.arange(24) % 5
        call = ragged(chain.call | {"edits": chain.edits}, counts)
        allowed = torch.cat([own[: n + 1] for own, n in zip(chain.allowed, counts, strict=True)])
        expected = verify_chain(**ragged(chain.by_hand(), counts) | {"edits": None})
        assert_same(verify_chain(**call | {"edits": chain.edits._replace(allowed=allowed)}), expected)
        indexed = in_slots(chain.edits, seed=5)
        index = torch.cat([own[: n + 1] for own, n in zip(indexed.allowed_index, counts, strict=True)])
        assert_same(verify_chain(**call | {"edits": indexed._replace(allowed_index=index)}), expected)
        shared = chain.edits._replace(allowed=chain.allowed[:, 0])
        drafts = torch.where(torch.arange(4) < counts[:, None], chain.call["draft_tokens"], -1)
        expected = verify_chain(**chain.call | {"draft_tokens": drafts, "edits": shared})
        indexed = in_slots(shared, seed=5)
        for edits in (
            shared._replace(allowed=shared.allowed[:, None]),
            indexed._replace(allowed_index=indexed.allowed_index[:, None]),
        ):
            assert torch.equal(verify_chain(**call | {"edits": edits}).tokens, expected.tokens)

    @pytest.mark.interpreted
    def test_masks_of_all_rows_one_after_the_other(self):
        """[B (K + 1), words], of chains and of trees; where entries have masks, as many are those of the entries."""
        allowed, _ = random_allowed(3, 4, vocabulary=V, seed=7)
        drafts, rows = torch.tensor([[1, 2, 3]]).expand(3, 3), rows_of(3, 4)
        call = {"target": rows, "method": "race", "temperature": 0.0, "seed": seeds(3), "position": 0}
        flat, expected = (
            LogitEdits(allowed=allowed.view(12, -1)),
            verify_chain(drafts, **call, edits=LogitEdits(allowed=allowed)),
        )
        assert_same(verify_chain(drafts, **call, edits=flat), expected)
        nodes = {"draft_tokens": torch.nn.functional.pad(drafts, (1, 0)), "parents": torch.tensor([-1, 0, 0, 1])}
        assert_same(verify_tree(**nodes, **call, edits=flat), verify_tree(**nodes, **call, edits=LogitEdits(allowed)))
        entries = call | {"request_index": torch.tensor([7, 0, 11], dtype=torch.int32), "seed": seeds(12)}
        expected = [race_sample(rows[b, 0], seed=e, position=0, temperature=0.0, edits=LogitEdits(flat.allowed[e]))
                    for b, e in enumerate((7, 0, 11))]  # fmt: skip
        assert verify_chain(drafts, **entries, edits=flat).tokens[:, 0].tolist() == [token.item() for token in expected]

    def test_bias_by_row(self):
        """A span for each row, in memory in any order."""
        chain = Chain(5, **RACE)
        dictionaries = [place.bias for place in random_places(24 * 5, V, seed=9)]
        tokens, values, cu = bias_of(dictionaries)
        spans = torch.stack([cu[:-1], cu[1:]], -1).view(24, 5, 2)
        chain.edits = chain.edits._replace(bias=(tokens, values, spans))
        found = verify_chain(**chain.call, edits=chain.edits)
        rows = []
        for b, place in enumerate(chain.places):
            drafts = chain.call["draft_tokens"][b].tolist()
            for j, row in enumerate(chain.call["target"][b]):
                place.bias = dictionaries[5 * b + j]
                rows.append(place.edited(row, drafts[:j], chain.sets[b][j]))
        assert_same(found, verify_chain(**chain.call | {"target": torch.stack(rows).view(24, 5, V)}))

    @pytest.mark.interpreted
    def test_a_bad_span_of_a_row(self):
        """It sets status 8 if its row decided something, and is no bias."""
        target = torch.full((1, 3, V), -9.0)
        target[..., 5] = 9.0
        spans = torch.tensor([[[0, 1], [1, 1], [1, 0]]], dtype=torch.int32)
        edits = LogitEdits(bias=(torch.tensor([7], dtype=torch.int32), torch.tensor([1.0]), spans))
        for drafts, status in (([5, 5], 8), ([5, 6], 0)):
            for options in ({}, {"method": "race"}):
                found = verify_chain(torch.tensor([drafts]), target, edits=edits, seed=1, position=0, **options)
                assert (found.status.item(), found.tokens[0, 0].item()) == (status, 5)
            tree = {"parents": torch.tensor([-1, 0, 1]), "edits": edits, "seed": 1, "position": 0, "method": "race"}
            assert verify_tree(torch.tensor([[-1, *drafts]]), target, **tree).status.item() == status

    @pytest.mark.parametrize("options", [{}, RACE])
    def test_request_index(self, options):
        """State by entry; masks of the rows stay with the rows."""
        chain = Chain(6, **options)
        index = torch.randperm(24, generator=torch.Generator().manual_seed(0)).int()
        index[3], index[5] = -1, 24
        batch = {name: chain.call[name] for name in ("draft_tokens", "target")}
        at = index.long().clamp(0, 23)
        call = chain.call | {name: x[at] for name, x in batch.items()}
        found = verify_chain(**call, edits=chain.edits._replace(allowed=chain.allowed[at]), request_index=index)
        expected = verify_chain(**chain.call, edits=chain.edits)
        live = (index >= 0) & (index < 24)
        assert_same([x[live] for x in found], [x[at][live] for x in expected])
        assert (found.num_accepted[3], found.status[3], found.status[5]) == (-1, 0, 8)
        shared = chain.edits._replace(allowed=chain.allowed[:, 0])  # of entries, as everything else
        expected = verify_chain(**chain.call, edits=shared)
        for edits in (shared, in_slots(shared, seed=4)):
            found = verify_chain(**call, edits=edits, request_index=index)
            assert_same([x[live] for x in found], [x[at][live] for x in expected])

    @pytest.mark.interpreted
    @pytest.mark.parametrize("index, token, status", [(2, 7, 0), (3, 0, 8), (100_000, 0, 8)])
    def test_entries_known_by_masks_alone(self, index, token, status):
        """With plain numbers everywhere, the masks say how many entries there are."""
        edits = LogitEdits(allowed=bits_of([{5}, {6}, {7}], V))
        call = {"request_index": torch.tensor([index], dtype=torch.int32), "seed": 7, "position": 0, "method": "race"}
        found = verify_chain(torch.empty(1, 0, dtype=torch.int64), rows_of(1, 1), edits=edits, **call)
        assert (found.tokens.item(), found.status.item()) == (token, status)

    def test_a_forbidden_token_is_never_accepted(self):
        """Even if epsilon would accept everything."""
        target, draft = rows_of(64, 2), rows_of(64, 1, seed=2)
        forbidden = LogitEdits(
            bias=bias_of([{11: -float("inf")}] * 64), allowed=bits_of([set(range(V)) - {12}] * 64, V)
        )
        for token in (11, 12):
            call = {"draft_tokens": torch.full((64, 1), token), "target": target, "draft": draft, "position": 0}
            found = verify_chain(**call, edits=forbidden, epsilon=1.0, seed=seeds(64))
            assert (found.num_accepted == 0).all()
            assert not (found.tokens == token).any()
            assert (verify_chain(**call, epsilon=1.0, seed=seeds(64)).num_accepted == 1).all()


class TestTrees:
    @pytest.mark.parametrize("options", [
        {}, {"draft": None}, RACE, {"replacement": True}, {"method": "traversal"},
        {"method": "traversal", "draft": None},
        {"temperature": None, "sampling": SAMPLING}, RACE | {"temperature": None, "sampling": SAMPLING},
    ])  # fmt: skip
    def test_act_as_edited_rows(self, options):
        """The row of each node is edited as the path to it has it."""
        requests, nodes = 24, 9
        for seed in (1, 2):
            call = tree_call(seed, requests=requests, nodes=nodes, vocabulary=V) | options
            call["target"] = (4 * call["target"]).round() / 4
            for b, node in torch.cartesian_prod(torch.arange(requests), torch.arange(1, nodes)).tolist():
                parent, token = call["parents"][b, node], call["draft_tokens"][b, node]
                if parent >= 0 and 0 <= token < V:
                    call["target"][b, parent, token] += 2  # so that paths are long
            places = random_places(requests, V, seed)
            allowed, sets = random_allowed(requests, nodes, vocabulary=V, seed=seed)
            rows = torch.stack([
                place.edited(call["target"][b, node], self.path(call, b, node), sets[b * nodes + node])
                for b, place in enumerate(places) for node in range(nodes)
            ]).view(requests, nodes, V)  # fmt: skip
            expected = verify_tree(**call | {"target": rows})
            assert expected.num_accepted.max() > 2
            edits = packed(places, V, allowed)
            for own in (edits, in_slots(edits, seed=6)):
                assert_same(verify_tree(**call, edits=own), expected)

    @staticmethod
    def path(call, b, node):
        """The drafts from the root's child to the node."""
        parents, tokens = call["parents"][b].tolist(), call["draft_tokens"][b].tolist()
        if depths(parents)[node] < 0:
            return []
        found = []
        while node > 0:
            found.append(tokens[node])
            node = parents[node]
        return found


def greedy(row, place, **options):
    """The argmax of one row."""
    edits = packed([place], V) if isinstance(place, Place) else place
    return race_sample(
        torch.tensor([row + [-100.0] * (V - len(row))]), seed=1, position=0, temperature=0.0, edits=edits, **options
    ).item()


@pytest.mark.interpreted
class TestPenalties:
    """What each of them does, on rows small enough to see it."""

    def test_each_step(self):
        seen = {"prompt": [0], "output": [0]}
        assert greedy([4.0, 3.0], Place(repetition=2.0, **seen)) == 1
        assert greedy([4.0, 3.0], Place(repetition=1.25, **seen)) == 0
        assert greedy([-3.0, -4.0], Place(repetition=2.0, prompt=[0])) == 1  # negative logits fall, too
        assert greedy([3.0, 4.0], Place(repetition=0.5, prompt=[0])) == 0  # below 1 it rewards
        assert greedy([4.0, 3.5], Place(frequency=0.25, output=[0])) == 0
        assert greedy([4.0, 3.5], Place(frequency=0.25, output=[0, 0, 0])) == 1
        assert greedy([4.0, 3.5], Place(presence=0.75, output=[0, 0, 0])) == 1
        assert greedy([4.0, 3.5], Place(presence=0.75, frequency=0.25, prompt=[0])) == 0  # of outputs alone
        assert greedy([3.0, 3.5], Place(frequency=-0.5, output=[0, 0])) == 0
        assert greedy([4.0, 3.5], Place(bias={1: 0.75})) == 1
        assert greedy([4.0, 3.5], Place(bias={0: -float("inf")})) == 1
        assert greedy([4.0, 3.5], Place(bias={0: float("nan")})) == 1
        assert greedy([4.0, 3.5], Place(bias={1: float("inf")})) == 1
        assert greedy([4.0, 3.5], Place(bias={1: 4.0}, repetition=2.0, prompt=[1])) == 0  # bias comes first
        assert greedy([1.75, -1.0], Place(bias={1: 4.0}, repetition=2.0, prompt=[1])) == 0  # and decides about the sign

    def test_extreme_bias_is_no_bad_logit(self):
        status = torch.full((1,), -77, dtype=torch.int32)
        for value in (float("inf"), -float("inf"), float("nan")):
            greedy([4.0, 3.5], Place(bias={1: value}), status=status)
            assert status.item() == 0

    def test_order_of_two_steps(self):
        """Repetition scales what bias made of a logit, and the grammar has the last word."""
        place = Place({0: -1.0, 2: float("inf")}, 2.0, 0.5, 0.25, [], [0, 0])
        z = place.edited(torch.tensor([5.0, 1.0, 0.0]), allowed={0, 1})
        assert z.tolist() == [5.0 / 2 - 1.0 / 2 - 1.0 - 0.25, 1.0, -float("inf")]
        edits = packed([place], V)._replace(allowed=bits_of([{0, 1}], V))
        assert greedy([5.0, 1.0, 0.0], edits) == 1
        assert greedy([5.0, 0.5, 0.0], edits) == 0

    def test_drafts_count_as_often_as_they_stand(self):
        """A token drafted twice counts twice, in the third row; the last output token is not counted again."""
        rows = torch.full((1, 3, V), -100.0)
        rows[..., 0], rows[..., 1] = 4.0, 3.25
        place = Place(frequency=0.3, output=[0])
        call = {"target": rows, "method": "race", "temperature": 0.0, "seed": 1, "position": 0}
        found = verify_chain(torch.tensor([[0, 0]]), **call, edits=packed([place], V))
        assert found.tokens.tolist() == [[0, 0, 1]]  # 3.7, 3.4, then 3.1 < 3.25
        found = verify_chain(torch.tensor([[1, 0]]), **call, edits=packed([place], V))
        assert found.tokens.tolist() == [[0, -1, -1]]

    def test_pending_counts_as_output(self):
        for dtype in (torch.int32, torch.int64):
            one = packed([Place(frequency=0.3, presence=0.1, output=[0])], V)
            pending = one._replace(pending=torch.tensor([[-1, 0, 0, -1]], dtype=dtype))
            three = packed([Place(frequency=0.3, presence=0.1, output=[0, 0, 0])], V)
            for second in (2.95, 3.05, 3.15):
                assert greedy([4.0, second], pending) == greedy([4.0, second], three)
            assert greedy([4.0, 3.05], pending) == 1
            assert greedy([4.0, 3.05], one) == 0

    def test_counts_end(self):
        """At 2**31 - 1, and a bit counts as one at least."""
        edits = packed([Place(frequency=2.0**-29, output=[0])], V)
        full = edits._replace(output_counts=torch.full((1, V), 2**31 - 1, dtype=torch.int32))
        for pending in (1, 300):
            more = full._replace(pending=torch.zeros(1, pending, dtype=torch.int64))
            assert greedy([4.0, 0.25], more) == 1  # 4 - 4
            assert greedy([4.0, -(2.0**-22)], more) == 0
        none = edits._replace(output_counts=torch.full((1, V), -5, dtype=torch.int32), frequency=1.0)
        assert greedy([4.0, 3.5], none) == 1
        assert greedy([4.0, 2.5], none) == 0

    def test_masks_alone(self):
        """Repetition and presence need no counts."""
        mask = bits_of([{0}], V)
        assert greedy([4.0, 3.5], LogitEdits(presence=0.75, output_mask=mask)) == 1
        assert greedy([4.0, 3.5], LogitEdits(repetition=2.0, prompt_mask=mask)) == 1
        assert greedy([4.0, 3.5], LogitEdits(repetition=2.0, output_mask=mask)) == 1


INT = torch.int32
WORDS = (V + 31) // 32
MASKS = torch.full((3, WORDS), -1, dtype=INT)
TOKENS, VALUES, ENDS = seeds(2).int(), torch.zeros(2), torch.tensor([0, 1, 2, 2], dtype=INT)
WRONG = [
    (tuple(LogitEdits()), TypeError, "edits: expected a LogitEdits; got tuple"),
    (LogitEdits(allowed=MASKS[:, 1:]), ValueError, "edits.allowed: expected 3 words or more in the last dim"),
    (LogitEdits(allowed=MASKS[0, 0]), ValueError, "edits.allowed: expected 3 words or more in the last dim"),
    (LogitEdits(allowed=MASKS.repeat(1, 2)[:, ::2]), ValueError, "edits.allowed: expected unit stride"),
    (LogitEdits(allowed_index=seeds(3).int()), ValueError,
    "edits.allowed: expected masks beside allowed_index; got None"),
    (LogitEdits(allowed=MASKS, allowed_index=seeds(3)), TypeError, "edits.allowed_index: expected a tensor of int32"),
    (LogitEdits(allowed=MASKS, allowed_index=TOKENS[0]), ValueError, r"edits.allowed_index: expected shape \[3\]"),
    (LogitEdits(bias=5), TypeError, r"edits.bias: expected \(tokens, values, cu\); got 5"),
    (LogitEdits(bias=(TOKENS, VALUES)), TypeError, r"edits.bias: expected \(tokens, values, cu\); got tuple"),
    (LogitEdits(bias=(TOKENS, VALUES, ENDS[:3].expand(3, 3))), ValueError, r"edits.bias\[2\]: expected .*\[3, 2\]"),
    (LogitEdits(bias=(TOKENS[:0], VALUES[:0], MASKS)), ValueError,
    r"edits.bias\[2\]: expected shape \[4\] or \[3, 2\]"),
    (LogitEdits(bias=(TOKENS, VALUES, ENDS.repeat(2)[::2])), ValueError, r"edits.bias\[2\]: expected unit stride"),
    (LogitEdits(bias=(TOKENS[:0], VALUES[:0], ENDS.repeat(2)[::2])), ValueError,
    r"edits.bias\[2\]: expected unit stride"),
    (LogitEdits(repetition=0.0), ValueError, "edits.repetition: expected a number more than 0; got 0"),
    (LogitEdits(repetition=-1.0), ValueError, "edits.repetition: expected a number at least 0 and finite; got -1.0"),
    (LogitEdits(frequency=float("nan")), ValueError, "edits.frequency: expected a finite number; got nan"),
    (LogitEdits(presence=-float("inf")), ValueError, "edits.presence: expected a finite number; got -inf"),
    (LogitEdits(presence="1"), TypeError, "edits.presence: expected a float"),
    (LogitEdits(prompt_mask=MASKS[:, 1:]), ValueError, "edits.prompt_mask: expected 3 words or more in the last dim"),
    (LogitEdits(output_mask=MASKS.repeat(1, 2)[:, ::2]), ValueError, "edits.output_mask: expected unit stride"),
    (LogitEdits(seen_index=seeds(3).int()), ValueError,
    "edits.prompt_mask: expected masks beside seen_index; got None"),
    (LogitEdits(presence=0.5, repetition=1.2, prompt_mask=MASKS.repeat(2, 1)[:4], output_mask=MASKS,
                seen_index=seeds(3).int()), ValueError, r"edits.output_mask: expected shape \[4, 3\]"),
    (LogitEdits(output_mask=MASKS, seen_index=seeds(3)), TypeError, "edits.seen_index: expected a tensor of int32"),
    (LogitEdits(output_counts=torch.zeros(3, V, dtype=INT)), ValueError,
    "edits.output_mask: expected a mask beside output"),
    *(
        (LogitEdits(output_mask=MASKS, output_counts=torch.zeros(3, count, dtype=INT)), ValueError,
         "edits.output_counts: expected 70 counts in the last")
        for count in (V - 1, V + 26)
    ),
    (LogitEdits(output_mask=MASKS, frequency=1.0), ValueError,
     "edits.output_counts: expected counts beside output_mask and frequency; got None"),
    (LogitEdits(pending=TOKENS[0]), ValueError, "edits.pending: expected any number of tokens in the last dimension"),
    (LogitEdits(presence=1.0, pending=torch.zeros(3, 1, dtype=INT, device="meta")), ValueError,
     "edits.pending: expected a tensor on cpu"),
]  # fmt: skip
REFUSED = {
    "edits of overlap": (overlap, {"target": rows_of(3), "draft": rows_of(3)}, [
        ({"target": rows_of(3).requires_grad_(), "edits": LogitEdits(allowed=MASKS)}, ValueError,
         "edits: expected None where"),
        ({"edits": LogitEdits(presence=torch.ones(3, requires_grad=True))}, ValueError, "edits: expected no gradient"),
    ]),
    "edits": (
        race_sample, {"target": rows_of(3), "seed": seeds(3), "position": 0},
        [({"edits": edits}, error, message) for edits, error, message in WRONG] + [
            ({"space": "probs", "edits": LogitEdits(presence=x)}, ValueError, "edits: expected None with space='probs'")
            for x in (1.0, 1e-60)
        ] + [
            ({"space": "probs", "edits": LogitEdits(allowed=MASKS)}, ValueError,
             "edits: expected None with space='probs'"),
            ({"draft_map": seeds(V).int(), "edits": LogitEdits(allowed=MASKS)}, ValueError,
             "edits: expected None beside draft_map"),
            ({"target": rows_of(1), "seed": 1, "edits": LogitEdits(allowed=MASKS[:1], allowed_index=TOKENS[0])},
            ValueError,
             r"edits.allowed_index: expected shape \[1\]; got int32 \[\]"),
        ],
    ),
}  # fmt: skip


class TestBadInput:
    @pytest.mark.interpreted
    def test_status_of_a_request(self):
        """Of chains and trees: that of what is the request's own."""
        edits = LogitEdits(
            presence=torch.tensor([0.5, torch.nan, 0.5, 0.5]), pending=torch.tensor([[-1], [1], [V], [-2]])
        )
        call = {"target": rows_of(4, 3), "edits": edits, "seed": seeds(4), "position": 0}
        assert verify_chain(torch.ones(4, 2, dtype=torch.int64), **call).status.tolist() == [0, 8, 8, 8]
        tree = {"parents": torch.tensor([-1, 0, 0])} | call
        assert verify_tree(torch.ones(4, 3, dtype=torch.int64), **tree).status.tolist() == [0, 8, 8, 8]

    @pytest.mark.interpreted
    def test_values_that_are_no_logits(self):
        """A NaN or +inf that a mask forbids is not met; one that is only penalised is."""
        rows = rows_of(4)
        rows[0, 3], rows[1, 3], rows[2, 3], rows[3, 3] = torch.nan, torch.inf, torch.nan, torch.inf
        allowed = bits_of([set(range(V)) - {3}] * 2 + [range(V)] * 2, V)
        status = torch.empty(4, dtype=INT)
        edits = LogitEdits(allowed=allowed, presence=0.5, output_mask=bits_of([{3}] * 4, V))
        found = race_sample(rows, seed=seeds(4), position=0, edits=edits, status=status)
        assert status.tolist() == [0, 0, 1, 1]
        assert found[3] == 3


@pytest.mark.interpreted
def test_indices_of_no_list(backend):
    """A token that is far ahead, but forbidden or penalised where an index says so."""
    rows = torch.zeros(5, 1, V)
    rows[..., 40], rows[..., 3] = 99.0, 50.0
    index = torch.tensor([0, 1, -1, 2, -5], dtype=torch.int32)
    masks = bits_of([set(range(V)) - {40}, range(V)], V)
    seen = LogitEdits(repetition=9.0, prompt_mask=bits_of([[40], []], V), seen_index=index)
    counted = LogitEdits(presence=70.0, output_mask=bits_of([[40], []], V), seen_index=index)
    root = {"draft_tokens": torch.full((5, 1), -1), "parents": torch.tensor([-1])}
    for edits in (LogitEdits(masks, allowed_index=index), seen, counted):
        call = {"seed": seeds(5), "position": 0, "temperature": 0.0}
        of_rows = edits._replace(allowed_index=None if edits.allowed_index is None else index[:, None])
        chain = verify_chain(torch.empty(5, 0).long(), rows, method="race", edits=edits, **call)
        tree = verify_tree(root["draft_tokens"], rows, parents=root["parents"], method="race", edits=edits, **call)
        assert chain.tokens.flatten().tolist() == tree.tokens[:, 0].tolist() == [3, 40, 40, 40, 40]
        assert chain.status.tolist() == tree.status.tolist() == [0, 0, 0, 8, 8]
        if of_rows.allowed_index is not None:
            chain = verify_chain(torch.empty(5, 0).long(), rows, method="race", edits=of_rows, **call)
            assert chain.tokens.flatten().tolist() == [3, 40, 40, 40, 40]
        status = torch.empty(5, dtype=torch.int32)
        assert race_sample(rows[:, 0], edits=edits, status=status, **call).tolist() == [3, 40, 40, 40, 40]
        assert status.tolist() == [0, 0, 0, 8, 8]
