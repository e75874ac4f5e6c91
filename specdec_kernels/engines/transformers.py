"""Speculative generation in transformers by our methods. Seen: transformers 5.23.0, 5.24.0.

`generate` is a decoding loop for ``model.generate(custom_generate=generate, ...)``: it changes nothing in transformers.
`speculative_sampling` is the verification of transformers' assisted generation; `install` puts it there.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

import specdec_kernels as specdec
from specdec_kernels.engines import counters
from specdec_kernels.engines._noise import seed_of
from specdec_kernels.engines._replace import Replacements

if TYPE_CHECKING:
    from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
    from transformers.generation import GenerateDecoderOnlyOutput
    from transformers.generation.streamers import BaseStreamer

    from specdec_kernels.generate import ChainPolicy, Drafter, DraftTree, Round, TreePolicy
    from specdec_kernels.generate.rounds import Rounds

__all__ = ["generate", "install", "speculative_sampling", "uninstall"]


def generate(
    model: PreTrainedModel, input_ids: torch.Tensor, logits_processor: LogitsProcessorList | None = None,
    stopping_criteria: StoppingCriteriaList | None = None, generation_config: GenerationConfig | None = None,
    assistant_model: PreTrainedModel | None = None, streamer: BaseStreamer | None = None, *, method: str = "race",
    k: int | None = None, seed: int | Sequence[int] | None = None, drafter: Drafter | PreTrainedModel | None = None,
    draft_prob: float = 1.0, policy: ChainPolicy | TreePolicy | None = None,
    tree: DraftTree | Sequence[int] | None = None, replacement: bool = False, max_pending: int | None = None,
    **model_kwargs: Any,
) -> torch.Tensor | GenerateDecoderOnlyOutput:  # fmt: skip
    """Write on by our methods: ``model.generate(custom_generate=generate, assistant_model=..., method="race")``.

    It replaces ``_sample`` and ``_assisted_decoding`` (which takes one text). The loop is that of
    `specdec_kernels.generate`, with another cache. Our ops apply temperature, top-k, top-p and min-p at the end of the
    processors, and before them a bias of single tokens and a repetition penalty, if there are no others. Else these run
    unchanged, on the rows of target and draft alike, each with the tokens before it. Criteria other than an end token
    or a length are called after each token, text by text.

    transformers 5.23 does not pass ``assistant_model`` and ``streamer`` to a callable. They are then taken from the
    frame of the calling ``model.generate``. It drops ``tokenizer``, too, and refuses ``stop_strings`` without one: give
    ``stopping_criteria=[StopStringCriteria(tokenizer, [...])]``.

    Parameters
    ----------
    model, input_ids, logits_processor, stopping_criteria, generation_config : optional
        From transformers, prepared. Padding stands on the left.
    assistant_model : PreTrainedModel, optional
        Drafts. Ids in both vocabularies are the same tokens; one vocabulary may be longer than the other, and
        drafts are drawn from the target's tokens alone. Method "plain" does not use it.
    streamer : BaseStreamer, optional
        Gets the tokens of each round; one text only.
    method : {"race", "rejection", "block", "traversal", "plain"}
        "plain" writes one token a call. "race" writes the same tokens as "plain" with the same seed, whatever the
        assistant. "block" is for chains, "traversal" for trees. With ``do_sample=False`` all write the greedy text.
    k : int, optional
        Draft tokens a round. Default: 4, or ``prompt_lookup_num_tokens``.
    seed : int or list of int, optional
        As in `specdec_kernels.generate`: one for each text, or s for s, s + 1, ... Default: one from torch's generator.
    drafter : Drafter or PreTrainedModel, optional
        Another source of drafts, for instance a ``NgramDrafter``; ``prompt_lookup_num_tokens`` makes one. A model
        drafts as an assistant does: give it here where transformers refuses assistants, for models with recurrent
        layers ("not supported with stateful models").
    draft_prob, policy, tree, replacement, max_pending : optional
        As in `specdec_kernels.generate`.
    **model_kwargs : optional
        ``attention_mask`` and ``position_ids``; a cache that is empty is not used.

    Returns
    -------
    Tensor or GenerateDecoderOnlyOutput
        int64 [B, L], padded on the right; with ``return_dict_in_generate`` an output with ``sequences``, and with
        ``scores`` and ``logits`` if they are requested: 0 where a text has ended. It has no ``past_key_values``.

    Raises
    ------
    NotImplementedError
        Named in the text: encoders, beams and other modes, ``assistant_early_exit``, ``assistant_ensemble_weight``,
        ``output_attentions``, ``output_hidden_states``, inputs other than token ids, a cache with entries, guidance and
        SynthID (their processors store calls), a tree with processors that run unchanged.
    ValueError
        No assistant for a method that drafts; models or arguments that do not go together; padding that is not on the
        left; a streamer for several texts.
    FloatingPointError
        Logits that are no law's.

    Examples
    --------
    >>> from specdec_kernels.engines.transformers import generate
    >>> from specdec_kernels.generate import load_model
    >>> target, draft = load_model("embedded:target"), load_model("embedded:draft")
    >>> text = torch.tensor([target.encode("ROMEO:")])
    >>> options = dict(custom_generate=generate, do_sample=True, top_p=0.9, max_new_tokens=12, seed=0)
    >>> race = target.model.generate(text, assistant_model=draft.model, method="race", **options)
    >>> torch.equal(race, target.model.generate(text, method="plain", **options))
    True
    """
    parts = importlib.import_module("specdec_kernels.engines._transformers")
    from specdec_kernels.generate import ModelDrafter, NgramDrafter, TreePolicy, arguments, loop
    from specdec_kernels.generate.checks import whole_number
    from specdec_kernels.generate.noise import on_device

    given = _given_to_generate(sys._getframe(1))
    assistant_model, streamer = (
        given.get(name) if value is None else value
        for name, value in (("assistant_model", assistant_model), ("streamer", streamer))
    )
    lookup = generation_config.prompt_lookup_num_tokens
    parts.refuse_unknown(model, generation_config, assistant_model is not None, model_kwargs)
    if streamer is not None and len(input_ids) > 1:
        raise ValueError(f"streamer: expected None for several texts, which do not go in step; got {len(input_ids)}")
    if method == "plain":
        drafter = None
    elif isinstance(drafter, torch.nn.Module):
        drafter = ModelDrafter(parts.language_model(drafter, "drafter"))
    elif drafter is None and assistant_model is not None:
        drafter = ModelDrafter(parts.language_model(assistant_model, "assistant_model"))
    elif drafter is None and lookup:
        drafter = NgramDrafter(generation_config.max_matching_ngram_size or 2)
    elif drafter is None and method in arguments.METHODS:
        raise ValueError(f"assistant_model: expected a model with method {method!r}, or prompt_lookup_num_tokens")

    target = parts.language_model(model, "model")
    input_ids = input_ids.to(target.device)
    texts = parts.unpadded(input_ids, *(model_kwargs.get(name) for name in ("attention_mask", "position_ids")))
    padding = [input_ids.shape[1] - len(text) for text in texts]
    shaping = parts.shaping_of(logits_processor or (), generation_config.do_sample, padding)
    stops = parts.stops_of(stopping_criteria or (), generation_config, target.device)

    policy = arguments.policy_of(drafter, lookup or 4 if k is None else k, draft_prob, policy, tree)
    arguments.check_method(method, drafter, policy, draft_prob, replacement)
    sampling = on_device(arguments.sampling_of(None, shaping.sampling, len(texts)), target.device)
    record = arguments.record_of(shaping.edits, texts, target)
    seed = seed_of(None, torch.device("cpu")) if seed is None else seed
    noise = arguments.noise_of(seed, None, method, texts, target.device)
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
        rounds = parts.ProcessedRounds(target, drafter, method, policy)
        record = parts.Processed(shaping.rest, input_ids, target.config.vocab_size)

    rounds.max_pending = None if max_pending is None else whole_number("max_pending", max_pending, 1)
    requests = [
        parts.EngineRequest(index, text, row, stops)
        for index, (text, row) in enumerate(zip(texts, input_ids.tolist(), strict=True))
    ]
    played = loop.run(requests, texts, rounds, noise, sampling, record, None, time.perf_counter, None)
    written = _Written(input_ids, generation_config, logits_processor)
    for entry, logits in _with_logits(played, rounds, len(texts)):
        written.add(entry, logits)
        counters.count("transformers", entry.drafted, entry.accepted)
        if streamer is not None:
            streamer.put(torch.tensor([entry.tokens], dtype=torch.int64, device="cpu"))
    if streamer is not None:
        streamer.end()
    return written.output()


def _given_to_generate(frame: Any) -> dict[str, Any]:
    """The arguments of transformers' ``generate`` if this frame runs it; else nothing."""
    mixin = importlib.import_module("transformers.generation.utils").GenerationMixin
    return frame.f_locals if frame.f_code is inspect.unwrap(mixin.generate).__code__ else {}


