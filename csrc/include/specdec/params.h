// Plain parameter structs, one per op, shared by every C++ backend. Strides are in elements. Pointers are to host or
// device memory, whichever the backend runs on. Plain types: the same in every copy of the CPU kernels.
#pragma once

#include "config.h"

namespace specdec {

enum class DType : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };
enum class Space : int32_t { kLogits = 0, kProbs = 1 };
enum class Method : int32_t { kRejection = 0, kRace = 1 };

// One number for all requests (data null) or one each.
template <class T>
struct PerRequest {
  const T* data;
  int64_t stride;
  T value;
  SPECDEC_HD T at(int64_t request) const { return data ? data[request * stride] : value; }
};

// Likewise for every draft slot of every request.
struct PerSlot {
  const float* data;
  int64_t request_stride, slot_stride;
  float value;
  SPECDEC_HD float at(int64_t offset) const { return data ? data[offset] : value; }
};

// int32 or int64 token ids.
struct Tokens {
  const void* data;
  int64_t request_stride, slot_stride;
  bool wide;
  SPECDEC_HD int64_t at(int64_t offset) const {
    return wide ? static_cast<const int64_t*>(data)[offset] : static_cast<const int32_t*>(data)[offset];
  }
};

// Rows of logits or probabilities, [batch, rows, vocab] with unit stride along the vocabulary. A ragged chain has
// request_stride 0 and numbers its rows through.
struct Rows {
  const void* data;  // null where there is no draft
  int64_t request_stride, row_stride;
  int32_t vocab;
  DType dtype;
};

struct ChainParams {
  int64_t batch;
  int32_t max_drafts;  // K
  Method method;
  Space space;
  Tokens draft_tokens;
  Rows target, draft;
  const int32_t* cu_drafts;  // [batch + 1], null when padded
  int64_t total_drafts;      // D of a ragged call
  PerRequest<float> temperature, epsilon;
  PerSlot draft_prob;
  PerRequest<int64_t> seed, position, nonce;
  int64_t* tokens;  // [batch, max_drafts + 1]
  int64_t tokens_stride;
  int32_t* num_accepted;  // [batch]
  int32_t* status;        // [batch]
};

// race_sample (k = 1) and race_topk over [outer, inner] rows; per-row numbers have strides along both.
template <class T>
struct PerRow {
  const T* data;
  int64_t outer_stride, inner_stride;
  T value;
  SPECDEC_HD T at(int64_t outer, int64_t inner) const {
    return data ? data[outer * outer_stride + inner * inner_stride] : value;
  }
};

struct RaceParams {
  int64_t outer, inner;
  int32_t k;
  Space space;
  Rows rows;
  PerRow<float> temperature;
  PerRow<int64_t> seed, position, nonce;
  int64_t* tokens;  // [outer, inner, k], contiguous
};

struct ResidualParams {
  int64_t outer, inner;
  Space space;
  Rows target, draft;
  PerRow<float> temperature, draft_prob, epsilon;
  float* probs;  // [outer, inner, V], contiguous
  float* mass;   // [outer, inner], contiguous
};

struct OverlapParams {
  int64_t outer, inner;
  Space space;
  Rows target, draft;
  PerRow<float> temperature;
  float *accept, *tv, *kl, *harmonic;  // [outer, inner], contiguous
};

struct TreeParams {
  int64_t batch;
  int32_t nodes;      // N, the root included
  int32_t max_depth;  // the outputs hold max_depth + 1 columns; deeper nodes count as absent
  Method method;
  bool replacement;
  Space space;
  Tokens draft_tokens, parents;  // [batch, nodes]; a stride of 0 along the batch is one tree for all
  Rows target, draft;            // row i of a request: the law of the token after node i
  PerRequest<float> temperature;
  PerRequest<int64_t> seed, position, nonce;
  int64_t* tokens;  // [batch, max_depth + 1]
  int64_t tokens_stride;
  int32_t* path;  // [batch, max_depth + 1]
  int64_t path_stride;
  int32_t* num_accepted;  // [batch]
  int32_t* status;        // [batch]
};

enum class MaskLayout : int32_t { kBool = 0, kAdditive32 = 1, kAdditive16 = 2, kBits = 3 };

// tree_mask: row i of a request says which cache slots node i attends to. Slots [0, prefix_len) hold the committed
// prefix, slot prefix_len + j holds node j.
struct MaskParams {
  int64_t batch;
  int32_t nodes;
  int64_t columns;  // slots covered
  Tokens parents;
  PerRequest<int64_t> prefix_len;
  MaskLayout layout;
  void* mask;  // [batch, nodes, columns], contiguous; kBits: int32 [batch, nodes, ceil(columns / 32)]
  uint32_t minus_infinity;  // additive layouts: the bits of -inf in their own type
  int32_t* status;  // [batch]
};

struct PositionsParams {
  int64_t batch;
  int32_t nodes;
  Tokens parents;
  PerRequest<int64_t> prefix_len;
  int64_t* positions;  // [batch, nodes], contiguous
  int32_t* status;     // [batch]
};

// One tensor [batch, heads, slots, size] of a cache. Its elements are moved, never looked at: strides are in bytes here.
struct CacheLayer {
  char* data;
  int64_t batch_stride, head_stride, slot_stride;
  int32_t heads, slots, entry_bytes;
};

struct CompactParams {
  int64_t batch;
  int32_t max_depth;
  const int32_t* path;  // [batch, max_depth + 1]
  int64_t path_stride;
  PerRequest<int64_t> prefix_len;
  const CacheLayer* layers;  // in host memory
  int32_t layer_count;
  int32_t* status;  // [batch]
};

}  // namespace specdec
