"""Shared by the adapters of both of vLLM's runners: a verification and a draw over its rows, and the logger."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import torch

import specdec_kernels as specdec
from specdec_kernels import Draft, InputPositions, LogitEdits, OutputFormat, Packing, Sampling
from specdec_kernels.engines._replace import Replacements
from specdec_kernels.engines._watermark import Marks

LOGGER = logging.getLogger("vllm.specdec_kernels")  # vLLM prints logs below "vllm"
REPLACEMENTS = Replacements()
EMITTED = OutputFormat(count="emitted")
IN_RANGE = OutputFormat(zeros=True)
TARGET = -1  # the nonce of the target's noise; drafts have those of columns


def check_arguments(owner: type, name: str, names: str) -> None:
    """Raise RuntimeError if a replaced function has other arguments than in the versions seen."""
    arguments = " ".join(inspect.signature(getattr(owner, name)).parameters)
    if arguments not in (names, names.removesuffix(" num_steps")):  # 0.32.0 has no such argument
        raise RuntimeError(
            f"vllm: expected {owner.__name__}.{name}({names}), as in 0.32.0 and 0.33.0; got ({arguments})"
        )


def first_positions(position: Any, packing: Packing | None) -> torch.Tensor:
    """[B]: the position that each request's first row decides, of a call's ``position``."""
    if not isinstance(position, InputPositions):
        return position
    inputs = position.positions
    if packing is None:
        return inputs[:, 0] + 1
    drafts = packing.cu_drafts[:-1]
    return inputs[drafts + torch.arange(len(drafts), device=drafts.device, dtype=drafts.dtype)] + 1


def verify(
    logits: torch.Tensor, draft_logits: torch.Tensor | None, draft_sampled: torch.Tensor, cu_num_logits: torch.Tensor,
    pos: torch.Tensor, idx_mapping: torch.Tensor, steps: int, per_request: int | None, *,
    seed: torch.Tensor, sampling: Sampling, drawn_by: Sampling, method: str, edits: LogitEdits | None = None,
    marks: Marks | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """One `verify_chain` over vLLM's rows: tokens [B, steps + 1] and their numbers. All numbers are by slot.

    Rows, drafts and positions are not copied: ``per_request`` of each request, or, if that is None, as many as
    ``cu_num_logits`` says.
    """
    batch = len(idx_mapping)
    laws: dict[str, Any] = {"sampling": sampling, "edits": edits, "method": method}
    width = steps if per_request is None else per_request - 1
    if draft_logits is not None and method != "race":
        laws["draft"] = Draft(draft_logits if per_request is None else draft_logits[:, :width], sampling=drawn_by)
    if per_request is None:
        drafts = draft_sampled
        laws["packing"] = Packing(cu_rows=cu_num_logits, max_drafts=steps)
    else:
        logits = logits.view(batch, per_request, logits.shape[-1])
        drafts, pos = draft_sampled.view(batch, per_request)[:, 1:], pos.view(batch, per_request)
    if width < steps:
        tokens = torch.full((batch, steps + 1), -1, dtype=torch.int64, device=logits.device)
        laws["out"] = tokens[:, : width + 1], None, None
    noise: dict[str, Any] = {"seed": seed, "nonce": TARGET, "position": InputPositions(pos)}
    if marks is not None:
        first = pos[cu_num_logits[:-1]] if per_request is None else pos[:, 0]
        noise = marks.noise(drafts, first + 1, idx_mapping, seed[idx_mapping], packing=laws.get("packing"))
    verdict = specdec.verify_chain(drafts, logits, request_index=idx_mapping, output_format=EMITTED, **noise, **laws)
    return verdict.tokens if width == steps else tokens, verdict.num_accepted


def drawn(
    logits: torch.Tensor, slots: torch.Tensor, sampling: Sampling, seed: torch.Tensor, pos: torch.Tensor,
    nonce: int | torch.Tensor = TARGET, edits: LogitEdits | None = None, marks: Marks | None = None,
) -> torch.Tensor:  # fmt: skip
    """A token of each row, int64 [N], with the noise of our verification, unless another ``nonce`` is given.

    A chain without drafts is a race that reads numbers by slot and counts positions from those of input tokens. Slot -1
    gets token 0. A ``nonce`` is one for all, or has one for each row.
    """
    by_row = isinstance(nonce, torch.Tensor) and nonce.ndim > 0
    rows = logits if logits.stride(-1) == 1 else logits.contiguous()
    drafts, noise = slots.new_empty(len(rows), 0), dict[str, Any](seed=seed, nonce=0 if by_row else nonce)
    noise["position"] = InputPositions(pos.unsqueeze(1), nonce if by_row else None)
    if marks is not None:
        noise = marks.noise(drafts, pos + 1, slots, seed[slots])
    verdict = specdec.verify_chain(
        drafts, rows.unsqueeze(1), method="race", sampling=sampling, edits=edits, request_index=slots,
        output_format=IN_RANGE,
        **noise,
    )  # fmt: skip
    return verdict.tokens.squeeze(1)
