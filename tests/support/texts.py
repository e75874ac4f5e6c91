"""Texts of drafts and verdicts, round after round, and the law that they must have."""

import torch

from specdec_kernels import race_sample, race_topk
from tests.support.cases import seeds
from tests.support.ops import verify_chain, verify_tree
from tests.support.trees import children, depths


def texts(p, q, count, length, *, parents=(-1, 0, 1, 2), method="block", replacement=False, fresh=True, apart=True,
          first_seed=0, chain=None):  # fmt: skip
    """Tokens [count, length] of texts, cut into rounds as acceptance has it.

    The target's law p and the draft's q: [V], wherever a token is, or [V, V] by the token before it, at first 0. Not
    ``fresh``: all rounds have one nonce. Not ``apart``: nodes of one depth have one. ``chain``: the op is verify_chain,
    as for ``block``.
    """
    seed, nodes, chain = seeds(count, first_seed), len(parents), method == "block" if chain is None else chain
    said = torch.zeros(count, length + nodes, dtype=torch.int64)
    done, below, at_depth = torch.zeros(count, dtype=torch.int64), children(parents), depths(parents)

    def after(law, tokens):
        return law.expand(*tokens.shape, -1) if law.ndim == 1 else law[tokens]

    for number in range(length):
        nonce, drafts = 64 * number * fresh, torch.full((count, nodes), -1)
        drafts[:, 0] = torch.where(done > 0, said.gather(1, (done - 1).clamp(min=0)[:, None])[:, 0], 0)
        for node in range(nodes):
            rows = after(q, drafts[:, node])
            noise = {"seed": seed, "position": done + at_depth[node], "space": "probs"}
            if replacement:
                for m, child in enumerate(below[node]):
                    drafts[:, child] = race_sample(rows, nonce=nonce + 1 + (child if apart else m), **noise)
            elif below[node]:
                own = nonce + node * apart
                drafts[:, below[node]] = race_topk(rows, len(below[node]), nonce=own, **noise)
        call = {"seed": seed, "position": done, "nonce": nonce, "space": "probs", "method": method}
        target, draft = after(p, drafts), None if method == "race" else after(q, drafts)
        if chain:
            verdict = verify_chain(drafts[:, 1:], target, None if draft is None else draft[:, :-1], **call)
        else:
            shape = {"parents": torch.tensor(parents), "replacement": replacement}
            verdict = verify_tree(drafts, target, draft, **shape, **call)
        for slot in range(verdict.tokens.shape[1]):
            emitted = (verdict.tokens[:, slot] >= 0) & (done + slot < said.shape[1])
            said[emitted, done[emitted] + slot] = verdict.tokens[emitted, slot]
        done = (done + verdict.num_accepted + 1).clamp(max=length)
    return said[:, :length]


def joint(said, p):
    """(each text as one number, the law of these numbers) where the law p [V, V] is by the token before, at first 0."""
    vocabulary, law = len(p), p[0]
    for _ in range(said.shape[1] - 1):
        law = (law.unsqueeze(-1) * p[torch.arange(law.numel()) % vocabulary]).flatten()
    return (said * vocabulary ** torch.arange(said.shape[1] - 1, -1, -1)).sum(dim=1), law
