"""Seeds of races from the tokens before them, row by row."""

import torch

from specdec_kernels.backends.reference import noise, requests
from specdec_kernels.backends.reference.verify_chain import slot_bounds
from specdec_kernels.calls import typed


def context_seeds(call: "typed.ContextSeeds"):
    """A row's text is the committed one and the drafts on its path. Its context has the last tokens of that."""
    batch, nodes = call.seeds.shape
    bounds, outside = (None, None) if call.parents is not None else slot_bounds(call, batch)
    active = requests.Requests(call.request_index, batch, len(call.text), call.text.device, outside=outside)
    keys, starts = (active.numbers(x, torch.int64).tolist() for x in (call.key, call.start))
    seeds, positions = call.seed.tolist(), call.position.tolist()
    call.seeds.zero_()
    for b, entry, key, start in zip(active.rows.tolist(), active.entry.tolist(), keys, starts, strict=True):
        tokens, parents = drafts_of(call, b, bounds, nodes)
        for node in range(nodes):
            path, above = list[int](), node
            while above > 0:
                path, above = [tokens[above], *path], parents[above]
            text = call.text[entry].tolist()[: max(positions[b], 0)] + path
            ends = range(max(start, 0) + call.window, len(text) + 1)
            contexts = [context(text[:end], call) for end in ends]
            if key != 0 and contexts and contexts[-1] not in contexts[:-1]:
                call.seeds[b, node] = seed_of(contexts[-1], key)
            else:
                position = positions[b] + len(path) & noise.WORD
                call.seeds[b, node] = word_of(seeds[b], (0, position, 0, noise.CONTEXT + 2))


def drafts_of(call, b, bounds, nodes):
    """(The token, the parent) of each node of a request."""
    if call.parents is not None:
        parents = call.parents.expand(len(call.seeds), nodes)[b].tolist()
        return call.draft_tokens[b].tolist(), [x if 0 <= x < node else -1 for node, x in enumerate(parents)]
    start, end = (int(x) + (b + 1) * call.tokens_by_row for x in bounds[b : b + 2])
    drafts = call.draft_tokens.reshape(-1)[start:end].tolist()
    return [-1, *drafts, *[-1] * (nodes - 1 - len(drafts))], list(range(-1, nodes - 1))


def context(text, call):
    """The last tokens, the latest first; those of a set in order."""
    tokens = text[: -1 - call.window : -1]
    return tokens if call.ordered else sorted(tokens)


def seed_of(tokens, key):
    """A seed from the sum of a word for each token and its index."""
    terms = [philox(key, (x & noise.WORD, i, len(tokens), noise.CONTEXT)) for i, x in enumerate(tokens, start=1)]
    a, b, c, _ = (sum(words) & noise.WORD for words in zip(*terms, strict=True))
    return word_of(key, (a, b, c, noise.CONTEXT + 1))


def word_of(key, counter):
    """64 bits of a counter, int64."""
    low, high, *_ = philox(key, counter)
    return (low | high << 32) - (high >> 31 << 64)


def philox(key, counter):
    return noise.philox((key & noise.WORD, key >> 32 & noise.WORD), counter)
