"""Numbers that ops, backends and shards share.

C++ defines them in csrc/include/specdec, Triton in triton_kernels/_math.py.
"""

LARGEST = 2.0**128 - 2.0**104  # the largest finite float32
SMALLEST = 2.0**-126  # the smallest normal float32: weights below it are 0, temperatures below it mean argmax
LEAST_LOG_PROB = -(2.0**127)  # lower ones count as this, so that a mean of them is finite
COLDEST = 2.0**-64  # temperatures between 0 and this count as this
HOTTEST = 1 / COLDEST  # temperatures above this count as this
MASS_TILE = 1024  # tokens whose weights are first summed relative to their tile's maximum
PART_UNIT = 128  # a part of a row begins with a multiple of this, where words of masks and of a race's noise begin
NO_TOKEN = 2**31 - 1
LEAF_UNIFORMS = 2**30  # indices of a traversal's uniforms begin here; those below belong to rejection
LOOK_UNIFORM = 2**31  # index of the uniform by which paths draws how many chains it looks at
