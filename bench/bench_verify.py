"""Verification of chains and trees beside peers, and filters and edits beside the same calls without them.

Peers are transformers' speculative sampling, its warpers or torch.topk with multinomial, and a token of every row.
"""

import itertools
from functools import partial

import torch
from harness import KINDS, OURS, SEED, VOCABULARY, Case, draft_near, like_reference, logits, row_calls, table

import specdec_kernels as sd
from specdec_kernels import LogitEdits, Sampling

K = 5
NONE_ACCEPTED = -1e30  # a target logit whose token has probability 0

# ---- chains, at acceptance 0, about 0.7 and 1 ------------------------------------------------------------------------


def chain(method, draft_tokens, target, draft, seed, position):
    draft = None if method == "race" else draft
    return sd.verify_chain(draft_tokens, target, draft, method=method, seed=seed, position=position)


def served(method, tokens, target, draft, seed, position):
    """A call as engines make it: packed drafts, an index of requests, temperatures and seeds in tensors."""
    batch = len(tokens)
    return sd.verify_chain(
        tokens.flatten(), target.flatten(0, 1), None if method == "race" else draft, method=method,
        temperature=torch.ones(batch), seed=seed, position=position, request_index=torch.arange(batch).int(),
        packing=sd.Packing(cu_drafts=K * torch.arange(batch + 1).int(), max_drafts=K),
    )  # fmt: skip


def transformers(draft_tokens, target, draft, seed, position):
    """Takes one request at a time, so a batch is a loop."""
    from transformers.generation.utils import _speculative_sampling

    return [
        _speculative_sampling(tokens[None], q[None], K, p[None])
        for tokens, p, q in zip(draft_tokens, target, draft, strict=True)
    ]


CHAINS = {method: partial(chain, method) for method in ("rejection", "block", "race")}


def chain_inputs(method, kind, batch, acceptance):
    """Calls in which a draft is accepted with about that probability."""
    # A race drafts the target's winners, other tokens with probability 1 - acceptance. Else the overlap of draft and
    # target is the acceptance, or for 0 the target has no weight on drafted tokens.
    rows = []
    for number in range(4 if batch == 1 else 1):
        target = logits(kind, (batch, K + 1, VOCABULARY), SEED + number)
        draft = target[:, :K]
        if method != "race":
            draft = draft.clone() if acceptance == 1 else draft_near(draft, 0.7, SEED + 100 + number)
        rows.append((target, draft))
    generator, entries = torch.Generator().manual_seed(SEED), []
    for turn in range(32):
        target, draft = rows[turn % len(rows)]
        seed, position = SEED + torch.arange(batch), torch.full((batch,), 1000 * turn)
        tokens = sd.race_sample(draft, seed=seed[:, None], position=position[:, None] + torch.arange(K))
        if method == "race":
            wrong = torch.rand(tokens.shape, generator=generator) >= acceptance
            tokens = (tokens + wrong) % VOCABULARY
        entries.append((tokens, target, draft, seed, position))
    if acceptance == 0 and method != "race":
        for tokens, target, *_ in entries:
            target[:, :K].scatter_(-1, tokens[..., None], NONE_ACCEPTED)
    return entries


def chain_bytes(method, call, inputs):
    """Mean bytes of the rows that a verification has to read."""
    # These are the rows up to the first rejection. A block needs every pair, as later drafts decide about earlier ones,
    # unless a draft has no probability.
    accepted = torch.cat([call(*arguments).num_accepted for arguments in inputs]).long()
    rows = accepted + 1 if method == "race" else accepted + 1 + (accepted + 1).clamp(max=K)
    if method == "block":
        possible = torch.cat([(a[1][:, :K].gather(-1, a[0][..., None]) > NONE_ACCEPTED).all(1)[:, 0] for a in inputs])
        rows = torch.where(possible, 2 * K + (accepted == K), rows)
    return int(rows.sum() / len(inputs)) * VOCABULARY * inputs[0][1].element_size()


def chains():
    peers = itertools.product(CHAINS, KINDS, (1,), (0, 0.7, 1), (1,))
    sweeps = [("peers", *case) for case in peers]
    sweeps += [("threads", method, "normal", 8, 0.7, threads) for method in CHAINS for threads in (1, 2)]
    sweeps += [("B", method, "normal", batch, 0.7, 1) for method in CHAINS for batch in (1, 2, 4, 8, 16)]
    sweeps += [("serving", method, "normal", 8, 0.7, 1) for method in CHAINS]
    for sweep, method, kind, batch, acceptance, threads in sweeps:
        contenders = {OURS: partial(served, method) if sweep == "serving" else CHAINS[method]}
        contenders |= {"transformers": transformers} if sweep in ("peers", "B") else {}
        yield Case(
            "verify_chain", {"sweep": sweep, "method": method, "kind": kind, "B": batch, "acceptance": acceptance},
            contenders, partial(chain_inputs, method, kind, batch, acceptance), partial(like_reference, count=4),
            partial(chain_bytes, method), threads,
        )  # fmt: skip


