"""A scheduler like SGLang's, with a small model: rounds of drafts, with and without overlap, under penalties."""

import types

import torch

import specdec_kernels as specdec
from specdec_kernels import DraftTree, Sampling
from tests.engines.sglang_stand_in import Orchestrator, Pool, Registry, info, schedule_batch, verify_input

VOCAB, LENGTH, SEED = 8, 24, 1000
TREES = {"plain": None, "chain": DraftTree.chain(3), "tree": DraftTree.from_parents([-1, 0, 0, 1, 1, 3])}


def model(text):
    """Logits after a text, of its last two tokens, which come again; multiples of 1/4, so that no sum is rounded."""
    generator = torch.Generator().manual_seed(100 * text[-1] + text[-2])
    logits = (8 * torch.randn(VOCAB, generator=generator, dtype=torch.float32)).round() / 4
    logits[text[-2:]] += 2
    return logits


def penalised(logits, output, of_request):
    """A row, by the definition."""
    count = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=VOCAB).float()
    x = logits - of_request.frequency_penalty * count - of_request.presence_penalty * (count > 0).float()
    if len(output) < of_request.min_new_tokens:
        x[list(of_request.stop_token_ids)] = -torch.inf
    scale = torch.where(count > 0, of_request.repetition_penalty, logits.new_ones(()))
    return torch.where(x < 0, x * scale, x / scale)


def drawn(logits, req, position):
    return int(specdec.race_sample(logits, seed=req.seed, position=position, sampling=req.sampling))


def plain(req):
    """The text that plain sampling writes."""
    text, prompt = list(req.origin_input_ids), len(req.origin_input_ids)
    for position in range(prompt, prompt + LENGTH + 12):
        text.append(drawn(penalised(model(text), text[prompt:], req.sampling_params), req, position))
    return text[prompt:]


class Batch:
    """A ScheduleBatch; its requests know their slots."""

    def __init__(self, reqs, pool):
        self.reqs, self.device, self.req_to_token_pool = reqs, "cpu", pool
        self.sampling_info = info(0, penalizer_orchestrator=Orchestrator(self))
        Registry.hook("from_schedule_batch")(self.sampling_info, None, self, VOCAB)

    def filter(self, keep):
        self.reqs = [self.reqs[row] for row in keep]

    def slots(self):
        return torch.tensor([req.kv.req_pool_idx for req in self.reqs])

    def merge(self, other):
        self.reqs = self.reqs + other.reqs

    def forward_info(self, copied=True):
        """A forward's copy, or what a forward without drafts and overlap is given."""
        laws = [req.sampling for req in self.reqs]
        top_k, top_p, min_p = ([getattr(law, name) for law in laws] for name in ("top_k", "top_p", "min_p"))
        given = info(
            len(laws), torch.tensor([req.seed for req in self.reqs]),
            temperatures=torch.tensor([[law.temperature] for law in laws], dtype=torch.float32),
            top_ks=torch.tensor([number or 1 << 30 for number in top_k], dtype=torch.int32),
            top_ps=torch.tensor(top_p, dtype=torch.float32), min_ps=torch.tensor(min_p, dtype=torch.float32),
            need_top_k_sampling=any(top_k), need_top_p_sampling=min(top_p) < 1, need_min_p_sampling=max(min_p) > 0,
            is_all_greedy=all(number == 1 for number in top_k),
        )  # fmt: skip
        if copied:
            Registry.hook("copy_for_forward")(given, self.sampling_info)
        else:
            given.penalizer_orchestrator = self.sampling_info.penalizer_orchestrator
        return given


def merged(running, batch):
    if running is None or not running.reqs:
        return batch
    running.merge(batch)
    return running


def finished(req):
    return len(req.output_ids) >= LENGTH


