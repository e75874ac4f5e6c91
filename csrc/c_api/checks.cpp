// Checks before a call runs: each field, then the fields against each other. The outputs define a call's size.
// Inputs may be larger.
#include <algorithm>

#include "call.h"
#include "specdec/filter.h"
#include "specdec/mass.h"

namespace specdec::c_api {

namespace {

// "target", or with a member "target.rows".
struct Name {
  const char* field;
  const char* part = "";
  Name(const char* name, const char* member = "") : field(name), part(member) {}
};

// A field of the parameters `p`: its name and itself.
#define FIELD(name) #name, p.name

[[noreturn, gnu::cold, gnu::noinline]] void refuse(Name name, const std::string& expected, const std::string& got) {
  throw Refusal{SPECDEC_INVALID_ARGUMENT,
                std::string(name.field) + name.part + ": expected " + expected + "; got " + got};
}

[[gnu::always_inline]] inline void equal(Name name, int64_t got, int64_t wanted) {
  if (got != wanted) refuse(name, std::to_string(wanted), std::to_string(got));
}
[[gnu::always_inline]] inline void at_least(Name name, int64_t got, int64_t least) {
  if (got < least) refuse(name, std::to_string(least) + " or more", std::to_string(got));
}
[[gnu::always_inline]] inline void at_most(Name name, int64_t got, int64_t most) {
  if (got > most) refuse(name, "at most " + std::to_string(most), std::to_string(got));
}
void size(Name name, int64_t got) {
  at_least(name, got, 0);
  at_most(name, got, INT32_MAX);
}
void choice(Name name, int64_t got, int64_t last) {
  at_least(name, got, 0);
  at_most(name, got, last);
}
[[gnu::always_inline]] inline void memory(const char* name, const void* data) {
  if (!data) refuse({name, ".data"}, "memory", "NULL");
}

// ---- each field by itself -------------------------------------------------------------------------------------------

// Errors of these functions begin with the member's name; check_fields prepends the field's.
void check(const Rows& x) {
  size(".requests", x.requests);
  size(".rows", x.rows);
  choice(".dtype", x.dtype, SPECDEC_FLOAT16);
  if (x.requests > 0 && x.rows > 0) memory("", x.data);
  if (x.data) at_least(".vocab", x.vocab, 1);
  at_least(".vocab_start", x.vocab_start, 0);
  at_most(".vocab_start", x.vocab_start, INT32_MAX - std::max(x.vocab, 0));
}
void check(const Tokens& x) {
  size(".requests", x.requests);
  size(".slots", x.slots);
  if (x.requests > 0 && x.slots > 0) memory("", x.data);
}
// Vectors.
template <class T>
auto check(const T& x) -> decltype(void(x.size)) {
  size(".size", x.size);
  if (x.size > 0) memory("", x.data);
}
void check(const specdec_cache_layers& x) {
  size(".size", x.size);
  if (x.size > 0) memory("", x.data);
  for (int64_t i = 0; i < x.size; ++i) {
    size(".heads", x.data[i].heads);
    size(".slots", x.data[i].slots);
    size(".entry_bytes", x.data[i].entry_bytes);
    size(".batch", x.data[i].batch);
  }
}
void check(const specdec_request_index& x) {
  size(".size", x.size);
  at_least(".entries", x.entries, 0);
  if (x.size > 0) memory("", x.data);
}
// Outputs.
template <class T>
auto check(const T& x) -> decltype(void(x.columns)) {
  at_least(".rows", x.rows, 0);
  size(".columns", x.columns);
}
void check(const specdec_mask& x) {
  size(".batch", x.batch);
  at_least(".nodes", x.nodes, 1);
  choice(".layout", x.layout, SPECDEC_MASK_BITS);
  if (x.batch > 0) memory("", x.data);
}
void check(const specdec_law& x) {
  choice(".space", x.space, SPECDEC_PROBS);
  at_least(".rules", x.rules, 0);
  at_most(".rules", x.rules, 2 * SPECDEC_DIVIDED - 1);
  if (x.space == SPECDEC_PROBS && x.rules & SPECDEC_FILTERED)
    refuse(".rules", "no SPECDEC_FILTERED with probabilities, which are final", std::to_string(x.rules));
}

void check(const Lists& x) {
  size(".requests", x.requests);
  at_least(".rows", x.rows, 0);
  size(".size", x.size);
}
// The lists of an edit, by name.
template <class F>
void over_lists(const specdec_edits& x, F&& f) {
  f(".allowed", x.allowed);
  f(".bias_spans", x.bias_spans);
  f(".prompt_mask", x.prompt_mask);
  f(".output_mask", x.output_mask);
  f(".output_counts", x.output_counts);
  f(".pending", x.pending);
  f(".seen_index", x.seen_index);
  f(".allowed_index", x.allowed_index);
}
// The index tensor of some lists, or null.
const Lists* index_of(const specdec_edits& x, const Lists& lists) {
  const bool seen = &lists == &x.prompt_mask || &lists == &x.output_mask || &lists == &x.output_counts;
  const Lists* index = seen ? &x.seen_index : &lists == &x.allowed ? &x.allowed_index : nullptr;
  return index && index->data ? index : nullptr;
}
void check(const specdec_edits& x) {
  over_lists(x, [&](const char* name, const Lists& lists) {
    try {
      check(lists);
    } catch (Refusal& refusal) {
      refusal.message.insert(0, name);
      throw;
    }
    if (lists.wide && &lists != &x.pending) refuse({name, ".wide"}, "false", "true");
  });
  size(".bias_tokens.size", x.bias_tokens.size);
  equal(".bias_values.size", x.bias_values.size, x.bias_tokens.size);
  if (x.bias_tokens.size > 0) {
    memory(".bias_tokens", x.bias_tokens.data);
    memory(".bias_values", x.bias_values.data);
    memory(".bias_spans", x.bias_spans.data);
    equal(".bias_spans.size", x.bias_spans.size, 2);
  }
  at_least(".by_row", x.by_row, 0);
  at_most(".by_row", x.by_row, SPECDEC_ALLOWED_BY_ROW | SPECDEC_BIAS_BY_ROW);
  if (x.output_counts.data) memory(".output_mask", x.output_mask.data);
  if (x.allowed_index.data) memory(".allowed", x.allowed.data);
  if (x.seen_index.data) {
    if (!x.output_mask.data) memory(".prompt_mask", x.prompt_mask.data);
    const int64_t entries = (x.output_mask.data ? x.output_mask : x.prompt_mask).requests;
    if (x.prompt_mask.data) equal(".prompt_mask.requests", x.prompt_mask.requests, entries);
    if (x.output_counts.data) equal(".output_counts.requests", x.output_counts.requests, entries);
  }
}

// Any value is valid, or the op's fit_... function checks it.
void check(const specdec_number&) {}
void check(const specdec_counter&) {}
void check(const specdec_noise&) {}
void check(bool) {}
void check(int32_t) {}
void check(int64_t) {}

template <class Params>
void check_fields(const Params& p) {
  int at = -1;
  try {
    p.fields([&](const auto&... field) { ((++at, check(field)), ...); });
  } catch (Refusal& refusal) {
    std::string names = Params::names();  // "first, second, ..."
    for (; at > 0; --at) names.erase(0, names.find(", ") + 2);
    refusal.message.insert(0, names.substr(0, names.find(',')));
    throw;
  }
}

// ---- fields against each other --------------------------------------------------------------------------------------

// The checks of one call. In exact mode inputs have the sizes that belong to each other, as Python's functions require
// before they broadcast; else they may be larger.
struct Fit {
  const Exact* exact;  // null: not in exact mode

