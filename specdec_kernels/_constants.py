"""Numbers that ops, backends and shards agree on.

C++ has its own in csrc/include/specdec, Triton in triton_kernels/_math.py.
"""

LARGEST = 2.0**128 - 2.0**104  # of finite float32 numbers
SMALLEST = 2.0**-126  # of normal ones: weights below it are 0, temperatures below it mean argmax
LEAST_LOG_PROB = -(2.0**127)  # what is less counts as this, so that a mean of them is a number, too
COLDEST = 2.0**-64  # as which every temperature between 0 and this one counts
HOTTEST = 1 / COLDEST  # as which every one above it counts
MASS_TILE = 1024  # tokens whose weights are first summed relative to their own maximum
PART_UNIT = 128  # a part of a row begins with a multiple of it: there words of masks and of a race's noise begin
NO_TOKEN = 2**31 - 1
LEAF_UNIFORMS = 2**30  # indices of a traversal's uniforms begin here; those below belong to rejection
LOOK_UNIFORM = 2**31  # index of the uniform by which paths draws how many chains it looks at
