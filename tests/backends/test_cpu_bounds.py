"""Rejection on the CPU decides most drafts, and draws most residuals, by bounds of the normalisers. It decides as their
exact masses do, and takes few of these."""

import math

import pytest
import torch

from specdec_kernels import _C, LogitEdits, Sampling, backend, cutoff, race_sample
from tests.support.cases import adversarial_pairs, chain_call, seeds
from tests.support.ops import verify_chain, verify_tree
from tests.support.trees import tree_call

# Where the cheap exponential 2^f is off the most, f in [0, 1): too large and too small by 0.00057.
TOO_LARGE, TOO_SMALL = 0.4773 * math.log(2), 0.8047 * math.log(2)
# Where a line between the whole exponents, 1 + f for 2^f, is too large by 0.0614; at 0 it is right.
FAR_TOO_LARGE = 0.4427 * math.log(2)
REQUESTS = 8192


@pytest.fixture(params=_C.isas(), autouse=True)
def isa(request):
    before = _C.isa()
    _C.set_isa(request.param)
    with backend("cpu"):
        yield
    _C.set_isa(before)


def weighed(call):
    """The results of a call, and how many rows it took the mass of."""
    before = _C.weighed_rows()
    return call(), _C.weighed_rows() - before


def with_nan(rows):
    """Rows of one law, but a NaN after the last token: no bounds are taken of such a row."""
    return torch.nn.functional.pad(rows, (0, 1), value=math.nan)


def assert_same_decisions(by_bounds, by_masses):
    assert torch.equal(by_bounds.tokens, by_masses.tokens)
    assert torch.equal(by_bounds.num_accepted, by_masses.num_accepted)


def decided(target, draft, draft_tokens, op=verify_chain, **call):
    """The verdict, which bounds and masses have to agree on, and how many rows were weighed for each. A row of one
    dimension is that of all nodes of all requests."""
    requests, slots = draft_tokens.shape
    call = {"draft_tokens": draft_tokens, "seed": seeds(requests), "position": 5} | call

    def expanded(rows, nodes):
        return rows.expand(requests, nodes, -1) if rows.ndim == 1 else rows

    results = []
    for rows in (lambda rows: rows, with_nan):
        sides = {"target": expanded(rows(target), slots + (op is verify_chain))}
        sides["draft"] = None if draft is None else expanded(rows(draft), slots)
        results.append(weighed(lambda sides=sides: op(**sides, **call)))
    (by_bounds, few), (by_masses, all_rows) = results
    assert_same_decisions(by_bounds, by_masses)
    return by_masses, few, all_rows


EDGES = pytest.mark.parametrize(("of_target", "of_draft"), [(TOO_LARGE, TOO_SMALL), (TOO_SMALL, TOO_LARGE)])


@EDGES
@pytest.mark.parametrize(("method", "drafts"), [("rejection", 1), ("block", 1), ("block", 2)])
def test_uniforms_at_the_edge(of_target, of_draft, method, drafts):
    """p / q is 1/2, and its bounds are off by 0.0014 of that: some uniforms lie between. A flat row has the error
    of one exponential. Bounds closer than 0.00057 would decide some of those uniforms wrongly. A second draft of a
    block, once refused, leaves a uniform that depends on bounds of the residual's sum."""
    requests = REQUESTS * (4 if drafts == 2 else 1)
    target = torch.full((requests, drafts + 1, 128), of_target)
    draft = torch.full((requests, drafts, 128), of_draft)
    draft[..., 1::2] = -torch.inf
    tokens = torch.zeros(requests, drafts, dtype=torch.long)
    _, few, all_rows = decided(target, draft, tokens, method=method)
    assert 10 < few < 0.06 * requests < requests < all_rows


@EDGES
def test_uniforms_of_siblings_at_the_edge(of_target, of_draft):
    """A child of probability 3.6 p, then one of 0.9 p. The second is accepted by (p - q) / W against q / R, about 1/4:
    W and R are known by bounds, too, and some uniforms lie between what these allow."""
    target = torch.full((REQUESTS, 3, 128), of_target)
    draft = torch.full((REQUESTS, 3, 128), of_draft)
    draft[..., :20] += 2 * math.log(2)
    draft[..., 82:] = -torch.inf
    tokens = torch.tensor([0, 0, 20]).expand(REQUESTS, -1)
    tree = {"op": verify_tree, "parents": torch.tensor([-1, 0, 0])}
    verdict, few, all_rows = decided(target, draft, tokens, **tree)
    assert 0.15 < (verdict.path[:, 1] == 2).double().mean() < 0.25
    assert 10 < few < 0.06 * REQUESTS < REQUESTS < all_rows