  // An input has at least this size; in exact mode it has this size.
  void covers(Name name, int64_t got, int64_t wanted) {
    if (exact) equal(name, got, wanted);
    else at_least(name, got, wanted);
  }
  // The inputs must have at least so many requests, or one that all share (stride 0), with so many rows or slots each.
  template <class T>
  void for_requests(const char* name, const T& x, int64_t requests) {
    const bool shared = !exact && x.request_stride == 0;
    covers({name, ".requests"}, x.requests, shared ? std::min<int64_t>(requests, 1) : requests);
  }
  void holds(const char* name, const Rows& x, int64_t requests, int64_t rows) {
    for_requests(name, x, requests);
    covers({name, ".rows"}, x.rows, rows);
  }
  void holds(const char* name, const Tokens& x, int64_t requests, int64_t slots) {
    if (slots == 0 && !exact) return;
    for_requests(name, x, requests);
    covers({name, ".slots"}, x.slots, slots);
  }
  // Parents of each request, or of one tree that all share.
  void parents_hold(const Tokens& x, int64_t requests, int64_t nodes) {
    holds("parents", x, x.request_stride == 0 && x.requests == 1 ? 1 : requests, nodes);
  }

  // In exact mode: a tensor of numbers has this size, where a dimension of 1 counts for all if it may be `broadcast`.
  template <class T>
  void numbers(const char* name, const T& x, int64_t outer, int64_t inner = 1, bool broadcast = true) {
    if (!exact || !x.data) return;
    const Exact::Number* const size = exact->find(&x);
    if (!size) return;
    if (size->outer != 1 || !broadcast) equal({name, " outer"}, size->outer, outer);
    if (size->inner != 1 || !broadcast) equal({name, " inner"}, size->inner, inner);
  }
  void numbers(const char* name, const specdec_law& x, int64_t outer, int64_t inner = 1) {
    numbers(name, x.temperature, outer, inner), numbers(name, x.top_k, outer, inner);
    numbers(name, x.top_p, outer, inner), numbers(name, x.min_p, outer, inner);
  }
  // Plain numbers would give `requests` the same noise, so in exact mode only one request may have them.
  void numbers(const char* name, const specdec_noise& x, int64_t requests, int64_t outer, int64_t inner = 1) {
    numbers(name, x.seed, outer, inner), numbers(name, x.position, outer, inner), numbers(name, x.nonce, outer, inner);
    if (exact && !x.seed.data && !x.position.data && !x.nonce.data) at_most({name, " requests"}, requests, 1);
  }

  template <class Out>
  void sized(const char* name, const Out& x, int64_t rows, int64_t columns) {
    equal({name, ".rows"}, x.rows, rows);
    if (rows == 0 && !exact) return;
    equal({name, ".columns"}, x.columns, columns);
    if (columns > 0 && !exact) memory(name, x.data);  // an exact check comes before the outputs are made
  }
  // An output of any row stride.
  template <class Out>
  void rows_apart(const char* name, const Out& x, int64_t rows, int64_t columns) {
    sized(name, x, rows, columns);
    if (rows > 1 && columns > 0 && x.data) at_least({name, ".row_stride"}, x.row_stride, columns);
  }
  template <class Out>
  void contiguous(const char* name, const Out& x, int64_t rows, int64_t columns = 1) {
    sized(name, x, rows, columns);
    if (rows > 1 && columns > 0 && x.data) equal({name, ".row_stride"}, x.row_stride, columns);
  }

  // Several outputs of one column: the number of rows, then names and outputs.
  template <class Out, class... More>
  void contiguous_each(int64_t rows, const char* name, const Out& x, const More&... more) {
    contiguous(name, x, rows);
    if constexpr (sizeof...(more) > 0) contiguous_each(rows, more...);
  }

  // Any strides under which no two elements overlap.
  void rows_apart(const char* name, const specdec_output_tokens& x, int64_t rows, int64_t columns) {
    sized(name, x, rows, columns);
    const int64_t step = x.column_stride == 0 ? 1 : x.column_stride;
    if (rows == 0 || !x.data || (columns > 1 && step >= rows * x.row_stride && x.row_stride > 0)) return;
    if (columns > 1) at_least({name, ".column_stride"}, step, 1);
    if (rows > 1) at_least({name, ".row_stride"}, x.row_stride, (columns - 1) * step + 1);
  }

