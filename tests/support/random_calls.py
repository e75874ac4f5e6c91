"""Random calls of ops on rows with all arguments, which no table of cases has: a call for each number."""

import random

import torch
from torch.utils._pytree import tree_leaves

from specdec_kernels import OutputFormat, Sampling
from specdec_kernels.ops import Verdict
from tests.support.cases import DTYPES, adversarial_rows, chain_call, poisoned, ragged
from tests.support.edits import random_edits, spoiled
from tests.support.ranks import chain_call_with_hits, tree_call_with_hits
from tests.support.trees import leaves_of, tree_call

TEMPERATURES = (1.0, 0.6, 0.0, 1.7, 0.05, 100.0)
# Levels for the parts of a row: some have no weight beside others, or a little.
LEVELS = (0.0, 0.0, 0.0, -20.0, -37.0, -44.0, -60.0, -90.0, -110.0, -130.0, -300.0, -1e4, -torch.inf)
NUMBERS = ("sampling", "temperature", "draft_prob", "epsilon")
PAIRS = ("residual", "overlap")
OPS_ON_ROWS = ("race_sample", "race_topk", "cutoff", "logprobs", *PAIRS)


def random_call(number, most=4097):
    """(op, arguments, parts of groups by name as ``support.ops`` takes them), of at most so many tokens."""
    r = random.Random(number)
    maker = r.choice((random_chain, random_tree, random_rows))
    return maker(
        r, min(most, r.choice([r.randint(1, 8), r.randint(1, 140), r.randint(140, 700), 257, 1000, 2049, 4097]))
    )


def far_call(number, sizes=(1025, 2049, 3000, 4097, 6200)):  # those of few tiles
    """Such a call whose rows have parts that lie far apart."""
    r = random.Random(number)
    op, call = r.choice((random_chain, random_tree, random_rows))(r, r.choice(sizes))
    for row in rows_to_score(r, call):
        put_apart(r, row)
    return op, call


def small_call(number):
    """``random_call`` of few tokens, which the oracle looks at one by one; with nonces, and trees with formats."""
    op, call = random_call(number, 140)
    r = random.Random(number)
    for _ in rows_to_score(r, call):
        pass
    for name in {"draft_prob", "epsilon"} & call.keys():
        column = (1,) * (name == "draft_prob" and "packing.cu_drafts" in call)
        call[name] = torch.tensor([call[name] * r.choice((0.5, 1.0, -1.0)) for _ in call["seed"]]).view(-1, *column)
    if "seed" in call and r.random() < 0.3:
        call["nonce"] = torch.tensor([r.choice((-1, 0, 5, 2**40)) for _ in call["seed"]])
    if call.get("method") == "race" and "position" in call and r.random() < 0.3:
        packed = "packing.cu_drafts" in call
        rows = (call["packing.max_drafts"] if packed else call["draft_tokens"].shape[1]) + (op == "verify_chain")
        call |= {"seed": torch.tensor([[r.randrange(-(2**62), 2**62) for _ in range(rows)] for _ in call["seed"]])}
        call |= {"position": 0, "nonce": 0}
    if "output_format" in call and call["output_format"].bonus is not None and r.random() < 0.5:
        bonus = call["output_format"].bonus.int().repeat_interleave(2)[::2]
        call["output_format"] = call["output_format"]._replace(bonus=bonus)
    if "edits" in call and call["edits"].allowed is not None and r.random() < 0.5:  # more words than the row has
        allowed = torch.nn.functional.pad(call["edits"].allowed, (0, r.randint(0, 3)), value=-1)
        call["edits"] = call["edits"]._replace(allowed=allowed)
    return op, tree_format(r, call) if op == "verify_tree" and r.random() < 0.5 else call


def tree_format(r, call):
    """A tree's outputs where an engine wants them."""
    requests, nodes = call["draft_tokens"].shape
    index, tokens = None, torch.full((requests, nodes), -77, dtype=r.choice([torch.int32, torch.int64]))
    if r.random() < 0.5:
        index = torch.tensor(r.sample(range(-1, requests * nodes + 2), requests * nodes)).view(requests, nodes)
        tokens = tokens.view(-1)
    path, *counts = torch.full((requests, nodes), -77, dtype=torch.int32), *torch.full((2, requests), 5).int()
    how = {"zeros": r.random() < 0.3, "count": r.choice(["accepted", "emitted"]), "add": r.random() < 0.3}
    return call | {"output_format": OutputFormat(index=index, **how), "out": (tokens, path, *counts)}


