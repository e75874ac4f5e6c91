"""Verification of chains of draft tokens: slot by slot, all requests that still walk at once."""

import torch

from specdec_kernels.backends.reference import laws, noise

NON_FINITE, EMPTY_RESIDUAL, OUT_OF_RANGE, BAD_PARAMETER = 1, 2, 4, 8


def verify_chain(
    draft_tokens, target, draft, cu_drafts, method, space, temperature, draft_prob, epsilon, seed, position, nonce,
    tokens, num_accepted, status,
):  # fmt: skip
    """Accept drafts until the method rejects one or none is left; every slot that is reached emits one token."""
    requests, width = tokens.shape
    device = target.device
    temperature, bad_temperature = laws.temperatures(temperature, (requests,), device)
    epsilon, bad_epsilon = laws.epsilons(epsilon, (requests,), device)
    seed, position, nonce = (laws.per_row(value, (requests,), torch.int64, device) for value in (seed, position, nonce))

    bounds = slot_bounds(draft_tokens, cu_drafts, requests)
    start, count = bounds[:-1], bounds.diff()
    draft_tokens, target = draft_tokens.reshape(-1).long(), target.reshape(-1, target.shape[-1])
    draft = None if draft is None else draft.reshape(-1, draft.shape[-1])
    draft_prob = draft_prob.reshape(-1) if isinstance(draft_prob, torch.Tensor) else draft_prob
    draft_prob, bad_draft_prob = laws.draft_probs(draft_prob, draft_tokens.shape, device)

    tokens.fill_(-1)
    num_accepted.zero_()
    status.copy_((bad_temperature | bad_epsilon | (count > width - 1)) * BAD_PARAMETER)
    walking = torch.arange(requests, device=device)
    for slot in range(width):
        here = walking
        index = start[here] + slot
        within = slot < count[here].clamp(max=width - 1)
        x = torch.full_like(here, -1)
        x[within] = draft_tokens[index[within]]
        out_of_range = (x < -1) | (x >= target.shape[-1])

        rows = target[index + here]
        clock = (seed[here], position[here] + slot, nonce[here])
        if method == "race":
            token, flags = race_step(rows, space, temperature[here], clock)
            accepted = x == token
        else:
            within &= temperature[here] > 0
            h, bad = torch.ones_like(here, dtype=torch.float64), torch.zeros_like(within)
            h[within], bad[within] = draft_prob[index[within]], bad_draft_prob[index[within]]
            # A slot without a token has its draft law all the same, unless drafting was certain: then the chain ends.
            drafted = within & ((x != -1) | (h < 1))
            draft_rows = None if draft is None else rows_where(drafted, draft, index, space)
            coin = noise.coins(*clock, noise.COIN, slot)
            token, accepted, flags = rejection_step(
                rows, draft_rows, drafted, x, h, epsilon[here], space, temperature[here], coin, clock
            )
            flags |= bad.int() * BAD_PARAMETER
        status[here] |= flags | out_of_range.int() * OUT_OF_RANGE
        tokens[here, slot] = token
        num_accepted[here] += accepted.int()
        walking = here[accepted]


def slot_bounds(draft_tokens, cu_drafts, requests):
    """Slots bounds[b] .. bounds[b + 1] are request b's, padded or ragged; target row i + b verifies slot i."""
    if cu_drafts is not None:
        return cu_drafts.long()
    return torch.arange(requests + 1, device=draft_tokens.device) * draft_tokens.shape[-1]


def rows_where(drafted, values, index, space):
    """Rows values[index]; those without a draft are not read, and have no weight."""
    rows = values.new_full((len(drafted), values.shape[-1]), 0.0 if space == "probs" else -torch.inf)
    rows[drafted] = values[index[drafted]]
    return rows


def race_step(rows, space, temperature, clock):
    """The target's own winner of the race in which the draft took part, and status bits."""
    logs = laws.log_weights(rows, temperature, space)
    token = laws.scores(logs, noise.arrivals(*clock, noise.RACE, rows.shape[-1]), temperature).argmax(dim=-1)
    return token, laws.unfit(rows, space).int() * NON_FINITE


def rejection_step(rows, draft_rows, drafted, x, h, epsilon, space, temperature, coin, clock):
    """Accept x iff u h q(x) < p(x) + eps, else draw from norm((p - h q)+); at temperature 0 p is one-hot and q is 0."""
    vocabulary = rows.shape[-1]
    valid = (x >= 0) & (x < vocabulary)
    at_x = torch.where(valid, x, 0).unsqueeze(-1)
    p = laws.law(rows, temperature, space)
    if draft_rows is None:
        q = torch.zeros_like(p).scatter_(-1, at_x, (drafted & valid).double().unsqueeze(-1))
    else:
        q = drafted.unsqueeze(-1) * laws.widened(laws.law(draft_rows, temperature, space), vocabulary)

    p_x, q_x = p.gather(-1, at_x).squeeze(-1), q.gather(-1, at_x).squeeze(-1)
    accepted = valid & (coin * (h * q_x) < p_x + torch.where(temperature > 0, epsilon, 0.0))
    weights = laws.residual_weights(p, q, h)
    empty = (weights == 0).all(dim=-1)
    weights = torch.where(empty.unsqueeze(-1), p, weights)
    drawn = laws.draw(weights, noise.arrivals(*clock, noise.RESIDUAL, vocabulary))

    # From probabilities an accepted slot reads p(x) and q(x) alone; whole rows are read to draw and to find an argmax.
    glance = accepted & (temperature > 0) & (space == "probs")
    flags = unfit_where_read(rows, glance, at_x, space)
    if draft_rows is not None:
        flags |= drafted & unfit_where_read(draft_rows, glance, at_x, space)
    empty &= drafted & ~accepted
    return torch.where(accepted, x, drawn), accepted, flags.int() * NON_FINITE | empty.int() * EMPTY_RESIDUAL


def unfit_where_read(rows, glance, at_x, space):
    """Rows with a value no law has: at x alone where ``glance``, anywhere otherwise."""
    known = at_x < rows.shape[-1]
    glanced = laws.non_finite(rows.gather(-1, torch.where(known, at_x, 0)), space) & known
    return torch.where(glance, glanced.squeeze(-1), laws.unfit(rows, space))