  bool is_plain(const specdec_number& x, float value) { return !x.data && x.value == value; }

  // How many entries of numbers and draft rows there are.
  template <class Params>
  int64_t entries(const Params& p, int64_t batch) {
    if (!p.request_index.data) return batch;
    equal(FIELD(request_index.size), batch);
    return p.request_index.entries;
  }

  // `fixed`: in exact mode there is no list that all share.
  void holds(const char* name, const char* part, const Lists& x, int64_t requests, int64_t rows, bool fixed) {
    if (!x.data) return;
    fixed &= exact != nullptr;
    const auto fits = [&](const char* of, int64_t got, int64_t wanted, int64_t stride) {
      if (stride == 0 && !fixed && (!exact || got == 1)) wanted = std::min<int64_t>(wanted, 1);
      if (exact ? got != wanted : got < wanted) covers({name, (std::string(part) + of).c_str()}, got, wanted);
    };
    fits(".requests", x.requests, requests, x.request_stride);
    fits(".rows", x.rows, rows, x.row_stride);
  }

  // Edits of rows of logits like `rows`, whose entries have `entry_rows` rows each; [requests, target_rows] are read.
  void check_edits(const specdec_edits& x, const specdec_law& law, const Rows& rows, int64_t entries,
                   int64_t entry_rows, int64_t requests, int64_t target_rows) {
    // In exact mode lists that no penalty reads are checked, too.
    const bool unread = x.prompt_mask.data || x.output_mask.data || x.output_counts.data || x.pending.data ||
                        x.seen_index.data || x.bias_spans.data;
    if (!x.on() && !(exact && unread)) return;
    if (exact) check(x);
    numbers("edits.repetition", x.repetition, entries, entry_rows);
    numbers("edits.frequency", x.frequency, entries, entry_rows);
    numbers("edits.presence", x.presence, entries, entry_rows);
    if (x.on() && law.space != SPECDEC_LOGITS) refuse("edits", "none with probabilities, which are final", "some");
    equal("rows.vocab_start % 128", rows.vocab_start % 128, 0);  // a part begins with a word of a mask
    const int64_t words = (rows.vocab + int64_t{31}) / 32;
    over_lists(x, [&](const char* name, const Lists& lists) {
      const bool of_allowed = &lists == &x.allowed || &lists == &x.allowed_index;
      const int64_t bit = of_allowed ? SPECDEC_ALLOWED_BY_ROW : &lists == &x.bias_spans ? SPECDEC_BIAS_BY_ROW : 0;
      const bool by_row = (x.by_row & bit) != 0;
      const bool indexed = index_of(x, lists) != nullptr;
      const bool index = &lists == &x.seen_index || &lists == &x.allowed_index;
      holds("edits", name, lists, indexed ? lists.requests : by_row ? requests : entries,
            indexed ? 1 : by_row ? target_rows : entry_rows, index || &lists == &x.bias_spans);
      if (index && lists.data) equal({"edits", (std::string(name) + ".size").c_str()}, lists.size, 1);
      if (!lists.data || index || &lists == &x.bias_spans || &lists == &x.pending) return;
      const bool counts = &lists == &x.output_counts;
      if (lists.size >= (counts ? rows.vocab : words) && !(counts && exact && lists.size > rows.vocab)) return;
      at_least({"edits", (std::string(name) + ".size").c_str()}, lists.size, counts ? rows.vocab : words);
      at_most({"edits", (std::string(name) + ".size").c_str()}, lists.size, rows.vocab);
    });
  }

  // Edits of ops whose rows each have an entry.
  template <class Params>
  void check_edits(const Params& p) {
    const int64_t count = entries(p, p.rows.requests);
    numbers("law", p.law, count, p.rows.rows);
    check_edits(p.edits, p.law, p.rows, count, p.rows.rows, p.rows.requests, p.rows.rows);
  }

  // Checks of residual_race and residual_sums: a row of the target, and perhaps one of the draft, by their indices.
  template <class Params>
  void check_pair_of_parts(const Params& p, int64_t pairs) {
    if (p.target_law.space != SPECDEC_LOGITS) refuse("target_law.space", "logits", "probabilities");
    const char* const unfiltered = "no SPECDEC_FILTERED, since cuts replace filters";
    if (p.target_law.rules & SPECDEC_FILTERED) refuse("target_law.rules", unfiltered, "it");
    if (p.draft.data) {
      if (p.draft_law.space != SPECDEC_LOGITS) refuse("draft_law.space", "logits", "probabilities");
      if (p.draft_law.rules & SPECDEC_FILTERED) refuse("draft_law.rules", unfiltered, "it");
      equal(FIELD(draft.vocab), p.target.vocab);
      equal(FIELD(draft.vocab_start), 0);
    }
    if (p.draft.data || p.draft_row.data) equal(FIELD(draft_row.size), pairs);
    if (p.cuts.data) contiguous(FIELD(cuts), pairs, 6);
    if (pairs > 0) at_least(FIELD(row_stats.rows), pairs);
    equal(FIELD(row_stats.vocab), 4);
    equal(FIELD(row_stats.dtype), SPECDEC_FLOAT32);
    check_edits(p.edits, p.target_law, p.target, p.target.requests, p.target.rows, p.target.requests, p.target.rows);
  }

  // Whether a call has draft rows; in exact mode also those of no draft, which have no memory.
  bool given(const Rows& draft) { return draft.data || (exact && draft.vocab > 0); }

  // vocab_start must be 0, since only races take rows that are a part of a vocabulary.
  template <class Params>
  void check_draft(const Params& p, int64_t requests, int64_t rows, bool or_more = false) {
    equal(FIELD(target.vocab_start), 0);
    equal(FIELD(draft.vocab_start), 0);
    if (!given(p.draft)) return;
    for_requests(FIELD(draft), requests);
    if (or_more) at_least(FIELD(draft.rows), rows);
    else covers(FIELD(draft.rows), rows);
    at_most(FIELD(draft.vocab), p.target.vocab);
    if (p.draft_map.data) equal(FIELD(draft_map.size), p.draft.vocab);
  }