def rows_to_score(r, call):
    """Rows of logits. Tokens are never so large that all of them have one score, among which the oracle draws
    differently."""
    for name in ("target", "draft", "rows"):
        if call.get(name) is not None and call.get("space") != "probs":
            for row in call[name].flatten(0, -2):
                if row.float().nan_to_num(nan=0.0, posinf=torch.inf, neginf=0.0).abs().max() > 1e5:
                    row.copy_(torch.randn(row.shape, generator=torch.Generator().manual_seed(r.randrange(10**6))))
                yield row


def put_apart(r, row):
    """Move each part of a row to another level; some parts begin or end with a NaN."""
    for part in row.split(r.choice((64, 300, 1024, 2048, 4096))):
        part += r.choice(LEVELS)
        if r.random() < 0.03:
            part[r.choice((0, -1))] = torch.nan


def random_chain(r, vocabulary):
    """Half of them without filters and edits, and in half of these with what engines give: outputs, a bonus token."""
    requests, slots, space = r.randint(1, 9), r.randint(0, 6), r.choice(["logits"] * 4 + ["probs"])
    if vocabulary < 141 and r.random() < 0.2:
        requests = r.randint(14, 60)
    own_vocabulary = r.choice([vocabulary, vocabulary, r.randint(1, vocabulary)])
    call = chain_call(r.randrange(2**31), requests, slots, vocabulary, own_vocabulary, r.choice(DTYPES), space)
    call["method"] = r.choice(["rejection", "rejection", "block", "race"])
    if space == "logits":
        with_odd_rows(r, call)
        if r.random() < 0.5:
            with_laws(r, call, requests, (slots + 1,))
        elif r.random() < 0.6:
            del call["temperature"]
            call["sampling"], call["draft.sampling"] = (temperatures(r, requests) for _ in range(2))
    else:
        call["temperature"] = call["temperature"].clamp(max=1.0).round()
    if slots and r.random() < 0.1:
        side, bad = call[r.choice(["target", "draft"])], r.choice([torch.nan, torch.inf, -torch.inf])
        side[r.randrange(requests), r.randrange(slots), :: r.randint(1, 5)] = bad
    if slots and own_vocabulary == vocabulary and r.random() < 0.1:  # equal laws leave no residual
        call["draft"].copy_(call["target"][:, :-1])
    if call["method"] == "race" or r.random() < 0.12:
        without_draft(call)
    elif own_vocabulary < vocabulary and r.random() < 0.5:
        call["draft.map"] = torch.tensor(sorted(r.sample(range(vocabulary), own_vocabulary)), dtype=torch.int32)
    if call["method"] == "rejection" and call["draft"] is not None and r.random() < 0.25:
        call[r.choice(["draft_prob", "epsilon"])] = r.choice([r.random() / 2, 1.0, 0.0])
    served, bonus, width = "edits" not in call and r.random() < 0.5, None, slots
    if served and slots and r.random() < 0.2:
        bonus = torch.tensor([r.randrange(-1, vocabulary + 1) for _ in range(requests)])
    if "edits" not in call and r.random() < 0.35:
        counts, target = torch.tensor([r.randint(0, slots) for _ in range(requests)]), call["target"]
        call = ragged(call, counts)
        if bonus is not None:
            call["target"] = torch.cat([rows[:n] for rows, n in zip(target, counts, strict=True)])
        width = call["packing.max_drafts"] = r.randint(max(0, slots - 1), slots + 2)
    else:
        call["target"] = call["target"] if bonus is None else call["target"][:, :-1]
        call = by_index(r, call, requests)
    call = laid_out(r, call)
    return "verify_chain", served_format(r, call, requests, width + 1, bonus) if served else call


