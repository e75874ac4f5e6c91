"""cutoff over a vocabulary of which each rank has a slice."""

from collections.abc import Sequence

import torch

from specdec_kernels.calls import inputs
from specdec_kernels.calls.denormals import with_denormals
from specdec_kernels.ops import Cut
from specdec_kernels.sampling import LogitEdits, Sampling, undivided
from specdec_kernels.sharded._checks import written
from specdec_kernels.sharded._edits import of_rows as edits_of_rows
from specdec_kernels.sharded._filters import may_filter, support_of
from specdec_kernels.sharded._races import of_rows
from specdec_kernels.sharded._shard import VocabShard, with_a_column


@with_denormals
def cutoff(
    rows: torch.Tensor,
    *,
    shard: VocabShard,
    sampling: Sampling | None = None,
    edits: LogitEdits | None = None,
    request_index: torch.Tensor | None = None,
    out: Sequence[torch.Tensor] | None = None,
) -> Cut:
    """``specdec_kernels.cutoff`` on slices of rows, where a filter is on: each rank sends its k largest tokens.

    Parameters
    ----------
    rows : Tensor
        [..., n]: this rank's columns.
    shard : VocabShard
        Which columns these are.
    sampling : Sampling
        With a filter that is on in every row.
    edits, request_index, out
        As for ``specdec_kernels.cutoff``.

    Returns
    -------
    Cut
        Of the whole rows, on every rank.
    """
    rows, empty = with_a_column(rows)
    inputs.check_rows("rows", rows)
    if not may_filter(sampling):
        raise ValueError(f"sampling: expected a filter that is on, for slices; got {inputs.shown(sampling)}")
    shard.check("cutoff", rows, empty)
    how = {"sampling": undivided(sampling), "request_index": request_index}
    edits_of_slice = None if edits is None else edits_of_rows(edits, shard, rows, how)
    how = of_rows(how, rows.shape[:-1], edits)
    cut = support_of(shard, rows, how["sampling"], how["request_index"], edits_of_slice).cut
    return written("cutoff", cut, out, check=False)