  // The outputs of a verdict.
  template <class Params>
  void check_written(const Params& p) {
    at_least(FIELD(tokens.columns), 1);
    if (exact) at_least("requests", p.batch(), 1);
    if (exact && p.index.data) memory("tokens", p.tokens.data);
    if (exact && exact->columns >= 0) equal("columns", p.width(), exact->columns);
    at_least({"output_format"}, p.output_format, 0);
    at_most({"output_format"}, p.output_format, SPECDEC_EMITTED | SPECDEC_ADDED | SPECDEC_ZEROS);
    if (p.index.data) {
      rows_apart(FIELD(tokens), 1, p.tokens.columns);
      at_least(FIELD(path.columns), 1);
      memory("path", p.path.data);
    } else {
      rows_apart(FIELD(tokens), p.batch(), p.width());
    }
    if (p.path.data) rows_apart(FIELD(path), p.batch(), p.width());
    contiguous_each(p.batch(), FIELD(num_accepted), FIELD(status));
  }

  // Checks of both chains and trees.
  template <class Params>
  void check_verdict(const Params& p, int32_t last_method) {
    choice(FIELD(method), last_method);
    check_written(p);
    if (p.method == SPECDEC_RACE && given(p.draft)) refuse("draft", "none with the race", "one");
    const int64_t count = entries(p, p.batch());
    const bool noise_of_rows = p.row_seeds.data || p.input_positions.data;
    numbers("target_law", p.target_law, count), numbers("draft_law", p.draft_law, count);
    numbers("noise", p.noise, noise_of_rows ? 1 : p.batch(), count);
  }

  // A seed for each node of each request.
  template <class Params>
  void check_row_seeds(const Params& p, int64_t nodes) {
    if (!p.row_seeds.data) return;
    if (p.method != SPECDEC_RACE) refuse("row_seeds", "NULL but with the race", "memory");
    holds(FIELD(row_seeds), p.batch(), nodes);
  }

  void check_ragged(const ChainParams& p) {
    if (p.tokens_by_row) at_least(FIELD(draft_tokens.slots), p.batch());
    const int64_t drafts = p.packed_drafts();
    equal(FIELD(cu_drafts.size), p.batch() + 1);
    holds(FIELD(draft_tokens), 1, p.draft_tokens.slots);
    const int64_t rows = drafts + (p.bonus.data ? 0 : p.batch());
    holds(FIELD(target), 1, rows);
    if (p.input_positions.data) holds(FIELD(input_positions), 1, drafts + p.batch());
    if (p.request_index.data) check_draft(p, entries(p, p.batch()), p.max_drafts(), true);
    else check_draft(p, 1, drafts);
    numbers(FIELD(draft_prob), entries(p, p.batch()), drafts);
    check_edits(p.edits, p.target_law, p.target, entries(p, p.batch()), 1, 1, rows);
  }

  void check_race(const RaceParams& p, int64_t most) {
    if (p.count() > 0) at_least(FIELD(tokens.columns), 1);
    if (p.count() > 0) at_most(FIELD(tokens.columns), most);
    contiguous(FIELD(tokens), p.count(), exact && exact->columns >= 0 ? exact->columns : p.tokens.columns);
    if (p.status.data) contiguous(FIELD(status), p.count());
    numbers("noise", p.noise, p.count(), entries(p, p.rows.requests), p.rows.rows);
    check_edits(p);
    if (p.draft_map.data) equal(FIELD(draft_map.size), p.rows.vocab);
    if (p.draft_map.data && p.edits.on()) refuse("edits", "none with draft_map", "some");
    if (p.scores.data) contiguous(FIELD(scores), p.count(), p.tokens.columns);
    // A filter's cut needs the whole vocabulary, unless `scores` marks the row as a part of one.
    if (p.law.rules & SPECDEC_FILTERED && !p.scores.data) equal(FIELD(rows.vocab_start), 0);
  }

  // Checks of residual and overlap: each row of the target has one of the draft.
  template <class Params>
  void check_pairs(const Params& p) {
    if (p.status.data) contiguous(FIELD(status), p.count());
    const int64_t requests = entries(p, p.target.requests);
    if (p.count() > 0 && requests > 0) memory("draft", p.draft.data);
    check_draft(p, requests, p.target.rows);
    numbers("target_law", p.target_law, requests, p.target.rows);
    numbers("draft_law", p.draft_law, requests, p.target.rows);
    check_edits(p.edits, p.target_law, p.target, requests, p.target.rows, p.target.requests, p.target.rows);
  }
};

// Sets the sizes of outputs that the caller did not pass, in exact mode.
struct Sizes : Fit {
  // Sets the size of an output that the caller did not pass.
  template <class Out>
  void set(Out& x, int64_t rows, int64_t columns = 1) {
    if (!x.data && x.rows == 0) x.rows = rows, x.columns = columns;
  }
  template <class... Outs>
  void set_each(int64_t rows, Outs&... outs) { (set(outs, rows), ...); }

  // The columns of tokens and paths: as the call says, else those of the caller's outputs, else `otherwise`.
  template <class Params>
  int64_t columns_of(const Params& p, int64_t otherwise) {
    if (exact->columns >= 0) return exact->columns;
    if (p.tokens.data && !p.index.data) return p.tokens.columns;
    return p.path.data ? p.path.columns : otherwise;
  }
  template <class Params>
  void set_verdict(Params& p, int64_t batch, int64_t columns) {
    set(p.tokens, batch, columns);
    set_each(batch, p.num_accepted, p.status);
  }

  // Parents that all requests share have no requests of their own, so there are as many as prefixes.
  template <class Params>
  int64_t trees_of(const Params& p) {
    const Exact::Number* const prefixes = exact->find(&p.prefix_len);
    const bool shared = p.parents.request_stride == 0 && p.parents.requests == 1;
    return shared && prefixes ? prefixes->outer : p.parents.requests;
  }

  template <class Params>
  void set_sizes(Params&) { refuse("exact", "an op that has this check", "another"); }

