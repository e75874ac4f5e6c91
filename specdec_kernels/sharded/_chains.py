"""verify_chain over a vocabulary of which each rank has a slice."""

import functools

import torch

from specdec_kernels._constants import SMALLEST
from specdec_kernels.calls import inputs
from specdec_kernels.calls.denormals import with_denormals
from specdec_kernels.calls.values import ChainMethod, Counter, Number, Space
from specdec_kernels.layout import Packing
from specdec_kernels.ops import Verdict
from specdec_kernels.ops import _edits as edit
from specdec_kernels.ops import _laws as laws
from specdec_kernels.ops.verify_chain import VERIFY_CHAIN, ends_of
from specdec_kernels.sampling import Draft, LogitEdits, Sampling
from specdec_kernels.sharded._checks import check_logits, check_seed, refuse, written
from specdec_kernels.sharded._edits import of_requests, said_before
from specdec_kernels.sharded._laws import Side, check_draft, draft_law_of, law_of
from specdec_kernels.sharded._layout import Chains
from specdec_kernels.sharded._requests import Requests
from specdec_kernels.sharded._shard import VocabShard, with_a_column
from specdec_kernels.sharded._walks import raced, weighed


@with_denormals
def verify_chain(
    draft_tokens: torch.Tensor,
    target: torch.Tensor,
    draft: torch.Tensor | Draft | None = None,
    *,
    shard: VocabShard,
    method: ChainMethod = "rejection",
    space: Space = "logits",
    temperature: Number | None = None,
    sampling: Sampling | None = None,
    edits: LogitEdits | None = None,
    draft_prob: Number = 1.0,
    epsilon: Number = 0.0,
    seed: Counter,
    position: Counter,
    nonce: Counter = 0,
    request_index: torch.Tensor | None = None,
    packing: Packing | None = None,
    out=None,
    check: bool = False,
) -> Verdict:
    """``specdec_kernels.verify_chain`` on slices of rows: the same verdict, bit for bit, on every rank.

    Parameters
    ----------
    target : Tensor
        [B, K+1, n], or [D+B, n]: this rank's columns.
    shard : VocabShard
        Which columns these are.
    draft_tokens, draft, ...
        As for ``specdec_kernels.verify_chain``; ``draft`` has this rank's columns, too.
    """
    draft, rows_name = laws.drafted(draft)
    target, empty = with_a_column(target, space)
    draft = draft._replace(rows=with_a_column(draft.rows)[0])
    rows, (cu_drafts, by_rows, max_drafts) = draft.rows, ends_of(packing)
    refused = {"draft.map": draft.map, "packing.cu_rows": cu_drafts if by_rows else None}
    refused |= {name: x for name, x in (("seed", seed), ("position", position)) if isinstance(x, tuple)}
    refuse("verify_chain", **refused)
    check_seed("verify_chain", seed)
    VERIFY_CHAIN.check({}, method=method)
    chains = Chains(draft_tokens, target, cu_drafts, max_drafts)
    laws.check_method(method, rows, draft_prob, epsilon)
    if method != "race":
        if rows is not None:
            by_entries = cu_drafts is not None and request_index is not None
            check_draft(
                rows_name, rows, target, (chains.most if by_entries else draft_tokens.shape[-1],), more=by_entries
            )
        p_law = law_of(space, temperature, sampling)
        q_law = draft_law_of(draft, p_law)
    shard.check("verify_chain", target, empty)
    if method != "race":
        shard.check_tiles(f"method={method!r}")
    if check and space == "logits":
        check_logits(shard, target=target, **{} if rows is None else {rows_name: rows})
    requests = Requests(
        chains.batch, chains.request, chains.step, request_index, (seed, position, nonce),
        (temperature, sampling, rows, draft.sampling, *edit.lists(edits, target), draft_prob, epsilon),
    )  # fmt: skip
    if edits is not None:
        edits = of_requests(edits, shard, requests, target, space, functools.partial(said_before, chains))
    how = {"width": chains.most + 1, "cu_drafts": cu_drafts}
    if rows is not None and not rows.shape[:-1].numel():  # numbers of a draft without rows are not read
        rows, q_law, draft = None, p_law, draft._replace(sampling=None)
    if method != "race" and not isinstance(p_law.temperature, torch.Tensor) and p_law.temperature < SMALLEST:
        method, temperature, sampling = "race", 0.0, None  # the argmax decides
        how["unused"] = p_law, draft.sampling, epsilon
    if method == "race":
        law = {"space": space, "temperature": requests.of_rows(temperature), "sampling": requests.of_rows(sampling)}
        walked = raced(requests, shard, draft_tokens, target, edits, law, **how)
    else:
        sides = [Side(target, requests.of_rows(p_law), requests.row_index(), None, chains.tokens.flatten(), edits)]
        draft_row_indices = None
        if rows is not None:
            draft_row_indices = requests.draft_row_indices(chains, rows)
            drafts_law = requests.of_draft_rows(chains, rows, q_law)
            sides.append(Side(rows, drafts_law, None, draft_row_indices, draft_tokens.flatten()))
        walked = weighed(
            requests, shard, draft_tokens, sides, draft_row_indices, (p_law, q_law, draft.sampling),
            "traversal" if method == "block" else method, lossy=inputs.real(epsilon) != 0,
            draft_prob=chains.slot_numbers(requests, draft_prob), epsilon=requests.of_requests(epsilon), **how,
        )  # fmt: skip
    verdict = Verdict(walked.tokens, walked.num_accepted, walked.status)
    return written("verify_chain", verdict, out, check)
