"""SGLang's verification of drafts on our ops. Seen: SGLang 0.5.23, sglang-kernel 0.4.10.

The functions have the names, arguments and in-place outputs of its kernels, and run on any device that a backend of
ours has; SGLang need not be there. Links may be spelt ``retrive_*`` or ``retrieve_*``. `register` is the plug-in: with
``SPECDEC_SGLANG=rejection``, ``race`` or ``block`` in the environment SGLang's EAGLE and n-gram workers verify by our
ops, and there is a sampler for steps without drafts, ``--sampling-backend specdec``. Without it nothing changes.

Shared by the functions:

- **Outputs** are written in place: ``predicts`` int32 [B N], the token after each node of the path; ``accept_index``
  int32 [B, S], the path in the flat batch, -1 after its last node; ``accept_token_num`` int32 [B], drafts accepted.
- **Links** may be in any order of indices. Siblings are tried in the order in which they are linked. For links that
  make no tree the rules are those of `verify_linked_tree`, which walks by them.
- **Arguments**: ``candidates`` int64 or int32 [B, N], the nodes' tokens, of which the root's is not read;
  ``retrive_*`` int64 [B, N]: the index of a node in the flat batch, its first child, its next sibling, -1 for none;
  ``uniform_samples`` float32 [B, N] in [0, 1), one uniform for each node's children, and [B] for the last token;
  probabilities float32, bfloat16 or float16 [B, N, V]. ``deterministic`` makes no difference.
- **tree_valid**, bool [B]: where it is False a tree is its root alone. TensorRT-LLM passes it.
- **Uniforms** given are used as they are in accept tests. Where a token is drawn, their bits are those of our noise:
  the law is the same, the same uniforms give the same token, and it is another one than SGLang draws.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

import specdec_kernels as specdec
from specdec_kernels import OutputFormat
from specdec_kernels.engines import _watermark
from specdec_kernels.engines._methods import SGLANG_SHARDED, method_of, switched
from specdec_kernels.engines._replace import hide_checkout

__all__ = [
    "build_tree_kernel_efficient", "chain_speculative_sampling_triton", "register",
    "tree_speculative_sampling_target_only", "verify_tree_greedy",
]  # fmt: skip

FULL_MASK, QLEN_ONLY, QLEN_ONLY_BITPACKING = range(3)
LAYOUTS = {FULL_MASK: "full", QLEN_ONLY: "nodes", QLEN_ONLY_BITPACKING: "bits"}


def spelt(function: Callable[..., None]) -> Callable[..., None]:
    """Accepts ``retrieve_*`` as well, as SGLang's callers say."""

    @functools.wraps(function)
    def called(*given: Any, **named: Any) -> None:
        function(*given, **{name.replace("retrieve_", "retrive_"): x for name, x in named.items()})

    return called