  void set_sizes(ChainParams& p) {
    if (!p.cu_drafts.data) return set_verdict(p, p.draft_tokens.requests, p.draft_tokens.slots + int64_t{1});
    const int64_t batch = p.cu_drafts.size - 1, drafts = p.draft_tokens.slots - (p.tokens_by_row ? batch : 0);
    set_verdict(p, batch, columns_of(p, 1 + (exact->longest < 0 ? drafts : std::min(exact->longest, drafts))));
  }
  void set_sizes(TreeParams& p) {
    const int64_t columns = columns_of(p, 1 + exact->longest);
    set_verdict(p, p.draft_tokens.requests, columns), set(p.path, p.draft_tokens.requests, columns);
  }
  void set_sizes(LinkedParams& p) {
    const int64_t columns = p.path.data ? p.path.columns : p.draft_tokens.slots;
    set_verdict(p, p.draft_tokens.requests, columns), set(p.path, p.draft_tokens.requests, columns);
  }
  void set_sizes(RaceParams& p) {
    set(p.tokens, p.count(), exact->columns < 0 ? 1 : exact->columns);
    set(p.status, p.count());
  }
  void set_sizes(ResidualParams& p) {
    set(p.probs, p.count(), p.target.vocab);
    set_each(p.count(), p.mass, p.status);
  }
  void set_sizes(OverlapParams& p) { set_each(p.count(), p.accept, p.tv, p.kl, p.harmonic, p.status); }
  void set_sizes(CutoffParams& p) {
    set_each(p.count(), p.value, p.last, p.support_size, p.mass, p.max, p.status);
  }
  void set_sizes(LogprobsParams& p) {
    set(p.top_tokens, p.count(), exact->columns), set(p.top_logprobs, p.count(), exact->columns);
    set(p.support_bits, p.count(), (p.rows.vocab + int64_t{31}) / 32);
    set_each(p.count(), p.logprob, p.rank, p.support_size, p.status);
  }
  void set_sizes(PositionsParams& p) {
    set(p.positions, trees_of(p), p.parents.slots);
    set(p.status, trees_of(p));
  }
  void set_sizes(MaskParams& p) {
    if (!p.mask.data) p.mask.batch = trees_of(p), p.mask.nodes = p.parents.slots;
    set(p.status, trees_of(p));
  }
  void set_sizes(BuildParams& p) {
    const int64_t batch = p.selected.requests, nodes = p.selected.slots + int64_t{1};
    if (p.layout == SPECDEC_TREE_FULL) memory("mask", p.mask.data);
    set(p.index, batch, nodes), set(p.positions, batch, nodes);
    set(p.first_child, batch, nodes), set(p.next_sibling, batch, nodes);
    set(p.mask, batch * nodes * p.row_bytes()), set(p.status, batch);
  }
  void set_sizes(LinksParams& p) {
    const Tokens& links = p.first_child;
    set(p.parents, links.requests, links.slots), set(p.ranks, links.requests, links.slots);
    set(p.status, links.requests);
  }
  void set_sizes(CompactParams& p) { set(p.status, p.path.rows); }
  // Rows [N, V] are N requests of one row each.
  void set_sizes(StoreRowsParams& p) {
    p.rows.requests = p.rows.rows, p.rows.request_stride = p.rows.row_stride, p.rows.rows = 1;
  }
  void set_sizes(CountParams& p) { set(p.status, p.tokens.requests); }
};

// The checks of each op.
struct OpFit : Sizes {
  void fit_verify_chain(const ChainParams& p) {
    check_verdict(p, SPECDEC_BLOCK);
    if (p.num_passed.data) {
      contiguous(FIELD(num_passed), p.batch());
      const int64_t drafts = p.cu_drafts.data ? p.packed_drafts() : p.max_drafts();
      if (p.batch() > 0 && drafts > 0) memory("draft", p.draft.data);
      const bool probs = p.target_law.space == SPECDEC_PROBS && p.draft_law.space == SPECDEC_PROBS;
      if (p.method != SPECDEC_REJECTION || !probs || p.draft_map.data)
        refuse("num_passed", "NULL but with rejection of probabilities, without draft_map", "memory");
      const specdec_number &t = p.target_law.temperature, &u = p.draft_law.temperature;
      const bool plain = is_plain(p.draft_prob, 1.0f) && is_plain(p.epsilon, 0.0f) && !t.data && !u.data;
      if (exact && (!plain || !given(p.draft) || t.value == 0.0f))
        refuse("num_passed", "NULL but with draft rows, and numbers that change nothing", "memory");
    }
    if (p.index.data) holds(FIELD(index), p.batch(), p.width());
    if (p.method == SPECDEC_TRAVERSAL || (exact && p.method == SPECDEC_RACE)) {  // they ignore both
      if (!is_plain(p.draft_prob, 1.0f)) refuse("draft_prob", "1 for all with blocks", "another");
      if (!is_plain(p.epsilon, 0.0f)) refuse("epsilon", "0 for all with blocks", "another");
    }
    if (exact && !given(p.draft) && !is_plain(p.draft_prob, 1.0f))
      refuse("draft_prob", "1 without draft rows", "another");
    if (p.batch() == 0) return;
    numbers(FIELD(epsilon), entries(p, p.batch()));
    check_row_seeds(p, p.width());
    if (p.bonus.data) {
      holds(FIELD(bonus), 1, p.batch());
      if (p.tokens_by_row) refuse("bonus", "NULL with tokens_by_row", "memory");
      if (p.input_positions.data) refuse("bonus", "NULL with input_positions", "memory");
    }
    if (p.input_nonces.data) {
      holds(FIELD(input_nonces), 1, p.batch());
      if (!p.input_positions.data) refuse("input_nonces", "NULL without input_positions", "memory");
    }
    if (p.cu_drafts.data) return check_ragged(p);
    if (p.tokens_by_row) refuse("tokens_by_row", "false without cu_drafts", "true");
    if (p.input_positions.data) holds(FIELD(input_positions), p.batch(), exact ? p.width() : 1);
    numbers(FIELD(draft_prob), entries(p, p.batch()), p.max_drafts());
    const int64_t rows = p.max_drafts() + int64_t{!p.bonus.data};
    holds(FIELD(target), p.batch(), rows);
    holds(FIELD(draft_tokens), p.batch(), p.max_drafts());
    check_draft(p, entries(p, p.batch()), p.max_drafts());
    check_edits(p.edits, p.target_law, p.target, entries(p, p.batch()), 1, p.batch(), rows);
  }

