// residual_race: grid = requests x splits; the last block of a request compares what the others found.
#include "launch.cuh"
#include "race_request.cuh"
#include "specdec/request.h"

namespace specdec {
namespace cuda {

namespace {

struct ResidualRaceArguments {
  ResidualRaceParams p;
  Room room;
  int splits;
};

// The row at a place among all rows.
__device__ __forceinline__ LawRow known_row(const Rows& rows, int32_t place, const LawParams& law, int64_t b,
                                            const float* known, int32_t* status) {
  LawRow r = {};
  r.row = part_at(rows, rows.offset_of(place));
  r.known = {law_at(law, b, 0, status), {known[0], known[1]}, kNoToken};
  return r;
}

__device__ __forceinline__ RowPartial first_arrival(const ResidualRaceParams& p, int64_t b, Part part) {
  RowPartial found = kNoPart;
  const float* known = static_cast<const float*>(p.known.data) + p.known.offset(0, b);
  int32_t status = kStatusOk;
  const LawRow target = known_row(p.target, p.row.data[b], p.target_law, b, known, &status);
  if (target.known.law.greedy) {
    found = argmax_part(target.row, target.known.law, part);
  } else {
    Weights weights;
    if (p.draft_row.data && p.draft_row.data[b] >= 0) {
      const LawRow draft = known_row(p.draft, p.draft_row.data[b], p.draft_law, b, known + 2, &status);
      weights = weights_of_residual(target, draft, p.taken.at(b));
    } else {
      weights = weights_of_row(target.row, target.known.law);
      if (p.excluded.data && p.excluded.data[b] >= 0) weights.excluded = p.excluded.data[b] - p.target.first_token;
    }
    found = race_part(weights, noise_at(p.noise, b, 0, kStreamResidual), part);
  }
  found.status |= status;
  return found;
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    residual_race_kernel(const ResidualRaceArguments a) {
  const int64_t b = blockIdx.x / a.splits;
  const int rank = static_cast<int>(blockIdx.x % a.splits);
  const Entry who = entry_of(a.p, b);
  RowPartial found = kNoPart;
  if (who.live()) found = first_arrival(a.p, b, {rank, a.splits});
  if (a.splits > 1) {
    if (threadIdx.x == 0) store_partial(a.room.words, b * a.splits + rank, found);
    if (!last_to_come(a.room.tickets + b, a.splits)) return;
    found = gather_partials(a.room.words, b * a.splits, a.splits);
  }
  if (threadIdx.x != 0) return;
  const Arrivals out = {a.p.tokens.data + b, a.p.scores.data + b, 1};
  if (found.best.token != kNoToken) found.best.token += a.p.target.first_token;
  if (who.live()) out.put(0, found.best);
  else out.put_unread(0, who.token());
  a.p.status.data[b] = found.status | who.status();
}

}  // namespace

cudaError_t residual_race(const ResidualRaceParams& p, const Workspace& workspace, cudaStream_t stream,
                          int64_t* needed) {
  static const Kernels kernels(residual_race_kernel);
  *needed = 0;
  if (p.batch() == 0) return cudaSuccess;
  return on_device(stream, kernels, [&](const Device& device) {
    const int splits = splits_of_row(device, p.batch(), p.target.vocab, p.target.dtype);
    const Room room = room_in(workspace);
    if (splits > 1 && (p.batch() > room.ticket_count || p.batch() * splits * kWordsAPartial > room.word_count))
      return *needed = room_needed(p.batch(), p.batch() * splits * kWordsAPartial), cudaSuccess;
    const Shape shape = {p.batch() * splits, threads_of_block(p.target.vocab, p.target.dtype)};
    return launch(residual_race_kernel, shape, {p, room, splits}, stream);
  });
}

}  // namespace cuda
}  // namespace specdec
