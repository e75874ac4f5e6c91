"""SGLang's kernels' contract, as its code has it, kept by our functions. SGLang need not be there."""

import pytest
import torch

from specdec_kernels import DraftTree
from specdec_kernels.conformance import check
from specdec_kernels.engines import sglang
from tests.engines.launches import launches
from tests.support.laws import P, Q, random_laws

# Six nodes: the root has children 4, then 1 (not by rising index), node 4 has 2, node 2 has 3 and 5.
FIRST = torch.tensor([4, -1, 3, -1, 2, -1])
SIBLING = torch.tensor([-1, -1, -1, 5, 1, -1])
CHILDREN = {0: [4, 1], 4: [2], 2: [3, 5]}
NODES, VOCABULARY = 6, 5
MANY = 20_000


def links(first, sibling, batch):
    """Keyword arguments of the links of one tree for all requests."""
    index = torch.arange(batch * len(first)).view(batch, len(first))
    return {
        "retrive_index": index, "retrive_next_token": first.expand(batch, -1),
        "retrive_next_sibling": sibling.expand(batch, -1),
    }  # fmt: skip


def outputs(batch, nodes=NODES, width=4):
    return {
        "predicts": torch.zeros(batch * nodes, dtype=torch.int32),
        "accept_index": torch.full((batch, width), -77, dtype=torch.int32),
        "accept_token_num": torch.full((batch,), -77, dtype=torch.int32),
    }


def uniforms(batch, nodes=NODES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "uniform_samples": torch.rand(batch, nodes, generator=generator),
        "uniform_samples_for_final_sampling": torch.rand(batch, generator=generator),
    }


def walked(given, request, single=1.0, total=1.0):
    """The path of one request, by the rule, node after node."""
    node, path = 0, [0]
    while len(path) < given["accept_index"].shape[1]:
        mass, uniform = 0.0, given["uniform_samples"][request, node].item()
        for child in CHILDREN.get(node, []):
            p = given["target_probs"][request, node, given["candidates"][request, child]].item()
            mass += p
            if p > 0 and (uniform < mass / total or p >= single):
                path.append(child)
                break
        else:
            break
        node = path[-1]
    return path


def trees(batch, seed=0, **changed):
    """A call of the tree kernel."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.stack([torch.randperm(VOCABULARY, generator=generator) for _ in range(batch)])
    candidates = torch.cat((torch.full((batch, 1), 10**9), tokens), dim=1)
    return {
        **outputs(batch), "candidates": candidates, **links(FIRST, SIBLING, batch), **uniforms(batch, seed=seed),
        "target_probs": random_laws(generator, batch, NODES, VOCABULARY), "draft_probs": None,
    } | changed  # fmt: skip


class TestTree:
    @pytest.mark.parametrize("single, total", [(1.0, 1.0), (0.3, 1.0), (1.0, 0.5), (0.0, 0.0)])
    @pytest.mark.parametrize("width", [4, 2, 1])
    def test_paths_by_the_rule(self, single, total, width):
        """Uniforms are used as they are: the paths are those of SGLang's rule, in link order, thresholds included."""
        given = trees(300, threshold_single=single, threshold_acc=total, **outputs(300, width=width))
        given["predicts"] -= 5
        sglang.tree_speculative_sampling_target_only(**given)
        flat = torch.arange(300 * NODES).view(300, NODES)
        for request in range(300):
            path = walked(given, request, single, max(total, 1e-9))
            count = len(path)
            assert given["accept_token_num"][request] == count - 1
            assert given["accept_index"][request].tolist() == flat[request, path].tolist() + [-1] * (width - count)
            predicts = given["predicts"].view(300, NODES)[request]
            assert predicts[path[:-1]].tolist() == given["candidates"][request, path[1:]].tolist()
            assert 0 <= predicts[path[-1]] < VOCABULARY
            if count < width:
                tried = given["candidates"][request, CHILDREN.get(path[-1], [])]
                assert predicts[path[-1]] not in tried
            others = [node for node in range(NODES) if node not in path]
            assert (predicts[others] == -5).all()

    def test_spelling_repeatability_and_neighbours(self):
        given = trees(64)
        sglang.tree_speculative_sampling_target_only(**given)
        spelt = {name.replace("retrive", "retrieve"): value for name, value in given.items()} | outputs(64)
        sglang.tree_speculative_sampling_target_only(**spelt)
        valid = torch.arange(64) % 2 == 0
        half = trees(64, tree_valid=valid)
        sglang.tree_speculative_sampling_target_only(**half)
        for name in outputs(1):
            assert torch.equal(given[name], spelt[name])
        assert torch.equal(half["accept_index"][valid], given["accept_index"][valid])
        assert (half["accept_token_num"][~valid] == 0).all()
        other = uniforms(64, seed=9)["uniform_samples_for_final_sampling"]
        again = trees(64, uniform_samples_for_final_sampling=other)
        sglang.tree_speculative_sampling_target_only(**again)
        assert torch.equal(given["accept_index"], again["accept_index"])
        assert not torch.equal(given["predicts"], again["predicts"])

    def test_bad_arguments(self):
        given = trees(2)
        for name, wrong, message in (
            ("predicts", given["predicts"].long(), r"predicts: expected int32 \[12\]; got torch.int64"),
            ("accept_token_num", torch.zeros(3).int(), r"accept_token_num: expected int32 \[2\]"),
            ("threshold_acc", 1.5, r"threshold_acc: expected a number in \[0, 1\]; got 1.5"),
        ):
            with pytest.raises(ValueError, match=message):
                sglang.tree_speculative_sampling_target_only(**given | {name: wrong})
        with pytest.raises(TypeError, match="retrive_index: expected a tensor"):
            sglang.tree_speculative_sampling_target_only(**given | {"retrive_index": None})

    def test_launches(self):
        """One that walks, draws and writes."""
        given = trees(4)
        found = launches(lambda: sglang.tree_speculative_sampling_target_only(**given))
        assert found == ["specdec::verify_linked_tree"]


