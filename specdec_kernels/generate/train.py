"""Train a byte-level target and distil drafts from it: how the embedded models were made, and how to make others.

    specdec-kernels train TEXTFILE --out DIRECTORY

The target learns the next byte of the text; the draft then learns the target's laws on the same text, by minimising a
mixture of TV(p, q), which is one minus the acceptance probability of a draft token, and KL(p || q). A copy of the draft
then learns to give several laws in one pass: after the text it reads look-ahead tokens, and its law at the j-th is to
be the target's law j tokens further on (Monea, Joulin, Grave 2023, "PaSS"). All are written as Hugging Face Llama
directories, `DIRECTORY/target`, `DIRECTORY/draft` and `DIRECTORY/parallel`: float16 safetensors and a byte-level
tokenizer that `AutoTokenizer` reads. The end of the text is held out; every figure but "train" is measured on it.

With the defaults this takes three quarters of an hour on one core of a server with AVX-512 bfloat16. Runs with the same
seed, machine and thread count repeat exactly.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import specdec_kernels as specdec
from specdec_kernels.generate.models import quiet

BOS, EOS, VOCAB = 256, 257, 258
"""Token id = byte value; the two ids after the bytes begin and end a text."""
ROWS = 6
"""Laws of the parallel draft in one pass: after the text's last token, and at each look-ahead token."""

SHAPES = {
    "target": dict(hidden_size=192, intermediate_size=512, num_hidden_layers=6, num_attention_heads=6),
    "draft": dict(hidden_size=128, intermediate_size=384, num_hidden_layers=1, num_attention_heads=4),
}
SHAPES["parallel"] = SHAPES["draft"] | dict(
    vocab_size=VOCAB + ROWS - 1, look_ahead_token_ids=list(range(VOCAB, VOCAB + ROWS - 1))
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer whose ids are the bytes of the UTF-8 text, with BOS put in front."""
    # The byte-level alphabet spells printable bytes as themselves, the others in order as the characters from U+0100.
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    vocab = {chr(byte) if byte in printable else chr(0x100 + others.index(byte)): byte for byte in range(256)}
    vocab.update({"<bos>": BOS, "<eos>": EOS})
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>")


def new_model(role: str, context: int) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            max_position_embeddings=context, bos_token_id=BOS, eos_token_id=EOS, tie_word_embeddings=True,
            **{"vocab_size": VOCAB} | SHAPES[role],
        )
    )  # fmt: skip


def save(model: LlamaForCausalLM, directory: Path) -> None:
    """Write float16 weights, config and tokenizer; the model in training does not change."""
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    with quiet():
        copy.half().save_pretrained(directory)
    byte_tokenizer().save_pretrained(directory)
    # transformers 5 writes a class name that 4 lacks; both have this one.
    settings = directory / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}))


class Text:
    """The bytes of a text in windows that begin with BOS; `held_out` is the fraction at the end never trained on."""

    def __init__(self, path: Path, held_out: float, context: int, seed: int) -> None:
        text = bytearray(path.read_bytes())
        split = int(len(text) * (1 - held_out))
        if min(split, len(text) - split) < context:
            raise ValueError(f"TEXTFILE: expected at least {context} bytes in each part; got {len(text)} in all")
        data = torch.frombuffer(text, dtype=torch.uint8).long()
        self.train, self.held_out, self.context = data[:split], data[split:], context
        # Windows begin where lines begin, as prompts do.
        starts = F.pad(torch.nonzero(self.train == ord("\n")).flatten() + 1, (1, 0))
        self.starts = starts[starts <= split - (context - 1)]
        self.generator = torch.Generator().manual_seed(seed)

    def windows(self, batch: int) -> torch.Tensor:
        """`batch` random training windows, int64 [batch, context]."""
        numbers = {"dtype": torch.int64, "device": "cpu"}
        picks = self.starts[torch.randint(len(self.starts), (batch,), generator=self.generator, **numbers)]
        bodies = self.train[picks[:, None] + torch.arange(self.context - 1, **numbers)]
        return F.pad(bodies, (1, 0), value=BOS)

    def held_out_windows(self) -> torch.Tensor:
        """The held-out part in consecutive windows, int64 [number, context]."""
        length = self.context - 1
        number = len(self.held_out) // length
        return F.pad(self.held_out[: number * length].view(number, length), (1, 0), value=BOS)


def logits_of(model: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    with torch.autocast(tokens.device.type, torch.bfloat16):
        return model(tokens, use_cache=False).logits[:, :-1].float()


def next_byte_loss(model: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """Mean -log p(next byte), in nats."""
    return F.cross_entropy(logits_of(model, tokens).flatten(0, 1), tokens[:, 1:].flatten())


def distillation_loss(draft: LlamaForCausalLM, target: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """TV(p, q) + KL(p || q) / 4: TV is one less the acceptance; KL keeps its gradient large where q is far from p."""
    with torch.no_grad():
        p = logits_of(target, tokens)
    apart = specdec.overlap(p, logits_of(draft, tokens))
    return (apart.tv + apart.kl / 4).mean()


def look_ahead_logits(model: LlamaForCausalLM, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The parallel draft's logits at the look-ahead tokens after each position, float32 [B, P, ROWS - 1, V].

    One pass reads all positions: the look-ahead tokens of each attend to the text up to it, and to those before them.
    """
    batch, length = tokens.shape
    ahead = torch.tensor(model.config.look_ahead_token_ids, device=tokens.device, dtype=torch.int64)
    steps = torch.arange(len(ahead), device=tokens.device, dtype=torch.int64)
    text, last = torch.arange(length, device=tokens.device, dtype=torch.int64), positions.repeat_interleave(len(ahead))
    sees_until, position = torch.cat([-1 - text, last]), torch.cat([text, (positions[:, None] + 1 + steps).flatten()])
    # A look-ahead token attends to the text up to its position, and to the look-ahead tokens of that position.
    of_text = text <= torch.cat([text, last])[:, None]
    of_ahead = (last == sees_until[:, None]) & (position[length:] <= position[:, None])
    mask = torch.where(torch.cat([of_text, of_ahead], dim=1), 0.0, torch.finfo(torch.float32).min)
    read = torch.cat([tokens, ahead.repeat(batch, len(positions))], dim=1)
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=model.training):
        logits = model(read, attention_mask=mask[None, None], position_ids=position[None], use_cache=False).logits
    return logits[:, length:, :VOCAB].float().unflatten(1, (len(positions), -1))


