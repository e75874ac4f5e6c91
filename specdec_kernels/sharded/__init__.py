"""Verification under tensor parallelism: each rank has a slice of every row, and sends some bytes of it.

The ops have the names and arguments of ``specdec_kernels``, take rows of the rank's slice, and ``shard=``. Every rank
gets the bits that the unsharded op gives on the whole rows. So nothing has to be broadcast.
"""

from specdec_kernels.sharded._chains import verify_chain
from specdec_kernels.sharded._cutoff import cutoff
from specdec_kernels.sharded._logprobs import logprobs
from specdec_kernels.sharded._races import RowPartial, race_finish, race_partial
from specdec_kernels.sharded._sampling import race_sample, race_topk
from specdec_kernels.sharded._shard import VocabShard
from specdec_kernels.sharded._trees import verify_tree

__all__ = [
    "RowPartial",
    "VocabShard",
    "cutoff",
    "logprobs",
    "race_finish",
    "race_partial",
    "race_sample",
    "race_topk",
    "verify_chain",
    "verify_tree",
]
