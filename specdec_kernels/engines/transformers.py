"""Speculative generation in transformers by our methods. Seen: transformers 5.23.0, 5.24.0.

`generate` is a decoding loop for ``model.generate(custom_generate=generate, ...)``: it changes nothing in transformers.
`speculative_sampling` is the verification of transformers' assisted generation; `install` puts it there.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
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

    from specdec_kernels.generate import ChainPolicy, Drafter, DraftTree, TreePolicy

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
    NotImplementedError, ValueError
        What docs/engines/transformers.md lists as refused, by name; no assistant for a method that drafts; models or
        arguments that do not go together; padding that is not on the left.
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
    given = _given_to_generate(sys._getframe(1))
    assistant_model, streamer = (
        given.get(name) if value is None else value
        for name, value in (("assistant_model", assistant_model), ("streamer", streamer))
    )
    return importlib.import_module("specdec_kernels.engines._transformers").write(
        model, input_ids, logits_processor or (), stopping_criteria or (), generation_config, assistant_model, streamer,
        model_kwargs, method=method, k=k, seed=seed, drafter=drafter, draft_prob=draft_prob, policy=policy, tree=tree,
        replacement=replacement, max_pending=max_pending,
    )  # fmt: skip


def _given_to_generate(frame: Any) -> dict[str, Any]:
    """The arguments of transformers' ``generate`` if this frame runs it; else nothing."""
    mixin = importlib.import_module("transformers.generation.utils").GenerationMixin
    return frame.f_locals if frame.f_code is inspect.unwrap(mixin.generate).__code__ else {}


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
