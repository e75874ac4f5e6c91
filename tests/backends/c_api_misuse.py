"""Wrong calls of specdec.h's functions: what is valid, from the table below, with one change of a field of the headers.

A valid call must return SPECDEC_OK, a wrong one an error with its message; `c_api_misuse.c` makes them. A call is
written as statements with `;` between them. ``target[2, 4, 64]`` is memory of this shape, ``no draft`` a field of
zeros, anything else an assignment in C.
"""

import re
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tests.support.fields import CSRC

FRAME = Path(__file__).with_suffix(".c")
HEADERS = "".join(path.read_text(encoding="utf-8") for path in (CSRC / "include" / "specdec" / "c").glob("*.h"))
HEADERS = re.sub(r"/\*.*?\*/", "", HEADERS, flags=re.DOTALL)
STRIDES = {"requests": "request_stride", "rows": "row_stride"}
INT32_MAX = 2**31 - 1
SIZE = (0, INT32_MAX)
SHAPES = {  # the members that a shape gives; strides follow
    "rows": ("requests", "rows", "vocab"),
    "tokens": ("requests", "slots"),
    "lists": ("requests", "rows", "size"),
    "vector": ("size",),
    "request_index": ("size",),
    "output": ("rows", "columns"),
    "mask": ("batch", "nodes"),
}
LIMITS = {  # what a field's own check allows: (least, most)
    "rows": {"requests": SIZE, "rows": SIZE, "dtype": (0, 2), "vocab_start": (0, None)},
    "tokens": {"requests": SIZE, "slots": (0, None)},
    "lists": {"requests": SIZE, "rows": (0, None), "size": SIZE},
    "vector": {"size": SIZE},
    "request_index": {"size": SIZE, "entries": (0, None)},
    "output": {"rows": (0, None), "columns": SIZE},
    "mask": {"batch": SIZE, "nodes": (1, None), "layout": (0, 3)},
    "cache_layers": {"size": SIZE},
    "law": {"space": (0, 1), "rules": (0, 63)},
}
KINDS = {"indices": "vector", "values": "vector", "flags": "vector", "path": "output"}
ANY_STRIDE = (  # outputs that need not be contiguous
    "verify_chain.tokens verify_tree.tokens verify_linked_tree.tokens walk_tables.tokens verify_chain.path "
    "verify_tree.path verify_linked_tree.path walk_tables.path compact_kv.path count_tokens.mask count_tokens.counts "
    "residual_race.excluded"
).split()
NEEDS_MEMORY = ("rows", "tokens", "vector", "request_index", "mask")
VALUES = {  # of memory that is not zero
    "parents": (-1, 0, 0, 1),
    "first_child": (1, 3, -1, -1),
    "next_sibling": (-1, 2, -1, -1),
    "cu_drafts": (0, 1, 3),
    "request_index": (1, -1),
    "leaves": (3, 2),
    "parent_list": (-1, 0),
    "selected": (0, 1, 2),
    "edits_bias_spans": (0, 1, 1),
}


class Shared(int):
    """A size of 1 that all requests, or all rows, share: the stride is 0. `*` in a shape."""


class Call(NamedTuple):
    """``fine``: changes after which the call is valid, too. ``refused``: change -> message, or what is expected if the
    change is one assignment. ``sets``: members that may have any size, from which others follow."""

    op: str
    valid: str
    sets: str = ""
    fine: tuple = ()
    refused: dict = MappingProxyType({})