@spelt
def tree_speculative_sampling_target_only(
    predicts: torch.Tensor, accept_index: torch.Tensor, accept_token_num: torch.Tensor, candidates: torch.Tensor,
    retrive_index: torch.Tensor, retrive_next_token: torch.Tensor | None, retrive_next_sibling: torch.Tensor | None,
    uniform_samples: torch.Tensor, uniform_samples_for_final_sampling: torch.Tensor, target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None = None, threshold_single: float = 1.0, threshold_acc: float = 1.0,
    deterministic: bool = True, *, tree_valid: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Verify trees of drafts that were not sampled: SGLang's kernel of this name (``sgl_kernel``, ``kernels.ops``).

    Below each node one uniform u decides among its children in link order: child m is accepted iff ``p(x_m) > 0`` and
    ``u < (p(x_1) + ... + p(x_m)) / threshold_acc``, or ``p(x_m) >= threshold_single``. If none is, a token is drawn
    from p without them. At thresholds of 1 the law of the output is exactly the target's; below 1 it is not, for more
    drafts are accepted than may be. Thresholds are in [0, 1].

    A sibling with the token of an elder one is skipped, where SGLang counts its probability again. A residual without
    mass gives a token of positive probability, where SGLang gives V - 1. ``draft_probs`` is SGLang's scratch memory:
    not read, and left as it is. The noise is the bits of a request's last two uniforms and of its one for the last
    token.

    Examples
    --------
    >>> predicts, path, num = torch.zeros(2).int(), torch.full((1, 2), -1).int(), torch.zeros(1).int()
    >>> rows, leaf = torch.tensor([[[0.5, 0.5], [1.0, 0.0]]]), torch.tensor([[1, -1]])
    >>> tree_speculative_sampling_target_only(
    ...     predicts, path, num, torch.tensor([[9, 1]]), torch.tensor([[0, 1]]), leaf, leaf * 0 - 1,
    ...     torch.tensor([[0.4, 0.4]]), torch.tensor([0.1]), rows,
    ... )
    >>> predicts.tolist(), path.tolist(), num.tolist()
    ([1, 0], [[0, 1]], [1])
    """
    _check_outputs(predicts, accept_index, accept_token_num, candidates, retrive_index)
    for name, value in (("threshold_single", threshold_single), ("threshold_acc", threshold_acc)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name}: expected a number in [0, 1]; got {value}")
    specdec.verify_linked_tree(
        candidates, target_probs, uniforms=uniform_samples[:, : candidates.shape[1]], first_child=retrive_next_token,
        next_sibling=retrive_next_sibling, tree_valid=tree_valid, threshold_single=threshold_single,
        threshold_total=max(threshold_acc, 1e-9),
        **_bits(uniform_samples, uniform_samples_for_final_sampling, -1, -2),  # mostly leaves', which decide nothing
        out=(predicts, accept_index, accept_token_num, None), output_format=OutputFormat(index=retrive_index),
    )  # fmt: skip


@spelt
def verify_tree_greedy(
    predicts: torch.Tensor, accept_index: torch.Tensor, accept_token_num: torch.Tensor, candidates: torch.Tensor,
    retrive_index: torch.Tensor, retrive_next_token: torch.Tensor, retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor, *, tree_valid: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Walk trees by given tokens of the target: SGLang's kernel of this name (``sgl_kernel``, ``kernels.ops``).

    ``target_predict`` int64 or int32 [B, N] has the token after each node.

    Examples
    --------
    >>> predicts, path, num = torch.zeros(2).int(), torch.full((1, 2), -1).int(), torch.zeros(1).int()
    >>> child, none = torch.tensor([[1, -1]]), torch.tensor([[-1, -1]])
    >>> tokens, wanted = torch.tensor([[9, 1]]), torch.tensor([[1, 5]])
    >>> verify_tree_greedy(predicts, path, num, tokens, torch.tensor([[0, 1]]), child, none, wanted)
    >>> predicts.tolist(), path.tolist(), num.tolist()
    ([1, 5], [[0, 1]], [1])
    """
    _check_outputs(predicts, accept_index, accept_token_num, candidates, retrive_index)
    specdec.verify_linked_tree(
        candidates, target_tokens=target_predict, first_child=retrive_next_token, next_sibling=retrive_next_sibling,
        tree_valid=tree_valid, out=(predicts, accept_index, accept_token_num, None),
        output_format=OutputFormat(index=retrive_index),
    )  # fmt: skip


@spelt
def chain_speculative_sampling_triton(
    predicts: torch.Tensor, accept_index: torch.Tensor, accept_token_num: torch.Tensor, candidates: torch.Tensor,
    retrive_index: torch.Tensor, retrive_next_token: torch.Tensor | None, retrive_next_sibling: torch.Tensor | None,
    uniform_samples: torch.Tensor, uniform_samples_for_final_sampling: torch.Tensor, target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None = None, threshold_single: float = 1.0, threshold_acc: float = 1.0,
    deterministic: bool = True, *, block_verification: bool = False,
) -> None:  # fmt: skip
    """Verify chains of sampled drafts: the function of this name in ``sglang.kernels.ops``, by `verify_chain`.

    Node i + 1 is the child of node i, whatever the links say; thresholds are not read, as there. q may be more
    than 1 by rounding; SGLang then rejects a draft that is certain. The first two uniforms of a request and its last
    one are the bits of our noise. ``accept_index`` may be narrower than the chain; what is beyond it is not tried. With
    N = K + 1 uniforms are float32 [B, K or more], ``target_probs`` [B, K + 1, V], ``draft_probs`` [B, K or more, V].
    ``block_verification`` is ``method="block"`` of `verify_chain`.

    Examples
    --------
    >>> predicts, path, num = torch.zeros(2).int(), torch.full((1, 2), -1).int(), torch.zeros(1).int()
    >>> p, q = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]), torch.tensor([[[0.5, 0.5]]])
    >>> chain_speculative_sampling_triton(
    ...     predicts, path, num, torch.tensor([[9, 1]]), torch.tensor([[0, 1]]), None, None,
    ...     torch.tensor([[0.4]]), torch.tensor([0.1]), p, q,
    ... )
    >>> predicts.tolist(), path.tolist(), num.tolist()
    ([1, 0], [[0, 1]], [1])
    """
    _check_outputs(predicts, accept_index, accept_token_num, candidates, retrive_index)
    width = min(candidates.shape[1], accept_index.shape[1])
    specdec.verify_chain(
        candidates[:, 1:width], target_probs[:, :width], draft_probs[:, : width - 1], space="probs",
        method="block" if block_verification else "rejection",
        **_bits(uniform_samples, uniform_samples_for_final_sampling, 0, 1),
        out=(predicts, accept_token_num, None),
        output_format=OutputFormat(index=retrive_index[:, :width], path=accept_index[:, :width]),
    )  # fmt: skip
    if accept_index.shape[1] > width:
        accept_index[:, width:] = -1


@spelt
def build_tree_kernel_efficient(
    parent_list: torch.Tensor, selected_index: torch.Tensor, verified_seq_len: torch.Tensor, tree_mask: torch.Tensor,
    positions: torch.Tensor, retrive_index: torch.Tensor, retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor, topk: int = 1, depth: int = 1, draft_token_num: int = 1,
    tree_mask_mode: int = FULL_MASK,
) -> None:  # fmt: skip
    """Links, positions and the mask of EAGLE's trees, in place: SGLang's kernel of this name, by `build_tree`.

    A node whose parent was not selected (of scores with NaN) is in no tree, and attends to itself alone; SGLang's walk
    then leaves its arrays. An unknown mode, more than 32 nodes with bits, or a short mask is a TypeError or ValueError.
    ``verified_seq_len`` determines the length of a full mask: rows beyond the mask's end are not written.

    Parameters
    ----------
    parent_list : Tensor
        int64 [B, topk (depth - 1) + 1]: for each group of topk candidates the number of the one they follow.
    selected_index : Tensor
        int64 [B, N - 1]: the numbers of the candidates that are nodes 1 to N - 1.
    verified_seq_len : Tensor
        int64 or int32 [B]: tokens before the root.
    tree_mask : Tensor
        bool or uint8, written from its beginning. FULL_MASK (0): N rows of ``verified_seq_len[b] + N`` for each
        request, of which the last N columns are written. QLEN_ONLY (1): [B N N]. QLEN_ONLY_BITPACKING (2):
        little-endian bits in 1, 2 or 4 bytes a node, for up to 8, 16 or 32 nodes; also uint16 or uint32.
    positions, retrive_index, retrive_next_token, retrive_next_sibling : Tensor
        int64 [B N], and [B, N] each, overwritten.

    Examples
    --------
    >>> mask, positions, links = torch.zeros(9).bool(), torch.zeros(3).long(), torch.full((3, 1, 3), -1)
    >>> build_tree_kernel_efficient(
    ...     torch.tensor([[-1, 0, 1]]), torch.tensor([[0, 2]]), torch.tensor([5]), mask, positions, *links, 2, 2, 3, 1
    ... )
    >>> positions.tolist(), links[1].tolist(), mask.view(3, 3).int().tolist()
    ([5, 6, 7], [[1, 2, -1]], [[1, 0, 0], [1, 1, 0], [1, 1, 1]])
    """
    batch, nodes = selected_index.shape[0], selected_index.shape[1] + 1
    if tree_mask_mode not in LAYOUTS:
        raise ValueError(f"tree_mask_mode: expected 0, 1 or 2; got {tree_mask_mode}")
    if draft_token_num != nodes:
        raise ValueError(f"draft_token_num: expected {nodes}, one more than selected_index has; got {draft_token_num}")
    if tree_mask_mode == QLEN_ONLY_BITPACKING and nodes > 32:
        raise ValueError(f"draft_token_num: expected 32 at most with bits; got {nodes}")
    specdec.build_tree(
        parent_list, selected_index, topk=topk, prefix_len=verified_seq_len, layout=LAYOUTS[tree_mask_mode],
        out=(tree_mask, positions.view(batch, nodes), retrive_index, retrive_next_token, retrive_next_sibling),
    )  # fmt: skip


def _bits(uniforms: torch.Tensor, final: torch.Tensor, first: int, second: int) -> dict[str, torch.Tensor]:
    """The bits of two of a request's uniforms and of its last one as noise, int32 [B] each, without a copy."""
    words = uniforms.view(torch.int32)
    second = max(min(second, words.shape[1] - 1), -words.shape[1])  # there may be one uniform alone
    return {"seed": words[:, first], "position": words[:, second], "nonce": final.view(torch.int32)}


def _check_outputs(
    predicts: torch.Tensor, accept_index: torch.Tensor, accept_token_num: torch.Tensor, candidates: torch.Tensor,
    index: torch.Tensor,
) -> None:  # fmt: skip
    """Outputs are written in place, so an output that would be copied is refused."""
    if index is None:
        raise TypeError("retrive_index: expected a tensor of int64 [B, N]; got None")
    batch, nodes = candidates.shape
    for name, x, shape in (
        ("predicts", predicts, (batch * nodes,)),
        ("accept_index", accept_index, (batch, accept_index.shape[-1])),
        ("accept_token_num", accept_token_num, (batch,)),
    ):
        if x.dtype != torch.int32 or x.shape != shape or 0 in shape[1:]:
            raise ValueError(f"{name}: expected int32 {list(shape)}; got {x.dtype} {list(x.shape)}")


def register() -> None:
    """The plug-in ``specdec`` of the group ``sglang.srt.plugins``, which SGLang calls in each of its processes.

    With ``SPECDEC_SGLANG`` it replaces ``eagle_sample`` and SGLang's penalties, by its registry of hooks, with "race"
    the draws of drafts, too, and registers the sampling backend "specdec", with "race" also instead of "pytorch". The
    logger ``sglang.specdec_kernels`` reports it. Without the variable it does nothing; a word that is no method is a
    ValueError.
    """
    if method_of() is None:
        if switched(SGLANG_SHARDED):
            raise ValueError(f"{SGLANG_SHARDED}: expected a method beside it, as SPECDEC_SGLANG=race; got none")
        return
    parts = importlib.import_module("specdec_kernels.engines._sglang")
    registry = importlib.import_module("sglang.srt.plugins.hook_registry")
    blocks = importlib.import_module("specdec_kernels.engines._sglang_blocks")
    kinds, penalties = registry.HookType, parts.penalties
    info, runner = "sampling.sampling_batch_info.SamplingBatchInfo", "model_executor.model_runner.ModelRunner"
    hooks = [
        ("speculative.eagle_utils.eagle_sample", parts.eagle_sample, kinds.REPLACE),
        ("speculative.spec_info.SpeculativeAlgorithm.create_worker", blocks.worker, kinds.AFTER),
        (f"{info}.from_schedule_batch", penalties.begin, kinds.AFTER),
        (f"{info}.copy_for_forward", penalties.attach, kinds.AFTER),
        (f"{runner}.sample", penalties.penalise_step, kinds.BEFORE),
        ("managers.scheduler.Scheduler.init_model_worker", parts.report, kinds.AFTER),
    ]
    sampler = importlib.import_module("sglang.srt.layers.sampler")
    sampler.register_sampler_backend("specdec", parts.SpecdecSampler)
    if method_of() == "race":
        hooks.append(("speculative.spec_utils.fast_sample", parts.fast_sample, kinds.AROUND))
        # With seeds SGLang takes no other backend than this one.
        sampler.register_sampler_backend("pytorch", parts.pytorch_sampler)
    if _watermark.requested_watermark(method_of()) is not None:
        hooks.append((f"{info}.from_schedule_batch", parts.begin_text, kinds.AFTER))
        hooks.append((f"{runner}.sample", parts.enter, kinds.BEFORE))
    if switched(SGLANG_SHARDED):
        slices = importlib.import_module("specdec_kernels.engines._sglang_sharded")
        hooks += [
            ("layers.vocab_parallel_embedding.VocabParallelEmbedding.__init__", slices.padded, kinds.BEFORE),
            (f"{runner}.load_model", slices.loaded, kinds.AFTER),
            (f"{runner}.sample", slices.gather_for_sampling, kinds.BEFORE),
            ("beam_search.logits_capture.capture_pre_sample_logits", slices.gather_for_beams, kinds.BEFORE),
            (f"{info}.apply_logits_bias", slices.apply_logits_bias, kinds.AROUND),
        ]
    for target, hook, kind in hooks:
        registry.HookRegistry.register(f"sglang.srt.{target}", hook, kind)
    hide_checkout()