class Server:
    """SGLang's loop: with `overlap` the host learns a batch's tokens after it has launched the next one. With `mixed`
    a step that reads prompts takes the running requests along, without drafts. ``sampler(logits, info, positions)``
    draws where there are none.
    """

    def __init__(self, reqs, tree, overlap, mixed=False, slots=None, sampler=None):
        self.sampler = sampler
        self.tree, self.overlap, self.mixed, self.pool = tree, overlap, mixed, Pool(slots or len(reqs))
        for slot, req in enumerate(reqs):
            req.kv.req_pool_idx, req.seed, req.sampling = slot, SEED + slot, Sampling()
            self.enter(req)
        self.running, self.prefilled, self.queue, self.accepted = None, None, [], 0

    def enter(self, req):
        """A request that was never here."""
        req.text, req.stay, req.expected = list(req.origin_input_ids), object(), plain(req)

    def step(self, new=(), retracted=()):
        """The requests that had a forward."""
        if self.prefilled is not None:
            self.running = merged(self.running, self.prefilled)
            self.prefilled = None
        if self.running is not None:
            keep = [row for row, req in enumerate(self.running.reqs) if req not in retracted and not finished(req)]
            self.running.filter(keep)
        for req in retracted:
            req.text, req.stay = list(req.origin_input_ids) + list(req.output_ids), object()
        batch = self.running
        if new:
            batch = self.prefilled = Batch(list(new), self.pool)
            if self.mixed and self.running is not None:
                batch.merge(self.running)
                self.running = None
        result = self.token(batch, "mixed" if new else "decode") if new or self.tree is None else self.round(batch)
        for req, tokens in zip(batch.reqs, result, strict=True):
            req.text += tokens
        self.queue.append(([(req, req.stay) for req in batch.reqs], result))
        while len(self.queue) > self.overlap:
            for (req, stay), tokens in zip(*self.queue.pop(0), strict=True):
                if req.stay is stay:  # else it was retracted
                    req.output_ids.extend(tokens)
        return batch.reqs

    def token(self, batch, mode):
        """A forward without drafts."""
        lengths = torch.tensor([len(req.text) for req in batch.reqs])
        given = batch.forward_info(copied=bool(self.overlap or self.tree))
        forward = types.SimpleNamespace(
            sampling_info=given, seq_lens=lengths, req_pool_indices=batch.slots(),
            forward_mode=types.SimpleNamespace(is_decode=lambda: mode == "decode", is_mixed=lambda: mode == "mixed"),
        )  # fmt: skip
        if mode == "decode":
            forward.positions, forward.input_ids = lengths - 1, torch.tensor([req.text[-1] for req in batch.reqs])
            for name in ("seq_lens", "req_pool_indices", "input_ids"):  # a captured step is padded
                setattr(forward, name, torch.cat([getattr(forward, name), torch.ones(1, dtype=torch.int64)]))
        else:
            forward.extend_seq_lens = torch.full_like(lengths, 2)
            forward.input_ids = torch.tensor([token for req in batch.reqs for token in req.text[-2:]])
        logits = torch.stack([model(req.text) for req in batch.reqs])
        output = types.SimpleNamespace(next_token_logits=logits)
        Registry.hook("sample")(types.SimpleNamespace(req_to_token_pool=self.pool), output, forward)
        if self.sampler is not None:
            return [[token] for token in self.sampler(logits, given, lengths - 1).tolist()]
        return [[drawn(row, req, len(req.text))] for row, req in zip(logits, batch.reqs, strict=True)]

    def round(self, batch):
        parents, nodes, requests = self.tree.parents, len(self.tree.parents), len(batch.reqs)
        candidates, logits = (
            torch.empty(requests, nodes, dtype=torch.int64),
            torch.empty(requests, nodes, VOCAB, dtype=torch.float32),
        )
        for row, req in enumerate(batch.reqs):
            paths = [req.text]
            said = len(req.text) - len(req.origin_input_ids)
            for node in range(1, nodes):
                path = paths[parents[node]]
                depth = len(path) - len(req.text)
                by_chance = (req.seed + 7 * len(req.text) + 3 * node) % 10 < 3
                paths.append([*path, node % VOCAB if by_chance else req.expected[said + depth]])
            candidates[row] = torch.tensor([path[-1] for path in paths])
            logits[row] = torch.stack([model(path) for path in paths])
        launched = schedule_batch(
            batch.forward_info(), torch.tensor([len(req.text) - 1 for req in batch.reqs]),
            batch.slots(), batch.reqs, self.pool,
        )  # fmt: skip
        drafts = verify_input(candidates, self.tree, 1 if self.tree.depth == nodes - 1 else 2)
        output = types.SimpleNamespace(next_token_logits=logits.view(requests * nodes, -1))
        predict, lengths, path = Registry.hook("eagle_sample")(drafts, launched, output)
        result = [predict[path[row, :n].long()].tolist() for row, n in enumerate(lengths.tolist())]
        self.accepted += sum(len(tokens) - 1 for tokens in result)
        return result
