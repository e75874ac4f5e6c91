"""Written by ``python -m tests.support.call_types`` from the declarations of the ops."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from specdec_kernels.calls.values import Edit, Law, Noise

# ruff: noqa: UP014
# fmt: off

BuildTree = NamedTuple("BuildTree", [
    ("parent_list", Tensor), ("selected", Tensor), ("prefix_len", int | Tensor), ("topk", int), ("layout", str),
    ("mask", Tensor), ("positions", Tensor), ("node_index", Tensor), ("first_child", Tensor), ("next_sibling", Tensor),
    ("status", Tensor),
])

CompactKv = NamedTuple("CompactKv", [
    ("caches", Sequence[Tensor]), ("path", Tensor), ("prefix_len", int | Tensor), ("block_table", Tensor | None),
    ("status", Tensor),
])

ContextSeeds = NamedTuple("ContextSeeds", [
    ("text", Tensor), ("draft_tokens", Tensor), ("cu_drafts", Tensor | None), ("tokens_by_row", bool),
    ("parents", Tensor | None), ("request_index", Tensor | None), ("key", int | Tensor), ("start", int | Tensor),
    ("seed", Tensor), ("position", Tensor), ("window", int), ("ordered", bool), ("seeds", Tensor),
])

CountAtLeast = NamedTuple("CountAtLeast", [
    ("rows", Tensor), ("request_index", Tensor | None), ("law", Law), ("edits", Edit), ("least", Tensor),
    ("counts", Tensor),
])

CountTokens = NamedTuple("CountTokens", [
    ("tokens", Tensor), ("num", int | Tensor), ("mask", Tensor), ("counts", Tensor | None), ("status", Tensor),
])

Cutoff = NamedTuple("Cutoff", [
    ("rows", Tensor), ("request_index", Tensor | None), ("law", Law), ("edits", Edit), ("value", Tensor),
    ("last", Tensor), ("count", Tensor), ("mass", Tensor), ("max", Tensor), ("status", Tensor | None),
])

FirstArrivals = NamedTuple("FirstArrivals", [
    ("packed", Tensor), ("tokens", Tensor), ("status", Tensor), ("empty", Tensor),
])

Logprobs = NamedTuple("Logprobs", [
    ("rows", Tensor), ("tokens", Tensor), ("request_index", Tensor | None), ("law", Law), ("edits", Edit),
    ("logprob", Tensor), ("rank", Tensor), ("top_tokens", Tensor), ("top_logprobs", Tensor),
    ("support_bits", Tensor | None), ("support_size", Tensor | None), ("status", Tensor | None),
])

MaskLogits = NamedTuple("MaskLogits", [
    ("rows", Tensor), ("temperature", float | Tensor), ("value", Tensor), ("last", Tensor), ("out", Tensor),
])

MassTiles = NamedTuple("MassTiles", [
    ("rows", Tensor), ("request_index", Tensor | None), ("law", Law), ("edits", Edit), ("tiles", Tensor),
    ("status", Tensor),
])

MergeChains = NamedTuple("MergeChains", [
    ("paths", Tensor), ("draft_tokens", Tensor), ("parents", Tensor), ("leaves", Tensor),
])

Overlap = NamedTuple("Overlap", [
    ("target", Tensor), ("draft", Tensor), ("draft_map", Tensor | None), ("request_index", Tensor | None),
    ("target_law", Law), ("draft_law", Law), ("edits", Edit), ("accept", Tensor), ("tv", Tensor), ("kl", Tensor),
    ("harmonic", Tensor), ("status", Tensor | None),
])

RaceSample = NamedTuple("RaceSample", [
    ("rows", Tensor), ("vocab_start", int), ("draft_map", Tensor | None), ("request_index", Tensor | None),
    ("law", Law), ("edits", Edit), ("noise", Noise), ("tokens", Tensor), ("status", Tensor | None),
    ("scores", Tensor | None),
])

RaceTopk = NamedTuple("RaceTopk", [
    ("rows", Tensor), ("vocab_start", int), ("draft_map", Tensor | None), ("request_index", Tensor | None),
    ("law", Law), ("edits", Edit), ("noise", Noise), ("tokens", Tensor), ("status", Tensor | None),
    ("scores", Tensor | None),
])

Residual = NamedTuple("Residual", [
    ("target", Tensor), ("draft", Tensor), ("draft_map", Tensor | None), ("request_index", Tensor | None),
    ("target_law", Law), ("draft_law", Law), ("edits", Edit), ("draft_prob", float | Tensor), ("probs", Tensor),
    ("mass", Tensor), ("status", Tensor | None),
])

ResidualRace = NamedTuple("ResidualRace", [
    ("target", Tensor), ("vocab_start", int), ("draft", Tensor | None), ("row", Tensor), ("draft_row", Tensor | None),
    ("excluded", Tensor | None), ("cuts", Tensor | None), ("row_stats", Tensor), ("target_law", Law),
    ("draft_law", Law), ("edits", Edit), ("subtracted", float | Tensor), ("noise", Noise), ("tokens", Tensor),
    ("status", Tensor), ("scores", Tensor),
])

ResidualSums = NamedTuple("ResidualSums", [
    ("target", Tensor), ("draft", Tensor), ("row", Tensor), ("draft_row", Tensor), ("cuts", Tensor | None),
    ("row_stats", Tensor), ("target_law", Law), ("draft_law", Law), ("edits", Edit), ("subtracted", float | Tensor),
    ("sums", Tensor), ("status", Tensor),
])

StoreRows = NamedTuple("StoreRows", [
    ("rows", Tensor), ("slots", Tensor), ("column", int | Tensor), ("cache", Tensor),
])

TileLaws = NamedTuple("TileLaws", [
    ("tiles", Tensor), ("raw", Tensor), ("temperature", float | Tensor), ("row_stats", Tensor), ("probs", Tensor),
])

TokenLogits = NamedTuple("TokenLogits", [
    ("rows", Tensor), ("vocab_start", int), ("row_indices", Tensor | None), ("tokens", Tensor), ("edits", Edit),
    ("logits", Tensor),
])

TreeMask = NamedTuple("TreeMask", [
    ("parents", Tensor), ("prefix_len", int | Tensor), ("columns", int), ("mask", Tensor), ("status", Tensor),
])

TreeParents = NamedTuple("TreeParents", [
    ("first_child", Tensor), ("next_sibling", Tensor), ("parents", Tensor), ("ranks", Tensor), ("status", Tensor),
])

TreePositions = NamedTuple("TreePositions", [
    ("parents", Tensor), ("prefix_len", int | Tensor), ("positions", Tensor), ("status", Tensor),
])

Uniform = NamedTuple("Uniform", [
    ("noise", Noise), ("index", int | Tensor), ("stream", int), ("uniforms", Tensor),
])

VerifyChain = NamedTuple("VerifyChain", [
    ("draft_tokens", Tensor), ("target", Tensor), ("draft", Tensor | None), ("cu_drafts", Tensor | None),
    ("tokens_by_row", bool), ("draft_map", Tensor | None), ("request_index", Tensor | None), ("method", str),
    ("target_law", Law), ("draft_law", Law), ("edits", Edit), ("draft_prob", float | Tensor),
    ("epsilon", float | Tensor), ("noise", Noise), ("input_positions", Tensor | None), ("input_nonces", Tensor | None),
    ("row_seeds", Tensor | None), ("tokens", Tensor), ("num_accepted", Tensor), ("status", Tensor),
    ("path", Tensor | None), ("num_passed", Tensor | None), ("index", Tensor | None), ("bonus", Tensor | None),
    ("output_format", int),
])

VerifyLinkedTree = NamedTuple("VerifyLinkedTree", [
    ("draft_tokens", Tensor), ("first_child", Tensor), ("next_sibling", Tensor), ("tree_valid", Tensor | None),
    ("target", Tensor | None), ("target_tokens", Tensor | None), ("uniforms", Tensor | None),
    ("threshold_single", float | Tensor), ("threshold_total", float | Tensor), ("noise", Noise), ("tokens", Tensor),
    ("path", Tensor), ("num_accepted", Tensor), ("status", Tensor), ("index", Tensor | None), ("output_format", int),
])

VerifyTree = NamedTuple("VerifyTree", [
    ("draft_tokens", Tensor), ("parents", Tensor), ("target", Tensor), ("draft", Tensor | None),
    ("draft_map", Tensor | None), ("request_index", Tensor | None), ("method", str), ("replacement", bool),
    ("target_law", Law), ("draft_law", Law), ("edits", Edit), ("noise", Noise), ("input_positions", Tensor | None),
    ("row_seeds", Tensor | None), ("leaves", Tensor | None), ("tokens", Tensor), ("path", Tensor),
    ("num_accepted", Tensor), ("status", Tensor), ("index", Tensor | None), ("output_format", int),
])

WalkTables = NamedTuple("WalkTables", [
    ("draft_tokens", Tensor), ("cu_drafts", Tensor | None), ("parents", Tensor | None), ("vocab", int),
    ("request_index", Tensor | None), ("method", str), ("replacement", bool), ("temperature", float | Tensor),
    ("draft_prob", float | Tensor), ("epsilon", float | Tensor), ("noise", Noise), ("row_status", Tensor),
    ("winners", Tensor | None), ("p_of_drafts", Tensor | None), ("row_stats", Tensor | None),
    ("q_of_drafts", Tensor | None), ("draft_row_status", Tensor | None), ("draft_row_stats", Tensor | None),
    ("draft_row_indices", Tensor | None), ("answers", Tensor | None), ("tokens", Tensor), ("path", Tensor | None),
    ("num_accepted", Tensor), ("status", Tensor), ("row", Tensor | None), ("draft_row", Tensor | None),
    ("subtracted", Tensor | None), ("slot", Tensor | None), ("laws", Tensor | None), ("excluded", Tensor | None),
    ("requested_rows", Tensor | None), ("requested_subtracted", Tensor | None), ("memory", Tensor | None),
])