  void fit_verify_tree(const TreeParams& p) {
    check_verdict(p, SPECDEC_PATHS);
    rows_apart(FIELD(path), p.batch(), p.width());
    if (p.index.data) holds(FIELD(index), p.batch(), p.nodes());
    if (p.batch() == 0) return;
    holds(FIELD(target), p.batch(), exact ? p.nodes() : 1);
    holds(FIELD(draft_tokens), p.batch(), p.nodes());
    parents_hold(p.parents, p.batch(), p.nodes());
    check_row_seeds(p, p.nodes());
    if (p.input_positions.data) holds(FIELD(input_positions), p.batch(), exact ? p.nodes() : 1);
    if (p.method == SPECDEC_PATHS) {
      memory("draft", p.draft.data);
      if (p.leaves.requests == 0) memory("leaves", p.leaves.data);  // [B, 0] without memory means no chains
      holds(FIELD(leaves), p.batch(), p.leaves.slots);
    } else if (p.leaves.data) {
      refuse("leaves", "NULL but with paths", "memory");
    }
    check_draft(p, entries(p, p.batch()), p.nodes());
    check_edits(p.edits, p.target_law, p.target, entries(p, p.batch()), 1, p.batch(), p.nodes());
  }

  void fit_race_sample(const RaceParams& p) { check_race(p, 1); }
  void fit_race_topk(const RaceParams& p) { check_race(p, p.rows.vocab); }

  void fit_residual(const ResidualParams& p) {
    check_pairs(p);
    numbers(FIELD(draft_prob), entries(p, p.target.requests), p.target.rows);
    contiguous(FIELD(probs), p.count(), p.target.vocab);
    contiguous(FIELD(mass), p.count());
  }

  void fit_overlap(const OverlapParams& p) {
    check_pairs(p);
    contiguous_each(p.count(), FIELD(accept), FIELD(tv), FIELD(kl), FIELD(harmonic));
  }

  void fit_tree_mask(const MaskParams& p) {
    at_least(FIELD(columns), p.mask.nodes);
    if (exact) equal("parents.requests", p.mask.batch, trees_of(p));
    parents_hold(p.parents, p.mask.batch, p.mask.nodes);
    numbers(FIELD(prefix_len), p.mask.batch);
    contiguous(FIELD(status), p.mask.batch);
  }

  void fit_tree_positions(const PositionsParams& p) {
    contiguous(FIELD(positions), p.positions.rows, p.positions.columns);
    if (exact) equal("parents.requests", p.positions.rows, trees_of(p));
    parents_hold(p.parents, p.positions.rows, p.positions.columns);
    numbers(FIELD(prefix_len), p.positions.rows);
    contiguous(FIELD(status), p.positions.rows);
  }

  void fit_tree_parents(const LinksParams& p) {
    contiguous(FIELD(parents), p.parents.rows, p.parents.columns);
    contiguous(FIELD(ranks), p.parents.rows, p.parents.columns);
    if (exact) at_least(FIELD(parents.columns), 1);
    holds(FIELD(first_child), p.parents.rows, p.parents.columns);
    holds(FIELD(next_sibling), p.parents.rows, p.parents.columns);
    contiguous(FIELD(status), p.parents.rows);
  }

  void fit_build_tree(const BuildParams& p) {
    const int64_t batch = p.index.rows, nodes = p.index.columns;
    at_least(FIELD(topk), 1);
    choice(FIELD(layout), SPECDEC_TREE_BITS);
    at_least(FIELD(index.columns), 1);
    contiguous(FIELD(index), batch, nodes);
    contiguous(FIELD(positions), batch, nodes);
    contiguous(FIELD(first_child), batch, nodes);
    contiguous(FIELD(next_sibling), batch, nodes);
    contiguous(FIELD(status), batch);
    holds(FIELD(parent_list), batch, p.parent_list.slots);
    holds(FIELD(selected), batch, nodes - 1);
    numbers(FIELD(prefix_len), batch);
    contiguous(FIELD(mask), p.mask.rows);
    if (p.layout == SPECDEC_TREE_BITS) at_most(FIELD(index.columns), 32);
    if (p.layout != SPECDEC_TREE_FULL) at_least(FIELD(mask.rows), batch * nodes * p.row_bytes());
  }

  void fit_merge_chains(const MergeParams& p) {
    const int64_t batch = p.draft_tokens.rows;
    contiguous(FIELD(leaves), batch, p.chains());
    if (p.chains() > 0) equal("paths.slots % leaves.columns", p.paths.slots % p.chains(), 0);
    contiguous(FIELD(draft_tokens), batch, p.chains() * p.length() + 1);
    contiguous(FIELD(parents), batch, p.chains() * p.length() + 1);
    holds(FIELD(paths), batch, p.chains() * p.length());
  }

  void fit_verify_linked_tree(const LinkedParams& p) {
    check_written(p);
    rows_apart(FIELD(path), p.batch(), p.width());
    if (p.batch() == 0) return;
    const int32_t nodes = p.draft_tokens.slots;
    at_least(FIELD(draft_tokens.slots), 1);
    holds(FIELD(draft_tokens), p.batch(), nodes);
    holds(FIELD(first_child), p.batch(), nodes);
    holds(FIELD(next_sibling), p.batch(), nodes);
    if (p.tree_valid.data) equal(FIELD(tree_valid.size), p.batch());
    if (p.index.data) holds(FIELD(index), p.batch(), nodes);
    equal(FIELD(target.vocab_start), 0);
    if (p.target_tokens.data) holds(FIELD(target_tokens), p.batch(), nodes);
    else holds(FIELD(target), p.batch(), nodes);
    if (p.target_tokens.data && p.target.data) refuse("target", "none beside target_tokens", "some");
    if (exact && p.target_tokens.data && p.uniforms.data) refuse("uniforms", "none beside target_tokens", "some");
    numbers(FIELD(uniforms), p.batch(), nodes, false);
    numbers(FIELD(threshold_single), p.batch()), numbers(FIELD(threshold_total), p.batch());
    numbers("noise", p.noise, p.target_tokens.data ? 1 : p.batch(), p.batch());
  }