VERDICT = "num_accepted[2]; status[2]"
NO_REQUESTS = "tokens.rows = 0; num_accepted.rows = 0; status.rows = 0"
OF_PROBS = "target_law.space = SPECDEC_PROBS; draft_law.space = SPECDEC_PROBS"
IN_ONE_ROW = "index[2, 4]; path[2, 4]; tokens[1, 9]"
CHAIN = f"draft_tokens[2, 3]; target[2, 4, 64]; draft[2, 3, 32]; draft_prob.value = 1; tokens[2, 4]; {VERDICT}"
RAGGED = f"{CHAIN}; cu_drafts[3]; draft_tokens[1, 3]; target[1, 5, 64]; draft[1, 3, 32]"
TREE = f"draft_tokens[2, 4]; parents[*, 4]; target[2, 4, 64]; draft[2, 4, 32]; tokens[2, 3]; path[2, 3]; {VERDICT}"
LINKED = (
    "draft_tokens[2, 4]; first_child[2, 4]; next_sibling[*, 4]; target[2, 4, 64]; threshold_single.value = 1; "
    f"threshold_total.value = 1; tokens[2, 3]; path[2, 3]; {VERDICT}"
)
PAIRS = "target[2, 3, 64]; draft[2, 3, 32]"
PARTS = "target[2, 3, 64]; draft[2, 2, 64]; row[2]; draft_row[2]; row_stats[1, 2, 4]; status[2]"
TABLES = (
    "draft_tokens[2, 3]; vocab = 64; draft_prob.value = 1; row_status[8]; p_of_drafts[8]; row_stats[16]; tokens[2, 4]; "
    f"{VERDICT}; row[2]; draft_row[2]; subtracted[2]; slot[2]; laws[2, 4]; excluded[2, 1]"
)
TREE_TABLES = (
    f"{TABLES}; draft_tokens[2, 4]; parents[*, 4]; q_of_drafts[8]; draft_row_status[8]; draft_row_stats[16]; "
    "answers[2, 8]; answers.wide = true; requested_rows[2, 8]; requested_subtracted[2, 4]; no excluded"
)
BY_ROW = "edits.by_row = SPECDEC_ALLOWED_BY_ROW"
EDITED = (
    f"edits.allowed[2, 4, 2]; {BY_ROW}; edits.bias_tokens[1]; edits.bias_values[1]; edits.bias_spans[2, 1, 2]; "
    "edits.frequency.value = 1; edits.output_mask[2, 1, 2]; edits.output_counts[2, 1, 64]"
)
INDEXED = "edits.seen_index[2, 1, 1]"
NO_FILTERS = "expected no SPECDEC_FILTERED, since cuts replace filters; got it"
CALLS = (
    Call(
        "verify_chain", CHAIN, sets="tokens.rows tokens.columns",
        fine=(
            "no draft",
            "no draft; draft.requests = 2",
            "no draft; draft.rows = 3",
            f"no draft; no draft_tokens; tokens.columns = 1; target[2, 1, 64]; {OF_PROBS}; num_passed[2]",
            "tokens[2, 1]; tokens.column_stride = -1; no draft_tokens",
            f"{NO_REQUESTS}; draft_tokens.requests = 0; draft_tokens.data = NULL",
            f"{NO_REQUESTS}; no target",
            f"{NO_REQUESTS}; {OF_PROBS}; no draft; num_passed[0]",
            "tokens.columns = 1; no draft_tokens; draft_tokens.requests = 2",
            "tokens.columns = 2; tokens.row_stride = 1; tokens.column_stride = 2",
            "tokens.row_stride = 1; tokens.column_stride = 2",
            "tokens.row_stride = 8; tokens.column_stride = 2",
            f"{OF_PROBS}; num_passed[2]",
            "path[2, 4]",
            "draft_map[32]",
            "request_index[2]",
            "edits.prompt_mask.data = memory_of_edits_prompt_mask; edits.prompt_mask.size = 1",
            "draft_prob.data = memory_of_draft_prob",
            "bonus[1, 2]; target[2, 3, 64]",
            "input_positions[2, 1]; input_nonces[1, 2]",
            "no draft; method = SPECDEC_RACE; row_seeds[2, 4]",
        ),
        refused={
            "no target": "target.requests: expected 1 or more; got 0",
            "target.vocab_start = 64": "0",
            "draft.vocab_start = 64": "0",
            "no draft; draft.vocab_start = 2147483647": "draft.vocab_start: expected 0; got 2147483647",
            "draft.vocab = 65": "at most 64",
            "request_index[2]; request_index.entries = 3": "draft.requests: expected 3 or more; got 2",
            "method = -1": "0 or more",
            "method = 3": "at most 2",
            "method = SPECDEC_BLOCK; draft_prob.value = 0":
                "draft_prob: expected 1 for all with blocks; got another",
            "method = SPECDEC_BLOCK; epsilon.value = 0.1f": "epsilon: expected 0 for all with blocks; got another",
            "method = SPECDEC_RACE": "draft: expected none with the race; got one",
            "row_seeds[2, 4]": "row_seeds: expected NULL but with the race; got memory",
            "tokens.columns = 0": "1 or more",
            "tokens.column_stride = 2": "tokens.row_stride: expected 7 or more; got 4",
            "tokens.row_stride = 0; tokens.column_stride = 2": "tokens.row_stride: expected 7 or more; got 0",
            "tokens.columns = 2; tokens.column_stride = -1": "tokens.column_stride: expected 1 or more; got -1",
            "tokens.row_stride = 8; tokens.column_stride = -1": "tokens.column_stride: expected 1 or more; got -1",
            "output_format = 16": "at most 7",
            "output_format = -1": "0 or more",
            f"{IN_ONE_ROW}; no path": "path.columns: expected 1 or more; got 0",
            f"{IN_ONE_ROW}; tokens.rows = 2": "tokens.rows: expected 1; got 2",
            "num_passed[2]":
                "num_passed: expected NULL but with rejection of probabilities, without draft_map; got memory",
            "target_law.space = SPECDEC_PROBS; num_passed[2]":
                "num_passed: expected NULL but with rejection of probabilities, without draft_map; got memory",
            f"{OF_PROBS}; num_passed[2]; draft_map[32]":
                "num_passed: expected NULL but with rejection of probabilities, without draft_map; got memory",
            f"{OF_PROBS}; num_passed[2]; method = SPECDEC_BLOCK":
                "num_passed: expected NULL but with rejection of probabilities, without draft_map; got memory",
            f"{OF_PROBS}; num_passed[2]; tokens[2, 2]; no draft": "draft.data: expected memory; got NULL",
            f"{OF_PROBS}; num_passed[1]; tokens[1, 4]; num_accepted[1]; status[1]; no draft":
                "draft.data: expected memory; got NULL",
            "tokens_by_row = true": "tokens_by_row: expected false without cu_drafts; got true",
            "input_positions[2, 0]": "input_positions.slots: expected 1 or more; got 0",
            "input_nonces[1, 2]": "input_nonces: expected NULL without input_positions; got memory",
            "bonus[1, 2]; input_positions[2, 4]": "bonus: expected NULL with input_positions; got memory",
        },
    ),
    Call(
        "verify_chain", RAGGED, sets="draft_tokens.slots tokens.rows tokens.columns",
        fine=(
            "bonus[1, 2]; target[1, 3, 64]",
            "input_positions[1, 5]",
            "request_index[2]; draft[2, 3, 32]",
            "tokens_by_row = true; draft_tokens[1, 5]",
        ),
        refused={
            "tokens_by_row = true; draft_tokens[1, 1]": "draft_tokens.slots: expected 2 or more; got 1",
            "bonus[1, 2]; tokens_by_row = true": "bonus: expected NULL with tokens_by_row; got memory",
            "request_index[2]; request_index.entries = 3": "draft.requests: expected 3 or more; got 1",
        },
    ),
    Call(
        "verify_chain", f"{RAGGED}; edits.allowed[1, 5, 2]; {BY_ROW}",
        sets="draft_tokens.slots tokens.rows tokens.columns",
    ),
    Call(
        "verify_chain", f"{CHAIN}; {IN_ONE_ROW}", sets="path.rows path.columns tokens.columns",
        fine=("tokens.row_stride = 0",),
        refused={"tokens.column_stride = -1": "1 or more"},
    ),
    Call(
        "verify_chain", f"{CHAIN}; {EDITED}",
        sets="tokens.rows tokens.columns edits.bias_tokens.size edits.bias_spans.size edits.allowed_index.size "
        "edits.seen_index.size edits.pending.size",
        fine=(
            "edits.allowed_index[2, 4, 1]",
            "edits.allowed_index[2, 4, 1]; edits.allowed.requests = 1; edits.allowed.rows = 1",
            "edits.seen_index[2, 1, 1]",
            "edits.seen_index[2, 1, 1]; edits.output_mask.requests = 1; edits.output_counts.requests = 1",
            "edits.allowed[*, *, 2]; edits.output_mask[*, 1, 2]",
            "edits.pending[2, 1, 1]",
            "edits.seen_index[*, 1, 1]; edits.bias_spans[*, 1, 2]; edits.output_counts.size = 70",
        ),
        refused={
            "edits.allowed.rows = 3": "4 or more",
            "edits.bias_values.size = -1": "1",
            "edits.bias_tokens.size = -1; edits.bias_values.size = -1":
                "edits.bias_tokens.size: expected 0 or more; got -1",
            "edits.bias_tokens.data = NULL": "memory",
            "edits.bias_values.data = NULL": "memory",
            "edits.bias_spans.data = NULL": "memory",
            "edits.bias_spans.size = 3": "2",
            "edits.by_row = 4": "at most 3",
            "edits.by_row = SPECDEC_BIAS_BY_ROW": "edits.bias_spans.rows: expected 4 or more; got 1",
            "edits.allowed_index[2, 4, 1]; edits.allowed.rows = 0": "edits.allowed.rows: expected 1 or more; got 0",
            "edits.by_row = -1": "0 or more",
            "edits.output_mask.data = NULL": "memory",
            "edits.prompt_mask[2, 1, 1]": "edits.prompt_mask.size: expected 2 or more; got 1",
            "edits.seen_index[2, 1, 2]": "edits.seen_index.size: expected 1; got 2",
            "edits.allowed_index[2, 4, 2]": "edits.allowed_index.size: expected 1; got 2",
            f"{INDEXED}; edits.output_counts.requests = 1": "edits.output_counts.requests: expected 2; got 1",
            f"{INDEXED}; edits.prompt_mask[1, 1, 2]": "edits.prompt_mask.requests: expected 2; got 1",
            f"{INDEXED}; no edits.output_counts; no edits.output_mask":
                "edits.prompt_mask.data: expected memory; got NULL",
            "edits.allowed_index[2, 1, 1]; edits.allowed.data = NULL": "edits.allowed.data: expected memory; got NULL",
            OF_PROBS: "edits: expected none with probabilities, which are final; got some",
        },
    ),
    Call(
        "verify_tree", TREE, sets="tokens.rows tokens.columns target.rows leaves.slots",
        fine=(
            f"{NO_REQUESTS}; path.rows = 0; no target",
            "request_index[2]",
            "draft_map[32]",
            "input_positions[2, 1]",
            "method = SPECDEC_PATHS; leaves[2, 1]",
            "no draft; method = SPECDEC_RACE; row_seeds[2, 4]",
        ),
        refused={
            "target.rows = 0": "1 or more",
            "target.vocab_start = 64": "0",
            "draft.vocab = 65": "at most 64",
            "method = 4": "at most 3",
            "method = SPECDEC_PATHS": "leaves.data: expected memory; got NULL",
            "leaves[2, 1]": "leaves: expected NULL but with paths; got memory",
            "method = SPECDEC_PATHS; leaves[2, 1]; no draft": "draft.data: expected memory; got NULL",
            "input_positions[2, 0]": "input_positions.slots: expected 1 or more; got 0",
            "parents.request_stride = 4": "parents.requests: expected 2 or more; got 1",
        },
    ),
    Call(
        "verify_tree", f"{TREE}; edits.allowed[2, 4, 2]; {BY_ROW}",
        sets="tokens.rows tokens.columns target.rows",
    ),
    Call("verify_tree", f"{TREE}; {IN_ONE_ROW}", sets="path.rows path.columns tokens.columns target.rows"),
    Call(
        "verify_linked_tree", LINKED, sets="tokens.rows tokens.columns draft_tokens.slots",
        fine=(f"{NO_REQUESTS}; path.rows = 0; no target", "tree_valid[2]", "no target; target_tokens[2, 4]"),
        refused={
            "draft_tokens.slots = 0": "1 or more",
            "target.vocab_start = 64": "0",
            "target_tokens[2, 4]": "target: expected none beside target_tokens; got some",
            "output_format = 16": "at most 7",
        },
    ),
    Call(
        "verify_linked_tree", f"{LINKED}; {IN_ONE_ROW}", sets="path.rows path.columns tokens.columns draft_tokens.slots"
    ),
    Call(
        "race_sample", "rows[2, 3, 64]; tokens[6]", sets="tokens.columns",
        fine=(
            "status[6]",
            "scores[6]",
            "draft_map[64]",
            "request_index[2]",
            "rows.vocab_start = 128; scores[6]; edits.frequency.value = 1",
            "rows.requests = 0; tokens.rows = 0; tokens.columns = 2",
            "rows.requests = 0; tokens.rows = 0; tokens.columns = 0",
            "rows.vocab_start = 128",
            f"edits.allowed[2, 3, 2]; {BY_ROW}",
        ),
        refused={
            "rows[1, 1, 64]; tokens[1]; tokens.columns = 0": "tokens.columns: expected 1 or more; got 0",
            "rows[1, 1, 64]; tokens[1]; tokens.columns = 2": "tokens.columns: expected at most 1; got 2",
            "draft_map[64]; edits.frequency.value = 1": "edits: expected none with draft_map; got some",
            "law.rules = SPECDEC_FILTERED; rows.vocab_start = 128": "rows.vocab_start: expected 0; got 128",
            "rows.vocab_start = 64; edits.frequency.value = 1; scores[6]": "rows.vocab_start % 128: expected 0; got 64",
        },
    ),
    Call(
        "race_topk", "rows[2, 3, 64]; tokens[6, 2]", sets="tokens.columns", fine=("scores[6, 2]",),
        refused={"tokens.columns = 0": "1 or more", "tokens.columns = 65": "at most 64"},
    ),
    Call(
        "residual", f"{PAIRS}; draft_prob.value = 1; probs[6, 64]; mass[6]", sets="target.requests target.rows",
        fine=(
            "status[6]", "draft_map[32]", "request_index[2]",
            "target.requests = 0; mass.rows = 0; no probs; no draft",
            "target.requests = 0; mass.rows = 0; no probs; no draft; request_index[0]; request_index.entries = 2",
            "no draft; request_index[2]; request_index.entries = 0",
            f"edits.allowed[2, 3, 2]; {BY_ROW}",
        ),
        refused={"target[1, 1, 64]; no draft; probs[1, 64]; mass[1]": "draft.data: expected memory; got NULL"},
    ),
    Call(
        "overlap", f"{PAIRS}; accept[6]; tv[6]; kl[6]; harmonic[6]", sets="target.requests target.rows",
        fine=("status[6]", "draft_map[32]"),
        refused={"no draft": "draft.data: expected memory; got NULL"},
    ),
    Call(
        "cutoff", "rows[2, 3, 64]; value[6]; last[6]; support_size[6]; mass[6]; max[6]",
        fine=("status[6]", "request_index[2]"),
        refused={
            "law.space = SPECDEC_PROBS": "law.space: expected logits; got probabilities",
            "rows.vocab_start = 64": "0",
        },
    ),
    Call(
        "logprobs", "rows[2, 3, 33]; tokens[2, 3]; logprob[6]; rank[6]; top_tokens[6, 4]; top_logprobs[6, 4]",
        sets="top_tokens.columns", fine=(
            "status[6]",
            "request_index[2]",
            "support_bits[6, 2]; support_size[6]",
            "rows.requests = 0; logprob.rows = 0; rank.rows = 0; top_tokens.rows = 0; top_logprobs.rows = 0; "
            "support_size[0]",
            "rows[2, 3, 64]; support_bits[6, 2]; support_size[6]",
        ),
        refused={
            "law.space = SPECDEC_PROBS": "law.space: expected logits; got probabilities",
            "rows.vocab_start = 64": "0",
            "top_tokens.columns = 2": "top_tokens.row_stride: expected 2; got 4",
            "support_bits[6, 2]": "support_size.rows: expected 6; got 0",
            "support_size[1]; rows[1, 1, 33]; logprob[1]; rank[1]; top_tokens[1, 4]; top_logprobs[1, 4]":
                "support_bits.data: expected memory; got NULL",
            "support_size[6]": "support_bits.data: expected memory; got NULL",
        },
    ),
    Call(
        "mask_logits", "rows[2, 3, 64]; out[2, 3, 64]; temperature.value = 1; value[6]; last[1, 6]",
        sets="last.requests last.slots out.requests out.rows",
        refused={
            "last.slots = 5": "6",
            "out.requests = 1": "2",
            "out.rows = 2": "3",
            "out.vocab = 63": "64",
            "out.dtype = SPECDEC_FLOAT16": "out.dtype: expected 0; got 2",
        },
    ),
    Call(
        "store_rows", "rows[2, 1, 64]; slots[1, 2]; cache[4, 3, 64]",
        sets="slots.requests slots.slots cache.requests cache.rows",
        refused={
            "rows.rows = 2": "1",
            "slots.slots = 1": "2",
            "cache.vocab = 63": "64 or more",
            "cache.dtype = SPECDEC_FLOAT16": "cache.dtype: expected 0; got 2",
        },
    ),
    Call(
        "uniform", "uniforms[2, 3]", sets="uniforms.rows uniforms.columns",
        fine=(
            "uniforms[1, 3]; uniforms.row_stride = 5",
            "uniforms[2, 0]; uniforms.row_stride = 5",
            "uniforms[2, 0]; uniforms.data = NULL",
        ),
        refused={"stream = -1": "0 or more", "stream = 4294967296": "at most 4294967295"},
    ),
    Call(
        "context_seeds", "text[2, 3]; draft_tokens[2, 3]; seed[1, 2]; position[1, 2]; window = 2; seeds[2, 4]",
        sets="text.slots seeds.rows seeds.columns",
        fine=("request_index[2]", "draft_tokens[2, 4]; parents[2, 4]", "no text", "text[2, 1]"),
        refused={
            "window = 0": "1 or more",
            "window = 9": "at most 8",
            "tokens_by_row = true": "tokens_by_row: expected false without cu_drafts; got true",
        },
    ),
    Call(
        "context_seeds",
        "text[2, 3]; cu_drafts[3]; draft_tokens[1, 3]; seed[1, 2]; position[1, 2]; window = 2; seeds[2, 4]",
        sets="text.slots draft_tokens.slots seeds.rows seeds.columns",
        refused={
            "draft_tokens.slots = 1; tokens_by_row = true": "draft_tokens.slots: expected 2 or more; got 1",
            "parents[2, 4]": "parents: expected NULL with cu_drafts; got memory",
        },
    ),
    Call(
        "tree_mask", "parents[*, 4]; columns = 4; mask[2, 4]; status[2]", sets="mask.batch mask.nodes",
        fine=("mask.batch = 0; mask.data = NULL; status.rows = 0",),
        refused={
            "columns = 3": "4 or more",
            "parents.request_stride = 4": "parents.requests: expected 2 or more; got 1",
        },
    ),
    Call(
        "tree_positions", "parents[*, 4]; positions[2, 4]; status[2]", sets="positions.rows positions.columns",
        refused={"parents.request_stride = 4": "parents.requests: expected 2 or more; got 1"},
    ),
    Call(
        "tree_parents", "first_child[2, 4]; next_sibling[*, 4]; parents[2, 4]; ranks[2, 4]; status[2]",
        sets="parents.rows parents.columns",
    ),
    Call(
        "build_tree",
        "parent_list[2, 3]; selected[*, 3]; topk = 2; layout = SPECDEC_TREE_NODES; mask[32, 1]; positions[2, 4]; "
        "index[2, 4]; first_child[2, 4]; next_sibling[2, 4]; status[2]",
        sets="parent_list.slots index.rows index.columns mask.rows",
        refused={
            "topk = 0": "1 or more",
            "layout = -1": "0 or more",
            "layout = 3": "at most 2",
            "index.columns = 0": "1 or more",
            "mask.rows = 31": "32 or more",
            "layout = SPECDEC_TREE_BITS; selected[*, 32]; positions[2, 33]; index[2, 33]; first_child[2, 33]; "
            "next_sibling[2, 33]": "index.columns: expected at most 32; got 33",
        },
    ),
    Call(
        "merge_chains", "paths[2, 6]; draft_tokens[2, 7]; parents[2, 7]; leaves[2, 2]",
        sets="paths.slots draft_tokens.rows leaves.columns",
        fine=("paths[2, 0]; leaves[2, 0]; draft_tokens[2, 1]; parents[2, 1]",),
        refused={
            "paths.slots = 8": "draft_tokens.columns: expected 9; got 7",
            "paths.slots = 7": "paths.slots % leaves.columns: expected 0; got 1",
        },
    ),
    Call(
        "compact_kv", "layers = cache_layers(1); path[2, 3]; status[2]",
        sets="path.rows path.columns block_table.columns block_table.row_stride",
        fine=(
            "path.rows = 0; status.rows = 0; layers_of_cache[0].data = NULL",
            "block_table[2, 3]",
            "block_table[2, 3]; layers_of_cache[0].slots = 0",
            "block_table[2, 3]; layers_of_cache[0].batch = 0; layers_of_cache[0].data = NULL",
            *(
                f"layers_of_cache[0].{name} = 0; layers_of_cache[0].data = NULL"
                for name in ("heads", "slots", "entry_bytes")
            ),
            "no layers",
            "no layers; block_table[2, 3]",
        ),
        refused={
            "layers.data = NULL": "memory",
            "layers_of_cache[0].slots = 1; layers_of_cache[0].data = NULL": "layers.data: expected memory; got NULL",
            "layers_of_cache[0].entry_bytes = 1; layers_of_cache[0].data = NULL":
                "layers.data: expected memory; got NULL",
            "block_table[2, 3]; layers_of_cache[0].batch = 1; layers_of_cache[0].data = NULL":
                "layers.data: expected memory; got NULL",
            "layers_of_cache[0].data = NULL": "layers.data: expected memory; got NULL",
            **{
                f"layers_of_cache[0].{name} = -1": f"layers.{name}: expected 0 or more; got -1"
                for name in ("heads", "slots", "entry_bytes", "batch")
            },
            "block_table[2, 3]; block_table.columns = 1 << 30":
                "block_table.columns: expected at most 268435455; got 1073741824",
            "block_table[2, 3]; layers = cache_layers(2); layers_of_cache[1].slots = 5":
                "layers.slots: expected 8; got 5",
        },
    ),
    Call(
        "count_tokens", "tokens[2, 3]; num.value = 3; mask[2, 2]; status[2]",
        sets="tokens.slots mask.rows mask.columns counts.columns",
        fine=(
            "counts[2, 64]",
            "counts[2, 33]",
            "mask[2, 1]",
            "mask[2, 0]; mask.row_stride = -1",
            "tokens[1, 3]; mask[1, 2]; mask.row_stride = 0; status[1]",
        ),
        refused={"counts[2, 33]; mask.columns = 1": "mask.columns: expected 2 or more; got 1"},
    ),
    Call(
        "count_at_least", "rows[2, 3, 64]; least[6]; counts[6]", fine=("request_index[2]",),
        refused={"law.space = SPECDEC_PROBS": "law.space: expected logits; got probabilities"},
    ),
    Call(
        "token_logits", "rows[2, 3, 64]; tokens[*, 2]; logits[6, 2]", sets="logits.columns",
        fine=(f"edits.allowed[2, 3, 2]; {BY_ROW}", "logits.rows = 0; tokens.requests = 0"),
        refused={
            "tokens.request_stride = 2": "tokens.requests: expected 6 or more; got 1",
            "logits.rows = 1": "6",
            "logits.columns = 1": "logits.row_stride: expected 1; got 2",
        },
    ),
    Call(
        "token_logits", "rows[2, 3, 64]; row_indices[1, 5]; tokens[5, 2]; logits[5, 2]",
        sets="logits.rows logits.columns",
    ),
    Call(
        "mass_tiles", "rows[2, 3, 64]; tiles[6, 3]; status[6]",
        fine=(
            "request_index[2]",
            "rows[1, 1, 1024]; tiles[1, 3]; status[1]",
            "rows[1, 1, 1025]; tiles[1, 6]; status[1]",
        ),
        refused={"law.space = SPECDEC_PROBS": "law.space: expected logits; got probabilities"},
    ),
    Call(
        "tile_laws", "tiles[2, 3]; raw[1, 2, 64]; row_stats[2, 2]; probs[2, 64]",
        sets="tiles.columns raw.requests raw.rows",
        refused={"tiles[2, 4]": "tiles.columns % 3: expected 0; got 1"},
    ),
    *(
        Call(
            op, f"{PARTS}; {outputs}",
            sets="row.size target.requests target.rows draft.requests draft.rows row_stats.requests excluded.columns",
            fine=("cuts[2, 6]", f"edits.allowed[2, 3, 2]; {BY_ROW}", *more),
            refused={
                **{
                    f"{side}_law.{change}": f"{side}_law.{message}"
                    for side in ("target", "draft")
                    for change, message in (
                        ("space = SPECDEC_PROBS", "space: expected logits; got probabilities"),
                        ("rules = SPECDEC_FILTERED", f"rules: {NO_FILTERS}"),
                    )
                },
                "draft.vocab = 63": "64",
                "no draft_row": "draft_row.size: expected 2; got 0",
                "draft.vocab_start = 64": "0",
                "row_stats.vocab = 3": "4",
                "row_stats.dtype = SPECDEC_FLOAT16": "row_stats.dtype: expected 0; got 2",
                **refused,
            },
        )
        for op, outputs, more, refused in (
            ("residual_race", "tokens[2]; scores[2]", ("excluded[2, 2]", "no draft; no draft_row"), {}),
            (
                "residual_sums", "sums[2, 2]", ("no draft; draft.vocab = 64",),
                {
                    "row[1]; draft_row[1]; sums[1, 2]; status[1]; row_stats[1, 0, 4]":
                        "row_stats.rows: expected 1 or more; got 0",
                    "no draft": "draft.vocab: expected 64; got 0",
                    "no draft; draft.vocab = 64; no draft_row": "draft_row.size: expected 2; got 0",
                },
            ),
        )
    ),
    Call(
        "first_arrivals", "packed[3, 6]; tokens[2]; status[2]; empty[2]", sets="packed.rows tokens.rows",
        refused={"packed.rows = 0": "1 or more"},
    ),
    Call(
        "walk_tables", TABLES, sets="tokens.rows tokens.columns draft_row_stats.size",
        fine=(
            "path[2, 4]",
            "request_index[2]",
            "method = SPECDEC_TRAVERSAL; memory[2, 32]",
            "q_of_drafts[6]; draft_row_status[6]; draft_row_stats[12]",
        ),
        refused={
            "tokens.columns = 0": "1 or more",
            "vocab = 0": "1 or more",
            "vocab = 2147483648": "at most 2147483647",
            "winners[1, 7]": "winners.slots: expected 8; got 7",
            "method = SPECDEC_TRAVERSAL; memory[2, 1]": "memory.columns: expected 32; got 1",
        },
    ),
    Call(
        "walk_tables", f"{TABLES}; cu_drafts[3]; draft_tokens[1, 3]; row_status[5]; p_of_drafts[5]; row_stats[10]",
        sets="draft_tokens.slots tokens.rows tokens.columns",
    ),
    Call(
        "walk_tables",
        f"method = SPECDEC_RACE; draft_tokens[2, 3]; vocab = 64; row_status[8]; winners[1, 8]; tokens[2, 4]; {VERDICT}",
        sets="winners.requests winners.slots tokens.rows tokens.columns",
        fine=(f"{NO_REQUESTS}; row_status.size = 0; no winners",),
        refused={
            "no winners; tokens[1, 4]; num_accepted[1]; status[1]; row_status[4]":
                "winners.data: expected memory; got NULL",
            "row[1]": "row.rows: expected 0; got 1",
        },
    ),
    Call(
        "walk_tables", TREE_TABLES,
        sets="draft_tokens.slots draft_row_stats.size draft_row_indices.requests draft_row_indices.slots tokens.rows "
        "tokens.columns",
        fine=("draft_row_indices[1, 8]",),
        refused={
            "cu_drafts[3]": "cu_drafts.size: expected 0; got 3",
            "draft_row_indices[1, 4]": "draft_row_indices.slots: expected 8; got 4",
        },
    ),
    Call(
        "walk_tables", f"{TABLES}; draft_tokens[2, 4]; parents[*, 4]; excluded[2, 4]",
        sets="draft_tokens.slots tokens.rows tokens.columns",
    ),
)  # fmt: skip


