"""mass_tiles: what the tiles of rows weigh, which may be parts of rows."""

import torch

from specdec_kernels._constants import MASS_TILE
from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.types import Number
from specdec_kernels.ops import _laws as laws
from specdec_kernels.sampling import Edits

MASS_TILES = Op(
    "mass_tiles",
    result=tuple,
    figures=True,
    rows=kinds.rows("*V"),
    request_index=kinds.tokens("B:c", optional=True),
    law=kinds.law("~"),
    edits=kinds.EDITS,
    tiles=kinds.Output(torch.int32, "out", "*3J"),
    status=kinds.Output(torch.int32, "status", "*"),
)


def mass_tiles(
    rows: torch.Tensor,
    *,
    temperature: Number | None = None,
    edits: Edits | None = None,
    request_index: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    status: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What each tile of 1,024 tokens of a row weighs: exact integers, from which ``tile_laws`` makes its normaliser.

    A row may be a part of a vocabulary that begins with a multiple of 1,024 tokens. The tiles of all parts are then
    those of the row.

    Parameters
    ----------
    rows : Tensor
        float32, bfloat16 or float16 [..., n] of logits, contiguous along the vocabulary.
    temperature : float or Tensor
        float32, broadcast to the rows. Default 1.0. At 0 nothing is weighed.
    edits : Edits, optional
        As for ``race_sample``, of the part's columns: masks begin with the part's words, tokens with 0.
    request_index : Tensor, optional
        int32 or int64 [B], as for ``race_sample``. Nothing of an idle request is weighed.
    out : Tensor, optional
        int32 [..., 3, tiles], preallocated.
    status : Tensor, optional
        int32 [...], preallocated.

    Returns
    -------
    tuple of Tensor
        Tiles, int32 [..., 3, tiles]: each one's maximum, as the bits of a float32, then the low and the high words of
        its weight in units of 2**-30 of that; -inf and 0 of a tile without weight. And status, int32 [...]: 1 a NaN or
        +inf was met, 8 a temperature, an index or an edit out of range.

    Examples
    --------
    >>> import torch
    >>> from specdec_kernels.sharded.parts import mass_tiles
    >>> tiles, status = mass_tiles(torch.zeros(1500))
    >>> ((tiles[2].long() << 32 | tiles[1].long() & 0xFFFFFFFF) >> 30).tolist()  # tokens of the largest weight
    [1024, 476]
    """
    found = MASS_TILES.direct(False, rows, request_index, "logits", temperature, None, edits, out, status)
    if found is not None:
        return found
    inputs.check_rows("rows", rows)
    lead, device = rows.shape[:-1], rows.device
    folded, law, changes, _ = laws.of_rows("rows", rows, temperature, None, edits, request_index)
    given = out is not None or status is not None
    out = MASS_TILES.output("tiles", out, (*lead, 3, -(-rows.shape[-1] // MASS_TILE)), device)
    status = MASS_TILES.output("status", status, lead, device)
    MASS_TILES(
        folded, request_index, law, changes, out.flatten(-2).view(-1, 3 * out.shape[-1]), status.view(-1), given=given,
    )  # fmt: skip
    return out, status
