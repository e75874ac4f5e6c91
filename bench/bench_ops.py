"""The ops beside peers: torch's operations, softmax and multinomial, bare reads of rows."""

import itertools
from functools import partial

import torch
from harness import KINDS, OURS, ROOF, SEED, VOCABULARY, Case, draft_near, logits, row_calls, table

import specdec_kernels as sd
from specdec_kernels.ops import Verdict

# ---- rows ------------------------------------------------------------------------------------------------------------


RACES = {
    OURS: lambda row, at: sd.race_sample(row, seed=SEED, position=at),
    "torch.argmax": lambda row, at: torch.argmax(row, -1),
    "softmax+multinomial": lambda row, at: torch.multinomial(torch.softmax(row, -1), 1),
    ROOF: lambda row, at: row.numpy().max(),
}


def race_sample():
    """Cases by kind and threads, and by vocabulary."""
    cases = [("peers", kind, VOCABULARY, threads) for kind in KINDS for threads in (1, 2)]
    cases += [("V", "normal", vocabulary, 1) for vocabulary in (32_000, 64_000, 128_256, 151_936, 262_144)]
    for sweep, kind, vocabulary, threads in cases:
        case, inputs = {"sweep": sweep, "kind": kind, "V": vocabulary}, partial(row_calls, kind, vocabulary)
        yield Case("race_sample", case, RACES, inputs, bytes=4 * vocabulary, threads=threads)


def race_topk():
    for kind, k in itertools.product(KINDS, (2, 4, 8)):
        contenders = {
            OURS: lambda row, at, k=k: sd.race_topk(row, k, seed=SEED, position=at),
            "torch.topk": lambda row, at, k=k: torch.topk(row, k),
            "softmax+multinomial": lambda row, at, k=k: torch.multinomial(torch.softmax(row, -1), k),
        }
        case = {"kind": kind, "k": k, "V": VOCABULARY}
        yield Case("race_topk", case, contenders, partial(row_calls, kind), bytes=4 * VOCABULARY)


# ---- pairs of rows ---------------------------------------------------------------------------------------------------


def pairs(kind):
    target = logits(kind, (4, 1, VOCABULARY), SEED)
    return list(zip(target, draft_near(target, 0.7, SEED + 1), strict=True))


def torch_residual(target, draft):
    weights = (torch.softmax(target, -1) - torch.softmax(draft, -1)).clamp_min_(0)
    mass = weights.sum(-1, keepdim=True)
    return weights / mass, mass[..., 0]


def check_residual(call, inputs):
    """Compares with float64, within the rounding of the difference: a few float32 ulps of p + q."""
    for target, draft in inputs:
        exact = target.double(), draft.double()
        expected, mass = torch_residual(*exact)
        bound = 1e-5 * sum(torch.softmax(rows, -1) for rows in exact) / mass[..., None] + 1e-4 * expected
        probs, measured = call(target, draft)
        assert ((probs - expected).abs() <= bound).all()
        torch.testing.assert_close(measured.double(), mass, rtol=1e-4, atol=0)


def torch_overlap(target, draft):
    log_p, log_q = torch.log_softmax(target, -1), torch.log_softmax(draft, -1)
    p, q = log_p.exp(), log_q.exp()
    kl = (p * (log_p - log_q)).sum(-1)
    return torch.minimum(p, q).sum(-1), 0.5 * (p - q).abs().sum(-1), kl, (p * q / (p + q)).sum(-1)


def with_gradients(overlap):
    """A step of training: acceptance and KL, and their gradients in both sides."""

    def step(target, draft):
        leaves = [rows.detach().requires_grad_() for rows in (target, draft)]
        accept, _, kl, _ = overlap(*leaves)
        (accept - kl).sum().backward()
        return [leaf.grad for leaf in leaves]

    return step


