"""tile_laws: the normaliser of rows from their tiles, and probabilities of some of their logits."""

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.types import Number

TILE_LAWS = Op(
    "tile_laws",
    result=tuple,
    figures=True,
    tiles=kinds.ints("*3Q:c"),
    raw=kinds.rows("*U:c"),
    temperature=kinds.number("="),
    known=kinds.Output(torch.float32, "known", "*2"),
    probs=kinds.Output(torch.float32, "out", "*U"),
)


def tile_laws(
    tiles: torch.Tensor, raw: torch.Tensor, *, temperature: Number = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """From all tiles of a row, as by ``mass_tiles``, its log-sum-exp, and the probabilities of some of its logits.

    Parameters
    ----------
    tiles : Tensor
        int32 [..., 3, tiles], of all parts of the vocabulary, in any order.
    raw : Tensor
        float32, bfloat16 or float16 [..., k]: logits.
    temperature : float or Tensor
        float32, broadcast to the rows; that of ``mass_tiles``.

    Returns
    -------
    tuple of Tensor
        float32 [..., 2]: the row's maximum, and the log of its sum in units of that; 0 and inf of a row without weight.
        float32 [..., k]: ``exp(raw / temperature - log-sum-exp)``.

    Examples
    --------
    >>> import torch
    >>> from specdec_kernels.sharded.parts import mass_tiles, tile_laws
    >>> logits = torch.zeros(4096)
    >>> parts = [mass_tiles(part)[0] for part in logits.split(1024)]
    >>> round(tile_laws(torch.cat(parts, dim=-1), logits[:1])[1].item() * 4096, 5)
    1.0
    """
    if (found := TILE_LAWS.direct(False, tiles, raw, temperature, None, None)) is not None:
        return found
    inputs.check_tensor("tiles", tiles, (torch.int32,), None)
    inputs.check_tensor("raw", raw, inputs.ROW_DTYPES, None)
    lead, device = raw.shape[:-1], raw.device
    if tiles.ndim < 2 or tiles.shape[:-2] != lead or tiles.shape[-2] != 3:
        raise ValueError(f"tiles: expected shape {[*lead, 3]} and tiles; got {inputs.shown(tiles)}")
    inputs.check_device("tiles", tiles, device)
    temperature = TILE_LAWS.number("temperature", temperature, lead, device)
    if isinstance(temperature, torch.Tensor):
        temperature = temperature.reshape(1, -1)
    known, probs = TILE_LAWS.new({"*": lead, "U": raw.shape[-1], "device": device})
    count = known.numel() // 2
    TILE_LAWS(
        tiles.reshape(count, 3 * tiles.shape[-1]), raw.reshape(count, raw.shape[-1]), temperature, known.view(count, 2),
        probs.view(count, raw.shape[-1]),
    )  # fmt: skip
    return known, probs
