"""A stand-in of llama-cpp-python: the functions of llama.h that the adapter calls, as strict as llama.cpp is.

Its model looks at the last two tokens that a token sees. Logits lie in one buffer for each context, which every decode
writes anew.
"""

import ctypes
from types import SimpleNamespace

import numpy as np

LLAMA_VOCAB_TYPE_NONE, LLAMA_VOCAB_TYPE_BPE = 0, 2
RECURRENT = "recurrent", "hybrid"  # a state forgets no token
MOST_SEQUENCES = 64


class llama_batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


class ContextParams(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("n_ctx", "n_batch", "n_seq_max")), ("n_threads", ctypes.c_int32),
        *((name, ctypes.c_bool) for name in ("embeddings", "kv_unified", "swa_full")),
    ]  # fmt: skip


class Llama:
    """`table` [V, V, V]: the logits after two tokens; letters are tokens, the last token is the end."""

    def __init__(self, table, n_ctx=64, n_batch=64, letters="abcdefgh", kind="decoder", lora_path=None):
        self.table, self.letters, self.kind, self.lora_path = np.asarray(table, np.float32), letters, kind, lora_path
        self.context_params = ContextParams(n_ctx, n_batch, 1, 3, True, False, False)
        self.model, self._logits_all, self._seed = self, False, 0

    def set_seed(self, seed):
        self._seed = seed

    def generate(
        self, tokens, top_k=40, top_p=0.95, min_p=0.05, typical_p=1.0, temp=0.80, repeat_penalty=1.0,
        frequency_penalty=0.0, presence_penalty=0.0, mirostat_mode=0, logits_processor=None, stopping_criteria=None,
        grammar=None,
    ):  # fmt: skip
        yield "its own"

    def n_ctx(self):
        return self.context_params.n_ctx

    def n_vocab(self):
        return len(self.table)

    def tokenize(self, text):
        return [self.letters.index(letter) for letter in text.decode()]

    def detokenize(self, tokens, special=False):
        return "".join(self.letters[token] for token in tokens).encode()


def logits_after(table, seen):
    """Of a list of tokens."""
    return table[seen[-2] if len(seen) > 1 else 0, seen[-1]]


class Context:
    """Cells of a cache, each with its position, its token and its sequences."""

    def __init__(self, llama, params):
        self.llama, self.params = llama, ContextParams.from_buffer_copy(params)
        self.cells, self.forgets, self.code, self.freed, self.decoded = [], True, 0, False, []
        self.buffer = np.full((params.n_batch, llama.n_vocab()), np.nan, np.float32)

    def positions(self, sequence):
        return [position for position, _, sequences in self.cells if sequence in sequences]

    def decode(self, batch):
        assert 0 < batch.n_tokens <= self.params.n_batch
        self.buffer[:], self.outputs = np.nan, {}
        for entry in range(batch.n_tokens):
            sequences = {batch.seq_id[entry][index] for index in range(batch.n_seq_id[entry])}
            token, position = batch.token[entry], batch.pos[entry]
            assert max(sequences) < self.params.n_seq_max
            assert 0 <= token < self.llama.n_vocab()
            for sequence in sequences:
                assert position == max(self.positions(sequence), default=-1) + 1, "positions are not consecutive"
            self.cells.append((position, token, sequences))
            if batch.logits[entry]:
                first = batch.seq_id[entry][0]
                seen = [cell[1] for cell in sorted(self.cells, key=lambda cell: cell[0]) if first in cell[2]]
                self.buffer[len(self.outputs)] = logits_after(self.llama.table, seen)
                self.outputs[entry] = len(self.outputs)
        assert len(self.cells) <= self.params.n_ctx, "the cache is full"
        self.decoded.append(batch.n_tokens)
        return self.code


contexts = []  # all that were made, the last one last


def llama_init_from_model(model, params):
    if params.n_ctx > 100_000:
        return None
    beside = sum(context.llama is model and not context.freed for context in contexts)
    contexts.append(Context(model, params))
    contexts[-1].beside = beside  # how many others had memory then
    return contexts[-1]


def llama_free(context):
    assert not context.freed
    context.freed = True


def llama_get_memory(context):
    return context


def llama_n_batch(context):
    return context.params.n_batch


def llama_max_parallel_sequences():
    return MOST_SEQUENCES


def llama_decode(context, batch):
    return context.decode(batch)


def llama_get_logits_ith(context, entry):
    row = context.buffer[context.outputs[entry]]
    return row.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


def llama_memory_clear(context, data):
    context.cells.clear()


def llama_memory_seq_rm(context, sequence, begin, end):
    assert end == -1
    ends_within = begin and context.llama.kind in RECURRENT and max(context.positions(sequence), default=-1) >= begin
    if not context.forgets or ends_within:
        return False
    for position, _, sequences in context.cells:
        if position >= begin:
            sequences.discard(sequence)
    context.cells = [cell for cell in context.cells if cell[2]]
    return True


def llama_memory_seq_cp(context, source, target, begin, end):
    assert end == -1
    assert max(source, target) < context.params.n_seq_max
    if context.llama.kind in RECURRENT:  # the state, whole, in the place of the other's
        assert begin == 0
        assert not context.positions(target)
    for position, _, sequences in context.cells:
        if source in sequences and position >= begin:
            sequences.add(target)


def llama_model_get_vocab(model):
    return model


def llama_vocab_type(vocab):
    return LLAMA_VOCAB_TYPE_BPE if vocab.letters else LLAMA_VOCAB_TYPE_NONE


def llama_vocab_get_text(vocab, token):
    return vocab.letters[token].encode()


def llama_vocab_is_eog(vocab, token):
    return token == vocab.n_vocab() - 1


def of_kind(kind):
    return lambda model: model.kind == kind


llama_model_has_encoder, llama_model_is_recurrent = of_kind("encoder"), of_kind("recurrent")
llama_model_is_hybrid, llama_model_is_diffusion = of_kind("hybrid"), of_kind("diffusion")
MODULE = SimpleNamespace(**{name: value for name, value in globals().items() if not name.startswith("__")})
