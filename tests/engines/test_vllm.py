"""vLLM's contract, as its code has it, kept by our functions. vLLM need not be there."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from specdec_kernels import Sampling
from specdec_kernels.engines import vllm, vllm_v1
from tests.engines.launches import launches
from tests.engines.step_parts import Parts
from tests.support.filters import kept
from tests.support.laws import P, Q, assert_law

TARGET, DRAFT, K = torch.stack([P, P.flip(0), P]), torch.stack([Q, P]), 2
TEMPERATURE = 2.0
MANY = 20_000


def drafted(batch, seed=1):
    """Drafts [B, K] drawn from DRAFT, the law of draft logits ``T log q`` at temperature T."""
    generator = torch.Generator().manual_seed(seed)
    return torch.multinomial(DRAFT, batch, replacement=True, generator=generator).T


def arguments(counts, slots, drafts, places, capacity=None):
    """What the runner hands over for requests of these row counts: `rejection_sample`'s arguments by name.

    Request b has slot ``slots[b]``, its input token stands at ``places[b]``; slots that nobody has hold poison.
    """
    counts, slots = torch.tensor(counts), torch.tensor(slots)
    capacity = capacity or int(slots.max()) + 1
    cu = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
    local = torch.cat([torch.arange(count) for count in counts.tolist()])
    request = torch.repeat_interleave(torch.arange(len(counts)), counts)
    sampled = torch.zeros(len(local), dtype=torch.int32)  # a token that would be accepted, where no draft is
    later = local > 0
    sampled[later] = drafts[request[later], local[later] - 1].int()
    draft_logits = torch.full((capacity, K, 4), torch.nan)
    draft_logits[slots] = (TEMPERATURE * DRAFT.log()).expand(len(slots), K, 4)
    temperature, seed = torch.full((capacity,), torch.nan), torch.full((capacity,), -1)
    temperature[slots], seed[slots] = TEMPERATURE, slots + 1000
    return {
        "target_logits": TARGET.log()[local], "draft_logits": draft_logits, "draft_sampled": sampled,
        "cu_num_logits": cu.int(), "pos": torch.tensor(places)[request] + local, "idx_mapping": slots,
        "expanded_idx_mapping": slots[request], "expanded_local_pos": local.int(), "temperature": temperature,
        "seed": seed, "num_speculative_steps": K,
    }  # fmt: skip


def prefix_law(rows):
    law = torch.ones(1)
    for row in rows:
        law = (law[:, None] * row).flatten()
    return law


class TestRejection:
    def test_temperature_0_is_greedy(self):
        """Rows behind the last one of the last request, whose end the device alone knows, are not read."""
        given = arguments([K + 1] * 3 + [1], [2, 0, 1, 3], torch.tensor([[0, 3], [0, 1], [2, 3], [0, 0]]), [5] * 4)
        for name in ("target_logits", "draft_sampled", "pos", "expanded_idx_mapping", "expanded_local_pos"):
            given[name] = torch.cat((given[name], given[name][:3]))
        tokens, num = vllm.rejection_sample(**given | {"temperature": torch.zeros(4), "use_fp64": True})
        assert (tokens.dtype, num.dtype) == (torch.int64, torch.int32)
        assert num.tolist() == [3, 2, 1, 1]
        assert tokens.tolist() == [[0, 3, 0], [0, 3, -1], [0, -1, -1], [0, -1, -1]]

    @pytest.mark.parametrize("wider", ["target_logits", "draft_logits"])
    def test_vocabularies_that_are_padded(self, wider):
        given = arguments([K + 1] * 50, range(50), drafted(50), [5] * 50)
        padded = torch.nn.functional.pad(given[wider], (0, 3), value=99.0)
        for one, other in zip(
            vllm.rejection_sample(**given), vllm.rejection_sample(**given | {wider: padded}), strict=True
        ):
            assert torch.equal(one, other)

    def test_block_is_passed_on(self, monkeypatch):
        seen = []
        monkeypatch.setattr(vllm.specdec, "verify_chain", lambda *args, **options: seen.append(options) or 1 / 0)
        with pytest.raises(ZeroDivisionError):
            vllm.rejection_sample(**arguments([3], [0], drafted(1), [5]), use_block_verification=True)
        assert seen[0]["method"] == "block"

    @pytest.mark.parametrize(
        "name, option",
        [
            ("synthetic_conditional_rates", {"synthetic_conditional_rates": torch.ones(K)}),
            ("watermarking", {"contexts": torch.zeros(3, 1), "watermarking": torch.ones(1), "watermark_key": 1}),
            ("fly_window_size", {"fly_window_size": 2}),
        ],
    )
    def test_refused_by_name(self, name, option):
        with pytest.raises(NotImplementedError, match=f"{name}: expected it to be off"):
            vllm.rejection_sample(**arguments([3], [0], drafted(1), [5]), **option)

    @pytest.mark.parametrize("counts", [[3, 3, 3, 3], [3, 1, 2, 1]], ids=["even", "uneven"])
    def test_launches(self, counts):
        """Ours alone: rows, drafts and positions are read where they lie."""
        given = arguments(counts, range(4), drafted(4), [5] * 4)
        assert launches(lambda: vllm.rejection_sample(**given)) == ["specdec::verify_chain"]


class TestGumbel:
    def draw(self, **changed):
        slots = torch.arange(MANY)
        given = {
            "logits": P.log().expand(MANY, 4), "expanded_idx_mapping": slots, "temperature": torch.ones(MANY),
            "seed": slots, "pos": torch.full((MANY,), 7), "apply_temperature": True, "is_drafting": False,
        }  # fmt: skip
        return vllm.gumbel_sample(**given | changed)

    def test_laws(self):
        assert self.draw().dtype == torch.int64
        assert_law(self.draw(), P)
        assert_law(self.draw(temperature=torch.full((MANY,), 0.5)), P**2)
        assert_law(self.draw(temperature=torch.full((MANY,), 0.5), apply_temperature=False), P)
        assert (self.draw(temperature=torch.zeros(MANY), apply_temperature=False) == 0).all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_rows_are_cached_and_padded_ones_are_not(self, dtype):
        rows = torch.randn(6, 5).to(dtype)
        rows[1, 2] = -torch.inf
        slots, columns = torch.tensor([4, 0, -1, 3, -1, 1]), torch.tensor([0, 1, 0, 0, 1, 1])
        cache = torch.full((6, 2, 8), torch.nan, dtype=dtype)
        before = cache.clone()
        options = dict(seed=torch.arange(6), temperature=torch.ones(6), pos=torch.arange(6), apply_temperature=True)
        drawn = vllm.gumbel_sample(
            rows, slots, is_drafting=True, logits_cache=cache, logits_cache_col=columns, **options
        )
        assert ((drawn >= 0) & (drawn < 5)).all()
        without = vllm.gumbel_sample(rows, slots, is_drafting=False, **options)
        assert (without[slots < 0] == 0).all()
        there = slots >= 0
        assert torch.equal(cache[slots[there], columns[there], :5], rows[there])
        cache[slots[there], columns[there], :5] = torch.nan
        assert torch.equal(cache.isnan(), before.isnan())

    def test_launches(self):
        """Numbers are found by slot, columns by row, positions counted, padded rows filled in ours. Another op of ours
        stores rows."""
        slots, numbers = torch.arange(4), (torch.ones(4), torch.arange(4), torch.arange(4))
        rows, column, columns = P.log().expand(4, 4), torch.tensor(1), torch.ones(4, dtype=torch.int64)

        def launched(*flags, **options):
            return launches(lambda: vllm.gumbel_sample(rows, slots, *numbers, *flags, **options))

        alone, cache = ["specdec::verify_chain"], torch.zeros(4, 2, 4)
        for apply, drafting in itertools.product((True, False), repeat=2):
            assert launched(apply, drafting) == alone
        assert launched(True, True, logits_cache_col=column) == alone
        assert launched(True, True, logits_cache_col=columns) == alone
        stored = ["specdec::store_rows", *alone]
        assert launched(True, True, logits_cache_col=column, logits_cache=cache) == stored

    @pytest.mark.parametrize("each", [False, True], ids=["one for all", "one for each row"])
    def test_noise_is_by_seed_position_purpose_and_column(self, each):
        columns = [torch.full((MANY,), column) if each else torch.tensor(column) for column in range(3)]
        drawn = [self.draw(is_drafting=True, logits_cache_col=column) for column in columns]
        assert torch.equal(drawn[2], self.draw(is_drafting=True, logits_cache_col=torch.tensor(2)))
        drawn += [
            self.draw(), self.draw(pos=torch.full((MANY,), 8)), self.draw(seed=torch.arange(MANY) + MANY),
            self.draw(is_drafting=True, pos=torch.full((MANY,), 8), logits_cache_col=columns[1]),
        ]  # fmt: skip
        for n, one in enumerate(drawn):
            for other in drawn[n + 1 :]:
                assert_law(4 * one + other, torch.outer(P, P).flatten())

    def test_sources_and_caches_that_do_not_fit(self):
        cache = torch.zeros(MANY, 1, 4)
        with pytest.raises(ValueError, match="logits_cache_source: expected None without"):
            self.draw(logits_cache_source=cache[:, 0])
        with pytest.raises(TypeError, match="column: expected an int or a tensor"):
            self.draw(logits_cache=cache)
        with pytest.raises(ValueError, match="cache: expected 4 tokens or more"):
            self.draw(logits_cache=cache[..., :3], logits_cache_col=torch.tensor(0))


class TestTopKTopP:
    def test_what_is_kept(self):
        """Ties of bfloat16 among them; exactly k stay, and of a tie at a cut the lowest ids."""
        rows = torch.randn(40, 300, generator=torch.Generator().manual_seed(0)).bfloat16().float()
        k, p = torch.randint(-1, 30, (40,)), torch.rand(40)
        found = vllm.apply_top_k_top_p(rows.clone(), k, p)
        for row, given, top_k, top_p in zip(found, rows, k.tolist(), p.tolist(), strict=True):
            keep = kept(given, Sampling.vllm(top_k=top_k, top_p=top_p))
            assert torch.equal(row, given.masked_fill(~keep, -torch.inf))

    def test_in_place_and_off(self):
        rows = torch.randn(3, 8)
        assert vllm.apply_top_k_top_p(rows, torch.tensor([2, 2, 2]), None) is rows
        assert (rows > -torch.inf).sum(1).tolist() == [2, 2, 2]
        whole = torch.randn(3, 8)
        assert vllm.apply_top_k_top_p(whole, None, None) is whole
        off = vllm.apply_top_k_top_p(whole.clone(), torch.tensor([0, -1, 8]), torch.ones(3))
        assert torch.equal(off, whole)


def metadata(batch, temperature=1.0, generators=None):
    return SimpleNamespace(
        all_greedy=temperature == 0.0, all_random=False, temperature=torch.full((batch,), temperature),
        generators=generators or {},
    )  # fmt: skip


def v1(counts, drafts, given, bonus=3, draft=DRAFT):
    """V1's call for requests with these numbers of drafts, of rows TARGET."""
    local = torch.cat([torch.arange(count) for count in counts]) if counts else torch.arange(0)
    request = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return vllm_v1.rejection_sample(
        drafts[request, local].int(), counts, K, torch.tensor(counts).cumsum(0).int(),
        None if draft is None else draft[local], TARGET.log()[local], torch.full((len(counts), 1), bonus).int(), given,
    )  # fmt: skip


