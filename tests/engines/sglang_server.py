"""A scheduler like SGLang's, with a small model: rounds of drafts, with and without overlap, under penalties."""

import types

import torch

import specdec_kernels as specdec
from specdec_kernels import DraftTree
from tests.engines.sglang_stand_in import Orchestrator, Pool, Registry, info, request, schedule_batch, verify_input

VOCAB, LENGTH, SEED = 8, 24, 1000
TREES = {"plain": None, "chain": DraftTree.chain(3), "tree": DraftTree.from_parents([-1, 0, 0, 1, 1, 3])}


def model(text):
    """Logits after a text, of its last two tokens, which come again; multiples of 1/4, so that no sum is rounded."""
    generator = torch.Generator().manual_seed(100 * text[-1] + text[-2])
    logits = (8 * torch.randn(VOCAB, generator=generator)).round() / 4
    logits[text[-2:]] += 2
    return logits


def penalised(logits, output, of_request):
    """A row, by the definition."""
    count = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=VOCAB)
    x = logits - of_request.frequency_penalty * count - of_request.presence_penalty * (count > 0)
    if len(output) < of_request.min_new_tokens:
        x[list(of_request.stop_token_ids)] = -torch.inf
    scale = torch.where(count > 0, of_request.repetition_penalty, 1.0)
    return torch.where(x < 0, x * scale, x / scale)


def drawn(logits, slot, position):
    return int(specdec.race_sample(logits, seed=SEED + slot, position=position))


def plain(req, slot):
    """The text that plain sampling writes."""
    text, prompt = list(req.origin_input_ids), len(req.origin_input_ids)
    for position in range(prompt, prompt + LENGTH + 12):
        text.append(drawn(penalised(model(text), text[prompt:], req.sampling_params), slot, position))
    return text[prompt:]