def close_to(exact, atol):
    def check(call, inputs):
        for target, draft in inputs:
            wide = target.double(), draft.double()
            # If p and q differ by rounding alone, a gradient may take either side.
            alike = torch.sub(*(torch.log_softmax(rows, -1) for rows in wide)).abs() < 1e-5
            for ours, expected in zip(call(target, draft), exact(*wide), strict=True):
                if expected.shape == alike.shape:
                    ours, expected = ours[~alike], expected[~alike]
                torch.testing.assert_close(ours.double(), expected, rtol=1e-4, atol=atol)

    return check


def pairs_of_rows():
    for kind in KINDS:
        case, inputs = {"kind": kind, "V": VOCABULARY}, partial(pairs, kind)
        contenders = {OURS: sd.residual, "torch": torch_residual}
        yield Case("residual", case, contenders, inputs, check_residual, 12 * VOCABULARY)
        contenders = {OURS: sd.overlap, "torch": torch_overlap}
        yield Case("overlap", case, contenders, inputs, close_to(torch_overlap, 1e-6), 8 * VOCABULARY)
        gradients = {name: with_gradients(overlap) for name, overlap in contenders.items()}
        exact = close_to(with_gradients(torch_overlap), 1e-7)  # some of torch's float32 gradients are off by 2e-7
        yield Case("overlap", case | {"gradients": True}, gradients, inputs, exact)


# ---- records, caches and uniforms ------------------------------------------------------------------------------------


def like_torch(fresh, theirs):
    """A check that a call writes the same as ``theirs`` into the arguments of ``fresh``."""

    def check(call, inputs):
        written = []
        for function in (call, theirs):
            arguments = fresh()
            function(*arguments)
            written.append([x for x in torch.utils._pytree.tree_leaves(arguments) if isinstance(x, torch.Tensor)])
        assert all(map(torch.equal, *written))

    return check


SHUFFLED, SEEDS = torch.Generator().manual_seed(SEED), torch.arange(5).view(1, 5)


def uniforms():
    ours = partial(sd.uniform, position=1000)
    contenders = {OURS: ours, "torch.rand": lambda seeds: torch.rand(len(seeds))}
    contenders["reference"] = sd.backend("reference")(ours)
    for count in (1, 256, 65_536):
        inputs = lambda count=count: [(torch.arange(SEED + i, SEED + i + count),) for i in range(8)]  # noqa: E731
        yield Case("uniform", {"B": count}, contenders, inputs, bytes=12 * count)


def context_seeds():
    """Cases by the length of the searched text, and a race by such seeds beside one by a single seed."""
    for batch, length in ((1, 8), (1, 1024), (8, 1024), (1, 32_768)):
        ends = torch.full((batch,), length)
        text, drafts = (torch.randint(50_000, (3, batch, size), generator=SHUFFLED) for size in (length, 4))
        ours = {OURS: lambda text, drafts, ends: sd.context_seeds(text, drafts, key=42, seed=ends, position=ends)}
        inputs = lambda text=text, drafts=drafts, ends=ends: [(*each, ends) for each in zip(text, drafts, strict=True)]  # noqa: E731
        yield Case("context_seeds", {"B": batch, "T": length, "K": 4}, ours, inputs)
    race = partial(sd.verify_chain, method="race", position=0)
    contenders = {OURS: lambda drafts, target, seed: race(drafts, target, seed=seed),
                  "one seed": lambda drafts, target, seed: race(drafts, target, seed=SEED)}  # fmt: skip
    inputs = lambda: [(torch.zeros(1, 4, dtype=torch.int64), logits("normal", (1, 5, VOCABULARY), SEED + i), SEEDS)  # noqa: E731
                      for i in range(8)]  # fmt: skip
    yield Case("verify_chain(race), seeds of rows", {"K": 4, "V": VOCABULARY}, contenders, inputs)


def counted_by_torch(edits, tokens):
    """A scatter into the counts alone, without bits."""
    there = tokens >= 0
    edits.output_counts.scatter_add_(1, torch.where(there, tokens, 0), there.int())