class TestGreedy:
    def test_walks_by_given_tokens(self):
        candidates = torch.tensor([9, 1, 2, 3, 4, 5])
        wanted = torch.tensor([
            [4, 0, 5, 8, 2, 7],  # 0, 4, 2, 5
            [1, 6, 0, 0, 0, 0],  # 0, 1
            [7, 0, 0, 0, 0, 0],  # 0
        ])  # fmt: skip
        given = {
            **outputs(3),
            "candidates": candidates.expand(3, -1),
            **links(FIRST, SIBLING, 3),
            "target_predict": wanted,
        }
        sglang.verify_tree_greedy(**given)
        assert given["accept_token_num"].tolist() == [3, 1, 0]
        assert given["accept_index"].tolist() == [[0, 4, 2, 5], [6, 7, -1, -1], [12, -1, -1, -1]]
        assert given["predicts"].view(3, 6).tolist() == [[4, 0, 5, 0, 2, 7], [1, 6, 0, 0, 0, 0], [7, 0, 0, 0, 0, 0]]
        assert launches(lambda: sglang.verify_tree_greedy(**given)) == ["specdec::verify_linked_tree"]


class TestChain:
    DRAFT, TARGET = torch.stack([Q, P]), torch.stack([P, P.flip(0), P])

    def call(self, batch, width=3, draft=None, **changed):
        torch.manual_seed(0)
        drafts = torch.multinomial(self.DRAFT, batch, replacement=True).T
        given = {
            **outputs(batch, 3, width), "candidates": torch.nn.functional.pad(drafts, (1, 0)),
            **links(torch.tensor([1, 2, -1]), torch.full((3,), -1), batch), **uniforms(batch, 3),
            "target_probs": self.TARGET.expand(batch, -1, -1),
            "draft_probs": (self.DRAFT if draft is None else draft).expand(batch, -1, -1),
        } | changed  # fmt: skip
        sglang.chain_speculative_sampling_triton(**given)
        return given

    @pytest.mark.parametrize("width", [1, 2, 3, 5])
    def test_law_and_outputs(self, width):
        """Also where the path has another width than the chain: SGLang mixes up their strides."""

        def verify(batch):
            size = len(batch.drafts)
            given = self.call(
                size, width, candidates=torch.nn.functional.pad(batch.drafts, (1, 0)), draft_probs=batch.draft,
                target_probs=batch.target.softmax(-1),
            )  # fmt: skip
            num = given["accept_token_num"].long()[:, None]
            assert num.max() == min(width, 3) - 1
            assert torch.equal(given["accept_index"] != -1, torch.arange(width) <= num)
            assert torch.equal(given["accept_index"].gather(1, num).long(), 3 * torch.arange(size)[:, None] + num)
            return given["predicts"].view(size, 3).masked_fill(torch.arange(3) > num, -1)

        found = check(verify, ["chain"], trials=20_000).findings
        assert {finding.verdict for finding in found} == {"passed" if width > 1 else "inconclusive"}, found

    def test_one_launch(self):
        """All is written where it is wanted; a path that is wider than the chain is cleared by one more."""
        for width, more in ((3, []), (2, []), (5, ["aten::fill_"])):
            given = self.call(4, width)
            assert launches(lambda given=given: sglang.chain_speculative_sampling_triton(**given)) == [
                "specdec::verify_chain", *more,
            ]  # fmt: skip

    def test_neighbours_of_the_path_stay(self):
        given = self.call(40, predicts=torch.full((120,), -77, dtype=torch.int32))
        written = given["predicts"].view(40, 3)
        assert torch.equal(written == -77, torch.arange(3) > given["accept_token_num"][:, None])

    def test_a_law_of_more_than_one_by_rounding(self):
        """q = 1 + 6e-6 of a draft that is certain: SGLang rejects it."""
        one = torch.nn.functional.one_hot(torch.tensor([1, 2]), 4).float()
        target = torch.cat((one, P[None])).expand(500, -1, -1)
        given = self.call(
            500, draft=one * (1 + 6e-6), target_probs=target, candidates=torch.tensor([9, 1, 2]).expand(500, 3)
        )
        assert (given["accept_token_num"] == 2).all()

    def test_block_is_passed_on(self, monkeypatch):
        seen = []
        monkeypatch.setattr(sglang.specdec, "verify_chain", lambda *args, **options: seen.append(options) or 1 / 0)
        with pytest.raises(ZeroDivisionError):
            self.call(1, block_verification=True)
        assert seen[0]["method"] == "block"


