"""Transformers' processors and criteria in our loop, for `engines.transformers.generate`. It imports transformers."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.generation import GenerationConfig, GenerationMode
from transformers.generation import logits_process as processors
from transformers.generation import stopping_criteria as criteria

from specdec_kernels import Sampling
from specdec_kernels.generate.chains import ChainRounds
from specdec_kernels.generate.edits import Record, TextEdits
from specdec_kernels.generate.loop import Request
from specdec_kernels.generate.models import LanguageModel
from specdec_kernels.generate.protocols import Drafts
from specdec_kernels.generate.reader import CACHES
from specdec_kernels.generate.text import TextStream

# In transformers' order, which is that of our filters.
WARPERS = {
    processors.TemperatureLogitsWarper: "temperature",
    processors.TopKLogitsWarper: "top_k",
    processors.TopPLogitsWarper: "top_p",
    processors.MinPLogitsWarper: "min_p",
}
# They store the tokens of their calls, among which drafts that are not accepted would be.
REMEMBERING = {"UnbatchedClassifierFreeGuidanceLogitsProcessor", "SynthIDTextWatermarkLogitsProcessor"}
BIASES = {processors.SequenceBiasLogitsProcessor, processors.NoBadWordsLogitsProcessor}
# The scores of a row depend on its text and logits alone.
ROW_WISE = {
    *WARPERS, *BIASES, processors.RepetitionPenaltyLogitsProcessor, processors.NoRepeatNGramLogitsProcessor,
    processors.MinLengthLogitsProcessor, processors.MinNewTokensLengthLogitsProcessor,
    processors.ForcedEOSTokenLogitsProcessor, processors.SuppressTokensLogitsProcessor,
    processors.SuppressTokensAtBeginLogitsProcessor, processors.TypicalLogitsWarper, processors.LogitNormalization,
}  # fmt: skip
MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE, GenerationMode.ASSISTED_GENERATION)
INPUTS = {"attention_mask", "position_ids", *CACHES, "use_cache", "logits_to_keep", "cache_position"}
REFUSED = ("assistant_early_exit", "assistant_ensemble_weight", "output_attentions", "output_hidden_states")

_read: weakref.WeakKeyDictionary[PreTrainedModel, LanguageModel] = weakref.WeakKeyDictionary()


def language_model(model: PreTrainedModel, name: str) -> LanguageModel:
    """The model for our loop. Cached, because the check that it can be read takes a forward."""
    if model.training:
        raise ValueError(f"{name}: expected a model that is evaluated (eval()); got one in training")
    reader = _read.get(model)
    if reader is None or reader.device != model.device:
        reader = _read[model] = LanguageModel(model, name=name)
    return reader


def refuse_unknown(model: PreTrainedModel, config: GenerationConfig, assisted: bool, inputs: Mapping[str, Any]) -> None:
    """Raise NotImplementedError that names an option which our loop lacks."""
    if model.config.is_encoder_decoder:
        raise NotImplementedError("model: expected a decoder alone; got an encoder and a decoder")
    mode = config.get_generation_mode(model if assisted else None)
    if mode not in MODES:
        raise NotImplementedError(f"generation_config: expected greedy search or sampling; got {mode.value}")
    for name in REFUSED:
        if getattr(config, name, None):
            raise NotImplementedError(f"{name}: expected None; got {getattr(config, name)}")
    for name, value in inputs.items():
        if name not in INPUTS and value is not None and not (isinstance(value, Mapping) and not value):
            raise NotImplementedError(f"{name}: expected None, for the model is given token ids alone")
    for name in CACHES:
        if inputs.get(name) is not None and _has_entries(inputs[name]):
            raise NotImplementedError(f"{name}: expected an empty cache, for the loop has another")


def _has_entries(cache: Any) -> bool:
    """Whether a cache holds tokens."""
    try:
        return bool(cache.get_seq_length())
    except ValueError:  # a cache of states alone
        return cache.has_previous_state()


def unpadded(input_ids: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor | None) -> list[list[int]]:
    """The texts of a batch that is padded on the left."""
    if mask is None:
        mask = torch.ones_like(input_ids)
    if mask.shape != input_ids.shape or (mask.diff(dim=1) < 0).any() or not mask[:, -1].all():
        raise ValueError("attention_mask: expected zeros on the left alone, and a token in every row")
    counted = mask.cumsum(1) - 1
    if positions is not None and not torch.equal(*(x.masked_fill(mask == 0, 0) for x in (positions, counted))):
        raise NotImplementedError("position_ids: expected those of the tokens, from 0")
    return [row[seen.bool()].tolist() for row, seen in zip(input_ids, mask, strict=True)]


class Shaping(NamedTuple):
    """The processors of logits: those that our ops replace, and the rest."""

    sampling: Sampling
    edits: TextEdits
    rest: processors.LogitsProcessorList  # processors that run before our ops, unchanged


def shaping_of(given: Sequence[Any], do_sample: bool, padding: list[int]) -> Shaping:
    """The last warpers as filters; a bias of tokens and a repetition penalty as edits, if no others are left."""
    for processor in given:
        if type(processor).__name__ in REMEMBERING:
            raise NotImplementedError(f"logits_processor: expected none that remembers; got {type(processor).__name__}")
    rest, filters, order = list(given), {}, list(WARPERS)
    if rest and type(rest[-1]) is processors.LogitNormalization:  # it does not change the law
        rest.pop()
    while rest and type(rest[-1]) in order and usual(rest[-1]):
        warper = rest.pop()
        filters[WARPERS[type(warper)]] = getattr(warper, WARPERS[type(warper)])
        order = order[: order.index(type(warper))]
    sampling = Sampling.huggingface(**filters) if do_sample else Sampling(0.0)
    left, edits = list(rest), TextEdits()
    if left and biases_tokens(left[0]):
        edits = edits._replace(bias={token: value for (token,), value in left.pop(0).sequence_bias.items()})
    if left and type(left[0]) is processors.RepetitionPenaltyLogitsProcessor and skips(left[0], padding):
        edits = edits._replace(repetition=left.pop(0).penalty)
    if left:
        return Shaping(sampling, TextEdits(), processors.LogitsProcessorList(rest))
    return Shaping(sampling, edits, processors.LogitsProcessorList())


def biases_tokens(processor: Any) -> bool:
    """Whether a processor adds numbers to logits, whatever the text is."""
    return type(processor) in BIASES and all(
        len(tokens) == 1 and value < torch.inf for tokens, value in processor.sequence_bias.items()
    )


def usual(warper: Any) -> bool:
    """Whether a warper drops tokens as our filters do."""
    return getattr(warper, "filter_value", -torch.inf) == -torch.inf and getattr(warper, "min_tokens_to_keep", 1) == 1


def skips(penalty: Any, padding: list[int]) -> bool:
    """Whether a penalty counts the tokens of the prompts, and not what pads them."""
    ignored = penalty.prompt_ignore_length
    return ignored.tolist() == padding if isinstance(ignored, torch.Tensor) else not ignored and not any(padding)


def is_row_wise(processor: Any) -> bool:
    """Whether a processor's scores of a row depend on its text and logits alone, whatever the row's index is."""
    ignored = getattr(processor, "prompt_ignore_length", None)  # a tensor has a number for each row
    return type(processor) in ROW_WISE and not isinstance(ignored, torch.Tensor)


def applied(
    given: processors.LogitsProcessorList, batch: int, batch_rows: list[int], texts: list[list[int]], rows: torch.Tensor
) -> torch.Tensor:
    """Rows [N, V] after the processors, each with its text, which is row ``batch_rows[n]`` of a batch.

    As in transformers all texts of a call have one length. Processors that hold a number for each row of a batch get
    one of full size with each text at its row; where a row has no text of this length, another text fills it.
    """
    processed, row_wise, groups = torch.empty_like(rows), all(map(is_row_wise, given)), defaultdict(list)
    for row, text in enumerate(texts):
        groups[len(text)].append(row)
    for members in groups.values():
        called, wanted = members, slice(None)
        if not row_wise:
            wanted = [batch_rows[row] for row in members]
            # Rows behind a chain's last draft have the text of the row before them, and are not read.
            first = dict(zip(reversed(wanted), reversed(members), strict=True))
            called = [first.get(batch_row, members[0]) for batch_row in range(batch)]
        ids = torch.tensor([texts[row] for row in called], device=rows.device, dtype=torch.int64)
        processed[members] = given(ids, rows[called])[wanted].to(rows.dtype)
    return processed


class Processed:
    """The texts of a batch, padding included, and the processors that edit their logits: a `Record` of the loop."""

    def __init__(self, rest: processors.LogitsProcessorList, input_ids: torch.Tensor, vocabulary: int) -> None:
        self.rest, self.vocabulary, self.batch = rest, vocabulary, len(input_ids)
        self.texts, self.batch_rows = input_ids.tolist(), list(range(self.batch))

    def edited(self, logits: torch.Tensor, pending: torch.Tensor) -> torch.Tensor:
        """Float32 rows [B, R, V], processed; tokens beyond the model's vocabulary have no weight."""
        rows = logits.float()
        if beyond := self.vocabulary - logits.shape[-1]:
            rows = pad(rows, (0, beyond), value=-torch.inf)
        texts = [
            text + [token for token in tokens if token >= 0]
            for text, slots in zip(self.texts, pending.tolist(), strict=True)
            for tokens in slots
        ]
        batch_rows = [batch_row for batch_row in self.batch_rows for _ in range(rows.shape[1])]
        return applied(self.rest, self.batch, batch_rows, texts, rows.flatten(0, 1)).view_as(rows)

    def count(self, tokens: torch.Tensor) -> None:
        """Add the tokens [B, L] of each text, -1 for none."""
        for text, added in zip(self.texts, tokens.tolist(), strict=True):
            text += [token for token in added if token >= 0]

    def keep(self, rows: list[int]) -> None:
        """Drop all texts but those of indices `rows`."""
        self.texts, self.batch_rows = [self.texts[row] for row in rows], [self.batch_rows[row] for row in rows]