def _with_logits(played: Iterator[Round], rounds: Rounds, batch: int) -> Iterator[tuple[Round, torch.Tensor]]:
    """Each text's round with the target's logits [tokens, V], unprocessed."""
    going = list(range(batch))
    while going:
        ended = [next(played) for _ in going]
        for row, entry in enumerate(ended):
            yield entry, rounds.emitted().logits[row, : len(entry.tokens)]
        going = [entry.request for entry in ended if entry.finish is None]


class _Written:
    """The tokens written so far, and the output made of them."""

    def __init__(
        self, input_ids: torch.Tensor, config: GenerationConfig, processors: LogitsProcessorList | None
    ) -> None:
        self.config, self.processors, self.batch = config, processors or [], len(input_ids)
        self.rows, self.device, self.prompt = input_ids.tolist(), input_ids.device, input_ids.shape[1]
        self.scores: list[list[torch.Tensor]] = [[] for _ in self.rows]
        self.logits: list[list[torch.Tensor]] = [[] for _ in self.rows]
        returns_dict = config.return_dict_in_generate
        self.wants_scores = returns_dict and config.output_scores
        self.wants_logits = returns_dict and config.output_logits

    def add(self, entry: Round, logits: torch.Tensor) -> None:
        """Add the tokens of a round, and its logits where they are wanted."""
        row, logits = self.rows[entry.request], logits.float()
        if self.wants_logits:
            self.logits[entry.request] += logits.clone()
        for token, law in zip(entry.tokens, logits, strict=True):
            if self.wants_scores:
                self.scores[entry.request].append(self.processed(entry.request, row, law))
            row.append(token)

    def processed(self, request: int, row: list[int], law: torch.Tensor) -> torch.Tensor:
        """The scores of each token after a text: its logits after all processors."""
        if not self.processors:
            return law
        parts = importlib.import_module("specdec_kernels.engines._transformers")
        return parts.applied(self.processors, self.batch, [request], [row], law[None].clone())[0]

    def output(self) -> torch.Tensor | GenerateDecoderOnlyOutput:
        """The texts, padded on the right."""
        length = max(map(len, self.rows))
        padding = getattr(self.config, "_pad_token_tensor", None)
        filler = 0 if padding is None else int(padding)
        rows = [row + [filler] * (length - len(row)) for row in self.rows]
        sequences = torch.tensor(rows, device=self.device, dtype=torch.int64)
        if not self.config.return_dict_in_generate:
            return sequences
        scores, logits = (
            self.by_step(texts, length) if wanted else None
            for texts, wanted in ((self.scores, self.wants_scores), (self.logits, self.wants_logits))
        )
        output = importlib.import_module("transformers.generation").GenerateDecoderOnlyOutput
        return output(sequences=sequences, scores=scores, logits=logits)

    def by_step(self, texts: list[list[torch.Tensor]], length: int) -> tuple[torch.Tensor, ...]:
        """A tensor [B, V] for each step."""
        nothing = torch.zeros_like(texts[0][0])
        steps = range(length - self.prompt)
        return tuple(torch.stack([row[step] if step < len(row) else nothing for row in texts]) for step in steps)


