"""Seeds of races from the tokens before them, row by row."""

import torch

from specdec_kernels.backends.reference import noise, requests
from specdec_kernels.backends.reference.verify_chain import slot_bounds
from specdec_kernels.calls import typed


def context_seeds(call: "typed.ContextSeeds"):
    """A row's own text is what is committed and the drafts on its path. Its context has the last tokens of that."""
    batch, nodes = call.seeds.shape
    bounds, outside = (None, None) if call.parents is not None else slot_bounds(call, batch)
    who = requests.Requests(call.request_index, batch, len(call.text), call.text.device, outside=outside)
    own_noise, keys = who.noise(call.noise), who.numbers(call.key, torch.int64)
    starts = who.numbers(call.start, torch.int64)
    seeds, positions = torch.zeros(2, len(who.live), nodes, dtype=torch.int64, device=call.text.device)
    for i, (b, entry) in enumerate(zip(who.live.tolist(), who.entry.tolist(), strict=True)):
        tokens, parents, first = drafts_of(call, b, bounds, nodes)
        length, key, start = int(own_noise.position[i]), int(keys[i]), max(int(starts[i]), 0)
        if call.input_positions is not None:
            length = int(call.input_positions.reshape(-1)[first]) + 1
        text = call.text[entry].tolist()
        text = [text[place] if place < len(text) else -1 for place in range(length)]
        for node in range(nodes):
            path, above = list[int](), node
            while above > 0:
                path, above = [tokens[above], *path], parents[above]
            own = text + path
            here = context(own, len(own), call)
            before = [*range(start, min(length, call.text.shape[1])), *range(max(start, length), len(own))]
            if key != 0 and here not in (context(own, place, call) for place in before):
                seeds[i, node] = seed_of(here, key, call)
            else:
                seeds[i, node], positions[i, node] = own_noise.seed[i], len(own)
    who.write(call.seeds, seeds)
    who.write(call.positions, positions)


def drafts_of(call, b, bounds, nodes):
    """(the token and the parent of each node of a request, its place among all ``input_positions``)."""
    if call.parents is not None:
        parents = call.parents.expand(len(call.seeds), nodes)[b].tolist()
        parents = [parent if 0 <= parent < node else -1 for node, parent in enumerate(parents)]
        return call.draft_tokens[b].tolist(), parents, b * nodes
    start, count = int(bounds[b]), int(bounds[b + 1] - bounds[b])
    drafts = call.draft_tokens.reshape(-1)[start + (b + 1) * call.tokens_by_row :][:count].tolist()
    drafts += [-1] * (nodes - 1 - count)
    return [-1, *drafts], list(range(-1, nodes - 1)), start + b if call.cu_drafts is not None else b * nodes


def context(text, place, call):
    """The tokens before a place, the latest first, -1 before the beginning. Those of a set in order."""
    tokens = [text[i] if i >= 0 else -1 for i in range(place - 1, place - 1 - call.window, -1)]
    return tokens if call.ordered else sorted(tokens)


def seed_of(tokens, key, call):
    """A word of a sum of words, one for each token and its place (0 in a set)."""
    token = torch.tensor(tokens, dtype=torch.int64, device="cpu")
    place = torch.arange(1, call.window + 1, dtype=torch.int64, device="cpu") * bool(call.ordered)
    keys = key & noise.WORD, key >> 32 & noise.WORD
    width, stream = torch.tensor([call.window, noise.CONTEXT], dtype=torch.int64, device="cpu")
    terms = noise.philox(keys, (token & noise.WORD, place, width, stream))
    a, b, c = (term.sum() & noise.WORD for term in terms[:3])
    low, high, *_ = noise.philox(keys, (a, b, c, stream + 1))
    return int(low | high << 32)
