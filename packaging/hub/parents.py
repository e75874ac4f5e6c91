"""What the compiled module has for a build without one: whether parents are trees (csrc/python/check_parents.h), and
whether it could view tensors (csrc/python/tensor.cpp): it views none.
"""

import ctypes

import numpy as np


def check_parents(
    address: int, tree_stride: int, node_stride: int, wide: bool, trees: int, nodes: int
) -> tuple[int, int, int]:
    """Depth of the deepest node below a root, and the first bad entry's tree and node; -1 and -1 if there is none."""
    if trees == 0:
        return 0, -1, -1
    number = ctypes.c_int64 if wide else ctypes.c_int32
    size = 1 + (trees - 1) * tree_stride + (nodes - 1) * node_stride
    memory = np.ctypeslib.as_array((number * size).from_address(address))
    strides = tree_stride * memory.itemsize, node_stride * memory.itemsize
    parents = np.lib.stride_tricks.as_strided(memory, (trees, nodes), strides)
    node = np.arange(nodes)
    bad = np.argwhere((parents < -1) | (parents >= node) | ((node == 0) & (parents != -1)))
    if len(bad):
        return 0, int(bad[0, 0]), int(bad[0, 1])
    depths = np.zeros((trees, nodes), dtype=np.int64)
    for child in range(1, nodes):  # -1: in no tree, like all nodes below it
        above = depths[np.arange(trees), parents[:, child].clip(0)]
        depths[:, child] = np.where((parents[:, child] < 0) | (above < 0), -1, above + 1)
    return int(depths.max()), -1, -1


def use_tensors(kind: object, capsule: object, negative: object) -> None:
    """Nothing is viewed."""


def all_viewed(values: object) -> bool:
    """Whether all tensors in some values can be viewed."""
    return False


def apart(values: object, written: bytes) -> bool:
    """Whether what is written is surely apart from all else."""
    return False