class Batch:
    """A ScheduleBatch; its requests know their slots."""

    def __init__(self, reqs, orchestrator=Orchestrator):
        self.reqs, self.device = reqs, "cpu"
        self.sampling_info = info(0)
        self.sampling_info.penalizer_orchestrator = orchestrator(VOCAB, self)
        Registry.hook("from_schedule_batch")(self.sampling_info, None, self, VOCAB)

    def filter(self, keep):
        self.reqs = [self.reqs[row] for row in keep]
        self.sampling_info.penalizer_orchestrator.filter(torch.tensor(keep, dtype=torch.int64))

    def merge(self, other):
        self.sampling_info.penalizer_orchestrator.merge(other.sampling_info.penalizer_orchestrator)
        self.reqs = self.reqs + other.reqs

    def forward_info(self):
        slots = torch.tensor([req.slot for req in self.reqs])
        added, scale = self.sampling_info.penalizer_orchestrator.summed()
        given = info(len(slots), SEED + slots, acc_additive_penalties=added, acc_scaling_penalties=scale)
        Registry.hook("copy_for_forward")(given, self.sampling_info)
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
    a step that reads prompts takes the running requests along, without drafts.
    """

    def __init__(self, reqs, tree, overlap, mixed=False, orchestrator=Orchestrator):
        self.orchestrator = orchestrator
        self.tree, self.overlap, self.mixed, self.pool = tree, overlap, mixed, Pool(len(reqs))
        for slot, req in enumerate(reqs):
            req.slot, req.text, req.expected = slot, list(req.origin_input_ids), plain(req, slot)
        self.running, self.prefilled, self.queue, self.accepted = None, None, [], 0
        self.generator = torch.Generator().manual_seed(0)

    def step(self, new=(), retracted=()):
        if self.running is not None:
            keep = [row for row, req in enumerate(self.running.reqs) if req not in retracted and not finished(req)]
            self.running.filter(keep)
        if self.prefilled is not None:
            self.running = merged(self.running, self.prefilled)
            self.prefilled = None
        for req in retracted:
            req.text, req.forwards = list(req.origin_input_ids) + list(req.output_ids), None
        batch = self.running
        if batch is not None and (self.mixed or not new) and batch.sampling_info.penalizer_orchestrator.is_required:
            Registry.hook("cumulate_penalty_output_tokens")(batch)
        if new:
            batch = self.prefilled = Batch(list(new), self.orchestrator)
            if self.mixed and self.running is not None:
                batch.merge(self.running)
                self.running = None
        result = self.token(batch, "mixed" if new else "decode") if new or self.tree is None else self.round(batch)
        for req, tokens in zip(batch.reqs, result, strict=True):
            req.text += tokens
            req.forwards = result
        self.queue.append((list(batch.reqs), result))
        while len(self.queue) > self.overlap:
            for req, tokens in zip(*self.queue.pop(0), strict=True):
                if req.forwards is not None:  # else it was retracted
                    req.output_ids.extend(tokens)

    def token(self, batch, mode):
        """A forward without drafts, by SGLang's own application of penalties."""
        lengths = torch.tensor([len(req.text) for req in batch.reqs])
        given = batch.forward_info()
        forward = types.SimpleNamespace(
            sampling_info=given, seq_lens=lengths, req_pool_indices=torch.tensor([req.slot for req in batch.reqs]),
            forward_mode=types.SimpleNamespace(is_decode=lambda: mode == "decode", is_mixed=lambda: mode == "mixed"),
        )  # fmt: skip
        if mode == "decode":
            forward.positions, forward.input_ids = lengths - 1, torch.tensor([req.text[-1] for req in batch.reqs])
        else:
            forward.extend_seq_lens = torch.full_like(lengths, 2)
            forward.input_ids = torch.tensor([token for req in batch.reqs for token in req.text[-2:]])
        Registry.hook("sample")(types.SimpleNamespace(req_to_token_pool=self.pool), None, forward)
        logits = torch.stack([model(req.text) for req in batch.reqs])
        if given.acc_additive_penalties is not None:
            logits += given.acc_additive_penalties
        if given.acc_scaling_penalties is not None:
            scale = given.acc_scaling_penalties
            logits = torch.where(logits < 0, logits * scale, logits / scale)
        return [[drawn(row, req.slot, len(req.text))] for row, req in zip(logits, batch.reqs, strict=True)]

    def round(self, batch):
        parents, nodes, requests = self.tree.parents, len(self.tree.parents), len(batch.reqs)
        candidates, logits = torch.empty(requests, nodes, dtype=torch.int64), torch.empty(requests, nodes, VOCAB)
        for row, req in enumerate(batch.reqs):
            paths = [req.text]
            said = len(req.text) - len(req.origin_input_ids)
            for node in range(1, nodes):
                path = paths[parents[node]]
                depth = len(path) - len(req.text)
                likely = req.expected[said + depth] if torch.rand((), generator=self.generator) < 0.7 else node % VOCAB
                paths.append([*path, likely])
            candidates[row] = torch.tensor([path[-1] for path in paths])
            logits[row] = torch.stack([model(path) for path in paths])
        launched = schedule_batch(
            batch.forward_info(), torch.tensor([len(req.text) - 1 for req in batch.reqs]),
            torch.tensor([req.slot for req in batch.reqs]), batch.reqs, self.pool,
        )  # fmt: skip
        drafts = verify_input(candidates, self.tree, 1 if self.tree.depth == nodes - 1 else 2)
        output = types.SimpleNamespace(next_token_logits=logits.view(requests * nodes, -1))
        predict, lengths, path = Registry.hook("eagle_sample")(drafts, launched, output)
        result = [predict[path[row, :n].long()].tolist() for row, n in enumerate(lengths.tolist())]
        self.accepted += sum(len(tokens) - 1 for tokens in result)
        return result


def requests():
    return [
        request(frequency=0.5, prompt=[1, 2, 3]),
        request(presence=1.25, frequency=0.25, prompt=[4, 5]),
        request(repetition=2.0, prompt=[6, 7, 1, 2]),
        request(prompt=[3, 3]),
        request(repetition=1.25, frequency=-0.25, presence=0.5, least=9, stop=(0, 5), prompt=[2, 2]),
        request(least=LENGTH, stop=(1, 2, 3, 4), prompt=[1, 1, 1]),
        request(frequency=1.5, presence=-1.5, repetition=1.25, prompt=[5, 1]),
        *(request(presence=0.25, least=n, stop=(0, 1, 2, 3, 4), prompt=[n, n]) for n in (3, 4, 5, 6, 7)),
    ]


def scenario(tree, overlap, mixed, **changed):
    """Requests join, finish, are retracted and come back: (requests, drafts accepted)."""
    reqs = requests()
    server = Server(reqs, TREES[tree], overlap, mixed, **changed)
    server.step(new=reqs[3:4])
    server.step()
    server.step(new=reqs[:2])
    server.step()
    server.step()
    server.step(new=reqs[2:3] + reqs[4:])
    server.step()
    server.step(retracted=[reqs[0], reqs[4]])
    server.step()
    server.step(new=[reqs[4], reqs[0]])
    while not all(finished(req) for req in reqs):
        server.step()
    return reqs, server.accepted