class TestBuild:
    """Trees by SGLang's numbers: candidate c of group g follows candidate ``parent_list[g]``."""

    TOPK, DEPTH = 2, 4

    def numbers(self):
        """Two requests whose selected candidates make [0 0 1 1 3] and a chain; the lists are as EAGLE writes them."""
        selected = torch.tensor([[0, 1, 2, 3, 6], [0, 2, 6, 8, 10]])
        # Group 1 follows candidate 0, group 2 candidate 1; group 3 follows candidate 2, group 4 candidate 6, ...
        parents = torch.tensor([[-1, 0, 1, 2, 3, 6, 7], [-1, 0, 1, 2, 6, 8, 9]])
        return parents, selected

    def build(self, mode, mask, parents=None, selected=None):
        given = self.numbers() if parents is None else (parents, selected)
        nodes = given[1].shape[1] + 1
        lengths, positions = torch.tensor([7, 3]), torch.full((2 * nodes,), -5)
        arrays = torch.full((3, 2, nodes), -1)

        def call():
            sglang.build_tree_kernel_efficient(
                *given, lengths, mask, positions, *arrays, topk=self.TOPK, depth=self.DEPTH, draft_token_num=nodes,
                tree_mask_mode=mode,
            )  # fmt: skip

        assert launches(call) == ["specdec::build_tree"]
        return positions.view(2, nodes), arrays

    TREES = (DraftTree.from_parents([-1, 0, 0, 1, 1, 3]), DraftTree.chain(5))

    def test_links_and_positions(self):
        positions, (index, first, sibling) = self.build(sglang.QLEN_ONLY, torch.zeros(72, dtype=torch.bool))
        assert index.tolist() == torch.arange(12).view(2, 6).tolist()
        for request, (tree, length) in enumerate(zip(self.TREES, (7, 3), strict=True)):
            wanted = tree.to_sglang()
            assert torch.equal(first[request], wanted.retrive_next_token[0])
            assert torch.equal(sibling[request], wanted.retrive_next_sibling[0])
            assert positions[request].tolist() == [length + depth for depth in tree.depths]

    def test_masks(self):
        full = torch.ones(6 * (7 + 6) + 6 * (3 + 6) + 9, dtype=torch.bool)
        self.build(sglang.FULL_MASK, full)
        begin = 0
        for tree, length in zip(self.TREES, (7, 3), strict=True):
            rows = full[begin : begin + 6 * (length + 6)].view(6, length + 6)
            assert rows[:, :length].all()
            assert torch.equal(rows[:, length:], tree.mask())
            begin += rows.numel()
        assert full[begin:].all()
        small = torch.full((80,), 7, dtype=torch.uint8)
        self.build(sglang.QLEN_ONLY, small)
        assert torch.equal(small[:72].view(2, 6, 6).bool(), torch.stack([tree.mask() for tree in self.TREES]))
        assert (small[72:] == 7).all()

    def test_bits(self):
        """All candidates of one group below the root: every node attends to the root and itself."""
        self.TOPK, mask = 32, torch.zeros(25, dtype=torch.uint16)
        none, selected = torch.zeros(2, 0, dtype=torch.int64), torch.arange(11).expand(2, -1)
        self.build(sglang.QLEN_ONLY_BITPACKING, mask, none, selected)
        assert mask[:12].tolist() == [1] + [1 | 1 << node for node in range(1, 12)]
        assert mask[-1] == 0

    def test_refused(self):
        with pytest.raises(ValueError, match="tree_mask_mode: expected 0, 1 or 2; got 3"):
            self.build(3, torch.zeros(72).bool())
        with pytest.raises(ValueError, match="mask: expected 72 bytes at least; got bool"):
            self.build(sglang.QLEN_ONLY, torch.zeros(71).bool())
        with pytest.raises(TypeError, match="mask: expected a tensor of bool or uint8; got float32"):
            self.build(sglang.QLEN_ONLY, torch.zeros(72))
        with pytest.raises(ValueError, match="draft_token_num: expected 32 at most"):
            self.build(2, torch.zeros(999).byte(), torch.zeros(2, 0).long(), torch.zeros(2, 40).long())
        links = torch.full((3, 1, 3), -1)
        with pytest.raises(ValueError, match="draft_token_num: expected 3, one more than selected_index has; got 4"):
            sglang.build_tree_kernel_efficient(
                torch.tensor([[-1, 0, 1]]), torch.tensor([[0, 2]]), torch.tensor([5]), torch.zeros(9).bool(),
                torch.zeros(3).long(), *links, 2, 2, 4, 1,
            )  # fmt: skip