def fields_of(op):
    """The fields of an op's struct: name -> kind. The lists of its edits are fields, too."""
    fields = members("specdec_race_params" if op.startswith("race_") else f"specdec_{op}_params")
    edits = members("specdec_edits") if "edits" in fields else {}
    return fields | {f"edits.{name}": kind for name, kind in edits.items() if kind in SHAPES}


def members(struct):
    body = re.search(rf"^typedef struct {struct} {{(.*?)^}} {struct};", HEADERS, re.MULTILINE | re.DOTALL)[1]
    kinds = {
        name: kind
        for kind, names in re.findall(r"^  (?:specdec_)?(\w+) ([\w, ]+);", body, re.MULTILINE)
        for name in names.split(", ")
    }
    return {name: KINDS.get(kind, "output" if kind.startswith("output_") else kind) for name, kind in kinds.items()}


def shapes_in(statements):
    """field -> shape, where it has one."""
    shapes = {}
    for statement in statements.split("; "):
        if match := re.fullmatch(r"([\w.]+)\[([*\d, ]+)\]", statement):
            shapes[match[1]] = tuple(Shared(1) if size == "*" else int(size) for size in match[2].split(", "))
        elif statement.startswith("no "):
            shapes.pop(statement.removeprefix("no "), None)
    return shapes


