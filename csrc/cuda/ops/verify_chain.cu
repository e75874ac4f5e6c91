// verify_chain in one launch: straight (walk/straight.cuh), with filters or edits, too (walk/filtered_chain.cuh).
#include "../walk/filtered_chain.cuh"

namespace specdec::cuda {

cudaError_t verify_chain(const ChainParams& p, const Workspace& workspace, cudaStream_t stream, int64_t* needed) {
  static const Kernels kernels(filtered_chain_kernel, straight_race_kernel, straight_rejection_kernel,
                               straight_turn_kernel, straight_block_kernel);
  *needed = 0;
  if (p.batch() == 0) return cudaSuccess;
  const Room room = room_in(workspace);
  return on_device(stream, kernels, [&](const Device& device) {
    return is_shaped(p) ? launch_filtered(p, device, room, stream, needed)
                        : launch_straight(p, device, room, stream, needed);
  });
}

}  // namespace specdec::cuda
