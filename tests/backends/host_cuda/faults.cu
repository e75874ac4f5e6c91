// Kernels with a planted fault each, and one that has none: tests of the machine itself.
#include <cuda_runtime.h>

#include "../../../csrc/cuda/arch.cuh"

namespace faults {

using namespace specdec::cuda;

enum Fault : int {
  kNone,
  kMissingBarrier,       // a thread reads what its neighbour in another warp writes
  kBarrierInBranch,      // half of the block never arrives
  kEarlyExit,            // one thread leaves before the barrier
  kOffByOne,             // one element past a shared array
  kUnwritten,            // a shared word nobody wrote
  kShuffleFromOutside,   // reads a lane outside the mask
  kVoteWithoutALane,     // a lane of the mask stays away
  kLostTicket,           // the ticket is a load and a store, not an atomic
  kSpinsForEver,         // waits for a flag nobody raises
  kClusterBarrier,       // one block of the cluster skips the barrier
  kPeerLeft,             // reads the shared memory of a block that may have left
  kWriteAfterRead,       // overwrites what another warp may still read
  kReadBesideAtomic,     // a plain read of a word that another warp updates by an atomic
  kRelaxedTicket,        // a ticket that neither releases nor acquires
  kOneSet,               // a word written again while another block may still read it
  kFencedCluster,        // none: what a cluster shares is fenced
  kUnfencedWrite,        // a block reads what its peer wrote without a fence before their barrier
  kUnfencedRead,         // a block writes over what its peer read without a fence before their barrier
  kWaits,                // none: waits for the kernel before
  kNeverWaits,           // a kernel that may overlap with the one before it, and never waits
  kTouchesEarly,         // reads a row before it waits
  kReadsEarly,           // reads a row early by a load that the machine cannot see: it gets what was there before
};

__global__ void planted(int which, unsigned* counter, float* out, const float* in) {
  SPECDEC_SHARED(float, values, 64);
  const int t = static_cast<int>(threadIdx.x);
  const float early = in[which == kReadsEarly ? t : 0];
  if (which == kTouchesEarly) load_stream(in);
  if (which != kNeverWaits) wait_for_kernel_before();
  if (which == kEarlyExit && t == 33) return;
  values[t] = which == kReadsEarly ? early : in[t];
  if (which == kBarrierInBranch) {
    if (t < 32) __syncthreads();
  } else if (which != kMissingBarrier) {
    __syncthreads();
  }
  float sum = which == kUnwritten ? 0.0f : static_cast<float>(values[(t + 32) % 64]);
  if (which == kOffByOne) sum += values[t + 1];
  if (which == kUnwritten) {
    SPECDEC_SHARED(float, never, 8);
    sum += never[t % 8];
  }
  if (which == kWriteAfterRead) values[t] = sum;
  if (which == kShuffleFromOutside && t < 16) sum += __shfl_sync(0xffffu, sum, 20);
  if (which == kVoteWithoutALane && t % 32 != 5) sum += __any_sync(0xffffffffu, sum > 0.0f);
  if (which == kReadBesideAtomic) {
    SPECDEC_SHARED(unsigned, most, 1);
    if (t == 0) most[0] = 0;
    __syncthreads();
    if (t == 0) atomicMax(&most[0], 1u);
    else if (t == 32) sum += static_cast<float>(most[0]);
  }
  if (which == kClusterBarrier && block_rank() != 1) sync_cluster();
  if (which == kPeerLeft) {
    if (block_rank() == 0) sum += peer(values, 1)[t];
  }
  if (which == kFencedCluster || which == kUnfencedWrite || which == kUnfencedRead) {
    SPECDEC_SHARED(float, theirs, 64);
    theirs[t] = in[t];
    if (which != kUnfencedWrite) fence_cluster();
    sync_cluster();
    sum += peer(theirs, block_rank() ^ 1u)[t];
    if (which != kUnfencedRead) fence_cluster();
    sync_cluster();
    theirs[t] = sum;
    sync_cluster();
    sum -= static_cast<float>(theirs[t]) - sum + in[t];
  }
  if (which == kSpinsForEver)
    while (load_acquire(counter + 1) == 0) {
    }
  if (which == kRelaxedTicket && t == 0) {
    put_word(out + blockIdx.x, sum);
    if (atomicAdd(counter + 1, 1u) == gridDim.x - 1) *counter = 0, sum += load_fresh(out + (blockIdx.x + 1) % gridDim.x);
  }
  if (which == kOneSet && t == 0) {  // between the two blocks of a cluster
    put_word(out + blockIdx.x, sum);
    unsigned* const meeting = counter + 1 + blockIdx.x / 2;
    add_acquire_release(meeting, 1u);
    while (load_acquire(meeting) < 2) {
    }
    sum += load_fresh(out + (blockIdx.x ^ 1u));
    put_word(out + blockIdx.x, sum);
  }
  __syncthreads();
  if (t == 0) {
    unsigned ticket;
    if (which == kLostTicket) {
      ticket = load_acquire(counter);
      *counter = ticket + 1;
    } else {
      ticket = atomicAdd(counter, 1u);
    }
    if (ticket == gridDim.x - 1) out[64] = 1.0f, *counter = 0;
  }
  if (blockIdx.x == 0) out[t] = sum;
}

}  // namespace faults

extern "C" int run_planted(int which, int blocks, int cluster, unsigned* counter, float* out, float* in) {
  static float before[64];  // what the kernel before writes into `in`, in place of zeros
  cudaLaunchAttribute attribute[2];
  attribute[0].id = cudaLaunchAttributeClusterDimension;
  attribute[0].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(64);
  config.attrs = attribute;
  config.numAttrs = 1;
  if (which >= faults::kWaits) {
    attribute[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[1].val.programmaticStreamSerializationAllowed = 1;
    config.numAttrs = 2;
    std::memcpy(before, in, sizeof before);
    std::memset(in, 0, sizeof before);
    host_cuda::kernel_before(in, before, sizeof before);
  }
  return cudaLaunchKernelEx(&config, faults::planted, which, counter, out, in);
}