def in_c(statements, fields):
    """The statements in C, of a struct ``p``."""
    return " ".join(each for statement in statements.split("; ") for each in one_in_c(statement, fields))


def one_in_c(statement, fields):
    if statement.startswith("no "):
        name = statement.removeprefix("no ")
        return [f"memset(&p.{name}, 0, sizeof p.{name});"]
    if statement.startswith(("layers_of_cache", "exact.", "number(")):
        return [f"{statement};"]
    if " = " in statement:
        return [f"p.{statement};"]
    ((name, shape),) = shapes_in(statement).items()
    kind = fields[name]
    if kind == "output" and len(shape) == 1:
        shape = (*shape, 1)
    values = dict(zip(SHAPES[kind], shape, strict=True))
    if kind in ("rows", "lists"):
        values |= {"request_stride": shape[1] * shape[2], "row_stride": shape[2]}
    elif kind == "tokens":
        values |= {"request_stride": shape[1], "slot_stride": 1}
    elif kind == "output":
        values["row_stride"] = shape[1]
    elif kind == "request_index":
        values["entries"] = shape[0]
    values |= {STRIDES[member]: 0 for member, size in values.items() if isinstance(size, Shared)}
    memory = f"set(&p.{name}.data, memory_of_{name.replace('.', '_')});"
    return [memory, *(f"p.{name}.{member} = {value};" for member, value in values.items())]