def speculative_sampling(
    candidate_input_ids: torch.Tensor, candidate_logits: torch.Tensor, candidate_length: int, new_logits: torch.Tensor,
    assistant_ensemble_weight: float | None = None, *, last_assistant_token_is_eos: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Verify a chain: ``transformers.generation.utils._speculative_sampling``, by `verify_chain`.

    The law is the target's, as transformers'. A residual without mass is no error: the token comes from the target.
    Drafts must be drawn from the softmax of `candidate_logits`; transformers'
    ``SinglePositionMultiTokenCandidateGenerator`` (Gemma 4 assistants) drafts the argmax instead: the law is then
    wrong, with either function.

    Parameters
    ----------
    candidate_input_ids, candidate_logits, candidate_length, new_logits : Tensor, Tensor, int, Tensor
        int64 [1, context + K]; [1, K, V], processed; K; [1, K + 1, V], processed.
    assistant_ensemble_weight : float, optional
        w in (0, 1): verify ``w p + (1 - w) q`` instead of p (arXiv 2604.07622). Lossy. It writes rows of that law.
    last_assistant_token_is_eos : bool
        For versions before 5.20, where it is the fifth argument: the last draft ends the text, so that nothing follows
        once it is accepted.

    Returns
    -------
    tuple of Tensor
        Accepted drafts and one token more, int64 [1, n + 1]; n, int64 [].

    Raises
    ------
    ValueError
        Several texts; a weight outside of (0, 1); shapes that do not fit.

    Examples
    --------
    >>> p, q = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]).log(), torch.tensor([[[0.5, 0.5]]]).log()
    >>> speculative_sampling(torch.tensor([[7, 1]]), q, 1, p)
    (tensor([[1, 0]]), tensor(1))
    """
    if candidate_input_ids.shape[0] != 1:
        raise ValueError(f"candidate_input_ids: expected one text; got {list(candidate_input_ids.shape)}")
    drafts = candidate_input_ids[:, candidate_input_ids.shape[1] - candidate_length :]
    space, target, draft = "logits", new_logits, candidate_logits
    if assistant_ensemble_weight is not None:
        if not 0 < assistant_ensemble_weight < 1:
            raise ValueError(f"assistant_ensemble_weight: expected a number in (0, 1); got {assistant_ensemble_weight}")
        space, target, draft = "probs", target.softmax(-1), draft.softmax(-1)
        target[:, :candidate_length] = draft.lerp(target[:, :candidate_length], assistant_ensemble_weight)
    seed = seed_of(None, target.device)
    verdict = specdec.verify_chain(drafts, target, draft, space=space, seed=seed, position=0)
    accepted = verdict.num_accepted[0].long()
    count = int(accepted)
    counters.count("transformers", candidate_length, count)
    if last_assistant_token_is_eos and count == candidate_length:
        return verdict.tokens[:, :count], accepted - 1
    return verdict.tokens[:, : count + 1], accepted


# Names of the fifth argument, in versions that pass whether the drafts have ended.
_ENDED = ("is_done_candidate", "last_assistant_token_is_eos")
_KNOWN = ("candidate_input_ids", "candidate_logits", "candidate_length", "new_logits", "assistant_ensemble_weight")
_replacements = Replacements()


def install() -> None:
    """Replace transformers' function by `speculative_sampling`, with its signature there. A second call does nothing.

    ImportError or AttributeError: no transformers, or no such function there. RuntimeError: an unknown signature.
    """
    utils = importlib.import_module("transformers.generation.utils")
    if not _replacements:
        _replacements.put(utils, "_speculative_sampling", _of_signature(utils._speculative_sampling))


def uninstall() -> None:
    """Restore transformers' function."""
    _replacements.undo()


def _of_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """`speculative_sampling` with the arguments that this version of transformers passes."""
    signature = inspect.signature(function)
    if unknown := set(signature.parameters) - {*_KNOWN, *_ENDED}:
        raise RuntimeError(
            f"transformers: expected _speculative_sampling({', '.join(_KNOWN)}); got {', '.join(sorted(unknown))}, too"
        )

    if tuple(signature.parameters) == _KNOWN[: len(signature.parameters)]:
        return speculative_sampling  # the signatures agree

    def called(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        given = signature.bind(*args, **kwargs).arguments
        ended = [bool(given.pop(name)) for name in _ENDED if name in given]
        return speculative_sampling(**given, last_assistant_token_is_eos=any(ended))

    return called