def temperatures(r, count):
    each = torch.tensor([r.choice(TEMPERATURES) for _ in range(count)])
    return Sampling(r.choice([r.choice(TEMPERATURES), each]))


def served_format(r, call, requests, width, bonus):
    """``output_format`` and ``out``, in each way that engines use."""
    index = path = passed = None
    tokens = torch.full((requests, width), -77)
    if r.random() < 0.25:
        index = torch.tensor(r.sample(range(requests * width + 3), requests * width)).view(requests, width)
        tokens = torch.full((requests * width,), -77, dtype=r.choice([torch.int32, torch.int64]))
    if index is not None or r.random() < 0.3:
        path = torch.full((requests, width), -77, dtype=torch.int32)
    plain = call["method"] == "rejection" and call["space"] == "probs" and call["draft"] is not None
    if plain and not {"draft_prob", "epsilon", "draft.map"} & call.keys():
        del call["temperature"]  # of all requests the same one
        passed = torch.full((requests,), 5, dtype=torch.int32)
    counts = torch.full((2, requests), 5, dtype=torch.int32)
    output_format = OutputFormat(
        index, path, passed, r.random() < 0.3, r.choice(["accepted", "emitted"]), r.random() < 0.3, bonus
    )  # fmt: skip
    return call | {"output_format": output_format, "out": Verdict(tokens, *counts)}


def random_tree(r, vocabulary):
    requests, nodes = r.randint(1, 4), r.randint(1, 9)
    method = r.choice(["rejection", "rejection", "traversal", "race", "paths"])
    call = tree_call(
        r.randrange(2**31), requests, nodes, vocabulary, dtype=r.choice(DTYPES),
        replacement=method == "rejection" and r.random() < 0.3,
    ) | {"method": method}  # fmt: skip
    with_odd_rows(r, call)
    with_laws(r, call, requests, (nodes,))
    if method == "race":
        without_draft(call)
    if method == "paths":
        call["leaves"] = leaves_of(call["parents"])
    call = laid_out(r, call)
    if method in ("rejection", "traversal") and r.random() < 0.2:
        without_draft(call)
    if method == "traversal" and r.random() < 0.4:
        call["replacement"] = True
    if call["draft"] is not None:
        of_fewer_tokens(r, call, "draft", "draft.map")
    return "verify_tree", by_index(r, of_probs(r, call), requests)


def whole_rows(r, vocabulary, ops=OPS_ON_ROWS, edited=0.35):
    """(op, its arguments, the number of rows), of rows of the whole vocabulary."""
    count, op, generator = r.randint(1, 6), r.choice(ops), torch.Generator().manual_seed(r.randrange(2**31))
    rows = 2 * torch.randn(2, count, vocabulary, generator=generator).to(r.choice(DTYPES))
    noise = {"seed": torch.randint(-(2**62), 2**62, (count,), generator=generator), "position": r.randrange(2**31)}
    tokens = torch.randint(-2, vocabulary + 2, (count,), generator=generator)
    call = {
        "race_sample": {"target": rows[0]} | noise,
        "race_topk": {"draft": rows[0], "k": r.randint(1, min(vocabulary, 12))} | noise,
        "cutoff": {"rows": rows[0]},
        "logprobs": {"rows": rows[0], "tokens": tokens, "top": r.choice([0, min(5, vocabulary)])},
    }.get(op, {"target": rows[0], "draft": rows[1]})
    with_odd_rows(r, call)
    with_laws(r, call, count, (), op in PAIRS, edited)
    return op, laid_out(r, call), count


def random_rows(r, vocabulary):
    op, call, count = whole_rows(r, vocabulary)
    if op in ("cutoff", "logprobs"):
        return op, by_index(r, call, count)
    if op in PAIRS or "edits" not in call:
        of_fewer_tokens(r, call, *(("draft", "draft.map") if op in PAIRS else (next(iter(call)), "draft_map")))
    return op, by_index(r, of_probs(r, call), count)


