"""context_seeds: known answers of the hash, contexts that were there before, on every backend and of every layout."""

import pytest
import torch
from specdec_kernels._C import maths

from specdec_kernels import Packing, context_seeds
from tests.support.cases import UNTOUCHED, assert_as_the_oracle


@pytest.mark.interpreted
def test_rule_by_hand(backend):
    """The seed of a row is a hash of the tokens before it, by a key; where they came before, it is the request's own.

    The text is 5 6, the drafts are 7 6, and a context is one token. Row 0 follows 6 and row 1 follows 7, which are new;
    row 2 follows 6 again. With a prompt of two tokens row 0 has no context yet, and so row 2's is new.
    """
    call = {"text": torch.tensor([[5, 6]]), "draft_tokens": torch.tensor([[7, 6]]), "position": 2, "window": 1}
    assert context_seeds(**call, key=42, seed=3).tolist() == [[hashed([6], 42), hashed([7], 42), noise_of(3, 4)]]
    after_prompt = [noise_of(3, 2), hashed([7], 42), hashed([6], 42)]
    assert context_seeds(**call, key=42, seed=3, start=2).tolist() == [after_prompt]
    assert context_seeds(**call, key=0, seed=3).tolist() == [[noise_of(3, 2), noise_of(3, 3), noise_of(3, 4)]]


B, T, K, N = 4, 40, 5, 9
WORD = 2**32
LENGTHS = torch.tensor([23, 31, 7, 40])
STARTS = torch.tensor([5, 0, 5, 12])
KEYS = torch.tensor([11, -7, 0, 2**63 - 1])
SEEDS = torch.tensor([3, 2**40, -1, 8])
PARENTS = torch.tensor([-1, 0, 0, 1, 1, 3, -1, 5, 2])  # node 6 is absent


def texts(vocabulary=3, seed=0, columns=K):
    """Few tokens, so that contexts come again."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(vocabulary, (B, T), generator=generator)
    return text, torch.randint(vocabulary, (B, columns), generator=generator)


def chain(**changes):
    text, drafts = texts()
    call = {"text": text, "draft_tokens": drafts, "key": KEYS, "seed": SEEDS, "position": LENGTHS, "start": STARTS}
    return call | {"window": 3} | changes


def tree(**changes):
    return chain(draft_tokens=texts(columns=N)[1], parents=PARENTS) | changes


CALLS = {
    "context_seeds": (context_seeds, chain()),
    "context_seeds tree": (context_seeds, tree(parents=PARENTS.repeat(B, 1), ordered=False)),
    "context_seeds packed": (
        context_seeds,
        chain(draft_tokens=torch.arange(9), packing=Packing(torch.tensor([0, 3, 3, 8, 9]).int(), None, K)),
    ),
}


def hashed(window, key):
    """Spelt out, by the headers' own function."""
    terms = [maths.philox(key % 2**64, token % WORD, i + 1, len(window), 8) for i, token in enumerate(window)]
    low, high, *_ = maths.philox(key % 2**64, *(sum(word) % WORD for word in list(zip(*terms, strict=True))[:3]), 9)
    found = low | high << 32
    return found - 2**64 if found >= 2**63 else found


def noise_of(seed, place):
    """A seed of the request's own, at a place of its text."""
    low, high, *_ = maths.philox(seed % 2**64, 0, place % WORD, 0, 10)
    found = low | high << 32
    return found - 2**64 if found >= 2**63 else found