  void fit_compact_kv(const CompactParams& p) {
    rows_apart(FIELD(path), p.path.rows, p.path.columns);
    contiguous(FIELD(status), p.path.rows);
    if (exact) at_least(FIELD(path.rows), 1);
    if (p.path.rows == 0) return;
    numbers(FIELD(prefix_len), p.path.rows);
    for (int64_t i = 0; i < p.layers.size; ++i) {
      const specdec_cache_layer& layer = p.layers.data[i];
      const bool any = layer.heads > 0 && layer.slots > 0 && layer.entry_bytes > 0;
      if (any && (layer.batch > 0 || !p.block_table.data)) memory("layers", layer.data);
      if (p.block_table.data) equal("layers.slots", layer.slots, p.layers.data[0].slots);
      else if (exact) equal("layers.batch", layer.batch, p.path.rows);
    }
    if (!p.block_table.data) return;
    sized(FIELD(block_table), p.path.rows, p.block_table.columns);
    if (exact) at_least(FIELD(block_table.columns), 1);
    if (p.layers.size > 0 && p.layers.data[0].slots > 0)
      at_most({"block_table", ".columns"}, p.block_table.columns, INT32_MAX / p.layers.data[0].slots);
  }

  // The rows are logits of a whole vocabulary.
  template <class Params>
  void check_logits(const Params& p) {
    if (p.law.space != SPECDEC_LOGITS) refuse("law.space", "logits", "probabilities");
    equal(FIELD(rows.vocab_start), 0);
  }

  void fit_cutoff(const CutoffParams& p) {
    check_logits(p);
    check_edits(p);
    contiguous_each(p.count(), FIELD(value), FIELD(last), FIELD(support_size), FIELD(mass), FIELD(max));
    if (p.status.data) contiguous(FIELD(status), p.count());
  }

  void fit_logprobs(const LogprobsParams& p) {
    check_logits(p);
    check_edits(p);
    holds(FIELD(tokens), p.rows.requests, static_cast<int64_t>(p.rows.rows));
    contiguous_each(p.count(), FIELD(logprob), FIELD(rank));
    contiguous(FIELD(top_tokens), p.count(), exact ? exact->columns : p.top_tokens.columns);
    if (exact) at_most(FIELD(top_tokens.columns), p.rows.vocab);
    contiguous(FIELD(top_logprobs), p.count(), p.top_tokens.columns);
    if (p.support_bits.data) contiguous(FIELD(support_bits), p.count(), (p.rows.vocab + int64_t{31}) / 32);
    if (p.support_bits.data || p.support_size.data) contiguous(FIELD(support_size), p.count());
    if (p.support_size.data && p.count() > 0) memory("support_bits", p.support_bits.data);
    if (p.status.data) contiguous(FIELD(status), p.count());
  }

  void fit_count_at_least(const CountAtLeastParams& p) {
    if (p.law.space != SPECDEC_LOGITS) refuse("law.space", "logits", "probabilities");
    check_edits(p);
    equal(FIELD(least.size), p.count());
    contiguous(FIELD(counts), p.count());
  }

  void fit_token_logits(const TokenLogitsParams& p) {
    const specdec_law of_logits = {};
    check_edits(p.edits, of_logits, p.rows, p.rows.requests, p.rows.rows, p.rows.requests, p.rows.rows);
    if (p.row_indices.data) holds("row_indices", p.row_indices, 1, p.batch());
    else if (p.batch() > 0) equal(FIELD(logits.rows), p.rows.requests * p.rows.rows);
    holds("tokens", p.tokens, p.batch(), p.logits.columns);
    contiguous(FIELD(logits), p.batch(), p.logits.columns);
  }

  void fit_mass_tiles(const MassTilesParams& p) {
    if (p.law.space != SPECDEC_LOGITS) refuse("law.space", "logits", "probabilities");
    check_edits(p);
    contiguous(FIELD(tiles), p.count(), 3 * ((p.rows.vocab + int64_t{kMassTile} - 1) / kMassTile));
    contiguous(FIELD(status), p.count());
  }

  void fit_tile_laws(const TileLawsParams& p) {
    contiguous(FIELD(tiles), p.batch(), p.tiles.columns);
    equal("tiles.columns % 3", p.tiles.columns % 3, 0);
    contiguous(FIELD(row_stats), p.batch(), 2);
    contiguous(FIELD(probs), p.batch(), p.raw.vocab);
  }

  void fit_residual_race(const ResidualRaceParams& p) {
    check_pair_of_parts(p, p.batch());
    if (p.excluded.data) rows_apart(FIELD(excluded), p.batch(), p.excluded.columns);
    contiguous_each(p.batch(), FIELD(tokens), FIELD(status), FIELD(scores));
  }

  void fit_residual_sums(const ResidualSumsParams& p) {
    check_pair_of_parts(p, p.pairs());
    equal(FIELD(draft.vocab), p.target.vocab);
    equal(FIELD(draft_row.size), p.pairs());
    contiguous(FIELD(sums), p.pairs(), 2);
    contiguous(FIELD(status), p.pairs());
  }

  void fit_mask_logits(const MaskLogitsParams& p) {
    equal(FIELD(value.size), p.count());
    equal(FIELD(last.slots), p.count());
    equal(FIELD(out.requests), p.rows.requests);
    equal(FIELD(out.rows), p.rows.rows);
    equal(FIELD(out.vocab), p.rows.vocab);
    equal(FIELD(out.dtype), p.rows.dtype);
  }

