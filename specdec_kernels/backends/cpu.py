"""The C++ backend for CPU tensors: addresses, strides and sizes go to ``_C``."""

import torch

from specdec_kernels import _C
from specdec_kernels.backends import arguments


def verify_chain(*call):
    _C.verify_chain(arguments.chain(*call), torch.get_num_threads())


def race_sample(target, space, temperature, seed, position, nonce, tokens):
    call = arguments.race(target, 1, space, temperature, seed, position, nonce, tokens)
    _C.race_sample(call, torch.get_num_threads())


def race_topk(draft, space, temperature, seed, position, nonce, tokens):
    call = arguments.race(draft, tokens.shape[-1], space, temperature, seed, position, nonce, tokens)
    _C.race_topk(call, torch.get_num_threads())


def residual(*call):
    _C.residual(arguments.residual(*call), torch.get_num_threads())


def overlap(*call):
    _C.overlap(arguments.overlap(*call), torch.get_num_threads())


def verify_tree(*call):
    _C.verify_tree(arguments.tree(*call), torch.get_num_threads())


def tree_mask(*call):
    _C.tree_mask(arguments.mask(*call), torch.get_num_threads())


def tree_positions(*call):
    _C.tree_positions(arguments.positions(*call), torch.get_num_threads())


def compact_kv(*call):
    _C.compact_kv(arguments.compact(*call), torch.get_num_threads())