class ProcessedRounds(ChainRounds):
    """Rounds whose logits are processed before they are verified."""

    def verify(
        self, drafts: Drafts, logits: torch.Tensor, draft_prob: float | torch.Tensor, law: dict[str, Any],
        sampling: Sampling, record: Record | None,
    ) -> tuple[torch.Tensor, list[int], list[int]]:  # fmt: skip
        self.processed = super().edited(drafts.tokens, logits, record)
        return super().verify(drafts, self.processed, draft_prob, law, sampling, None)

    def edited(self, drafts: torch.Tensor, logits: torch.Tensor, record: Record | None) -> torch.Tensor:
        return self.processed


class EngineRequest(Request):
    """A text that also ends by the engine's criteria, which get it with its padding."""

    def __init__(self, index: int, text: list[int], row: list[int], stops: Stops) -> None:
        super().__init__(index, text, TextStream(None, text), stops.eos, stops.max_length - len(row))
        self.row, self.stops = row, stops

    def _finish(self, token: int) -> str | None:
        reason = super()._finish(token)
        if reason or not self.stops.rest:
            return reason
        ids = torch.tensor([self.row + self.stream.tokens], device=self.stops.device, dtype=torch.int64)
        return "stop" if self.stops.rest(ids, None).any() else None


class Stops(NamedTuple):
    """The ends of a text: tokens, a length with padding, and other criteria, called after each token."""

    eos: set[int]
    max_length: int
    rest: criteria.StoppingCriteriaList
    device: torch.device


def stops_of(given: Sequence[Any], config: GenerationConfig, device: torch.device) -> Stops:
    """Our loop checks end tokens and lengths; it calls the other criteria."""
    eos, lengths, rest = set(), [config.max_length], criteria.StoppingCriteriaList()
    for criterion in given:
        if type(criterion) is criteria.EosTokenCriteria:
            eos |= set(criterion.eos_token_id.tolist())
        elif type(criterion) is criteria.MaxLengthCriteria:
            lengths.append(criterion.max_length)
        else:
            rest.append(criterion)
    return Stops(eos, min(lengths), rest, device)