# ---- what is refused -------------------------------------------------------------------------------------------------


def beyond(name, least, most):
    """A number below, and one above what is allowed."""
    yield f"{name} = {least - 1}", f"{name}: expected {least} or more; got {least - 1}"
    if most is not None:
        yield f"{name} = {most + 1}", f"{name}: expected at most {most}; got {most + 1}"


def by_itself(name, kind, shape):
    """What the check of one field refuses: (change, message). ``shape``: None where the call does without it."""
    if name.startswith("edits.bias_"):  # checked with each other
        return
    for member, (least, most) in LIMITS.get(kind, {}).items():
        if member == "vocab_start" and shape:
            most = INT32_MAX - shape[-1]
        yield from beyond(f"{name}.{member}", least, most)
    if kind in NEEDS_MEMORY:
        sizes = [f"{name}.{member} = 1" for member in SHAPES[kind][:2]]
        yield "; ".join([f"{name}.data = NULL", *sizes]), f"{name}.data: expected memory; got NULL"
    if kind == "rows" and shape:
        yield f"{name}.vocab = 0", f"{name}.vocab: expected 1 or more; got 0"
    if kind == "lists" and name != "edits.pending":
        yield f"{name}.wide = true", f"{name}.wide: expected false; got true"
    if kind == "law":
        yield (
            f"{name}.space = SPECDEC_PROBS; {name}.rules = SPECDEC_FILTERED",
            f"{name}.rules: expected no SPECDEC_FILTERED with probabilities, which are final; got 16",
        )


