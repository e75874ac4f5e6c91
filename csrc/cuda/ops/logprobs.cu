// logprobs: the blocks of a row look through its tiles once: for their masses, for the number of tokens at least as
// probable as the requested one, and for the most probable ones, 32 at a time. The last block of a row combines the
// results. With filters or edits a team loads the row's law before.
#include "../rows/draw.cuh"  // Parts
#include "../rows/filtered_row.cuh"
#include "../rows/staged_tile.cuh"
#include "../team/topk.cuh"
#include "specdec/c/rows.h"

namespace specdec::cuda {

namespace {

struct LogprobsArguments {
  LogprobsParams p;
  unsigned* tickets;  // [rows]
  WideKey* words;     // [rows], each a RowWords
  Parts parts;        // of a row, a block each
};

struct ShapedLogprobsArguments {
  LogprobsArguments of;
  TeamLayout team;
  CutMemory cut;
};

// The results of a row's blocks: the words of its tiles, if they are weighed here; of each part the number of tokens at
// least as probable, and the number in the support; and the best keys of each part.
struct RowWords {
  WideKey *tiles, *counts, *lists;
  __host__ __device__ static int64_t a_row(const Parts& parts, int32_t top) {
    return kWordsATile * parts.tiles + parts.count.by() * (int64_t{2} + top);
  }
  __device__ RowWords(const LogprobsArguments& a, int64_t index)
      : tiles(a.words + index * a_row(a.parts, a.p.top())),
        counts(tiles + kWordsATile * a.parts.tiles),
        lists(counts + 2 * a.parts.count.by()) {}
};

// A row and the requested token.
template <class Support>
struct LogprobRow {
  int64_t index;
  LawRowOf<Support> side;
  int32_t token;  // kNoToken: none
  float x;        // its logit; -inf if it is not in the support
  int32_t status;
};

// The logit of an element, -inf outside of the support.
template <class Support>
__device__ __forceinline__ float logit_in_support(const LawRowOf<Support>& side, float raw, int32_t column) {
  return side.support.keeps(raw, column) ? side.stats.law.logits().scaled(raw) : -kInfinity;
}

// Counts four tokens of a lane, from `column` on, writes their bits, and offers them.
template <class Support>
__device__ __forceinline__ void look_at(const LogprobsParams& p, const LogprobRow<Support>& row, int32_t column,
                                        const Four& four, bool counts, uint64_t (&sums)[2], TopK* topk) {
  float x[4], most = -kInfinity;
  unsigned in_support = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[i] = logit_in_support(row.side, four.value[i], column + i);
    most = max(x[i], most);
    in_support |= static_cast<unsigned>(x[i] > -kInfinity) << i;
    if (counts) sums[0] += x[i] >= row.x;
  }
  if (counts && p.support_bits.data) {
    sums[1] += static_cast<uint64_t>(__popc(in_support));
    in_support <<= lane_id() % 8 * 4;
    for (int with = 1; with < 8; with *= 2) in_support |= __shfl_xor_sync(kWarp, in_support, with);
    if (lane_id() % 8 == 0 && column < row.side.row.vocab)
      p.support_bits.data[row.index * p.words() + column / 32] = static_cast<int32_t>(in_support);
  }
  const float to_beat = topk->to_beat();  // of lower columns, which win ties
  if (!__any_sync(kWarp, most > to_beat)) return;
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    const float mine = i == 0 ? x[0] : i == 1 ? x[1] : i == 2 ? x[2] : x[3];
    topk->offer(mine > -kInfinity ? key_of_candidate({mine, column + i}) : 0);
  }
}

