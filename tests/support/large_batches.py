"""Calls of many requests on whole vocabularies, for tests that count launches and memory: no kernel needs to run."""

import torch

from specdec_kernels import LogitEdits, Sampling, cutoff, logprobs, race_sample, race_topk
from tests.support.cases import seeds
from tests.support.ops import overlap, residual, verify_chain, verify_tree

RACE = {"method": "race", "draft": None}


def large_batches(count, vocabulary, drafts=4):
    """name -> (op, arguments). All rows are one row in memory."""
    rows = torch.empty(1, 1, vocabulary, dtype=torch.bfloat16).expand(count, drafts + 1, -1)
    tokens, noise = torch.zeros(count, drafts + 1).long(), {"seed": seeds(count), "position": 0}
    chain = {"draft_tokens": tokens[:, 1:], "target": rows, "draft": rows[:, 1:]} | noise
    tree = {"draft_tokens": tokens, "target": rows, "draft": rows, "parents": torch.arange(-1, drafts)} | noise
    row, other = rows[:, 0], rows[:, 1]
    return {
        "chain": (verify_chain, chain),
        "chain, one-hot": (verify_chain, chain | {"draft": None}),
        "chain, race": (verify_chain, chain | RACE),
        "chain, block": (verify_chain, chain | {"method": "block"}),
        "tree": (verify_tree, tree),
        "tree, one-hot": (verify_tree, tree | {"draft": None}),
        "tree, race": (verify_tree, tree | RACE),
        "tree, traversal": (verify_tree, tree | {"method": "traversal"}),
        "race_sample": (race_sample, {"target": row} | noise),
        "race_topk": (race_topk, {"draft": row, "k": 4} | noise),
        "cutoff": (cutoff, {"rows": row}),
        "logprobs": (logprobs, {"rows": row, "tokens": tokens[:, 0], "top": 5}),
        "residual": (residual, {"target": row, "draft": other}),
        "overlap": (overlap, {"target": row, "draft": other}),
    }


def filtered(op, call):
    """The call with filters of the target and, in verdicts, of the draft."""
    of_draft = {"draft.sampling": Sampling(top_k=50, top_p=0.9)} if call.get("draft") is not None else {}
    return call | {"sampling": Sampling(top_k=50, top_p=0.9)} | (of_draft if op in (verify_chain, verify_tree) else {})


def edited(op, call):
    rows = next(call[name] for name in ("target", "rows", "draft") if name in call)
    bits = torch.zeros(1, rows.shape[-1] // 32, dtype=torch.int32).expand(len(rows), -1)
    return call | {"edits": LogitEdits(allowed=bits[:, None] if op in (verify_chain, verify_tree) else bits)}
