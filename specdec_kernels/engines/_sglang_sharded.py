"""SGLang where each tensor-parallel rank keeps its slice of the logits: ``SPECDEC_SGLANG_SHARDED=1``.

It imports SGLang. Steps in which other code reads whole rows gather them after all (`gather_for_sampling`,
`gather_for_beams`).
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.dp_attention import is_dp_attention_enabled
from sglang.srt.layers.logits_processor import ForwardMode, LogitsMetadata, LogitsProcessor
from sglang.srt.runtime_context import get_lora, get_parallel, get_spec

from specdec_kernels import InputPositions, OutputFormat, sharded
from specdec_kernels._constants import MASS_TILE
from specdec_kernels.engines._methods import SGLANG_SHARDED, method_of, refuse
from specdec_kernels.engines._ranks import RankSlices, shard_of
from specdec_kernels.engines._watermark import requested_watermark
from specdec_kernels.sharded import VocabShard

_slices: list[Slices] = []  # those of this process's target, once it is loaded


def slices_of(rows: torch.Tensor) -> Slices | None:
    """The ops on these rows if they are slices; None if they are whole."""
    slices = _slices[0] if _slices else None
    return None if slices is None or rows.shape[-1] == slices.shard.vocab else slices


def padded(layer: Any, *given: Any, **named: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Before ``VocabParallelEmbedding.__init__``: makes each rank's slice begin with a tile of masses."""
    size = math.lcm(named.get("padding_size", 64), MASS_TILE * get_parallel().tp_size)
    return (layer, *given), named | {"padding_size": size}


def loaded(result: Any, runner: Any) -> None:
    """After ``ModelRunner.load_model``: a target's rows stay slices; drafters that take the argmax send these."""
    if get_parallel().tp_size == 1:
        return
    processors = [x for x in runner.model.modules() if isinstance(x, LogitsProcessor)]
    options, method = get_spec(), method_of()
    if runner.is_draft_worker:
        for each in processors:
            plain = each.do_tensor_parallel_all_gather and each.final_logit_softcapping is None
            if plain and not options.speculative_use_rejection_sampling:
                likeliest = functools.partial(_likeliest, options.speculative_eagle_topk, each.vocab_size, [])
                each._logits_gatherer = functools.partial(likeliest, each._logits_gatherer)
        return
    single, total = options.speculative_accept_threshold_single, options.speculative_accept_threshold_acc
    algorithm, races = options.speculative_algorithm, method == "race"
    strangers = {
        "pipeline_parallel_size": get_parallel().pp_size > 1,
        "LoRA": bool(get_lora().enable_lora),
        "attention or a head that is split over data": is_dp_attention_enabled(),
        "SPECDEC_WATERMARK": requested_watermark(method) is not None,
        f"{algorithm}": algorithm in ("DFLASH", "DSPARK", "UNO"),
        "speculative_use_rejection_sampling": options.speculative_use_rejection_sampling and not races,
        "speculative_accept_threshold": bool(algorithm) and not (races or single == total == 1),
        "a model that changes logits after they are gathered": hasattr(runner.model, "_suppress_idx"),
    }
    refuse(**{f"{name} beside {SGLANG_SHARDED}": on for name, on in strangers.items()})
    _slices[:] = [Slices(runner, processors)]