// Looks through a part of the row. All threads of a block call.
template <class Support>
__device__ __forceinline__ void look_through_part(const LogprobsArguments& a, const LogprobRow<Support>& row,
                                                  int part) {
  const RowWords words(a, row.index);
  const Tiles tiles = a.parts.tiles_of(part);
  const int32_t top = a.p.top();
  uint64_t sums[2] = {0, 0};
  // A warp weighs a tile; then all warps look through as many tiles as there are warps, 128 columns at a time.
  const Shared<uint4> fours = dynamic_shared<uint4>(0, Support::kFiltered ? 0 : kVectors * kThreads);
  const auto offer_tiles = [&](int32_t first, TopK* topk) {
    const int32_t vocab = row.side.row.vocab, warps = warps_in_block();
#pragma unroll 1
    for (int tile = tiles.begin; tile < tiles.end; tile += warps) {
      if constexpr (!Support::kFiltered) {
        const int warp_tile = tile + warp_id();
        __syncthreads();  // the tiles before are no longer in use
        if (warp_tile < tiles.end) {
          StagedTile staged = {fours};
          staged.load(row.side.row, warp_tile * kMassTile);
          if (first == 0) put_tile(words.tiles, a.parts.tiles, warp_tile, row.side, staged);
        }
        __syncthreads();
      }
      const int steps = (tiles.end - tile < warps ? tiles.end - tile : warps) * kVectors;
#pragma unroll 1
      for (int step = warp_id(); step < steps; step += warps) {
        const int32_t column = (tile + step / kVectors) * kMassTile + step % kVectors * 128 + lane_id() * 4;
        Four four = {{-kInfinity, -kInfinity, -kInfinity, -kInfinity}};
        if (column < vocab) {
          if constexpr (Support::kFiltered) {
            four = four_elements(row.side.row, column);
          } else {
            const uint4 v = fours[step % kVectors * kThreads + step / kVectors * 32 + lane_id()];
            four = {{Float32::at(v, 0), Float32::at(v, 1), Float32::at(v, 2), Float32::at(v, 3)}};
          }
        }
        look_at(a.p, row, column, four, first == 0, sums, topk);
      }
    }
  };
  // With top 0, or at temperature 0, one key is taken and not used: the pass over the tiles is still needed.
  take_best(top > 0 && !row.side.stats.law.greedy ? top : 1, offer_tiles, [&](int32_t position, WideKey key) {
    if (position < top) put_word(words.lists + int64_t{part} * top + position, key);
  });
  block_sums(sums);
  if (threadIdx.x == 0)
    put_word(words.counts + 2 * part, WideKey{sums[0]}), put_word(words.counts + 2 * part + 1, WideKey{sums[1]});
}

// Writes the support of a row with one token, or with kNoToken none.
__device__ __forceinline__ void store_single_bit(const LogprobsParams& p, int64_t index, int32_t token) {
  over_block(static_cast<int32_t>(p.words()), [&](int32_t word) {
    const bool holds_token = token != kNoToken && word == token / 32;
    p.support_bits.data[index * p.words() + word] = holds_token ? static_cast<int32_t>(1u << token % 32) : 0;
  });
  if (threadIdx.x == 0) p.support_size.data[index] = token != kNoToken;
}

// Writes a law of one token, or with kNoToken of none, as for a row that is not read. All threads of a block call.
__device__ __forceinline__ void store_certain(const LogprobsParams& p, int64_t index, int32_t argmax) {
  if (p.support_bits.data) store_single_bit(p, index, argmax);
  over_block(p.top(), [&](int32_t position) {
    const bool best = position == 0 && argmax != kNoToken;
    p.top_tokens.data[index * p.top() + position] = best ? argmax : -1;
    p.top_logprobs.data[index * p.top() + position] = best ? 0.0f : -kInfinity;
  });
}

__device__ __forceinline__ void store_logprob(const LogprobsParams& p, int64_t index, float logprob, uint64_t rank,
                                              int32_t status) {
  if (threadIdx.x != 0) return;
  p.logprob.data[index] = logprob;
  p.rank.data[index] = static_cast<int32_t>(rank);
  if (p.status.data) p.status.data[index] = status;
}

// Combines the results of a row's blocks. All threads of the last block call.
template <class Support>
__device__ __forceinline__ void put_together(const LogprobsArguments& a, const LogprobRow<Support>& row) {
  const LogprobsParams& p = a.p;
  const RowWords words(a, row.index);
  const int32_t top = p.top(), parts = a.parts.count.by();
  const bool greedy = row.side.stats.law.greedy;
  RowStats stats = {row.side.stats.lse, row.side.stats.argmax, SPECDEC_STATUS_OK};
  if constexpr (!Support::kFiltered) {
    const int tiles = a.parts.tiles;
    const auto word_of = [&](int tile, int word) { return load_fresh(words.tiles + word * tiles + tile); };
    if (greedy) {
      stats = argmax_stats(best_of_parts(tiles, word_of));
    } else {
      TileWords held;
      held.load(tiles, word_of);
      stats = row_of_tiles(tiles, held, word_of);
    }
  }
  uint64_t sums[2] = {0, 0};
  for (int part = lane_id(); part < parts; part += 32)
    sums[0] += load_fresh(words.counts + 2 * part), sums[1] += load_fresh(words.counts + 2 * part + 1);
  uint64_t rank = warp_sum(sums[0]);
  const uint64_t num_kept = warp_sum(sums[1]);
  float logprob = greedy ? -kInfinity : log_probability(row.x, stats.lse);
  if (!(row.x > -kInfinity)) logprob = -kInfinity, rank = 0;
  if (row.token != kNoToken && row.token == stats.argmax) logprob = 0.0f, rank = 1;
  store_logprob(p, row.index, logprob, rank, row.status | stats.status);
  if (greedy) return store_certain(p, row.index, stats.argmax);
  if (p.support_size.data && threadIdx.x == 0) p.support_size.data[row.index] = static_cast<int32_t>(num_kept);
  take_best(
      top, [&](int32_t, TopK* topk) { topk->offer_all(words.lists, parts * top); },
      [&](int32_t position, WideKey key) {
        const Candidate best = candidate_of_key(key);
        const bool none = best.token == kNoToken;
        p.top_tokens.data[row.index * top + position] = none ? -1 : best.token;
        p.top_logprobs.data[row.index * top + position] = none ? -kInfinity : log_probability(best.score, stats.lse);
      });
}

