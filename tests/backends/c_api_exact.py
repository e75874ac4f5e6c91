"""Exact checks of calls that C++ reads directly (csrc/c_api/call.h), from the valid calls of `c_api_misuse.py`.

A size or a number that does not fit is left to Python, and outputs that a call lacks get their sizes.
"""

from typing import NamedTuple

from tests.backends.c_api_misuse import (
    BY_ROW,
    CALLS,
    CHAIN,
    IN_ONE_ROW,
    NO_REQUESTS,
    OF_PROBS,
    RAGGED,
    SHAPES,
    fields_of,
    in_c,
    memory,
    shapes_in,
)

FRAME = r"""
#include <specdec_sharded.h>
#include <cstdio>
#include <cstring>
#include "c_api/call.h"

using specdec::c_api::Exact;
static int mistakes = 0;

static void expect(const char* call, const char* what, int64_t got, int64_t expected) {
  if (got == expected) return;
  std::printf("%s\n  %s: expected %ld; got %ld\n", call, what, long(expected), long(got));
  ++mistakes;
}

static void set(void* pointer, const void* memory) { std::memcpy(pointer, &memory, sizeof memory); }

template <class T>
static void number(Exact& exact, T& field, int64_t outer, int64_t inner) {
  static const int64_t numbers[64] = {1};
  field.data = numbers;
  if (auto* const entry = const_cast<Exact::Number*>(exact.find(&field))) *entry = {&field, outer, inner};
  else exact.numbers[exact.count++] = {&field, outer, inner};
}

#define EXACT(op, valid, change, fits, sizes)                                                    \
  {                                                                                              \
    specdec_##op##_params p = valid();                                                           \
    Exact exact;                                                                                 \
    const char* const call = #op ": " #change;                                                   \
    change;                                                                                      \
    expect(call, "the check", specdec::c_api::exact_##op(p, exact), fits);                       \
    sizes;                                                                                       \
  }
"""
PARTS = {"law": ("temperature", "top_k", "top_p", "min_p"), "noise": ("seed", "position", "nonce")}
PARTS["edits"] = ("repetition", "frequency", "presence")


class ExactCall(NamedTuple):
    """``outputs``: those that the check sets. ``free``: members of any size. ``wrong``, ``fine``: other changes."""

    op: str
    valid: str
    outputs: str
    numbers: str = ""
    besides: str = ""
    free: str = ""
    wrong: tuple = ()
    fine: tuple = ()


def valid(op, number=0):
    return [call for call in CALLS if call.op == op][number].valid.replace("*", "2")


