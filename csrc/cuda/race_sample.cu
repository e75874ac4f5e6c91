// race_sample: grid = rows x splits; the last block of a row compares what the others found.
#include "launch.cuh"
#include "race_request.cuh"

namespace specdec {
namespace cuda {

struct RaceSampleArguments {
  RaceParams p;
  Room room;
  int splits;
};

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) race_sample_kernel(const RaceSampleArguments a) {
  const int64_t index = blockIdx.x / a.splits;
  const int rank = static_cast<int>(blockIdx.x % a.splits);
  const RaceRequest row = race_request(a.p, index);
  RowPartial found = kNoPart;
  if (row.who.live()) found = find_winner(row, {rank, a.splits});
  if (a.splits > 1) {
    if (threadIdx.x == 0) store_partial(a.room.words, index * a.splits + rank, found);
    if (!last_to_come(a.room.tickets + index, a.splits)) return;
    found = gather_partials(a.room.words, index * a.splits, a.splits);
  }
  if (threadIdx.x != 0) return;
  const Draw draw = row.who.live() ? draw_of(row, found) : Draw{row.who.token(), row.status};
  a.p.tokens.data[index] = draw.token;
  if (a.p.status.data) a.p.status.data[index] = draw.status;
}

cudaError_t race_sample(const RaceParams& p, const Workspace& workspace, cudaStream_t stream, int64_t* needed) {
  Device device;
  const cudaError_t e = this_device(&device);
  if (e != cudaSuccess) return e;
  const int64_t rows = p.count();
  if (rows == 0) return *needed = 0, cudaSuccess;
  const int splits = splits_of_row(device, rows, p.rows.vocab, p.rows.dtype);
  const Room room = room_in(workspace);
  if (splits > 1 && (rows > room.ticket_count || rows * splits * kWordsAPartial > room.word_count))
    return *needed = room_needed(rows, rows * splits * kWordsAPartial), cudaSuccess;
  *needed = 0;
  const Shape shape = {rows * splits, threads_of_block(p.rows.vocab, p.rows.dtype)};
  return launch(race_sample_kernel, shape, {p, room, splits}, stream);
}

}  // namespace cuda
}  // namespace specdec