def beside_others(op, name, kind, shape, optional):
    """What is refused of a field because of the sizes of others: (member, change, message)."""

    def other(member, got, expected):
        return member, f"{name}.{member} = {got}", f"{name}.{member}: expected {expected}; got {got}"

    if 0 in shape:
        return
    if kind in ("rows", "tokens", "lists") and name != "rows":
        for member, size in zip(SHAPES[kind], shape, strict=True):
            if member != "vocab" and size > 0 and not (kind == "lists" and isinstance(size, Shared)):
                yield other(member, size - 1, f"{size} or more")
    elif kind in ("vector", "request_index"):
        for got in (shape[0] - 1, shape[0] + 1):
            yield other("size", got, shape[0])
    elif kind == "output":
        rows, columns = shape if len(shape) == 2 else (*shape, 1)
        for member, size in (("rows", rows), ("columns", columns)):
            for got in (size - 1, size + 1):
                yield other(member, got, size)
        if rows > 1 and f"{op}.{name}" in ANY_STRIDE:
            yield other("row_stride", columns - 1, f"{columns} or more")
        elif rows > 1:
            yield other("row_stride", columns + 1, columns)
        if not optional:
            yield other("data", "NULL", "memory")


def of_edits(op, shapes):
    """A penalty's mask that is too short, or of too few requests or rows."""
    requests, rows, vocabulary = shapes.get("target") or shapes["rows"]
    words = (vocabulary + 31) // 32
    if op.startswith("verify_"):  # a request has one entry
        requests, rows = shapes["num_accepted"][0], 1
    for at, name in enumerate(("requests", "rows", "size")):
        wrong = [requests, rows, words]
        wrong[at] -= 1
        change = f"edits.frequency.value = 1; edits.output_mask{wrong}; edits.output_mask.row_stride = 1"
        change += "; edits.output_mask.request_stride = 1"
        yield change, f"edits.output_mask.{name}: expected {wrong[at] + 1} or more; got {wrong[at]}"