def test_uniforms_at_the_edge_of_large_logits():
    """As above, of logits whose roundings, divided by T, are wider than what is known of exponentials: the two whose
    quotients are rounded up and down the most."""
    some = 3e5 + torch.arange(64) / 32
    inverse = 1 / torch.tensor(0.7)
    off = (some * inverse).double() - some.double() * inverse.double()
    for of_target, of_draft in [(off.argmin(), off.argmax()), (off.argmax(), off.argmin())]:
        target = torch.full((2048, 2, 128), some[of_target].item())
        draft = torch.full((2048, 1, 128), some[of_draft].item())
        draft[..., 1::2] = -torch.inf
        tokens = torch.zeros(2048, 1, dtype=torch.long)
        _, few, all_rows = decided(target, draft, tokens, temperature=0.7)
        assert few < 0.6 * all_rows


@EDGES
def test_winners_of_residuals_at_the_edge(of_target, of_draft):
    """Half of the tokens have one error of the exponential, half the other: so near scores may change places. The draft
    is all on a token that the target does not have."""
    requests = 4 * REQUESTS
    target = torch.where(torch.arange(128) % 2 == 0, of_target, of_draft).expand(requests, 2, -1).clone()
    draft = torch.full((requests, 1, 128), -20.0)
    target[..., 0], draft[..., 0] = -torch.inf, 0.0
    _, few, all_rows = decided(target, draft, torch.zeros(requests, 1, dtype=torch.long))
    assert 10 < few < 0.06 * requests < requests < all_rows


def test_weights_below_half_of_a_unit():
    """Of (p - q)^+ all is too little to be counted: 1,000 tokens of 2^-44. By masses nothing is left, and nothing is
    accepted any more; by sums of floats the second child would be."""
    target = torch.full((64, 3, 1100), -torch.inf)
    target[..., :4] = 0.0
    draft = target.clone()
    target[..., 4:1004] = -42 * math.log(2)
    draft[..., 1004] = -32 * math.log(2)  # the first child: of no weight in p
    draft[..., 4] = -58 * math.log(2)  # the second
    tokens = torch.tensor([0, 1004, 4]).expand(64, -1)
    tree = {"op": verify_tree, "parents": torch.tensor([-1, 0, 0])}
    verdict, *_ = decided(target, draft, tokens, **tree)
    assert (verdict.num_accepted == 0).all()


