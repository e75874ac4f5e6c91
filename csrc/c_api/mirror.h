// The structs of specdec.h and those of specdec/params.h have the same fields, of the same types, at the same places. A
// difference does not compile.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "specdec.h"
#include "specdec/ops.h"

namespace specdec {
namespace c_api {

// Whether a field of type C in specdec.h holds the same as one of type P in params.h.
template <class C, class P, class = void>
struct Same : std::is_same<C, P> {};
template <class C, class P>
struct Same<C, P, std::enable_if_t<std::is_enum_v<P>>> : std::is_same<C, std::underlying_type_t<P>> {};
template <class C, class P>
struct Same<const C*, const P*> : Same<C, P> {};

// The names of a parameter struct's fields, "first, second, ...".
template <class P>
constexpr const char* kNames = nullptr;

#define SPECDEC_PARENTHESES ()
#define SPECDEC_AGAIN() SPECDEC_SAME_FIELDS
#define SPECDEC_EXPAND_FEW(...) __VA_ARGS__
#define SPECDEC_EXPAND_SOME(...) SPECDEC_EXPAND_FEW(SPECDEC_EXPAND_FEW(SPECDEC_EXPAND_FEW(__VA_ARGS__)))
#define SPECDEC_EXPAND_MORE(...) SPECDEC_EXPAND_SOME(SPECDEC_EXPAND_SOME(SPECDEC_EXPAND_SOME(__VA_ARGS__)))
#define SPECDEC_EXPAND(...) SPECDEC_EXPAND_MORE(SPECDEC_EXPAND_MORE(SPECDEC_EXPAND_MORE(__VA_ARGS__)))
#define SPECDEC_SAME_FIELDS(C, P, field, ...)                                                              \
  static_assert(offsetof(C, field) == offsetof(P, field), #C "." #field " lies elsewhere in params.h");    \
  static_assert(Same<decltype(C::field), decltype(P::field)>::value, #C "." #field " is not as in params.h"); \
  __VA_OPT__(SPECDEC_AGAIN SPECDEC_PARENTHESES(C, P, __VA_ARGS__))

// C and P have these fields and no others: a structured binding must name them all.
#define SPECDEC_SAME(C, P, ...)                                                      \
  template <>                                                                        \
  struct Same<C, P> : std::true_type {};                                             \
  template <>                                                                        \
  constexpr const char* kNames<P> = #__VA_ARGS__;                                    \
  inline void all_fields(C& c, P& p) {                                               \
    { [[maybe_unused]] auto& [__VA_ARGS__] = c; }                                    \
    { [[maybe_unused]] auto& [__VA_ARGS__] = p; }                                    \
  }                                                                                  \
  static_assert(sizeof(C) == sizeof(P) && std::is_trivially_copyable_v<P>, #C);      \
  SPECDEC_EXPAND(SPECDEC_SAME_FIELDS(C, P, __VA_ARGS__))

SPECDEC_SAME(specdec_rows, Rows, data, request_stride, row_stride, requests, rows, vocab, dtype, first_token)
SPECDEC_SAME(specdec_tokens, Tokens, data, request_stride, slot_stride, requests, slots, wide)
SPECDEC_SAME(specdec_number, Per<float>, data, outer_stride, inner_stride, value, wide)
SPECDEC_SAME(specdec_counter, Per<int64_t>, data, outer_stride, inner_stride, value, wide)
SPECDEC_SAME(specdec_law, LawParams, space, temperature, top_k, top_p, min_p, rules)
SPECDEC_SAME(specdec_noise, NoiseParams, seed, position, nonce)
SPECDEC_SAME(specdec_indices, Vector<const int32_t>, data, size)
SPECDEC_SAME(specdec_values, Vector<const float>, data, size)
SPECDEC_SAME(specdec_flags, Vector<const bool>, data, size)
SPECDEC_SAME(specdec_lists, Lists, data, request_stride, row_stride, requests, rows, size, wide)
SPECDEC_SAME(specdec_edits, EditParams, allowed, bias_tokens, bias_values, bias_spans, repetition, frequency, presence,
             prompt_mask, output_mask, output_counts, pending, by_row, seen_index, allowed_index)
SPECDEC_SAME(specdec_request_index, RequestIndex, data, size, entries, wide)
SPECDEC_SAME(specdec_output_i64, Output<int64_t>, data, row_stride, rows, columns)
SPECDEC_SAME(specdec_output_i32, Output<int32_t>, data, row_stride, rows, columns)
SPECDEC_SAME(specdec_output_f32, Output<float>, data, row_stride, rows, columns)
SPECDEC_SAME(specdec_output_u8, Output<uint8_t>, data, row_stride, rows, columns)
SPECDEC_SAME(specdec_path, Output<const int32_t>, data, row_stride, rows, columns)
SPECDEC_SAME(specdec_output_tokens, TokenOutput, data, row_stride, rows, columns, column_stride, narrow)
SPECDEC_SAME(specdec_mask, Mask, data, batch, nodes, layout, minus_infinity)
SPECDEC_SAME(specdec_cache_layer, CacheLayer, data, batch_stride, head_stride, slot_stride, heads, slots, entry_bytes,
             batch)
SPECDEC_SAME(specdec_cache_layers, Vector<const CacheLayer>, data, size)

SPECDEC_SAME(specdec_verify_chain_params, ChainParams, draft_tokens, target, draft, cu_drafts, by_rows, draft_map,
             request_index, method, target_law, draft_law, edits, draft_prob, epsilon, noise, input_positions, input_nonces,
             tokens, num_accepted, status, path, num_rejected, num_passed, index, bonus, form)
SPECDEC_SAME(specdec_verify_tree_params, TreeParams, draft_tokens, parents, target, draft, draft_map, request_index,
             method, replacement, target_law, draft_law, edits, noise, input_positions, tokens, path, num_accepted,
             status, index, form)
SPECDEC_SAME(specdec_race_params, RaceParams, rows, draft_map, request_index, law, edits, noise, tokens, status,
             scores)
SPECDEC_SAME(specdec_residual_params, ResidualParams, target, draft, draft_map, request_index, target_law, draft_law,
             edits, draft_prob, epsilon, probs, mass, status)
SPECDEC_SAME(specdec_overlap_params, OverlapParams, target, draft, draft_map, request_index, target_law, draft_law,
             edits, accept, tv, kl, harmonic, status)
SPECDEC_SAME(specdec_tree_mask_params, MaskParams, parents, prefix_len, columns, mask, status)
SPECDEC_SAME(specdec_tree_positions_params, PositionsParams, parents, prefix_len, positions, status)
SPECDEC_SAME(specdec_tree_parents_params, LinksParams, first_child, next_sibling, tree_valid, parents, ranks, status)
SPECDEC_SAME(specdec_build_tree_params, BuildParams, parent_list, selected, prefix_len, topk, layout, mask, positions,
             index, first_child, next_sibling, status)
SPECDEC_SAME(specdec_verify_links_params, LinkedParams, draft_tokens, first_child, next_sibling, tree_valid, target,
             target_tokens, coins, threshold_single, threshold_total, noise, tokens, path, num_accepted, status, index,
             form)
SPECDEC_SAME(specdec_compact_kv_params, CompactParams, layers, path, prefix_len, block_table, status)
SPECDEC_SAME(specdec_count_tokens_params, CountParams, tokens, num, mask, counts, status)
SPECDEC_SAME(specdec_coin_params, CoinParams, noise, index, stream, coins)
SPECDEC_SAME(specdec_count_at_least_params, CountAtLeastParams, rows, request_index, law, edits, least, counts)
SPECDEC_SAME(specdec_token_logits_params, TokenLogitsParams, rows, places, tokens, edits, logits)
SPECDEC_SAME(specdec_mass_tiles_params, MassTilesParams, rows, request_index, law, edits, tiles, status)
SPECDEC_SAME(specdec_tile_laws_params, TileLawsParams, tiles, raw, temperature, known, probs)
SPECDEC_SAME(specdec_mask_logits_params, MaskLogitsParams, rows, temperature, value, last, out)
SPECDEC_SAME(specdec_store_rows_params, StoreRowsParams, rows, slots, column, cache)
SPECDEC_SAME(specdec_first_arrivals_params, FirstArrivalsParams, packed, tokens, status, empty)
SPECDEC_SAME(specdec_chain_ends_params, ChainEndsParams, draft_tokens, cu_drafts, vocab, request_index, num_accepted,
             walked, met, draft_met, read, winners, draft_places, known, draft_known, temperature, draft_prob, tokens,
             status, row, draft_row, tried, taken, slot, laws)
SPECDEC_SAME(specdec_residual_race_params, ResidualRaceParams, target, draft, row, draft_row, excluded, cuts,
             known, target_law, draft_law, edits, taken, noise, tokens, status, scores)
SPECDEC_SAME(specdec_residual_sums_params, ResidualSumsParams, target, draft, row, draft_row, cuts, known,
             target_law, draft_law, edits, taken, sums, status)
SPECDEC_SAME(specdec_cutoff_params, CutoffParams, rows, request_index, law, edits, value, last, kept, mass, max, status)
SPECDEC_SAME(specdec_logprobs_params, LogprobsParams, rows, tokens, request_index, law, edits, logprob, rank,
             top_tokens, top_logprobs, status)

// Each op of the list has a struct in specdec.h, and it mirrors the one in the list.
#define SPECDEC_LISTED(op, Params) static_assert(Same<specdec_##op##_params, Params>::value, #op);
SPECDEC_OPS(SPECDEC_LISTED)
#undef SPECDEC_LISTED

template <class Choice>
constexpr bool same(Choice choice, int number) { return static_cast<int>(choice) == number; }

static_assert(same(DType::kFloat32, SPECDEC_FLOAT32) && same(DType::kBFloat16, SPECDEC_BFLOAT16) &&
              same(DType::kFloat16, SPECDEC_FLOAT16));
static_assert(same(Space::kLogits, SPECDEC_LOGITS) && same(Space::kProbs, SPECDEC_PROBS));
static_assert(same(Method::kRejection, SPECDEC_REJECTION) && same(Method::kRace, SPECDEC_RACE) &&
              same(Method::kTraversal, SPECDEC_TRAVERSAL));
static_assert(same(MaskLayout::kBool, SPECDEC_MASK_BOOL) && same(MaskLayout::kAdditive32, SPECDEC_MASK_ADDITIVE32) &&
              same(MaskLayout::kAdditive16, SPECDEC_MASK_ADDITIVE16) && same(MaskLayout::kBits, SPECDEC_MASK_BITS));
static_assert(same(TreeMask::kFull, SPECDEC_TREE_FULL) && same(TreeMask::kNodes, SPECDEC_TREE_NODES) &&
              same(TreeMask::kBits, SPECDEC_TREE_BITS));
static_assert(same(kUnpadded, SPECDEC_UNPADDED) && same(kEmitted, SPECDEC_EMITTED) && same(kAdded, SPECDEC_ADDED) &&
              same(kZeros, SPECDEC_ZEROS));
static_assert(same(kAllowedByRow, SPECDEC_ALLOWED_BY_ROW) && same(kBiasByRow, SPECDEC_BIAS_BY_ROW));
static_assert(same(kStatusNonFinite, SPECDEC_STATUS_NON_FINITE) && same(kStatusParameter, SPECDEC_STATUS_PARAMETER) &&
              same(kStatusEmptyResidual, SPECDEC_STATUS_EMPTY_RESIDUAL) &&
              same(kStatusTokenRange, SPECDEC_STATUS_TOKEN_RANGE));

template <class Params, class C>
Params params_of(const C* c) {
  static_assert(Same<C, Params>::value);
  Params p;
  std::memcpy(static_cast<void*>(&p), c, sizeof p);
  return p;
}

// For a function that reads them by params_of.
template <class C, class Params>
const C* c_of(const Params& p) {
  static_assert(Same<C, Params>::value);
  return reinterpret_cast<const C*>(&p);
}

}  // namespace c_api
}  // namespace specdec