def refusals(call, first):
    """All (change, message). What fields are refused for by themselves is said with the ``first`` call of an op."""
    fields, shapes = fields_of(call.op), shapes_in(call.valid)
    if first:
        for name, kind in fields.items():
            yield from by_itself(name, kind, shapes.get(name))
    if "edits" in fields:
        yield from of_edits(call.op, shapes)
    for change in ("", *call.fine):
        for name, shape in (shapes_in(change) if change else shapes).items():
            for member, other, message in beside_others(call.op, name, fields[name], shape, bool(change)):
                if f"{name}.{member}" not in call.sets.split():
                    yield f"{change}; {other}" if change else other, message
    for change, message in call.refused.items():
        name, _, value = change.partition(" = ")
        yield change, message if ": " in message else f"{name}: expected {message}; got {value}"


# ---- in C ------------------------------------------------------------------------------------------------------------


CACHE_LAYERS = """
static specdec_cache_layer layers_of_cache[2];
static specdec_cache_layers cache_layers(int64_t count) {
  static char memory[2][64];
  const specdec_cache_layers layers = {layers_of_cache, count};
  int i;
  for (i = 0; i < 2; ++i) {
    const specdec_cache_layer layer = {memory[i], 32, 32, 4, i < count ? 1 : -1, i < count ? 8 : 4, 4, 2};
    layers_of_cache[i] = layer;
  }
  return layers;
}
"""