// Computes a part of a row. load(n, j, &side, &status) loads the row's law, if a team does that before.
template <class Reader, class LoadLaw>
__device__ __forceinline__ void find_logprobs(const LogprobsArguments& a, int64_t index, int part, const Reader& reader,
                                              LoadLaw&& load) {
  const LogprobsParams& p = a.p;
  const int64_t i = index / p.rows.rows, j = index % p.rows.rows;
  const int64_t token = p.tokens.at(i * p.tokens.request_stride + j * p.tokens.slot_stride);
  const Entry entry = decode_entry(p.request_index, i);
  if (!entry.live() || (token == -1 && p.top() == 0)) {
    if (part == 0) store_certain(p, index, kNoToken), store_logprob(p, index, -kInfinity, 0, entry.status());
    return;
  }
  LogprobRow<typename Reader::Support> row = {};
  row.index = index, row.token = kNoToken, row.x = -kInfinity, row.status = entry.status();
  const Law law = law_at(p.law, entry.index, j, &row.status);
  row.status |= reader.decode(p.edits, p.rows.vocab, {entry.index, j}, {i, j});
  row.side = law_row<typename Reader::Support>(reader.of(row_at(p.rows, p.rows.offset(i, j))), law);
  load(entry.index, j, &row.side, &row.status);
  if (token >= 0 && token < p.rows.vocab) {
    row.token = static_cast<int32_t>(token);
    row.x = logit_in_support(row.side, element(row.side.row, row.token), row.token);
  } else if (token != -1) {
    row.status |= SPECDEC_STATUS_TOKEN_RANGE;
  }
  if (part >= a.parts.count.by()) return;
  look_through_part(a, row, part);
  __syncthreads();  // this block's words are visible, too
  if (is_last_block(a.tickets + index, static_cast<unsigned>(a.parts.count.by()))) put_together(a, row);
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) logprobs_kernel(const LogprobsArguments a) {
  wait_for_kernel_before();
  const int block = static_cast<int>(blockIdx.x), index = a.parts.count.of(block);
  find_logprobs(a, index, block - index * a.parts.count.by(), PlainRows{}, [](int64_t, int64_t, LawRow*, int32_t*) {});
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    shaped_logprobs_kernel(const ShapedLogprobsArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(DecodedEdits, edits, 1);
  Team team(a.team);
  find_logprobs(a.of, team.index(), team.rank(), ShapedRows{edits, a.of.p.edits.on()},
                [&](int64_t n, int64_t j, LawRowOf<Filtered>* side, int32_t* status) {
                  load_law(team, a.of.p.law, n, j, a.cut, side, status);
                });
  team.leave();
}

}  // namespace

cudaError_t logprobs(const LogprobsParams& p, const Call& call) {
  static const Kernels kernels(logprobs_kernel, shaped_logprobs_kernel);
  const int64_t rows = p.count();
  return on_device(call, rows, kernels, [&](const Device& device) {
    const Workspace& workspace = device.workspace;
    LogprobsArguments a = {};
    a.p = p, a.tickets = workspace.tickets, a.words = workspace.partials;
    const int64_t most = most_lists(rows, p.top());
    if (!p.edits.on() && !(p.law.rules & SPECDEC_FILTERED)) {
      const int64_t row_blocks = blocks_at_once(device) / rows;
      a.parts = parts_of_rows(p.rows.vocab, row_blocks < most ? row_blocks : most);
      if (workspace.lacks(rows, rows * RowWords::a_row(a.parts, p.top()))) return cudaSuccess;
      Shape shape = {rows * a.parts.count.by(), kThreads};
      shape.overlaps = true;
      shape.dynamic_shared = kStagedBytes;
      return launch(logprobs_kernel, shape, a, device.stream);
    }
    const TeamShape shape = shaped_team(device, rows, p.rows);
    a.parts = parts_of_rows(p.rows.vocab, shape.size < most ? shape.size : most);
    const ShapedPlan plan =
        shaped_plan(device, shape, rows, p.rows.vocab, rows, rows * RowWords::a_row(a.parts, p.top()));
    if (plan.team.lacks(workspace)) return cudaSuccess;
    return launch_teams(shaped_logprobs_kernel, plan.team, device, {a, plan.team.team(workspace), plan.cut},
                        plan.shared_bytes);
  });
}

}  // namespace specdec::cuda