LAWS = "target_law[2, 1]; draft_law[2, 1]"
PAIRS = "target_law[2, 3]; draft_law[2, 3]; edits[2, 3]"
ROWS = "law[2, 3]; edits[2, 3]"
VERDICT = "tokens num_accepted status"
RACE = "method = SPECDEC_RACE; no draft"
PASSED = f"{OF_PROBS}; num_passed[2]"
EXACT = (
    ExactCall(
        "verify_chain", CHAIN, VERDICT, f"{LAWS}; draft_prob[2, 3]; epsilon[2, 1]; noise[2, 1]; edits[2, 1]",
        fine=(
            "no draft", RACE, IN_ONE_ROW, "exact.columns = 4", "no noise; input_positions[2, 4]",
            f"no noise; {RACE}; row_seeds[2, 4]", f"{PASSED}; target_law.temperature.value = 1",
            "bonus[1, 2]; target[2, 3, 64]", "edits.allowed[*, *, 2]", "edits.pending[2, 1, 1]",
            "request_index[2]; request_index.entries = 3; draft[3, 3, 32]",
            f"edits.allowed[2, 4, 2]; {BY_ROW}; edits.bias_tokens[1]; edits.bias_values[1]; edits.bias_spans[2, 1, 2]",
            "edits.seen_index[2, 1, 1]; edits.output_mask[5, 1, 2]; edits.output_counts[5, 1, 64]",
            "epsilon.data = memory_of_epsilon",
        ),
        wrong=(
            "no noise", NO_REQUESTS, "exact.columns = 3", "exact.columns = 0",
            "edits.allowed[2, 1, 2]; edits.allowed.wide = true", f"{IN_ONE_ROW}; no tokens", "input_positions[2, 3]",
            "no draft; draft_prob.value = 0.5f", f"{RACE}; draft_prob.value = 0", f"{RACE}; epsilon.value = 0.1f",
            PASSED, f"{PASSED}; target_law.temperature.value = 1; draft_prob.value = 0.5f",
            f"{PASSED}; target_law.temperature.value = 1; epsilon.value = 0.1f",
            f"{PASSED}; target_law.temperature.value = 1; no draft",
            f"{PASSED}; number(exact, p.target_law.temperature, 1, 1); target_law.temperature.value = 1",
            f"{PASSED}; number(exact, p.draft_law.temperature, 1, 1); target_law.temperature.value = 1",
            "edits.prompt_mask[2, 1, 1]", "edits.output_mask[2, 1, 1]", "edits.pending[3, 1, 1]",
            "edits.seen_index[2, 1, 2]; edits.prompt_mask[2, 1, 2]",
            "edits.seen_index[*, 1, 1]; edits.prompt_mask[2, 1, 2]",
            "edits.output_mask[2, 1, 2]; edits.output_counts[2, 1, 65]", "edits.allowed[3, *, 2]",
            "edits.bias_tokens[1]; edits.bias_values[1]; edits.bias_spans[*, 1, 2]", "edits.allowed[*, *, 1]",
        ),
    ),
    ExactCall(
        "verify_chain", RAGGED, VERDICT, f"{LAWS}; draft_prob[2, 3]; epsilon[2, 1]; noise[2, 1]; edits[2, 1]",
        "exact.longest = 3", free="tokens.columns",
        fine=(
            "request_index[2]; draft[2, 3, 32]", "request_index[2]; draft[2, 5, 32]", "bonus[1, 2]; target[1, 3, 64]",
        ),
        wrong=("request_index[2]; draft[2, 2, 32]", "request_index[2]", "input_positions[1, 4]"),
    ),
    ExactCall(
        "verify_chain",
        "draft_tokens[1, 3]; target[1, 4, 64]; draft_prob.value = 1; tokens[1, 4]; num_accepted[1]; status[1]", VERDICT,
        wrong=("index[1, 4]; path[1, 4]; no tokens",),
    ),
    *(
        ExactCall(
            "verify_chain", f"{RAGGED}; tokens[2, {longest + 1}]", VERDICT, besides=f"exact.longest = {longest}",
            free="tokens.columns",
        )
        for longest in (0, 2)
    ),
    ExactCall("verify_chain", f"{RAGGED}; draft_tokens[1, 5]; tokens_by_row = true", VERDICT, free="tokens.columns"),
    ExactCall(
        "verify_tree", valid("verify_tree"), f"{VERDICT} path", f"{LAWS}; noise[2, 1]; edits[2, 1]",
        "exact.longest = 2",
        fine=("parents[*, 4]", "no noise; input_positions[2, 4]", f"{RACE}; no noise; row_seeds[2, 4]"),
        wrong=("no noise", "input_positions[2, 3]", f"{NO_REQUESTS}; path.rows = 0"),
    ),
    ExactCall(
        "verify_linked_tree", f"{valid('verify_linked_tree')}; tokens[2, 4]; path[2, 4]", f"{VERDICT} path",
        "threshold_single[2, 1]; threshold_total[2, 1]; noise[2, 1]",
        fine=("number(exact, p.uniforms, 2, 4)", "no target; no noise; target_tokens[2, 4]"),
        wrong=(
            "no noise", "number(exact, p.uniforms, 1, 1)", "number(exact, p.uniforms, 2, 1)", "next_sibling[*, 4]",
            "no target; target_tokens[2, 4]; number(exact, p.uniforms, 2, 4)",
        ),
    ),
    ExactCall(
        "race_sample", f"{valid('race_sample')}; status[6]", "tokens status", f"{ROWS}; noise[2, 3]",
        wrong=("no noise",),
    ),
    ExactCall(
        "race_topk", f"{valid('race_topk')}; status[6]", "tokens status", f"{ROWS}; noise[2, 3]", "exact.columns = 2",
        wrong=("exact.columns = 0",),
    ),
    ExactCall("residual", f"{valid('residual')}; status[6]", "probs mass status", f"{PAIRS}; draft_prob[2, 3]"),
    ExactCall("overlap", f"{valid('overlap')}; status[6]", "accept tv kl harmonic status", PAIRS),
    ExactCall("cutoff", f"{valid('cutoff')}; status[6]", "value last support_size mass max status", ROWS),
    *(
        ExactCall(
            "logprobs", f"{valid('logprobs')}; rows[2, 3, {vocab}]; support_bits[6, 2]; support_size[6]; status[6]",
            "logprob rank top_tokens top_logprobs support_bits support_size status", ROWS, "exact.columns = 4",
            wrong=(f"exact.columns = {vocab + 1}; top_tokens[6, {vocab + 1}]; top_logprobs[6, {vocab + 1}]",),
        )
        for vocab in (33, 64)
    ),
    ExactCall(
        "tree_mask", valid("tree_mask"), "mask status", "prefix_len[2, 1]",
        fine=("parents[*, 4]; number(exact, p.prefix_len, 2, 1)",), wrong=("parents[*, 4]",),
    ),
    ExactCall(
        "tree_positions", valid("tree_positions"), "positions status", "prefix_len[2, 1]",
        fine=("parents[*, 4]; number(exact, p.prefix_len, 2, 1)",), wrong=("parents[*, 4]",),
    ),
    ExactCall(
        "build_tree", valid("build_tree"), "mask positions index first_child next_sibling status", "prefix_len[2, 1]",
        free="parent_list.slots mask.rows", fine=("layout = SPECDEC_TREE_FULL",),
        wrong=("layout = SPECDEC_TREE_FULL; no mask", "mask[31, 1]"),
    ),
    ExactCall(
        "tree_parents", valid("tree_parents"), "parents ranks status",
        wrong=("no parents; no ranks; no status; first_child[2, 0]; next_sibling[2, 0]",),
    ),
    ExactCall(
        "tree_parents", "first_child[1, 1]; next_sibling[1, 1]; parents[1, 1]; ranks[1, 1]; status[1]", "status",
    ),
    ExactCall(
        "compact_kv", valid("compact_kv"), "status", "prefix_len[2, 1]", free="path.columns",
        fine=("block_table[2, 3]", "block_table[2, 1]; layers_of_cache[0].batch = 5"),
        wrong=("block_table[2, 0]", "path.rows = 0; status.rows = 0", "layers_of_cache[0].batch = 3"),
    ),
    ExactCall("compact_kv", "path[1, 3]; status[1]", "status", free="path.columns"),
    ExactCall("count_tokens", valid("count_tokens"), "status", "num[2, 1]", free="tokens.slots mask.columns"),
    ExactCall("store_rows", valid("store_rows"), ""),
)  # fmt: skip


