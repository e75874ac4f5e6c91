"""What the sharded ops are made of: what a rank finds in its slice of rows, and what all ranks make of that.

Ops like those of ``specdec_kernels``, of every backend. None communicates, and each is one launch.
"""

from specdec_kernels.sharded.parts.count_at_least import count_at_least
from specdec_kernels.sharded.parts.first_arrivals import first_arrivals
from specdec_kernels.sharded.parts.mass_tiles import mass_tiles
from specdec_kernels.sharded.parts.residual_race import residual_race
from specdec_kernels.sharded.parts.residual_sums import residual_sums
from specdec_kernels.sharded.parts.tile_laws import tile_laws
from specdec_kernels.sharded.parts.token_logits import token_logits
from specdec_kernels.sharded.parts.walk_tables import Walked, walk_tables

__all__ = [
    "Walked",
    "count_at_least",
    "first_arrivals",
    "mass_tiles",
    "residual_race",
    "residual_sums",
    "tile_laws",
    "token_logits",
    "walk_tables",
]
