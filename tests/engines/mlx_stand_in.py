"""A stand-in of mlx and mlx-lm: what the adapter calls of them, over NumPy.

Its model looks at the last two tokens that its cache holds, so a cache that was rewound by too little or too much
gives other logits. NumPy has no bfloat16.
"""

import contextlib
from types import ModuleType, SimpleNamespace

import numpy as np


class array(np.ndarray):
    def __new__(cls, values, dtype=None):
        return np.array(values, dtype).view(cls)


class KVCache:
    """Of a layer: the tokens before `offset`."""

    def __init__(self):
        self.tokens, self.offset = np.zeros(4096, np.int64), 0

    @property
    def state(self):
        return self.tokens[: self.offset]

    def is_trimmable(self):
        return True

    def trim(self, n):
        n = min(self.offset, n)
        self.offset -= n
        return n

    def update(self, tokens):
        self.tokens[self.offset : self.offset + len(tokens)] = tokens
        self.offset += len(tokens)
        return self.state


class RotatingKVCache(KVCache):
    """As theirs it rewinds until its window is full."""

    def __init__(self, max_size):
        super().__init__()
        self.max_size = max_size

    @property
    def state(self):
        return self.tokens.view(array), self.offset

    @state.setter
    def state(self, state):
        self.tokens, self.offset = state

    def update(self, tokens):
        super().update(tokens)
        return self.tokens[: self.offset]

    def is_trimmable(self):
        return self.offset < self.max_size


class ArraysCache:
    """A state of a recurrent layer: its last two tokens."""

    def __init__(self):
        self.cache = [array([0, 0])]

    @property
    def state(self):
        return self.cache, None, None

    @state.setter
    def state(self, state):
        self.cache, *_ = state

    def is_trimmable(self):
        return False

    def update(self, tokens):
        seen = np.concatenate([self.cache[0], tokens])
        self.cache[0] = array(seen[-2:])
        return seen


class CacheList:
    def __init__(self, *caches):
        self.caches = caches

    @property
    def state(self):
        return [each.state for each in self.caches]

    def is_trimmable(self):
        return all(each.is_trimmable() for each in self.caches)

    def trim(self, n):
        return [each.trim(n) for each in self.caches][-1]

    def update(self, tokens):
        return [each.update(tokens) for each in self.caches][-1]


class Model:
    """`table` [V, V, V]: the logits after two tokens. Its pieces are counted."""

    def __init__(self, table, make_cache=KVCache):
        self.table, self.layers, self.make_cache, self.pieces = np.asarray(table, np.float32), [None], make_cache, []

    def __call__(self, inputs, cache=None):
        (tokens,) = inputs.tolist()
        if cache is None:
            cache = [KVCache()]
        else:
            self.pieces.append(len(tokens))
        seen = [0, *cache[0].update(tokens).tolist()]
        return array([[self.table[seen[end - 1], seen[end]] for end in range(len(seen) - len(tokens), len(seen))]])


def logits_after(table, seen):
    """Of a list of tokens."""
    return table[seen[-2] if len(seen) > 1 else 0, seen[-1]]


def logsumexp(x):
    return np.logaddexp.reduce(x, axis=-1)


def make_sampler(
    temp=0.0, top_p=0.0, min_p=0.0, min_tokens_to_keep=1, top_k=0, xtc_probability=0.0, xtc_threshold=0.0,
    xtc_special_tokens=(),
):  # fmt: skip
    return lambda logprobs: None


def modules():
    """By the names that they are imported by."""
    core = ModuleType("mlx.core")
    core.array, core.logsumexp = array, logsumexp
    core.uint16, core.uint32, core.bfloat16 = np.uint16, np.uint32, np.dtype([("bfloat16", np.uint16)])
    core.zeros, core.concatenate = (lambda shape, dtype: array(np.zeros(shape), dtype)), np.concatenate
    core.eval = core.clear_cache = lambda *_: None
    core.stream = lambda _: contextlib.nullcontext()
    generator = np.random.default_rng(0)
    core.random = SimpleNamespace(randint=generator.integers)
    generate, cache = ModuleType("mlx_lm.generate"), ModuleType("mlx_lm.models.cache")
    generate.generation_stream = generate.speculative_generate_step = object()
    generate.maybe_quantize_kv_cache = lambda cache, quantized_kv_start, kv_group_size, kv_bits: None
    cache.make_prompt_cache = lambda model: [model.make_cache()]
    samplers, server = ModuleType("mlx_lm.sample_utils"), ModuleType("mlx_lm.server")
    samplers.make_sampler = generate.make_sampler = server.make_sampler = make_sampler
    parents = {name: ModuleType(name) for name in ("mlx", "mlx_lm", "mlx_lm.models")}
    parents["mlx"].core, parents["mlx_lm.models"].cache = core, cache
    known = (core, generate, cache, samplers, server)
    return {**parents, **{module.__name__: module for module in known}}