def lines_of(call):
    """(change, whether it fits, sizes to compare)."""
    fields, shapes = fields_of(call.op), shapes_in(call.valid)
    if not call.outputs:  # it has no exact check
        yield "", False, ""
        return
    yield "", True, ""
    without = "; ".join(f"no {each}" for each in call.outputs.split())
    sizes = "; ".join(
        f'expect(call, "{each}.{member}", p.{each}.{member}, {size})'
        for each in call.outputs.split()
        for member, size in zip(SHAPES[fields[each]], (*shapes[each], 1), strict=False)
    )
    yield in_c(without, fields), True, sizes
    for each, shape in shapes.items():
        for member, size in zip(SHAPES[fields[each]], shape, strict=False):
            if f"{each}.{member}" not in call.free.split() and member != "vocab":
                yield f"p.{each}.{member} = {size - 1}", False, ""
                yield f"p.{each}.{member} = {size + 1}", False, ""
    for each, (outer, inner) in shapes_in(call.numbers).items() if call.numbers else ():
        for part in PARTS.get(each.rpartition("_")[2], ("",)):
            field = f"p.{each}.{part}" if part else f"p.{each}"
            for size, fits in (
                (f"{outer}, {inner}", True), ("1, 1", True), (f"{outer + 1}, {inner}", False),
                (f"{outer}, {inner + 1}", False),
            ):  # fmt: skip
                yield f"number(exact, {field}, {size})", fits, ""
    for change in call.fine:
        yield in_c(change, fields), True, ""
    for change in call.wrong:
        yield in_c(change, fields), False, ""


def text():
    lines = []
    for number, call in enumerate(EXACT):
        fields, name = fields_of(call.op), f"valid_{number}"
        lines += [f"static specdec_{call.op}_params {name}() {{", f"  specdec_{call.op}_params p;"]
        lines += ["  memset(&p, 0, sizeof p);", f"  {in_c(call.valid, fields)}", "  return p;", "}"]
        lines.append(f"static void calls_{number}() {{")
        noise = "number(exact, p.noise.seed, 1, 1); " if "noise" in fields else ""
        before = f"{noise}{call.besides}; " if call.besides else noise
        for change, fits, sizes in lines_of(call):
            lines.append(f"  EXACT({call.op}, {name}, {before}{change}, {str(fits).lower()}, {sizes})")
        lines.append("}")
    run = "\n".join(f"  calls_{number}();" for number in range(len(EXACT)))
    return "\n".join([FRAME, *memory(), *lines, f"int main() {{\n{run}\n  return mistakes != 0;\n}}\n"])
