"""race_sample and race_topk over a vocabulary of which each rank has a slice."""

import torch

from specdec_kernels.calls import inputs
from specdec_kernels.calls.denormals import with_denormals
from specdec_kernels.calls.values import Counter, Number, Space
from specdec_kernels.sampling import LogitEdits, Sampling, undivided
from specdec_kernels.sharded._checks import check_logits, refuse
from specdec_kernels.sharded._edits import of_rows as edits_of_rows
from specdec_kernels.sharded._races import of_rows, race
from specdec_kernels.sharded._shard import VocabShard, with_a_column
from specdec_kernels.status import raise_for_status


@with_denormals
def race_sample(
    target: torch.Tensor,
    *,
    shard: VocabShard,
    seed: Counter,
    position: Counter,
    nonce: Counter = 0,
    space: Space = "logits",
    temperature: Number | None = None,
    sampling: Sampling | None = None,
    edits: LogitEdits | None = None,
    draft_map: torch.Tensor | None = None,
    request_index: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    status: torch.Tensor | None = None,
    check: bool = False,
) -> torch.Tensor:
    """``specdec_kernels.race_sample`` on slices of rows: one pass, and a gather of 12 bytes a row and rank.

    Parameters
    ----------
    target : Tensor
        [..., n]: this rank's columns.
    shard : VocabShard
        Which columns these are.
    seed, position, ...
        As for ``specdec_kernels.race_sample``, the same on every rank. No ``draft_map``.

    Returns
    -------
    Tensor
        int64 [...], on every rank.
    """
    how = dict(seed=seed, position=position, nonce=nonce, space=space, temperature=temperature, sampling=sampling,
               request_index=request_index)  # fmt: skip
    return _race("race_sample", "target", target, None, shard, edits, draft_map, how, out, status, check)


@with_denormals
def race_topk(
    draft: torch.Tensor,
    k: int,
    *,
    shard: VocabShard,
    seed: Counter,
    position: Counter,
    nonce: Counter = 0,
    space: Space = "logits",
    temperature: Number | None = None,
    sampling: Sampling | None = None,
    edits: LogitEdits | None = None,
    draft_map: torch.Tensor | None = None,
    request_index: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    status: torch.Tensor | None = None,
    check: bool = False,
) -> torch.Tensor:
    """``specdec_kernels.race_topk`` on slices of rows: one pass, and a gather of 8 k + 4 bytes a row and rank.

    Parameters
    ----------
    draft : Tensor
        [..., n]: this rank's columns.
    k : int
        1 <= k <= the whole vocabulary.
    shard : VocabShard
        Which columns these are.
    seed, position, ...
        As for ``specdec_kernels.race_topk``, the same on every rank. No ``draft_map``.

    Returns
    -------
    Tensor
        int64 [..., k], on every rank.
    """
    k = inputs.whole("k", k, "an int from 1 to the vocabulary's {most}", 1, shard.vocab)
    how = dict(seed=seed, position=position, nonce=nonce, space=space, temperature=temperature, sampling=sampling,
               request_index=request_index)  # fmt: skip
    return _race("race_topk", "draft", draft, k, shard, edits, draft_map, how, out, status, check)


def _race(op, name, rows, k, shard, edits, draft_map, how, out, status, check):
    refuse(op, draft_map=draft_map)
    if how["sampling"] is not None:
        how["sampling"] = undivided(how["sampling"])
    rows, empty = with_a_column(rows, how["space"])
    inputs.check_rows(name, rows)
    shard.check(op, rows, empty)
    if check and how["space"] == "logits":
        check_logits(shard, **{name: rows})
    edits_of_slice = None
    if edits is not None:
        edits_of_slice, how = edits_of_rows(edits, shard, rows, how), of_rows(how, rows.shape[:-1], edits)
    tokens, row_status = race(shard, rows, k, edits_of_slice, **how)
    for name, output, result in (("out", out, tokens), ("status", status, row_status)):
        if output is not None:
            inputs.output(name, output, result.dtype, result.shape, result.device)
            output.copy_(result)
    if check:
        raise_for_status(op, row_status)
    return tokens if out is None else out