class TestV1:
    @pytest.mark.parametrize(
        "kind", [{}, {"all_random": True}, {"all_greedy": True, "temperature": None}],
        ids=["some greedy", "all random", "all greedy"],
    )  # fmt: skip
    def test_launches(self, kind):
        """One table comes from the host, ours does the rest."""
        logits, drafts, bonus = TARGET.log()[:2], torch.tensor([0, 1]).int(), torch.full((2, 1), 3).int()
        given = metadata(2, generators={row: torch.Generator().manual_seed(row) for row in range(2)})
        given.__dict__.update(kind)
        with Parts() as parts, parts.counting() as (launches, copies, waits):
            vllm_v1.rejection_sample(drafts, [1, 1], 1, None, DRAFT, logits, bonus, given)
        on_the_host = 2 * ("all_greedy" not in kind)  # a seed of each generator is drawn there, and read
        assert launches.pop("ops") == copies.total() == 1
        assert (launches.total(), waits.total()) == (2 * on_the_host, on_the_host)

    def test_padding_and_requests_without_drafts(self):
        tokens = v1([2, 0, 1], torch.tensor([[0, 3], [0, 0], [1, 0]]), metadata(3, temperature=0.0))
        assert tokens.tolist() == [[0, 3, 3], [3, -1, -1], [0, -1, -1]]
        assert v1([0], torch.zeros(1, 2), metadata(1)).tolist() == [[3, -1, -1]]

    def test_a_generator_belongs_to_its_request(self):
        def tokens(counts, own):
            generators = {row: torch.Generator().manual_seed(5 + row) for row in own}
            return v1(counts, drafted(6), metadata(6, generators=generators))

        first, second = tokens([2] * 6, [1, 4]), tokens([1, 2, 0, 1, 2, 2], [1, 4])
        assert torch.equal(first[[1, 4]], second[[1, 4]])
        state = torch.Generator().manual_seed(6)
        draws = [v1([2] * 64, drafted(64), metadata(64, generators={0: state})) for _ in range(2)]
        assert not torch.equal(*draws)

    def test_refused(self):
        for name, option in (("synthetic_mode", True), ("fly_window_size", 2)):
            with pytest.raises(NotImplementedError, match=name):
                vllm_v1.rejection_sample(
                    torch.zeros(1).int(), [1], 1, None, None, TARGET[:1], torch.zeros(1, 1), metadata(1),
                    **{name: option},
                )  # fmt: skip
        for counts, most in (([2], 2), ([1], 0)):
            with pytest.raises(ValueError, match=f"num_draft_tokens: expected 1 in all, as many .* and {most} at most"):
                vllm_v1.rejection_sample(
                    torch.zeros(1), counts, most, None, None, TARGET[:1], torch.zeros(1, 1), metadata(1)
                )