class Slices(RankSlices):
    """The ops of a step over this rank's slice of the rows, in the forms that SGLang calls."""

    keeps = False  # True while rows are computed for a step

    def __init__(self, runner: Any, processors: list[Any]) -> None:
        super().__init__(get_parallel().tp_group, SGLANG_SHARDED)
        heads = [each.lm_head for each in runner.model.modules() if hasattr(each, "lm_head")]
        whole = mine = None
        if len(processors) == 1 and heads:
            (processor,) = processors
            hidden = torch.linspace(-1, 1, runner.model_config.hidden_size, device=runner.device, dtype=runner.dtype)
            given = hidden[None], heads[0], LogitsMetadata(ForwardMode.DECODE)
            with torch.inference_mode():
                whole = processor._get_logits(*given)
                self._take(processor)
                mine = processor._get_logits(*given)
        self.check("the model", runner.model, mine, whole)

    def _take(self, processor: Any) -> None:
        """Make this processor return slices."""
        compute = processor._get_logits

        def logits(hidden: torch.Tensor, head: Any, metadata: Any, *rest: Any, **named: Any) -> torch.Tensor:
            self.keeps = not (metadata.extend_return_logprob or metadata.is_prefill_only)
            try:
                return compute(hidden, head, metadata, *rest, **named)
            finally:
                self.keeps = False

        processor._logits_gatherer = functools.partial(
            self.skip_gather, processor._logits_gatherer, processor.vocab_size
        )
        processor._get_logits, processor._can_gather_softcap_fused = logits, lambda *_: False

    def cut(self, mask: Any) -> Any:
        """The columns of a grammar's mask: words of bits, or bools."""
        first, last, words = self.columns.start, self.columns.stop, mask.vocab_mask
        size = 1 if words.dtype == torch.bool else 32
        return mask._replace(vocab_mask=words[:, first // size : last // size].contiguous())

    def agreed(self, seed: int, device: Any) -> torch.Tensor:
        """The first rank's seed."""
        seeds = torch.full((1,), seed, dtype=torch.int64, device=device)
        return self.group.broadcast(seeds, src=0)

    def verify_chain(
        self, tokens: torch.Tensor, rows: torch.Tensor, *, position: InputPositions, out: Any,
        output_format: OutputFormat, **call: Any,
    ) -> None:  # fmt: skip
        """`verify_chain` as `eagle_sample` calls it on whole rows."""
        verdict = sharded.verify_chain(tokens, rows, shard=self.shard, position=position.positions[:, 0] + 1, **call)
        each = torch.arange(rows.shape[1], device=rows.device, dtype=torch.int64)
        path = torch.where(each <= verdict.num_accepted[:, None], each, -1)
        _write(verdict.tokens, path, output_format.index, (out[0], output_format.path, out[1]))

    def verify_tree(
        self, tokens: torch.Tensor, rows: torch.Tensor, *, position: InputPositions, out: Any,
        output_format: OutputFormat, **call: Any,
    ) -> None:  # fmt: skip
        """`verify_tree` as `eagle_sample` calls it on whole rows."""
        call |= {"position": position.positions[:, 0] + 1, "max_depth": out[1].shape[1] - 1}
        verdict = sharded.verify_tree(tokens, rows, shard=self.shard, **call)
        _write(verdict.tokens, verdict.path.long(), output_format.index, out)


def _write(tokens: torch.Tensor, path: torch.Tensor, index: torch.Tensor, out: Any) -> None:
    """``OutputFormat(index=index, count="emitted")`` of a verdict; entries off the path write its first token again."""
    on_path = path >= 0
    targets = index.gather(1, path.clamp(min=0)).long()
    out[0].zero_()
    out[0][targets] = torch.where(on_path, tokens, tokens[:, :1]).to(out[0].dtype)
    out[1].copy_(torch.where(on_path, targets, -1))
    out[2].copy_(on_path.sum(1))


def _likeliest(
    top: int, vocabulary: int, shards: list[VocabShard], gather: Callable[..., torch.Tensor], rows: torch.Tensor
) -> torch.Tensor:
    """Whole rows of log-probabilities: exact for the likeliest tokens; all others share the rest evenly."""
    group, width = get_parallel().tp_group, rows.shape[-1]
    captured = rows.is_cuda and torch.cuda.is_current_stream_capturing()  # a graph does not capture the host's work
    fits = width * (group.world_size - 1) < vocabulary <= width * group.world_size
    if captured or width % MASS_TILE or not fits:
        return gather(rows)
    if not shards:
        shards.append(shard_of(group, width, vocabulary))
    rows, none = rows[:, : vocabulary - shards[0].vocab_start], rows.new_zeros(len(rows), dtype=torch.int64)
    likeliest = sharded.logprobs(rows, none, shard=shards[0], temperature=1.0, top=top)
    left = (1 - likeliest.top_logprobs.exp().sum(1, keepdim=True)).clamp(min=1e-30) / (vocabulary - top)
    return left.log().expand(-1, vocabulary).scatter(1, likeliest.top_tokens, likeliest.top_logprobs)


def gather_for_beams(batch: Any, forward: Any, output: Any) -> None:
    """Before ``capture_pre_sample_logits``."""
    if batch is not None and output is not None and any(req.beam_group is not None for req in batch.reqs):
        _gather(output)


def gather_for_sampling(runner: Any, output: Any, forward: Any) -> None:
    """Before ``ModelRunner.sample``: gathers rows for another sampler than ours, or for log-probabilities."""
    info = forward.sampling_info
    masks, custom = info.sampling_mask_batch_indices is not None, info.has_custom_logit_processor
    ours = hasattr(runner.sampler, "specdec_samples") and runner.sampling_observer is None
    if not ours or forward.return_logprob or masks or custom:
        _gather(output)


def _gather(output: Any) -> None:
    if output.next_token_logits is not None and (slices := slices_of(output.next_token_logits)) is not None:
        output.next_token_logits = slices.whole(output.next_token_logits)


def apply_logits_bias(original: Callable[..., None], info: Any, logits: torch.Tensor) -> None:
    """Around ``SamplingBatchInfo.apply_logits_bias``: biases and masks of a slice's columns."""
    if (slices := slices_of(logits)) is not None:
        info = copy.copy(info)
        if info.logit_bias is not None:
            info.logit_bias = info.logit_bias[:, slices.columns]
        if info.grammar_mask is not None:
            info.grammar_mask = slices.cut(info.grammar_mask)
    original(info, logits)