@pytest.mark.parametrize("method", ["rejection", "block"])
@pytest.mark.parametrize("temperature", [0.05, 1.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decisions_are_those_of_masses(dtype, temperature, method):
    """Also of residuals, whose weights have bounds on both sides; and few rows are weighed."""
    call = chain_call(1, requests=256, vocabulary=2111, dtype=dtype) | {"temperature": temperature, "method": method}
    _, few, all_rows = decided(**call)
    # A block looks at all of its rows, and asks for sums, too.
    assert few < (0.15 if temperature == 0.05 else 0.05) * (2 if method == "block" else 1) * all_rows


@pytest.mark.parametrize("size", [1, 65, 2049])
def test_hard_rows(size):
    target, draft = adversarial_pairs(size)
    target, draft = target[:, None].expand(-1, 3, -1), draft[:, None].expand(-1, 2, -1)
    tokens = (torch.arange(len(draft))[:, None] + torch.arange(2)) % size
    block = {"method": "block"}
    for options in (
        {}, {"draft_prob": 0.3}, {"epsilon": 0.1}, {"temperature": 1e-3}, {"temperature": 1e6}, block,
        block | {"temperature": 1e-3}, block | {"temperature": 1e6},
    ):  # fmt: skip
        decided(target, draft, tokens, **options)


@pytest.mark.parametrize("edits", [None, LogitEdits(presence=0.5)])
def test_a_block_goes_back_to_the_row_it_draws_from(edits):
    """Each row has its weight in a few cells of its own. A residual's race at a row before the last uses the maxima of
    that row's cells; another row's would hide its tokens."""
    generator = torch.Generator().manual_seed(4)
    requests, depths, vocabulary = 256, 5, 1500
    target = torch.randn(requests, depths, vocabulary, generator=generator) - 8
    heavy = torch.randint(vocabulary, (requests, depths, 12), generator=generator)
    target.scatter_add_(-1, heavy, 12 + torch.randn(heavy.shape, generator=generator))
    draft = target[:, :-1] + 2 * torch.randn(requests, depths - 1, vocabulary, generator=generator)
    drafted = race_sample(draft, seed=9, position=torch.arange(depths - 1))
    call = {
        "draft_tokens": drafted, "target": target, "draft": draft, "method": "block",
        "seed": seeds(requests), "position": 5, "nonce": 1, "edits": edits,
    }  # fmt: skip
    verdict = verify_chain(**call)
    with backend("reference"):
        assert_same_decisions(verdict, verify_chain(**call))
    back = verdict.num_accepted
    assert ((back > 0) & (back < depths - 1)).sum() > requests / 4


@pytest.mark.parametrize(
    ("of_target", "of_draft"),
    [(TOO_LARGE, TOO_SMALL), (TOO_SMALL, TOO_LARGE), (FAR_TOO_LARGE, 0.0), (0.0, FAR_TOO_LARGE)],
)
def test_winners_at_the_edge_of_top_p(of_target, of_draft):
    """A draw tests its winner by bounds: what is before it, against top_p of the row. About half of the mass has one
    error of the exponentials, the rest the other, so these bounds are off by 0.0008 and more, and those by lines by
    0.015, where a token of the rest is the first that is dropped."""
    row = torch.full((2048,), of_draft - 3 * math.log(2))
    row[::9] = of_target
    first = row[::9].exp().sum() / row.exp().sum()
    rows = row.expand(REQUESTS, -1)
    top_p = first + 0.2 * torch.rand(REQUESTS, generator=torch.Generator().manual_seed(0))
    sampling, noise = Sampling(top_p=top_p), {"seed": seeds(REQUESTS), "position": 3}
    cut = cutoff(rows, sampling=sampling)
    value, last = cut.value[:, None], cut.last[:, None]
    kept = (rows > value) | ((rows == value) & (torch.arange(2048) <= last))
    found = race_sample(rows, sampling=sampling, **noise)
    assert torch.equal(found, race_sample(rows.where(kept, -torch.inf), **noise))


FEWER = 4096
STEPS = -math.log(2) * (torch.arange(8192) // 2 % 6)  # values that all have the same error of the exponential


@EDGES
def test_uniforms_at_the_edge_of_filtered_laws(of_target, of_draft):
    """Uniforms at the edge where top_p keeps thousands of tokens of each row, about in the middle of those of one
    value: which, and how many, is known by bounds alone."""
    target, draft = of_target + STEPS, of_draft + STEPS
    draft[1::2] = -torch.inf
    tokens, laws = torch.zeros(FEWER, 1, dtype=torch.long), Sampling(top_p=0.9)
    _, few, all_rows = decided(target, draft, tokens, sampling=laws, **{"draft.sampling": laws})
    assert 10 < few < 0.3 * FEWER < FEWER < all_rows  # many a residual's winner has the value of the cut


@EDGES
def test_drafts_at_the_edge_of_top_p(of_target, of_draft):
    """A draft that top_p may drop: the mass before it is compared with top_p of the row by exponentials of different
    errors. It is accepted if it is kept, for the draft's law hardly ever has it."""
    target = torch.full((9000,), of_draft - 3 * math.log(2))
    target[::9] = of_target
    token = 1400
    draft = torch.zeros(9000)
    draft[token] = -9.0
    before = (target[::9].exp().sum() + target[:token].exp().sum() - target[:token:9].exp().sum()) / target.exp().sum()
    top_p = before * (0.95 + 0.1 * torch.rand(FEWER, generator=torch.Generator().manual_seed(0)))
    tokens = torch.full((FEWER, 1), token)
    verdict, few, all_rows = decided(target, draft, tokens, sampling=Sampling(top_p=top_p))
    assert 0.4 < verdict.num_accepted.double().mean() < 0.6
    assert 10 < few < 0.5 * FEWER < FEWER < all_rows


@pytest.mark.parametrize("ties", ["first", "all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_filtered_decisions_are_those_of_masses(dtype, ties):
    """Rows of which top_p keeps thousands of tokens, tokens near its cut among the drafts, and residuals of both."""
    requests, drafts, vocabulary = 96, 3, 9001
    generator = torch.Generator().manual_seed(7)
    target = 1.5 * torch.randn(requests, drafts + 1, vocabulary, generator=generator)
    draft = (target[:, :-1] + 0.5 * torch.randn(requests, drafts, vocabulary, generator=generator)).to(dtype)
    laws = {"sampling": Sampling(0.9, top_p=0.8, ties=ties), "draft.sampling": Sampling(0.9, top_p=0.9, ties=ties)}
    tokens = race_sample(draft, seed=3, position=torch.arange(drafts), sampling=laws["draft.sampling"])
    near_the_cut = target[:, :-1].sort(-1, descending=True).indices[..., 3000:3600:200]
    tokens[::4] = near_the_cut[::4].diagonal(dim1=1, dim2=2)
    _, few, all_rows = decided(target.to(dtype), draft, tokens, **laws)
    assert few < 0.2 * all_rows


@pytest.mark.parametrize(
    "draft", [{}, {"replacement": True}, {"draft": None}], ids=["distinct", "independent", "certain"]
)
def test_siblings_are_tested_by_bounds(draft):
    parents = [-1, *(i // 3 for i in range(14))]
    call = tree_call(3, requests=128, nodes=15, vocabulary=2111, parents=parents, replacement="replacement" in draft)
    _, few, all_rows = decided(**call | {"temperature": 0.8, "op": verify_tree} | draft)
    assert few < 0.05 * all_rows


def test_one_hot_drafts_and_trees_are_tested_by_bounds():
    call = chain_call(2, requests=64, vocabulary=300)
    target, tokens, noise = call["target"], call["draft_tokens"], {"seed": seeds(64), "position": 5}
    _, rows = weighed(lambda: verify_chain(tokens, target, **noise))
    assert rows <= 3
    nodes = torch.cat([torch.full((64, 1), -1), tokens], -1)
    draft = torch.cat([call["draft"], call["draft"][:, :1]], 1)
    verdict, rows = weighed(lambda: verify_tree(nodes, target, draft, parents=torch.arange(-1, 4), **noise))
    assert rows <= 6
    assert_same_decisions(verdict, verify_chain(tokens, target, call["draft"], **noise))


def test_top_p_at_the_edge():
    """Each request's top_p is the share of its first tokens, to a rounding: bounds of the row's mass do not tell
    whether the next one stays, and a wrong guess shows in the request's residual."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(1024, 300, generator=generator)
    rows[:, :20] += 6.0
    first = torch.arange(1024) % 15 + 1
    whole, part = cutoff(rows), cutoff(rows, sampling=Sampling(top_k=first))
    share = part.mass.double() / whole.mass.double()
    for top_p in (share.float(), (share * (1 - 1e-3)).float(), (share * (1 + 1e-3)).float()):
        tokens = (part.last[:, None].long() + 1) % 300
        laws = {"sampling": Sampling(top_p=top_p), "draft.sampling": Sampling(top_p=top_p)}
        decided(rows[:, None].expand(-1, 2, -1), rows.roll(1, -1)[:, None], tokens, **laws)


def test_a_race_at_the_edge_of_top_p():
    """A row's mass, summed by tiles, is less than its tokens' weights are together: roundings. A race's winner is
    mostly kept by the latter, but not at the edge. Each cell has one token, so both sums are of all tokens."""
    generator, tiles = torch.Generator().manual_seed(3), torch.arange(8) * 1024
    rows = torch.full((1024, 1024 * len(tiles)), -torch.inf)
    rows[:, tiles + 512] = -6 - 4 * torch.rand(1024, len(tiles), generator=generator)
    rows[:, tiles[:3] + 64] = torch.rand(1024, 3, generator=generator)
    first = torch.randint(1, 3, (1024,), generator=generator)
    whole, part = cutoff(rows), cutoff(rows, sampling=Sampling(top_k=first))
    share = part.mass.double() / whole.mass.double()
    top_p = share.float()
    top_p = Sampling(top_p=torch.where(top_p > share, top_p.nextafter(torch.zeros(())), top_p))
    least = cutoff(rows, sampling=top_p).value
    for seed in range(4):
        token = race_sample(rows, seed=torch.arange(1024) + 1000 * seed, position=0, sampling=top_p)
        assert (rows.gather(1, token.unsqueeze(1)).squeeze(1) >= least).all()


SIBLINGS = {"op": verify_tree, "parents": torch.tensor([-1, 0, 0, 0])}


@pytest.mark.parametrize("of", ["target", "draft"])
@pytest.mark.parametrize(
    "options",
    [SIBLINGS, SIBLINGS | {"method": "traversal"}, {"method": "block"}],
    ids=["siblings", "traversal", "block"],
)
def test_sums_of_filtered_rows_are_those_of_masses(options, of):
    """The sums after a draft is refused. Which tokens top_p keeps of one of the rows is known by bounds alone."""
    requests, generator = 384, torch.Generator().manual_seed(4)
    target, draft = torch.randn(2, 9100, generator=generator)
    tokens = torch.multinomial(draft.softmax(-1).expand(requests, -1), 4, generator=generator)
    laws = {"sampling" if of == "target" else "draft.sampling": Sampling(top_p=0.9)}
    decided(target, draft, tokens, **laws, **options)
