"""Verification of trees of draft tokens: node by node, all requests at once."""

import torch

from specdec_kernels.backends.reference import laws, noise
from specdec_kernels.backends.reference.verify_chain import (
    BAD_PARAMETER,
    EMPTY_RESIDUAL,
    NON_FINITE,
    OUT_OF_RANGE,
    race_step,
    unfit_where_read,
)


def verify_tree(
    draft_tokens, target, draft, parents, method, replacement, space, temperature, seed, position, nonce,
    tokens, path, num_accepted, status,
):  # fmt: skip
    """Walk from the root to the first child accepted, as long as there is one; then emit one token more.

    Children come after their parents and in the order in which they are tried, so one pass over the nodes is the walk.
    """
    (requests, width), (nodes, vocabulary), device = tokens.shape, target.shape[1:], target.device
    temperature, bad_temperature = laws.temperatures(temperature, (requests,), device)
    seed, position, nonce = (laws.per_row(value, (requests,), torch.int64, device) for value in (seed, position, nonce))
    draft_tokens, parents = draft_tokens.long(), parents.expand(requests, nodes).long()
    stray = (parents < -1) | (parents >= torch.arange(nodes, device=device))

    tokens.fill_(-1)
    path.fill_(-1)
    num_accepted.zero_()
    status.copy_((bad_temperature | stray.any(dim=1)) * BAD_PARAMETER)
    node, depth, tries = torch.zeros(3, requests, dtype=torch.int64, device=device)
    # The laws p^m and q^m at each request's node, and the tokens tried there.
    p, q = torch.zeros(2, requests, vocabulary, dtype=torch.float64, device=device)
    tried = torch.zeros(requests, vocabulary, dtype=torch.bool, device=device)

    def clock(who):
        return seed[who], position[who] + depth[who], nonce[who]

    def arrive(who):
        rows = target[who, node[who]]
        path[who, depth[who]] = node[who].int()
        tries[who], tried[who] = 0, False
        if method == "race":
            # The winner is all that the race leaves to accept or to emit.
            winner, flags = race_step(rows, space, temperature[who], clock(who))
            p[who], q[who] = one_hot(winner, vocabulary), 0.0
            status[who] |= flags
            return
        p[who], q[who] = laws.law(rows, temperature[who], space), 0.0
        if draft is not None:
            draft_law = laws.widened(laws.law(draft[who, node[who]], temperature[who], space), vocabulary)
            q[who] = torch.where(temperature[who].unsqueeze(-1) > 0, draft_law, 0.0)

    def read(who, at_x, glance):
        """Status of what a trial or a draw reads of the node's pair of rows: only at x where ``glance``."""
        flags = unfit_where_read(target[who, node[who]], glance, at_x, space)
        if draft is not None:
            used = (tries[who] > 0) & (temperature[who] > 0)
            flags |= used & unfit_where_read(draft[who, node[who]], glance, at_x, space)
        status[who] |= flags.int() * NON_FINITE

    arrive(torch.arange(requests, device=device))
    for child in range(1, nodes):
        x = draft_tokens[:, child]
        here = (parents[:, child] == node) & (x != -1)
        no_room = here & (depth == width - 1)
        valid = (x >= 0) & (x < vocabulary)
        at_x = torch.where(valid, x, 0).unsqueeze(-1)
        status |= no_room.int() * BAD_PARAMETER | (here & ~no_room & ~valid).int() * OUT_OF_RANGE
        repeated = valid & tried.gather(-1, at_x).squeeze(-1)
        if draft is None or not replacement:
            here = here & ~repeated

        who = (here & ~no_room).nonzero().squeeze(-1)
        x, valid, at_x = x[who], valid[who], at_x[who]
        tries[who] += 1
        tried[who] = tried[who].scatter(-1, at_x, valid.unsqueeze(-1) | tried[who].gather(-1, at_x))
        if method == "rejection":
            certain = temperature[who] == 0
            first = (tries[who] == 1) | (draft is None)
            read(who, at_x, glance=first & ~certain & (space == "probs"))
        if draft is None and method == "rejection":
            q[who] = one_hot(at_x.squeeze(-1), vocabulary) * (valid & ~certain).unsqueeze(-1)

        coin = noise.coins(*clock(who), noise.COIN, child - 1)
        p_x, q_x = p[who].gather(-1, at_x).squeeze(-1), q[who].gather(-1, at_x).squeeze(-1)
        accepted = valid & (coin * q_x < p_x)
        rejected = who[~accepted]
        p[rejected] = normalised((p[rejected] - q[rejected]).clamp(min=0.0))
        if not replacement:
            q[rejected] = normalised(torch.where(tried[rejected], 0.0, q[rejected]))

        who, x = who[accepted], x[accepted]
        tokens[who, depth[who]] = x
        node[who], depth[who] = child, depth[who] + 1
        arrive(who)

    everyone = torch.arange(requests, device=device)
    root = torch.zeros_like(node).unsqueeze(-1)
    if method == "rejection":
        read(everyone, root, glance=torch.zeros_like(bad_temperature))
    empty = (p == 0).all(dim=-1)
    whole = laws.law(target[everyone, node], temperature, space)
    p = torch.where(empty.unsqueeze(-1), whole, p)
    status |= (empty & (tries > 0)).int() * EMPTY_RESIDUAL
    tokens[everyone, depth] = laws.draw(p, noise.arrivals(*clock(everyone), noise.RESIDUAL, vocabulary))
    num_accepted.copy_(depth)


def one_hot(token, vocabulary):
    return torch.nn.functional.one_hot(token, vocabulary).double()


def normalised(weights):
    """Weights that sum to one, or none at all."""
    weights = torch.where(weights < laws.SMALLEST, 0.0, weights)
    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=laws.SMALLEST)
