"""Transformers' processors and criteria in our loop, for `engines.transformers.generate`. It imports transformers."""

from __future__ import annotations

import time
import weakref
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput, GenerationConfig, GenerationMode
from transformers.generation import logits_process as processors
from transformers.generation import stopping_criteria as criteria

from specdec_kernels import Sampling
from specdec_kernels.engines import counters
from specdec_kernels.engines._noise import seed_of
from specdec_kernels.generate import Drafter, ModelDrafter, NgramDrafter, Round, TreePolicy, arguments, loop
from specdec_kernels.generate.chains import ChainRounds
from specdec_kernels.generate.checks import whole_number
from specdec_kernels.generate.edits import Record, TextEdits
from specdec_kernels.generate.loop import Request
from specdec_kernels.generate.models import LanguageModel
from specdec_kernels.generate.noise import on_device
from specdec_kernels.generate.protocols import Drafts
from specdec_kernels.generate.reader import CACHES
from specdec_kernels.generate.rounds import Rounds
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

_readers: weakref.WeakKeyDictionary[PreTrainedModel, LanguageModel] = weakref.WeakKeyDictionary()


def language_model(model: PreTrainedModel, name: str) -> LanguageModel:
    """The model for our loop. Cached, because the check that it can be read takes a forward."""
    if model.training:
        raise ValueError(f"{name}: expected a model that is evaluated (eval()); got one in training")
    reader = _readers.get(model)
    if reader is None or reader.device != model.device:
        reader = _readers[model] = LanguageModel(model, name=name)
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


def drafter_of(drafter: Any, assistant_model: Any, method: str, config: GenerationConfig) -> Drafter | None:
    """The source of drafts that these arguments name."""
    if method == "plain":
        return None
    if isinstance(drafter, torch.nn.Module):
        return ModelDrafter(language_model(drafter, "drafter"))
    if drafter is None and assistant_model is not None:
        return ModelDrafter(language_model(assistant_model, "assistant_model"))
    if drafter is None and config.prompt_lookup_num_tokens:
        return NgramDrafter(config.max_matching_ngram_size or 2)
    if drafter is None and method in arguments.METHODS:
        raise ValueError(f"assistant_model: expected a model with method {method!r}, or prompt_lookup_num_tokens")
    return drafter


def write(
    model: PreTrainedModel, input_ids: torch.Tensor, logits_processor: Sequence[Any], ends: Sequence[Any],
    config: GenerationConfig, assistant_model: PreTrainedModel | None, streamer: Any, inputs: Mapping[str, Any], *,
    method: str, k: int | None, seed: Any, drafter: Any, draft_prob: float, policy: Any, tree: Any, replacement: bool,
    max_pending: int | None,
) -> torch.Tensor | GenerateDecoderOnlyOutput:  # fmt: skip
    """`engines.transformers.generate`; ``ends`` are its criteria, ``inputs`` the model's other arguments."""
    refuse_unknown(model, config, assistant_model is not None, inputs)
    if streamer is not None and len(input_ids) > 1:
        raise ValueError(f"streamer: expected None for several texts, which do not go in step; got {len(input_ids)}")
    drafter, target = drafter_of(drafter, assistant_model, method, config), language_model(model, "model")
    input_ids = input_ids.to(target.device)
    texts = unpadded(input_ids, inputs.get("attention_mask"), inputs.get("position_ids"))
    shaping = shaping_of(logits_processor, config.do_sample, [input_ids.shape[1] - len(text) for text in texts])
    stops = stops_of(ends, config, target.device)

    policy = arguments.policy_of(
        drafter, config.prompt_lookup_num_tokens or 4 if k is None else k, draft_prob, policy, tree
    )
    arguments.check_method(method, drafter, policy, draft_prob, replacement)
    sampling = on_device(arguments.sampling_of(None, shaping.sampling, len(texts)), target.device)
    record = arguments.record_of(shaping.edits, texts, target)
    noise = arguments.noise_of(
        seed_of(None, torch.device("cpu")) if seed is None else seed, None, method, texts, target.device
    )
    models = [target, *([] if drafter is None or drafter.language_model is None else [drafter.language_model])]
    arguments.check_models(models, policy)
    arguments.check_lengths(texts, stops.max_length - input_ids.shape[1], models)
    arguments.check_ops(sampling, noise.seed, None, record is not None)
    if not shaping.rest:
        rounds = loop.rounds_of(target, drafter, method, policy, replacement)
    elif isinstance(policy, TreePolicy):
        names = ", ".join(type(processor).__name__ for processor in shaping.rest)
        raise NotImplementedError(f"tree: expected None with processors that are run as they are; got {names}")
    else:
        rounds = ProcessedRounds(target, drafter, method, policy)
        record = Processed(shaping.rest, input_ids, target.config.vocab_size)
    rounds.max_pending = None if max_pending is None else whole_number("max_pending", max_pending, 1)

    requests = [
        EngineRequest(index, text, row, stops)
        for index, (text, row) in enumerate(zip(texts, input_ids.tolist(), strict=True))
    ]
    played = loop.run(requests, texts, rounds, noise, sampling, record, None, time.perf_counter, None)
    written = Written(input_ids, config, logits_processor)
    for entry, logits in with_logits(played, rounds, len(texts)):
        written.add(entry, logits)
        counters.count("transformers", entry.drafted, entry.accepted)
        if streamer is not None:
            streamer.put(torch.tensor([entry.tokens], dtype=torch.int64, device="cpu"))
    if streamer is not None:
        streamer.end()
    return written.output()