def of_fewer_tokens(r, call, rows, name):
    """Rows of the first tokens, or of some: ``name`` is the argument that says of which."""
    vocabulary = call[rows].shape[-1]
    if r.random() < 0.25:
        call[rows] = call[rows][..., : r.randint(1, vocabulary)]
    if r.random() < 0.25:
        most = vocabulary if name == "draft.map" else 2 * vocabulary
        call[name] = torch.tensor(sorted(r.sample(range(most), call[rows].shape[-1])), dtype=torch.int32)


def of_probs(r, call):
    """Of probabilities instead of logits, where nothing changes them: a row of NaN stays one."""
    if {"sampling", "draft.sampling", "edits"} & call.keys() or r.random() < 0.6:
        return call
    rows = {name: call[name] for name in ("target", "draft") if call.get(name) is not None}
    return call | {"space": "probs"} | {
        name: poisoned(x.float().clamp(max=80.0).softmax(-1).to(x.dtype)) for name, x in rows.items()
    }  # fmt: skip


def by_index(r, call, count):
    """By request_index, at times: some requests are idle, some are not there."""
    if r.random() < 0.2:
        call["request_index"] = torch.tensor([r.randrange(-1, count + 1) for _ in range(count)], dtype=torch.int32)
    return call


def random_slices(number, op, edited=False):
    """(arguments of an op over slices of rows, with edits or without; the first token of each rank's slice)."""
    r = random.Random(number)
    vocabulary, requests, rows = r.choice((1033, 2125, 3072, 5197)), r.randint(1, 6), r.randint(1, 7)
    begins = [0, *sorted(1024 * r.randint(0, vocabulary // 1024 + 1) for _ in range(r.randint(0, 4)))]
    if op in OPS_ON_ROWS:
        _, call, requests = whole_rows(r, vocabulary, (op,), edited)
        if op == "cutoff":  # of slices it takes a filter that is on in every row
            call["sampling"] = call.get("sampling", Sampling())._replace(top_k=r.choice((1, 5, 40)))
    else:
        call = random_walk(r, op == "verify_chain", requests, rows, vocabulary, edited)
    if edited and r.random() < 0.3:
        with_bad_entries(call["edits"], vocabulary)
    if "packing.cu_drafts" not in call and r.random() < 0.3:
        call["request_index"] = torch.tensor([r.randrange(-1, requests + 1) for _ in range(requests)])
    greedy = type(getattr(call.get("sampling"), "temperature", None)) is float and call["sampling"].temperature == 0
    for x in tree_leaves([call.get(name) for name in NUMBERS[greedy:]]):  # filters beside a plain 0 are not read
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.numel() and r.random() < 0.2:
            x.view(-1)[r.randrange(x.numel())] = r.choice((torch.nan, -1.0))
    return call, begins


def with_bad_entries(edits, vocabulary):
    """Numbers, tokens and spans out of range, entries that do not rise, values that are none, counts at their end."""
    bad = {"repetition": -1.0, "frequency": torch.nan, "presence": torch.inf, "pending": vocabulary + 9}
    for name, value in bad.items():
        if isinstance(x := getattr(edits, name), torch.Tensor):
            x.view(-1)[0] = value
    if edits.bias is not None:
        tokens, values, spans = edits.bias
        tokens[len(tokens) // 2], tokens[-1], spans.view(-1)[-1] = 3, vocabulary + 9, 10**6
        values[::7], values[1::7] = torch.nan, torch.inf
    edits.output_counts[-1] = 2**31 - 1


def random_walk(r, chain, requests, rows, vocabulary, edited):
    """Chains or trees over slices, whose drafts are accepted now and then."""
    method = r.choice(("rejection", "rejection", "race", "block" if chain else "traversal"))
    how = {"seed": r.randrange(2**31), "dtype": r.choice(DTYPES)}
    if chain:
        call = chain_call_with_hits(vocabulary, requests, rows - 1, **how)
    else:
        how["replacement"] = method == "rejection" and r.random() < 0.3
        call = tree_call_with_hits(vocabulary, requests, rows, **how)
    call["method"] = method
    parents = torch.arange(rows - 1).expand(requests, -1) if chain else call["parents"].clamp(min=0)
    call["target"][torch.arange(requests)[:, None], parents, call["draft_tokens"].clamp(0, vocabulary - 1)] += 6
    call["draft"][::2] = call["target"][::2, : call["draft"].shape[1]] + 0.3 * call["draft"][::2]
    with_odd_rows(r, call)
    if r.random() < 0.3:  # rows without weight
        call["target"][torch.rand(requests, rows) < 0.3] = r.choice((-torch.inf, torch.nan))
    with_laws(r, call, requests, (rows,), edited=edited)
    if edited and r.random() < 0.3:
        call["edits"] = random_edits(requests, rows, vocabulary=vocabulary, seed=rows, bias_by_row=True)
    if method == "race" or r.random() < 0.2:
        without_draft(call)
    elif chain and method == "rejection" and r.random() < 0.5:
        name, shape = r.choice((("draft_prob", (rows - 1,)), ("draft_prob", ()), ("epsilon", ())))
        call[name] = torch.rand(requests, *shape) if r.random() < 0.6 else r.random() / 2
    if chain and r.random() < 0.3:
        edits = call.pop("edits", None)
        if isinstance(call.get("draft_prob"), torch.Tensor):
            call["draft_prob"] = torch.rand(requests, 1)
        call = ragged(call, torch.tensor([r.randint(0, rows - 1) for _ in range(requests)]))
        call["packing.max_drafts"] = r.randint(max(0, rows - 2), rows)
        if edits is not None:
            spans = edits.bias and edits.bias[2].ndim > 1  # of rows, which are other ones now
            call["edits"] = edits._replace(allowed=None, **{"bias": None} if spans else {})
    return laid_out(r, call)


def with_odd_rows(r, call):
    for name in ("target", "draft", "rows"):
        flat = call.get(name, torch.empty(0, 1)).flatten(0, -2)
        kinds = list(adversarial_rows(flat.shape[-1], r.randrange(100)).values())
        for row in flat if name in call else ():
            if r.random() < 0.3:
                row.copy_(r.choice(kinds))


def with_laws(r, call, count, rows, draft=True, edited=0.35):
    """Sampling and edits of the target, and sampling of the draft."""
    if r.random() < 0.7:
        call["sampling"] = random_sampling(r, count)
        call.pop("temperature", None)
    if draft and r.random() < 0.4:
        call["draft.sampling"] = random_sampling(r, count)
    if r.random() < edited:
        vocabulary = next(call[name] for name in ("target", "rows", "draft") if name in call).shape[-1]
        edits = random_edits(count, *rows, vocabulary=vocabulary, seed=r.randrange(10**6))
        if r.random() < 0.4:
            edits = spoiled(edits, vocabulary)
        off = {"allowed": None, "bias": None, "repetition": 1.0, "frequency": 0.0, "presence": 0.0, "pending": None}
        call["edits"] = edits._replace(**{name: value for name, value in off.items() if r.random() < 0.35})


def random_sampling(r, count):
    """Each number is on or off, one for all or one for each: some of these are out of range, which counts as off."""

    def number(off, values, bad, dtype=torch.float32):
        if r.random() < 0.35:
            return off
        each = [r.choice((*values, *values, *values, bad)) for _ in range(count)]
        return r.choice([r.choice(values), torch.tensor(each, dtype=dtype)])

    after = r.choice([("top_k", "min_p"), ("top_k",), ("min_p",), ()])
    return Sampling(
        number(1.0, TEMPERATURES, -1.0), number(0, (0, 1, 2, 5, 20, 50, 700, 2200, 10**6), -1, torch.int64),
        number(1.0, (1.0, 0.9, 0.5, 0.0, 0.99, 0.1, 0.999999), torch.nan),
        number(0.0, (0.0, 0.05, 0.5, 1.0, 0.001, 1e-6), 1.5), after,
        r.choice(["first", "all"]), r.random() < 0.7, r.random() < 0.15,
    )  # fmt: skip


def without_draft(call):
    call["draft"] = None
    call.pop("draft.sampling", None)


def laid_out(r, call):
    """With rows that begin and end at any address."""
    own = {name: call[name] for name in ("target", "draft", "rows") if call.get(name) is not None and r.random() < 0.4}
    return call | {name: poisoned(rows, r.randint(0, 9), r.randint(0, 9)) for name, rows in own.items()}
