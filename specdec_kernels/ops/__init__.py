"""The public ops: one file each, docstring, checks, one call."""

from specdec_kernels.ops.overlap import Overlap, overlap
from specdec_kernels.ops.race_sample import race_sample
from specdec_kernels.ops.race_topk import race_topk
from specdec_kernels.ops.residual import residual
from specdec_kernels.ops.verify_chain import Verdict, verify_chain

__all__ = ["Overlap", "Verdict", "overlap", "race_sample", "race_topk", "residual", "verify_chain"]
