"""Operations in which Triton's interpreter differs from a GPU, corrected."""

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from specdec_kernels.backends.reference import mass


def fma(a, b, c):
    """a * b + c, rounded once; ``tl.fma`` of the interpreter also rounds the product. ``a`` is no constant."""

    def data(value):
        return value.handle.data if isinstance(value, tl.tensor) else np.float32(value)

    with np.errstate(all="ignore"):
        return tl.tensor(TensorHandle(mass.fma(data(a), data(b), data(c)), tl.float32), a.type)
