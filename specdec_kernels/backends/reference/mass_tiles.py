"""What the tiles of rows weigh."""

import torch

from specdec_kernels._constants import MASS_TILE
from specdec_kernels.backends.reference import laws, mass, requests
from specdec_kernels.backends.reference.edits import Edits
from specdec_kernels.status import Status


def mass_tiles(call):
    """Of each tile its maximum, and its weight in units of 2**-30 of that; of a greedy row nothing."""
    batch, inner, columns = call.rows.shape
    who = requests.of(call, batch, call.rows.device, inner=(inner,))
    law, bad = laws.decoded(call.law, who)
    edits = Edits(call, who, call.rows)
    rows = edits.rows(call.rows[who.live])
    v = laws.scaled(rows, law.temperature)
    v = torch.where((law.temperature > 0).unsqueeze(-1), v, -torch.inf)
    v = torch.nn.functional.pad(v, (0, -columns % MASS_TILE), value=-torch.inf).unflatten(-1, (-1, MASS_TILE))
    tops = v.amax(dim=-1)
    flat = [
        mass.units(*one) if one[1] > -torch.inf else 0
        for one in zip(v.flatten(0, -2).cpu().numpy(), tops.flatten().cpu().numpy(), strict=True)
    ]
    units = torch.tensor(flat, dtype=torch.int64).view(tops.shape).to(tops.device)
    found = torch.stack([tops.view(torch.int32), units.int(), (units >> 32).int()], dim=-2)
    none = torch.zeros(3, tops.shape[-1], dtype=torch.int32, device=tops.device)
    none[0] = torch.tensor(-torch.inf).view(torch.int32)
    who.write(call.tiles.unflatten(-1, none.shape), found, idle=none, outside=none)
    greedy = law.temperature == 0
    status = (laws.non_finite(rows, "logits").any(dim=-1) & ~greedy).int() * Status.NON_FINITE
    who.write(call.status, status | (bad | edits.bad).int() * Status.PARAMETER, outside=Status.PARAMETER)
