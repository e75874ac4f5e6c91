// verify_chain in one launch: straight (walk/straight.cuh), with filters or edits, too (walk/filtered_chain.cuh).
#include "../walk/filtered_chain.cuh"

namespace specdec::cuda {

cudaError_t verify_chain(const ChainParams& p, const Call& call) {
  static const Kernels kernels(filtered_chain_kernel, straight_race_kernel, straight_rejection_kernel,
                               straight_turn_kernel, straight_block_kernel);
  return on_device(call, p.batch(), kernels, [&](const Device& device) {
    return is_shaped(p) ? launch_filtered(p, device) : launch_straight(p, device);
  });
}

}  // namespace specdec::cuda