def look_ahead_loss(draft: LlamaForCausalLM, target: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """`distillation_loss` of every look-ahead token, at every eighth position, and of the text's tokens."""
    with torch.no_grad():
        p = logits_of(target, tokens)
    first = int(torch.randint(8, (), dtype=torch.int64, device="cpu"))
    positions = torch.arange(first, tokens.shape[1] - ROWS, 8, dtype=torch.int64, device="cpu")
    further = p[:, positions[:, None] + torch.arange(1, ROWS, dtype=torch.int64, device="cpu")]
    losses = [
        specdec.overlap(*laws)
        for laws in ((p, logits_of(draft, tokens)[..., :VOCAB]), (further, look_ahead_logits(draft, tokens, positions)))
    ]
    return sum((apart.tv + apart.kl / 4).sum() for apart in losses) / sum(apart.tv.numel() for apart in losses)


@torch.no_grad()
def evaluate_rows(draft: LlamaForCausalLM, windows: torch.Tensor, target: LlamaForCausalLM) -> dict[str, list[float]]:
    """Held-out means of sum min(p, q) at temperature 1, by row."""
    draft.eval()
    accepted = []
    for tokens in windows.split(8):
        positions = torch.arange(0, tokens.shape[1] - ROWS, 8, dtype=torch.int64, device="cpu")
        rows = positions[:, None] + torch.arange(ROWS, dtype=torch.int64, device="cpu")
        p = target(tokens, use_cache=False).logits[:, rows]
        q = draft(tokens, use_cache=False).logits[:, positions, None, :VOCAB]
        q = torch.cat([q, look_ahead_logits(draft, tokens, positions)], dim=2)
        accepted.append(specdec.overlap(p, q).accept.mean(dim=1))
    draft.train()
    return {"acceptance": torch.cat(accepted).mean(dim=0).tolist()}


@torch.no_grad()
def evaluate(
    model: LlamaForCausalLM, windows: torch.Tensor, target: LlamaForCausalLM | None = None
) -> dict[str, float]:
    """Held-out loss in nats a byte and, given the target, the mean of sum min(p, q) at temperature 1."""
    model.eval()
    losses, overlaps = [], []
    for tokens in windows.split(8):
        logits = model(tokens, use_cache=False).logits[:, :-1]
        losses.append(F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none"))
        if target is not None:
            overlaps.append(specdec.overlap(target(tokens, use_cache=False).logits[:, :-1], logits).accept)
    model.train()
    figures = {"loss": torch.cat(losses).mean().item()}
    if overlaps:
        figures["acceptance"] = torch.cat(overlaps).mean().item()
    return figures


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over 3 % of the steps, flat, then linear to zero over the last 40 %."""
    return peak * min((step + 1) / max(1, 0.03 * steps), 1.0, (steps - step) / (0.4 * steps))


def fit(
    role: str, loss_of: Callable[[LlamaForCausalLM, torch.Tensor], torch.Tensor], text: Text, out: Path, *, steps: int,
    batch: int, peak: float, report: Callable[[LlamaForCausalLM], dict], start: LlamaForCausalLM | None = None,
) -> LlamaForCausalLM:  # fmt: skip
    """Minimise `loss_of(model, windows)` with AdamW; print progress and write the model ten times on the way.

    `start`: a model whose weights are the initial ones, as far as they fit.
    """
    model = new_model(role, text.context)
    if start is not None:
        with torch.no_grad():
            for mine, given in zip(model.parameters(), start.parameters(), strict=True):
                mine[: len(given)] = given
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
    begun, every = time.perf_counter(), math.ceil(steps / 10)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak)
        loss = loss_of(model, text.windows(batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % every == 0 or step + 1 == steps:
            save(model, out / role)
            seconds = round(time.perf_counter() - begun)
            line = {"model": role, "step": step + 1, "seconds": seconds, "train": loss.item(), **report(model)}
            print(json.dumps(line), flush=True)
    return model.eval()


def load(directory: Path) -> LlamaForCausalLM:
    with quiet():
        return LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def train(
    textfile: Path, out: Path, *, only: str | None = None, seed: int = 0, target_steps: int = 2700,
    draft_steps: int = 2000, parallel_steps: int = 1000, batch: int = 6, context: int = 512, held_out: float = 0.05,
    threads: int = 1,
) -> None:  # fmt: skip
    """Train the models on a text; `specdec-kernels train --help` has the meaning of each argument."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    text = Text(textfile, held_out, context, seed)
    windows = text.held_out_windows()
    if only in (None, "target"):
        fit("target", next_byte_loss, text, out, steps=target_steps, batch=batch, peak=2.5e-3,
            report=lambda model: evaluate(model, windows))  # fmt: skip
    if only in (None, "draft"):
        target = load(out / "target")
        fit("draft", lambda draft, tokens: distillation_loss(draft, target, tokens), text, out,
            steps=draft_steps, batch=batch, peak=4e-3,
            report=lambda draft: evaluate(draft, windows, target))  # fmt: skip
    if only in (None, "parallel"):
        target = load(out / "target")
        fit("parallel", lambda draft, tokens: look_ahead_loss(draft, target, tokens), text, out,
            steps=parallel_steps, batch=batch, peak=4e-3, start=load(out / "draft"),
            report=lambda draft: evaluate_rows(draft, windows, target))  # fmt: skip