def check_counts(call, inputs):
    ((edits, tokens),) = inputs
    counts = [torch.zeros_like(edits.output_counts) for _ in range(2)]
    for function, output_counts in zip((call, counted_by_torch), counts, strict=True):
        function(sd.LogitEdits(output_mask=torch.zeros_like(edits.output_mask), output_counts=output_counts), tokens)
    assert torch.equal(*counts)


def count_tokens():
    for batch in (1, 64):

        def inputs(batch=batch):
            tokens = torch.randint(-1, VOCABULARY, (batch, 6), generator=torch.Generator().manual_seed(SEED))
            mask, counts = (torch.zeros(batch, size, dtype=torch.int32) for size in (VOCABULARY // 32, VOCABULARY))
            return [(sd.LogitEdits(output_mask=mask, output_counts=counts), tokens)]

        contenders = {OURS: sd.count_tokens, "torch": counted_by_torch}
        yield Case("count_tokens", {"B": batch}, contenders, inputs, check_counts, bytes=24 * 6 * batch)


def stored_by_torch(rows, cache, slots, column):
    """Rows of padding add the integer 0 to slot 0, so the order of writes does not matter."""
    bits = {2: torch.int16, 4: torch.int32}[rows.element_size()]
    there, at = cache.view(bits)[..., : rows.shape[-1]], (slots.clamp(min=0).long(), column.expand(len(slots)))
    there.index_put_(at, (rows.view(bits) - there[at]) * (slots >= 0)[:, None], accumulate=True)


def store_rows():
    contenders = {OURS: lambda rows, cache, slots, column: sd.store_rows(rows, cache, slots=slots, column=column),
                  "torch": stored_by_torch}  # fmt: skip
    for batch in (1, 64):

        def fresh(batch=batch):
            generator = torch.Generator().manual_seed(SEED)
            rows = torch.randn(batch, VOCABULARY, generator=generator).bfloat16()
            slots = torch.randperm(batch, generator=generator)
            slots[1::8] = -1
            return rows, torch.zeros(batch, 4, VOCABULARY, dtype=torch.bfloat16), slots, torch.tensor(1)

        check = like_torch(fresh, stored_by_torch)
        yield Case("store_rows", {"B": batch}, contenders, lambda fresh=fresh: [fresh()], check, 4 * batch * VOCABULARY)


BATCH, HEADS, CACHE_SLOTS, WIDTH, TENSORS, PAGE = 4, 8, 512, 64, 32, 16
PATH = torch.tensor([[0, 2, 6, 14, 30]], dtype=torch.int32).expand(BATCH, 5).contiguous()
LENGTHS = torch.tensor([100, 200, 300, 400])
PAGES = torch.randperm(BATCH * CACHE_SLOTS // PAGE, generator=torch.Generator().manual_seed(SEED)).view(BATCH, -1).int()


def compacted_by_torch(cache, path, lengths):
    source = (lengths[:, None] + path)[:, None, :, None].expand(BATCH, HEADS, path.shape[1], WIDTH)
    target = (lengths[:, None] + torch.arange(path.shape[1]))[:, None, :, None].expand_as(source)
    for layer in cache:
        layer.scatter_(2, target, layer.gather(2, source))


def pages_compacted_by_torch(cache, path, lengths):
    def entries(columns):
        return PAGES.long().gather(1, columns // PAGE), columns % PAGE

    (source, i), (target, j) = entries(lengths[:, None] + path), entries(lengths[:, None] + torch.arange(path.shape[1]))
    for layer in cache:
        layer[target, :, j] = layer[source, :, i]


def compact_kv():
    """All layers of a cache in one call, beside a gather and a copy per tensor."""
    moved = 2 * 4 * BATCH * HEADS * WIDTH * PATH.shape[1] * TENSORS
    for name, shape, table_of_pages, theirs, more in (
        ("compact_kv", (BATCH, HEADS, CACHE_SLOTS, WIDTH), None, compacted_by_torch, {}),
        ("compact_kv, pages", (PAGES.numel(), HEADS, PAGE, WIDTH), PAGES, pages_compacted_by_torch, {"page": PAGE}),
    ):

        def fresh(shape=shape):
            generator = torch.Generator().manual_seed(SEED)
            return [torch.randn(shape, generator=generator) for _ in range(TENSORS)], PATH, LENGTHS

        ours = lambda cache, p, n, t=table_of_pages: sd.compact_kv(cache, p, prefix_len=n, block_table=t)  # noqa: E731
        case = {"B": BATCH, "tensors": TENSORS, "path": PATH.shape[1]} | more
        inputs, check = (lambda fresh=fresh: [fresh()]), like_torch(fresh, theirs)
        yield Case(name, case, {OURS: ours, "torch": theirs}, inputs, check, moved)


# ---- trees -----------------------------------------------------------------------------------------------------------

TREES, NODES, PREFIX = 16, 64, 1024
PARENTS = torch.tensor([-1, *((i - 1) // 3 for i in range(1, NODES))]).expand(TREES, NODES).contiguous()
PREFIXES = torch.arange(TREES) * 7 + PREFIX - 200
COLUMNS = int(PREFIXES.max()) + NODES
# The candidate of each node, in groups of three: the root's children are group 0, node i behind them heads group i.
CANDIDATES = torch.tensor([-1, 0, 1, 2, *(3 * i for i in range(4, NODES))])
SELECTED = CANDIDATES[1:].expand(TREES, -1).contiguous()
GROUPS = torch.where(PARENTS > 0, CANDIDATES[PARENTS], -1)


def torch_mask(parents, lengths):
    """The mask by adding one generation of ancestors at a time."""
    nodes = torch.eye(NODES, dtype=torch.bool).expand(TREES, NODES, NODES).clone()
    above = parents
    while (above >= 0).any():
        nodes |= torch.nn.functional.one_hot(above.clamp(min=0), NODES).bool() & (above >= 0)[..., None]
        above = torch.where(above >= 0, parents.gather(1, above.clamp(min=0)), above)
    mask = (torch.arange(COLUMNS) < lengths[:, None])[:, None].repeat(1, NODES, 1)
    columns = (lengths[:, None] + torch.arange(NODES))[:, None].expand(TREES, NODES, NODES)
    return mask.scatter_(2, columns, nodes)


def torch_positions(parents, lengths):
    depth, above = torch.zeros_like(parents), parents
    while (above >= 0).any():
        depth += above >= 0
        above = torch.where(above >= 0, parents.gather(1, above.clamp(min=0)), above)
    return lengths[:, None] + depth


def torch_parents(first_child, next_sibling):
    """Parents by copying each elder sibling's, until every node has one."""
    index, none = torch.arange(NODES).expand(TREES, NODES), torch.full((TREES, NODES + 1), -1)
    parents, elder = (
        none.scatter(1, torch.where(links < 0, NODES, links), index)[:, :NODES] for links in (first_child, next_sibling)
    )
    while (waits := (parents < 0) & (elder >= 0)).any():
        parents = torch.where(waits, parents.gather(1, elder.clamp(min=0)), parents)
    return parents


def torch_built(groups, selected, lengths):
    """Links, positions and the nodes' mask, from comparisons of all pairs."""
    followed = groups.gather(1, selected // 3)
    matches = selected[:, None] == followed[..., None]
    first_match = torch.where(matches.any(2), matches.int().argmax(2) + 1, 0)
    parents = torch.nn.functional.pad(first_match, (1, 0), value=-1)
    node = torch.arange(NODES)
    child = parents[:, :, None] == node
    first = torch.where(child.any(1), child.int().argmax(1), -1)
    younger = (parents[:, :, None] == parents[:, None]) & (node > node[:, None])
    sibling = torch.where(younger.any(2), younger.int().argmax(2), -1)
    mask = torch_mask(parents, torch.zeros_like(lengths))[..., :NODES]
    return mask, torch_positions(parents, lengths), torch.arange(TREES * NODES).view(TREES, NODES), first, sibling


def trees():
    """Cases beside loops of torch over depths or siblings."""
    links = sd.DraftTree.from_parents(PARENTS[0].tolist()).to_sglang(TREES)[1:]
    build = lambda g, s, n: sd.build_tree(g, s, topk=3, prefix_len=n)  # noqa: E731
    mask = lambda p, n: sd.tree_mask(p, prefix_len=n, columns=COLUMNS)  # noqa: E731
    for op, arguments, ours, theirs, bytes_a_node in (
        ("tree_mask", (PARENTS, PREFIXES), mask, torch_mask, COLUMNS),
        ("tree_positions", (PARENTS, PREFIXES), lambda p, n: sd.tree_positions(p, prefix_len=n), torch_positions, 8),
        ("build_tree", (GROUPS, SELECTED, PREFIXES), build, torch_built, NODES + 4 * 8),
        ("tree_parents", links, lambda first, sibling: sd.tree_parents(first, sibling).parents, torch_parents, 8),
    ):

        def check(call, inputs, theirs=theirs):
            results = [call(*inputs[0]), theirs(*inputs[0])]
            pairs = zip(*results, strict=True) if isinstance(results[0], tuple) else [results]
            assert all(torch.equal(x.long(), y.long()) for x, y in pairs)

        case = {"B": TREES, "nodes": NODES, "prefix": PREFIX}
        inputs, written = (lambda arguments=arguments: [arguments]), TREES * NODES * bytes_a_node
        yield Case(op, case, {OURS: ours, "torch": theirs}, inputs, check, written)


# ---- cost of a call without work -------------------------------------------------------------------------------------

TARGET, DRAFT = torch.randn(1, 2, 8), torch.randn(1, 1, 8)
ROW = TARGET[0, :1]
TOKENS = torch.tensor([[3]])
OUT = Verdict(torch.empty(1, 2, dtype=torch.int64), *(torch.empty(1, dtype=torch.int32) for _ in range(2)))
SAMPLED = torch.empty(1, dtype=torch.int64)
SERVED = TOKENS[0], TARGET[0], DRAFT  # packed drafts, an index of requests, and numbers in tensors
NUMBERS = {"temperature": torch.ones(1), "seed": torch.tensor([SEED]), "position": torch.tensor([7])}
PACKED = {"packing": sd.Packing(torch.tensor([0, 1]).int(), max_drafts=1), "request_index": torch.tensor([0]).int()}
SMALL = {
    "race_sample": lambda: sd.race_sample(ROW, seed=SEED, position=7, out=SAMPLED),
    "verify_chain(race)": lambda: sd.verify_chain(TOKENS, TARGET, method="race", seed=SEED, position=7, out=OUT),
    "verify_chain(rejection)": lambda: sd.verify_chain(TOKENS, TARGET, DRAFT, seed=SEED, position=7, out=OUT),
    "verify_chain(rejection), new outputs": lambda: sd.verify_chain(TOKENS, TARGET, DRAFT, seed=SEED, position=7),
    "verify_chain(rejection), serving": lambda: sd.verify_chain(*SERVED, **NUMBERS, **PACKED, out=OUT),
}


def host_cost():
    """Calls on one request and eight tokens, all but one with ``out=``, beside a call of torch."""
    for name, call in SMALL.items():
        yield Case("host_cost", {"call": name}, {OURS: call})
    of_torch = {"torch": lambda: torch.multinomial(torch.softmax(ROW, -1), 1)}
    yield Case("host_cost", {"call": "softmax+multinomial"}, of_torch)


GROUPS_OF_CASES = (
    race_sample, race_topk, pairs_of_rows, uniforms, context_seeds, count_tokens, store_rows, compact_kv, trees,
    host_cost,
)  # fmt: skip


@table([case for group in GROUPS_OF_CASES for case in group()])
def bench_ops(measure, case, contender, threads):
    case.run(measure, contender)