def with_logits(played: Iterator[Round], rounds: Rounds, batch: int) -> Iterator[tuple[Round, torch.Tensor]]:
    """Each text's round with the target's logits [tokens, V], unprocessed."""
    going = list(range(batch))
    while going:
        ended = [next(played) for _ in going]
        for row, entry in enumerate(ended):
            yield entry, rounds.emitted().logits[row, : len(entry.tokens)]
        going = [entry.request for entry in ended if entry.finish is None]


class Written:
    """The tokens written so far, and the output made of them."""

    def __init__(self, input_ids: torch.Tensor, config: GenerationConfig, logits_processor: Sequence[Any]) -> None:
        self.config, self.processors = config, processors.LogitsProcessorList(logits_processor)
        self.rows, self.device = input_ids.tolist(), input_ids.device
        self.scores: list[list[torch.Tensor]] = [[] for _ in self.rows]
        self.logits: list[list[torch.Tensor]] = [[] for _ in self.rows]
        returns_dict = config.return_dict_in_generate
        self.wants_scores = returns_dict and config.output_scores
        self.wants_logits = returns_dict and config.output_logits

    def add(self, entry: Round, logits: torch.Tensor) -> None:
        """Add the tokens of a round, and where they are wanted its logits, before and after all processors."""
        row, logits = self.rows[entry.request], logits.float()
        if self.wants_logits:
            self.logits[entry.request] += logits.clone()
        for token, law in zip(entry.tokens, logits, strict=True):
            if self.wants_scores:
                scores = applied(self.processors, len(self.rows), [entry.request], [row], law[None])
                self.scores[entry.request].append(scores[0])
            row.append(token)

    def output(self) -> torch.Tensor | GenerateDecoderOnlyOutput:
        """The texts, padded on the right, and for each step a tensor [B, V], 0 where a text has ended."""
        padding = getattr(self.config, "_pad_token_tensor", None)
        rows = [torch.tensor(row, device=self.device, dtype=torch.int64) for row in self.rows]
        sequences = pad_sequence(rows, batch_first=True, padding_value=0 if padding is None else int(padding))
        if not self.config.return_dict_in_generate:
            return sequences
        scores, logits = (
            tuple(pad_sequence([torch.stack(text) for text in texts])) if wanted else None
            for texts, wanted in ((self.scores, self.wants_scores), (self.logits, self.wants_logits))
        )
        return GenerateDecoderOnlyOutput(sequences=sequences, scores=scores, logits=logits)