@pytest.mark.interpreted
@pytest.mark.usefixtures("backend")
class TestRows:
    @pytest.mark.parametrize("ordered", [True, False])
    @pytest.mark.parametrize("window", [1, 2, 4, 8])
    def test_chains(self, window, ordered):
        """Every row has the noise that plain sampling would have there."""
        call = chain(window=window, ordered=ordered)
        assert_as_the_oracle(context_seeds, call)

    @pytest.mark.parametrize("ordered", [True, False])
    @pytest.mark.parametrize("window", [1, 3])
    def test_trees(self, window, ordered):
        call = tree(window=window, ordered=ordered)
        assert_as_the_oracle(context_seeds, call)

    def test_contexts_come_again_among_drafts(self):
        """In a chain of one token all but the first contexts are repeats; beside it, in another branch, none is."""
        text = torch.tensor([[9, 8, 7, 7, 7]])
        drafts = torch.tensor([[-1, 7, 7, 7]])
        how = dict(key=5, position=torch.tensor([5]), window=3)

        def marked(*call, **more):
            """Where the request's own noise does not count."""
            return (context_seeds(*call, **how, seed=1, **more) == context_seeds(*call, **how, seed=2, **more)).tolist()

        assert marked(text, drafts[:, 1:]) == [[True, False, False, False]]
        assert marked(text, drafts[:, 1:], start=3) == [[False, True, False, False]]
        assert marked(text, drafts, parents=torch.tensor([-1, 0, 0, 0])) == [[True, False, False, False]]
        other, tree = torch.tensor([[9, 8, 7, 6, 5]]), torch.tensor([-1, 0, 0, 1])
        assert marked(other, drafts, parents=tree) == [[True] * 4]
        own = context_seeds(other, drafts, seed=1, parents=tree, **how)
        assert own[0, 1] == own[0, 2] != own[0, 3]

    def test_as_the_text_grows(self):
        """A row of drafts has what it has once they are committed."""
        text, drafts = texts(vocabulary=4)
        whole = context_seeds(**chain(text=text, draft_tokens=drafts, position=torch.full((B,), 20)))
        for count in range(K + 1):
            grown = text.clone()
            grown[:, 20 : 20 + count] = drafts[:, :count]
            call = chain(text=grown, draft_tokens=drafts[:, :0], position=torch.full((B,), 20 + count))
            assert torch.equal(context_seeds(**call)[:, 0], whole[:, count])

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_packed(self, dtype):
        """By drafts and by rows, with positions of rows."""
        call, counts = chain(), torch.tensor([3, 0, 5, 1])
        padded = torch.where(torch.arange(K) < counts[:, None], call["draft_tokens"], -1)
        one = context_seeds(**call | {"draft_tokens": padded})
        ends = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
        tokens = padded[padded >= 0].to(dtype)
        by_drafts = context_seeds(**call | {"draft_tokens": tokens, "packing": Packing(ends, None, K)})
        rows = ends + torch.arange(B + 1, dtype=torch.int32)
        entering = torch.full((int(rows[-1]) + 2,), UNTOUCHED)
        for b in range(B):
            entering[rows[b] + 1 : rows[b + 1]] = padded[b, : counts[b]]
        by_rows = context_seeds(**call | {"draft_tokens": entering.to(dtype), "packing": Packing(None, rows, K)})
        for found in (by_drafts, by_rows):
            assert torch.equal(found, one)

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_by_index(self, dtype):
        """Idle requests and those outside have zeros, and texts of any strides are read where they lie."""
        call, index = chain(), torch.tensor([2, -1, 0, 9, 1], dtype=dtype)
        one = context_seeds(**call)
        drafts = torch.zeros(5, K, dtype=torch.int64)
        drafts[[0, 2, 4]] = call["draft_tokens"][[2, 0, 1]]
        wide = torch.full((B, T, 2), UNTOUCHED, dtype=dtype)
        wide[..., 1] = call["text"]
        positions = torch.tensor([LENGTHS[2], -1, LENGTHS[0], 10**9, LENGTHS[1]])
        seeds = torch.tensor([SEEDS[2], 9, SEEDS[0], 9, SEEDS[1]])
        call |= {"text": wide[..., 1], "draft_tokens": drafts, "position": positions, "request_index": index}
        call["seed"] = seeds
        found = context_seeds(**call)
        assert torch.equal(found[0::2], one[[2, 0, 1]])
        for idle in (
            found,
            context_seeds(**call | {"key": 5, "seed": 1, "position": positions.clamp(max=20), "start": 0}),
        ):
            assert not idle[1::2].any()

    def test_nothing_outside_is_read(self):
        """Lengths beyond the text, tokens before it, bounds that fall, parents that are none."""
        found, how = [], {"position": torch.tensor([42, 1, 5, 90]), "start": torch.tensor([39, -5, 0, 10**9])}
        for around in (1, 2):
            text = torch.full((B, T + 120), around)
            text[:, 60:-60] = texts()[0]
            found.append(context_seeds(**chain(text=text[:, 60:-60], **how)))
        assert torch.equal(*found)
        bad = Packing(torch.tensor([-1, 3, 2, 8, 99]).int(), None, K)
        found = context_seeds(**chain(draft_tokens=torch.arange(9), packing=bad))
        assert not found[[0, 1, 3]].any()
        bad = Packing(torch.tensor([0, -3, 2, 8, 9]).int(), None, K)
        assert not context_seeds(**chain(draft_tokens=torch.arange(9), packing=bad))[:2].any()

    @pytest.mark.parametrize("by_rows", [False, True])
    def test_bounds_begin_with_0(self, by_rows):
        """The first request owns no drafts where its bound is another number; the others have theirs."""
        bounds = torch.tensor([0, 3, 3, 8, 9]).int() + by_rows * torch.arange(B + 1, dtype=torch.int32)

        def seeds_of_rows():
            packing = Packing(None, bounds, K) if by_rows else Packing(bounds, None, K)
            return context_seeds(**chain(draft_tokens=torch.arange(9 + by_rows * B), packing=packing))

        right = seeds_of_rows()
        for bounds[0] in (1, 2, 3):
            found = seeds_of_rows()
            assert not found[0].any()
            assert torch.equal(found[1:], right[1:])

    def test_out(self):
        call, room = chain(), torch.full((B + 2, K + 1), UNTOUCHED)
        assert context_seeds(**call, out=room[1:-1]).data_ptr() == room[1].data_ptr()
        assert torch.equal(room[1:-1], context_seeds(**call))
        assert (room[[0, -1]] == UNTOUCHED).all()


