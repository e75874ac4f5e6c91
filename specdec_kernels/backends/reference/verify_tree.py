"""Verification of trees of draft tokens: node by node, all requests at once; ``traversal`` and ``paths`` have files."""

import torch

from specdec_kernels.backends.reference import form, laws, noise, paths, requests, traversal
from specdec_kernels.backends.reference.edits import Edits
from specdec_kernels.backends.reference.verify_chain import Pair, race_step
from specdec_kernels.status import Status


def verify_tree(call):
    """Walk from the root to the first child accepted, as long as there is one; then emit one token more.

    Children come after their parents and in the order in which they are tried, so one pass over the nodes is the walk.
    """
    (batch, width), (nodes, vocabulary), device = form.shape_of(call), call.target.shape[1:], call.target.device
    who = requests.of(call, batch, device)
    target_law, bad_temperature = laws.decoded(call.target_law, who)
    draft_law, bad_draft_temperature = laws.decoded(call.draft_law, who)
    whose = who.noise(call.noise)
    if call.input_positions is not None:
        whose = whose._replace(position=call.input_positions[who.live, 0].long() + 1)
    draft_tokens = call.draft_tokens[who.live].long()
    parents = call.parents.expand(batch, nodes)[who.live].long()
    rejection, certain = call.method == "rejection", target_law.temperature == 0
    stray = (parents < -1) | (parents >= torch.arange(nodes, device=device, dtype=torch.int64))

    count = len(who.live)
    tokens, path = torch.full((2, count, width), -1, device=device, dtype=torch.int64)
    edits = Edits(call, who, call.target)
    bad = bad_temperature | stray.any(dim=1) | edits.bad
    if call.draft is not None:
        bad |= bad_draft_temperature
    status = bad.int() * Status.PARAMETER
    if call.method in ("traversal", "paths"):
        places = who.live.unsqueeze(-1) * nodes + torch.arange(nodes, device=device, dtype=torch.int64)
        draft = None if call.draft is None else call.draft[who.entry]
        drafts = traversal.Trees(
            torch.where(stray, -1, parents), draft_tokens, call.target[who.live], places, draft, call.draft_map,
            call.replacement, width,
        )  # fmt: skip
        walk = None if call.leaves is None else paths.Walk(call.leaves[who.live].long(), whose, width)
        tokens, path, num_accepted, found = traversal.decide(drafts, target_law, draft_law, edits, whose, walk)
        return form.write(call, who, tokens, path, num_accepted, status | found)
    node, depth, tries = torch.zeros(3, count, dtype=torch.int64, device=device)
    # The laws p^m and q^m at each request's node, and the tokens tried there.
    p, q = torch.zeros(2, count, vocabulary, dtype=torch.float64, device=device)
    tried = torch.zeros(count, vocabulary, dtype=torch.bool, device=device)

    def now(some):
        return noise.at(whose, some, depth[some])

    def pair_at(some):
        """The rows at their nodes."""
        target, bad = edits.rows_at(call.target[who.live[some], node[some]], some, who.live[some] * nodes + node[some])
        status[some] |= bad.int() * Status.PARAMETER
        law = laws.at(target_law, some)
        if call.draft is None:
            return Pair(target, law, edits.on)
        draft = call.draft[who.entry[some], node[some]]
        return Pair(target, law, edits.on, draft, laws.at(draft_law, some), call.draft_map)

    def arrive(some):
        pair = pair_at(some)
        path[some, depth[some]] = node[some]
        tries[some], tried[some] = 0, False
        if not rejection:
            # With p one-hot on the race's winner, the walk below accepts or emits just that token.
            winner, flags = race_step(pair.target, pair.target_law, now(some))
            p[some], q[some] = one_hot(winner, vocabulary), 0.0
            status[some] |= flags
            return
        p[some], q[some] = pair.p(), 0.0
        if call.draft is not None:
            q[some] = torch.where(certain[some].unsqueeze(-1), 0.0, pair.q())

    def read(some, x, glance):
        """Set the status of what a trial or a draw reads of the node's pair of rows: only token x where ``glance``."""
        drafted = (tries[some] > 0) & ~certain[some]
        status[some] |= pair_at(some).unfit(drafted, glance, x).int() * Status.NON_FINITE

    everyone = torch.arange(count, device=device, dtype=torch.int64)
    arrive(everyone)
    for child in range(1, nodes):
        x = draft_tokens[:, child]
        here = (parents[:, child] == node) & (x != -1)
        no_room = here & (depth == width - 1)
        valid = (x >= 0) & (x < vocabulary)
        x = torch.where(valid, x, 0)
        status |= no_room.int() * Status.PARAMETER | (here & ~no_room & ~valid).int() * Status.TOKEN_RANGE
        if call.draft is None or not call.replacement:
            here = here & ~(valid & tried.gather(-1, x.unsqueeze(-1)).squeeze(-1))

        some = (here & ~no_room).nonzero().squeeze(-1)
        x, valid = x[some], valid[some]
        at_x = x.unsqueeze(-1)
        tries[some] += 1
        tried[some] = tried[some].scatter(-1, at_x, valid.unsqueeze(-1) | tried[some].gather(-1, at_x))
        if rejection:
            read(some, x, glance=(tries[some] == 1) | (call.draft is None))
            if call.draft is None:
                q[some] = one_hot(x, vocabulary) * (valid & ~certain[some]).unsqueeze(-1)

        coin = noise.coins(now(some), noise.COIN, child - 1)
        p_x, q_x = p[some].gather(-1, at_x).squeeze(-1), q[some].gather(-1, at_x).squeeze(-1)
        # As for chains, a token without weight in the draft's law is refused; a race and an argmax have none.
        drawn_from_q = (q_x > 0) | certain[some] if rejection else valid
        accepted = valid & drawn_from_q & (coin * q_x < p_x)
        rejected = some[~accepted]
        p[rejected] = normalised((p[rejected] - q[rejected]).clamp(min=0.0))
        if not call.replacement:
            q[rejected] = normalised(torch.where(tried[rejected], 0.0, q[rejected]))

        some, x = some[accepted], x[accepted]
        tokens[some, depth[some]] = x
        node[some], depth[some] = child, depth[some] + 1
        edits.count(some, x)
        arrive(some)

    if rejection:
        read(everyone, torch.zeros_like(node), glance=torch.zeros_like(certain))
    empty = (p == 0).all(dim=-1)
    p = torch.where(empty.unsqueeze(-1), pair_at(everyone).p(), p)
    status |= (empty & (tries > 0)).int() * Status.EMPTY_RESIDUAL
    tokens[everyone, depth] = laws.draw(p, noise.arrivals(now(everyone), noise.RESIDUAL, vocabulary))
    form.write(call, who, tokens, path, depth, status)


def one_hot(token, vocabulary):
    return torch.nn.functional.one_hot(token, vocabulary).double()


def normalised(weights):
    """Weights divided by their sum; all zero if they have none."""
    weights = torch.where(weights < laws.SMALLEST, 0.0, weights)
    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=laws.SMALLEST)
