"""Written by ``python -m tests.support.call_types`` from the declarations of the ops."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from specdec_kernels.calls.values import Edit, Law, Noise

class BuildTree(NamedTuple):
    parent_list: Tensor
    selected: Tensor
    prefix_len: int | Tensor
    topk: int
    layout: str
    mask: Tensor
    positions: Tensor
    node_index: Tensor
    first_child: Tensor
    next_sibling: Tensor
    status: Tensor

class CompactKv(NamedTuple):
    caches: Sequence[Tensor]
    path: Tensor
    prefix_len: int | Tensor
    block_table: Tensor | None
    status: Tensor

class ContextSeeds(NamedTuple):
    text: Tensor
    draft_tokens: Tensor
    cu_drafts: Tensor | None
    tokens_by_row: bool
    parents: Tensor | None
    request_index: Tensor | None
    key: int | Tensor
    start: int | Tensor
    seed: Tensor
    position: Tensor
    window: int
    ordered: bool
    seeds: Tensor

class CountAtLeast(NamedTuple):
    rows: Tensor
    request_index: Tensor | None
    law: Law
    edits: Edit
    least: Tensor
    counts: Tensor

class CountTokens(NamedTuple):
    tokens: Tensor
    num: int | Tensor
    mask: Tensor
    counts: Tensor | None
    status: Tensor

class Cutoff(NamedTuple):
    rows: Tensor
    request_index: Tensor | None
    law: Law
    edits: Edit
    value: Tensor
    last: Tensor
    count: Tensor  # type: ignore[assignment]
    mass: Tensor
    max: Tensor
    status: Tensor | None

class FirstArrivals(NamedTuple):
    packed: Tensor
    tokens: Tensor
    status: Tensor
    empty: Tensor

class Logprobs(NamedTuple):
    rows: Tensor
    tokens: Tensor
    request_index: Tensor | None
    law: Law
    edits: Edit
    logprob: Tensor
    rank: Tensor
    top_tokens: Tensor
    top_logprobs: Tensor
    support_bits: Tensor | None
    support_size: Tensor | None
    status: Tensor | None

class MaskLogits(NamedTuple):
    rows: Tensor
    temperature: float | Tensor
    value: Tensor
    last: Tensor
    out: Tensor

class MassTiles(NamedTuple):
    rows: Tensor
    request_index: Tensor | None
    law: Law
    edits: Edit
    tiles: Tensor
    status: Tensor

class MergeChains(NamedTuple):
    paths: Tensor
    draft_tokens: Tensor
    parents: Tensor
    leaves: Tensor

class Overlap(NamedTuple):
    target: Tensor
    draft: Tensor
    draft_map: Tensor | None
    request_index: Tensor | None
    target_law: Law
    draft_law: Law
    edits: Edit
    accept: Tensor
    tv: Tensor
    kl: Tensor
    harmonic: Tensor
    status: Tensor | None

class RaceSample(NamedTuple):
    rows: Tensor
    vocab_start: int
    draft_map: Tensor | None
    request_index: Tensor | None
    law: Law
    edits: Edit
    noise: Noise
    tokens: Tensor
    status: Tensor | None
    scores: Tensor | None

class RaceTopk(NamedTuple):
    rows: Tensor
    vocab_start: int
    draft_map: Tensor | None
    request_index: Tensor | None
    law: Law
    edits: Edit
    noise: Noise
    tokens: Tensor
    status: Tensor | None
    scores: Tensor | None

class Residual(NamedTuple):
    target: Tensor
    draft: Tensor
    draft_map: Tensor | None
    request_index: Tensor | None
    target_law: Law
    draft_law: Law
    edits: Edit
    draft_prob: float | Tensor
    probs: Tensor
    mass: Tensor
    status: Tensor | None

class ResidualRace(NamedTuple):
    target: Tensor
    vocab_start: int
    draft: Tensor | None
    row: Tensor
    draft_row: Tensor | None
    excluded: Tensor | None
    cuts: Tensor | None
    row_stats: Tensor
    target_law: Law
    draft_law: Law
    edits: Edit
    subtracted: float | Tensor
    noise: Noise
    tokens: Tensor
    status: Tensor
    scores: Tensor

class ResidualSums(NamedTuple):
    target: Tensor
    draft: Tensor
    row: Tensor
    draft_row: Tensor
    cuts: Tensor | None
    row_stats: Tensor
    target_law: Law
    draft_law: Law
    edits: Edit
    subtracted: float | Tensor
    sums: Tensor
    status: Tensor

class StoreRows(NamedTuple):
    rows: Tensor
    slots: Tensor
    column: int | Tensor
    cache: Tensor

class TileLaws(NamedTuple):
    tiles: Tensor
    raw: Tensor
    temperature: float | Tensor
    row_stats: Tensor
    probs: Tensor

class TokenLogits(NamedTuple):
    rows: Tensor
    vocab_start: int
    row_indices: Tensor | None
    tokens: Tensor
    edits: Edit
    logits: Tensor

class TreeMask(NamedTuple):
    parents: Tensor
    prefix_len: int | Tensor
    columns: int
    mask: Tensor
    status: Tensor

class TreeParents(NamedTuple):
    first_child: Tensor
    next_sibling: Tensor
    parents: Tensor
    ranks: Tensor
    status: Tensor

class TreePositions(NamedTuple):
    parents: Tensor
    prefix_len: int | Tensor
    positions: Tensor
    status: Tensor

class Uniform(NamedTuple):
    noise: Noise
    index: int | Tensor  # type: ignore[assignment]
    stream: int
    uniforms: Tensor

class VerifyChain(NamedTuple):
    draft_tokens: Tensor
    target: Tensor
    draft: Tensor | None
    cu_drafts: Tensor | None
    tokens_by_row: bool
    draft_map: Tensor | None
    request_index: Tensor | None
    method: str
    target_law: Law
    draft_law: Law
    edits: Edit
    draft_prob: float | Tensor
    epsilon: float | Tensor
    noise: Noise
    input_positions: Tensor | None
    input_nonces: Tensor | None
    row_seeds: Tensor | None
    tokens: Tensor
    num_accepted: Tensor
    status: Tensor
    path: Tensor | None
    num_passed: Tensor | None
    index: Tensor | None  # type: ignore[assignment]
    bonus: Tensor | None
    output_format: int

class VerifyLinkedTree(NamedTuple):
    draft_tokens: Tensor
    first_child: Tensor
    next_sibling: Tensor
    tree_valid: Tensor | None
    target: Tensor | None
    target_tokens: Tensor | None
    uniforms: Tensor | None
    threshold_single: float | Tensor
    threshold_total: float | Tensor
    noise: Noise
    tokens: Tensor
    path: Tensor
    num_accepted: Tensor
    status: Tensor
    index: Tensor | None  # type: ignore[assignment]
    output_format: int

class VerifyTree(NamedTuple):
    draft_tokens: Tensor
    parents: Tensor
    target: Tensor
    draft: Tensor | None
    draft_map: Tensor | None
    request_index: Tensor | None
    method: str
    replacement: bool
    target_law: Law
    draft_law: Law
    edits: Edit
    noise: Noise
    input_positions: Tensor | None
    row_seeds: Tensor | None
    leaves: Tensor | None
    tokens: Tensor
    path: Tensor
    num_accepted: Tensor
    status: Tensor
    index: Tensor | None  # type: ignore[assignment]
    output_format: int

class WalkTables(NamedTuple):
    draft_tokens: Tensor
    cu_drafts: Tensor | None
    parents: Tensor | None
    vocab: int
    request_index: Tensor | None
    method: str
    replacement: bool
    temperature: float | Tensor
    draft_prob: float | Tensor
    epsilon: float | Tensor
    noise: Noise
    row_status: Tensor
    winners: Tensor | None
    p_of_drafts: Tensor | None
    row_stats: Tensor | None
    q_of_drafts: Tensor | None
    draft_row_status: Tensor | None
    draft_row_stats: Tensor | None
    draft_row_indices: Tensor | None
    answers: Tensor | None
    tokens: Tensor
    path: Tensor | None
    num_accepted: Tensor
    status: Tensor
    row: Tensor | None
    draft_row: Tensor | None
    subtracted: Tensor | None
    slot: Tensor | None
    laws: Tensor | None
    excluded: Tensor | None
    requested_rows: Tensor | None
    requested_subtracted: Tensor | None
    memory: Tensor | None
