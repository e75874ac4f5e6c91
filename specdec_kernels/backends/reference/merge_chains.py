"""Trees of chains."""

import torch

from specdec_kernels.calls import typed


def merge_chains(call: "typed.MergeChains"):
    """Chain by chain, token by token: the node of the prefix so far, a new one for a new prefix."""
    (batch, nodes), chains = call.draft_tokens.shape, call.leaves.shape[1]
    for b, tokens in enumerate(call.paths.view(batch, chains, (nodes - 1) // max(chains, 1)).tolist()):
        node_of_text = {(): 0}  # prefix -> node
        said, parents = [-1], [-1]
        for chain, row in enumerate(tokens):
            row = row[: row.index(-1)] if -1 in row else row
            for i, token in enumerate(row, 1):
                if tuple(row[:i]) not in node_of_text:
                    node_of_text[tuple(row[:i])] = len(said)
                    said.append(token)
                    parents.append(node_of_text[tuple(row[: i - 1])])
            call.leaves[b, chain] = node_of_text[tuple(row)] if row else -1
        for output, entries in ((call.draft_tokens, said), (call.parents, parents)):
            output[b] = torch.tensor(entries + [-1] * (nodes - len(entries)), dtype=torch.int64, device="cpu")