def test_no_two_contexts_share_a_seed(fast_backend):
    """Of 131,000 contexts, orders, sets and windows, none in 64 bits; and every bit is set half of the time.

    The count of a bit is off by more than 5.5 standard deviations once in 4,000 runs of all 64.
    """
    text = torch.stack((torch.arange(50_000) // 250, torch.arange(50_000) % 250), 1)
    seeds = torch.cat([
        context_seeds(
            text, text[:, :0], key=key, seed=0, position=2, start=2 - window, window=window, ordered=ordered
        )[:, 0]
        for key, window, ordered in ((1, 2, True), (1, 1, True), (2, 2, True), (3, 2, False))
    ])  # fmt: skip
    sets = 250 * 251 // 2 - 50 * 51 // 2  # of 200 tokens before and 250 behind, 200 are both
    assert [len(some.unique()) for some in seeds.split(50_000)] == [50_000, 250, 50_000, sets]
    assert len(seeds.unique()) == 100_000 + 250 + sets
    bits = (torch.cat((seeds[:50_000], seeds[100_000:150_000]))[:, None] >> torch.arange(64) & 1).sum(0)
    assert ((bits - 50_000).abs() < 5.5 * 100_000**0.5 / 2).all()


REFUSED = {
    "context_seeds": (context_seeds, chain(), [
        ({"window": 0}, ValueError, "window: expected an int from 1 to 8; got 0"),
        ({"window": 9}, ValueError, "window: expected an int from 1 to 8; got 9"),
        ({"ordered": 1}, TypeError, "ordered: expected a bool; got 1"),
        ({"text": texts()[0][:3]}, ValueError, r"text: expected shape \[4, .*\]; got int64 \[3, 40\]"),
        ({"key": 2**64}, ValueError, "key: expected 64 bits at most"),
        ({"seed": None}, TypeError, "seed: expected an int or a tensor"),
        ({"packing": Packing(torch.zeros(5).int(), None, 2)}, ValueError, "draft_tokens: expected 1 dimensions"),
        ({"packing": Packing(torch.zeros(5).int()), "draft_tokens": torch.zeros(3).long()}, ValueError,
         "packing.max_drafts: expected an int of 0 or more; got None"),
        ({"packing": Packing(torch.zeros(5).int(), None, 2), "draft_tokens": torch.zeros(3).long(),
          "parents": PARENTS}, ValueError, r"packing: expected None with parents; got int64 \[9\]"),
        ({"parents": PARENTS}, ValueError, r"parents: expected shape \[5\] or \[4, 5\]; got int64 \[9\]"),
    ]),
}  # fmt: skip