  void fit_store_rows(const StoreRowsParams& p) {
    equal(FIELD(rows.rows), 1);
    equal(FIELD(slots.slots), p.count());
    numbers(FIELD(column), p.count());
    at_least(FIELD(cache.vocab), p.rows.vocab);
    equal(FIELD(cache.dtype), p.rows.dtype);
  }

  void fit_first_arrivals(const FirstArrivalsParams& p) {
    equal("packed.columns", p.packed.columns, 3 * p.tokens.rows);
    at_least("packed.rows", p.packed.rows, 1);
    contiguous(FIELD(packed), p.packed.rows, p.packed.columns);
    contiguous_each(p.tokens.rows, FIELD(tokens), FIELD(status), FIELD(empty));
  }

  void fit_walk_tables(const WalkTablesParams& p) {
    const int64_t batch = p.batch();
    at_least("tokens.columns", p.tokens.columns, 1);
    const bool packed = p.cu_drafts.data != nullptr, tree = p.parents.data != nullptr;
    const int64_t nodes = tree ? p.draft_tokens.slots : p.width();
    const int64_t drafts = packed ? p.draft_tokens.slots : batch * (tree ? nodes : p.width() - 1);
    const int64_t rows = tree ? drafts : drafts + batch;
    if (packed) equal(FIELD(cu_drafts.size), batch + 1);
    if (tree) equal(FIELD(cu_drafts.size), 0);
    if (tree) holds(FIELD(parents), batch, nodes);
    holds(FIELD(draft_tokens), packed ? 1 : batch, packed ? drafts : tree ? nodes : p.width() - 1);
    at_least(FIELD(vocab), 1);
    at_most(FIELD(vocab), INT32_MAX);
    if (p.request_index.data) equal(FIELD(request_index.size), batch);
    equal(FIELD(row_status.size), rows);
    if (p.winners.data) equal(FIELD(winners.slots), rows);
    rows_apart(FIELD(tokens), batch, p.width());
    if (p.path.data) rows_apart(FIELD(path), batch, p.width());
    contiguous_each(batch, FIELD(num_accepted), FIELD(status));
    if (p.method == SPECDEC_RACE) {
      if (batch > 0) memory("winners", p.winners.data);
      return equal(FIELD(row.rows), 0);
    }
    equal(FIELD(p_of_drafts.size), rows);
    equal(FIELD(row_stats.size), 2 * rows);
    contiguous_each(batch, FIELD(row), FIELD(draft_row), FIELD(subtracted), FIELD(slot));
    contiguous(FIELD(laws), batch, 4);
    if (p.method == SPECDEC_TRAVERSAL) contiguous(FIELD(memory), batch, 8 * p.width());
    if (!p.q_of_drafts.data) return contiguous(FIELD(excluded), batch, tree ? nodes : 1);
    equal(FIELD(q_of_drafts.size), drafts);
    equal(FIELD(draft_row_status.size), drafts);
    if (p.draft_row_indices.data) equal(FIELD(draft_row_indices.slots), drafts);
    if (!tree && p.method != SPECDEC_TRAVERSAL) return;
    holds(FIELD(answers), batch, 2 * nodes);
    contiguous(FIELD(requested_rows), batch, 2 * nodes);
    contiguous(FIELD(requested_subtracted), batch, nodes);
  }

  void fit_count_tokens(const CountParams& p) {
    contiguous(FIELD(status), p.mask.rows);
    rows_apart(FIELD(mask), p.mask.rows, p.mask.columns);
    if (p.counts.data) {
      rows_apart(FIELD(counts), p.mask.rows, p.counts.columns);
      at_least(FIELD(mask.columns), (p.counts.columns + 31) / 32);
    }
    holds(FIELD(tokens), p.mask.rows, p.tokens.slots);
    numbers(FIELD(num), p.mask.rows);
  }

  void fit_uniform(const UniformParams& p) {
    at_least(FIELD(stream), 0);
    at_most(FIELD(stream), UINT32_MAX);
    contiguous(FIELD(uniforms), p.uniforms.rows, p.uniforms.columns);
  }

  void fit_context_seeds(const ContextParams& p) {
    const int64_t batch = p.seeds.rows, nodes = p.seeds.columns;
    at_least(FIELD(window), 1);
    at_most(FIELD(window), 8);
    contiguous(FIELD(seeds), batch, nodes);
    holds(FIELD(seed), 1, batch);
    holds(FIELD(position), 1, batch);
    if (p.request_index.data) equal(FIELD(request_index.size), batch);
    else if (p.text.slots > 0) for_requests(FIELD(text), batch);
    if (p.cu_drafts.data) {
      equal(FIELD(cu_drafts.size), batch + 1);
      holds(FIELD(draft_tokens), 1, p.draft_tokens.slots);
      if (p.tokens_by_row) at_least(FIELD(draft_tokens.slots), batch);
      if (p.parents.data) refuse("parents", "NULL with cu_drafts", "memory");
    } else {
      if (p.tokens_by_row) refuse("tokens_by_row", "false without cu_drafts", "true");
      holds(FIELD(draft_tokens), batch, p.parents.data ? nodes : nodes - 1);
      if (p.parents.data) holds(FIELD(parents), batch, nodes);
    }
  }
};

}  // namespace

#define SPECDEC_CHECK_ALL(op, Params)                             \
  void check_##op(const Params& params) {                         \
    check_fields(params);                                         \
    OpFit{nullptr}.fit_##op(params);                              \
  }                                                               \
  bool exact_##op(Params& params, const Exact& exact) {           \
    OpFit fit = {&exact};                                         \
    try {                                                         \
      fit.set_sizes(params);                                      \
      return fit.fit_##op(params), true;                          \
    } catch (const Refusal&) {                                    \
      return false;                                               \
    }                                                             \
  }
SPECDEC_OPS(SPECDEC_CHECK_ALL)
#undef SPECDEC_CHECK_ALL

}  // namespace specdec::c_api