def memory():
    """Memory of each field, layers of a cache, and ``fill()``, which writes the fields' values."""
    names = dict.fromkeys(name.replace(".", "_") for call in CALLS for name in fields_of(call.op))
    lines = [f"static int64_t memory_of_{name}[1024];" for name in names]
    fill = [f"  memset(memory_of_{name}, 0, sizeof memory_of_{name});" for name in names]
    for name, values in VALUES.items():
        lines.append(f"static const int32_t values_of_{name}[] = {{{', '.join(map(str, values))}}};")
        fill.append(f"  memcpy(memory_of_{name}, values_of_{name}, sizeof values_of_{name});")
    return [CACHE_LAYERS, *lines, "static void fill(void) {", *fill, "}"]


def all_calls():
    """All calls by ``calls()``. The first valid call of an op has its name."""
    lines, ops = [], set()
    for number, call in enumerate(CALLS):
        fields, first = fields_of(call.op), call.op not in ops
        valid = f"valid_{call.op if first else number}"
        ops.add(call.op)
        lines += [f"static specdec_{call.op}_params {valid}(void) {{", f"  specdec_{call.op}_params p;"]
        lines += ["  memset(&p, 0, sizeof p);", f"  {in_c(call.valid, fields)}", "  return p;", "}"]
        lines += [f"static void calls_{number}(void) {{", f"  FINE({call.op}, {valid}, ;)"]
        lines += [f"  FINE({call.op}, {valid}, {in_c(change, fields)})" for change in call.fine]
        for change, message in refusals(call, first):
            lines.append(f'  WRONG({call.op}, {valid}, {in_c(change, fields)}, "{message}")')
        lines.append("}")
    calls = [f"  calls_{number}();" for number in range(len(CALLS))]
    return "\n".join([*memory(), *lines, "static void calls(void) {", *calls, "}", ""])


def written(folder):
    """A C program of all calls."""
    program = folder / "c_api_misuse.c"
    program.write_text(FRAME.read_text(encoding="utf-8").replace('#include "calls.h"\n', all_calls()), encoding="utf-8")
    return program