# ---- a binary tree of 15 nodes ---------------------------------------------------------------------------------------

NODES = 15
PARENTS = torch.tensor([-1, *((i - 1) // 2 for i in range(1, NODES))])
DEPTHS = sd.tree_positions(PARENTS, prefix_len=torch.zeros(1, dtype=torch.int64))[0]


def tree_tokens(draft, position):
    """The first two arrivals of each inner node's draft row, as its children."""
    pairs = sd.race_topk(draft[:, : NODES // 2], 2, seed=SEED, position=position[:, None] + DEPTHS[: NODES // 2])
    return torch.cat([torch.zeros(len(draft), 1, dtype=torch.int64), pairs.flatten(1)], 1)


def tree_inputs(kind):
    for number in range(4):
        target, position = logits(kind, (1, NODES, VOCABULARY), SEED + number), torch.tensor([1000 * number])
        draft = draft_near(target, 0.7, SEED + 100 + number)
        yield tree_tokens(draft, position), target, draft, position


def tree(method, tokens, target, draft, position):
    draft = None if method == "race" else draft
    return sd.verify_tree(tokens, target, draft, parents=PARENTS, method=method, seed=SEED, position=position)


TREES = {method: partial(tree, method) for method in ("race", "rejection", "traversal")}


def tree_bytes(method, call, inputs):
    """Mean bytes of the rows that a verification reads; for a traversal the most."""
    visited = sum(int((call(*arguments).num_accepted + 1).sum()) for arguments in inputs) / len(inputs)
    rows = {"race": visited, "rejection": 2 * visited, "traversal": len(inputs[0][0]) * (2 * (NODES // 2) + 1)}[method]
    return int(inputs[0][1].element_size() * VOCABULARY * rows)


def trees():
    """Cases beside sampling a token of every node's row."""
    peers = {
        "torch.argmax, all rows": lambda tokens, p, q, at: torch.argmax(p, -1),
        "race_sample, all rows": lambda tokens, p, q, at: sd.race_sample(p, seed=SEED, position=at[:, None] + DEPTHS),
    }
    for method, kind in itertools.product(TREES, KINDS):
        case = {"method": method, "kind": kind, "nodes": NODES, "V": VOCABULARY}
        inputs = lambda kind=kind: list(tree_inputs(kind))  # noqa: E731
        yield Case("verify_tree", case, {OURS: TREES[method]} | peers, inputs, bytes=partial(tree_bytes, method))


# ---- several chains as one tree --------------------------------------------------------------------------------------

PATHS = 4


def path_inputs(kind):
    """Merged chains of the draft's tokens, which part at different depths; nodes of one depth have equal rows."""
    for number in range(2):
        target = logits(kind, (1, K + 1, VOCABULARY), SEED + number)
        draft = draft_near(target, 0.7, SEED + 100 + number)
        for turn in range(4):
            position = torch.tensor([1000 * turn])
            noise = {"seed": SEED, "position": position[:, None] + torch.arange(K)}
            tokens = [sd.race_sample(draft[:, :K], nonce=2 + path, **noise) for path in range(PATHS)]
            tree = sd.merge_chains(torch.stack(tokens, dim=1))
            rows = sd.tree_positions(tree.parents, prefix_len=0)[0].clamp(0, K)
            # Each node has another row, as in a model's output: one row for a depth would be read from cache.
            yield tree, target[:, rows], draft[:, rows], position, target, draft


def verified(method, tree, target, draft, position, *_):
    leaves = {"leaves": tree.leaves} if method == "paths" else {}
    return sd.verify_tree(
        tree.draft_tokens, target, draft, parents=tree.parents, method=method, seed=SEED, position=position, nonce=1,
        max_depth=K, **leaves,
    )  # fmt: skip


def each_chain_by_transformers(tree, _, __, position, target, draft):
    node, tokens = tree.leaves[0].long(), []
    for _ in range(K):
        tokens.insert(0, tree.draft_tokens[0, node])
        node = tree.parents[0, node].long()
    for one in torch.stack(tokens, 1):
        transformers(one[None], target, draft[:, :K], None, position)


def paths():
    """Cases beside traversal of the same tree, and a call for each chain."""
    contenders = {
        OURS: partial(verified, "paths"), "traversal": partial(verified, "traversal"),
        "transformers, each chain": each_chain_by_transformers,
    }  # fmt: skip
    for kind in KINDS:
        case = {"chains": PATHS, "length": K, "kind": kind, "V": VOCABULARY}
        check = lambda call, inputs: like_reference(call, inputs[::2])  # noqa: E731
        yield Case("paths", case, contenders, lambda kind=kind: list(path_inputs(kind)), check)


# ---- filters and edits -----------------------------------------------------------------------------------------------

FILTERS = {
    "top_k 50": {"top_k": 50},
    "top_k 50, top_p 0.9": {"top_k": 50, "top_p": 0.9},
    "joint": {"top_k": 50, "top_p": 0.9, "top_p_after": ()},
    "min_p 0.05": {"min_p": 0.05},
    "top_p 0.9": {"top_p": 0.9},
}
ROWS = ("normal", "zipf", "peaked")


def warped_draw(row, position, sampling):
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    if sampling.top_k:
        row = TopKLogitsWarper(sampling.top_k)(None, row)
    if sampling.top_p < 1:
        row = TopPLogitsWarper(sampling.top_p)(None, row)
    if sampling.min_p:
        row = MinPLogitsWarper(sampling.min_p)(None, row)
    return torch.multinomial(torch.softmax(row, -1), 1)


def topk_draw(row, position, sampling):
    values, tokens = torch.topk(row, sampling.top_k)
    law = torch.softmax(values, -1)
    if sampling.top_p < 1:
        law = law.masked_fill(law.cumsum(-1) - law >= sampling.top_p, 0)
    return tokens.gather(-1, torch.multinomial(law, 1))


def drawn(row, position, **how):
    return sd.race_sample(row, seed=SEED, position=position, **how)


def edits_of(name):
    """A grammar that allows half of all tokens, or all penalties over 1,500 tokens of the output."""
    generator = torch.Generator().manual_seed(SEED)
    mask_words = VOCABULARY // 32
    if name == "grammar":
        return LogitEdits(allowed=torch.randint(-(2**31), 2**31, (1, mask_words), generator=generator).int())
    counts = torch.zeros(VOCABULARY, dtype=torch.int32)
    counts[torch.randperm(VOCABULARY, generator=generator)[:1500]] = 2
    bits = ((counts > 0).view(mask_words, 32).long() << torch.arange(32)).sum(-1)
    mask = torch.where(bits < 2**31, bits, bits - 2**32).int()
    return LogitEdits(repetition=1.1, frequency=0.1, presence=0.2, output_mask=mask[None], output_counts=counts[None])


def shaped_rows():
    for (filters, fields), kind in itertools.product(FILTERS.items(), ROWS):
        sampling = Sampling(**fields)
        contenders = {OURS: partial(drawn, sampling=sampling), "unfiltered": drawn}
        contenders["transformers"] = partial(warped_draw, sampling=sampling)
        if "top_k" in fields:
            contenders["torch.topk"] = partial(topk_draw, sampling=sampling)
        case = {"filters": filters, "kind": kind, "V": VOCABULARY}
        yield Case("filters: race_sample", case, contenders, partial(row_calls, kind), bytes=4 * VOCABULARY)
    for edits, kind in itertools.product(("grammar", "penalties"), ROWS):
        contenders = {OURS: partial(drawn, edits=edits_of(edits)), "unedited": drawn}
        case = {"edits": edits, "kind": kind, "V": VOCABULARY}
        yield Case("edits: race_sample", case, contenders, partial(row_calls, kind))


def filtered(sampling, rows, position):
    """Verifies ``rows``: (tokens, target, draft or None)."""
    tokens, target, draft = rows
    draft = None if draft is None else sd.Draft(draft, sampling=sampling)
    method = "race" if draft is None else "rejection"
    return sd.verify_chain(tokens, target, draft, method=method, seed=SEED, position=position, sampling=sampling)


def filtered_inputs(method, sampling, kind):
    """Calls at positions where filters do not change how many rows are read."""
    target = logits(kind, (1, K + 1, VOCABULARY), SEED)
    draft = None if method == "race" else draft_near(target[:, :K], 0.7, SEED)
    source = target[:, :K] if draft is None else draft
    rows = sd.race_sample(source, seed=SEED, position=1000 + torch.arange(K), sampling=sampling), target, draft
    alike = [
        at for at in range(1000, 1200)
        if filtered(sampling, rows, at).num_accepted == filtered(Sampling(), rows, at).num_accepted
    ][:8]  # fmt: skip
    return [(rows, alike[i % len(alike)]) for i in range(16)]


def same_number(call, inputs):
    for arguments in inputs[:4]:
        with sd.backend("reference"):
            expected = call(*arguments)
        assert torch.equal(call(*arguments).num_accepted, expected.num_accepted)


def filtered_chains():
    chosen = ("top_k 50", "top_k 50, top_p 0.9", "top_p 0.9")
    for method, filters, kind in itertools.product(("race", "rejection"), chosen, ROWS):
        sampling = Sampling(**FILTERS[filters])
        contenders = {OURS: partial(filtered, sampling), "unfiltered": partial(filtered, Sampling())}
        case, inputs = (
            {"method": method, "filters": filters, "kind": kind},
            partial(filtered_inputs, method, sampling, kind),
        )
        yield Case("filters: verify_chain", case, contenders, inputs, same_number)


@table([*chains(), *trees(), *paths(), *shaped_rows(), *filtered_chains()])
def bench_verify(measure, case, contender, threads):
    case.run(measure, contender)
