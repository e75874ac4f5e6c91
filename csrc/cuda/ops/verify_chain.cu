// verify_chain in one launch: walk/chain.cuh; with filters or edits walk/filtered_chain.cuh.
#include "../walk/filtered_chain.cuh"

namespace specdec::cuda {

cudaError_t verify_chain(const ChainParams& p, const Call& call) {
  static const Kernels kernels(filtered_chain_kernel, chain_race_kernel, chain_rejection_kernel,
                               chain_chunk_kernel, chain_block_kernel);
  return on_device(call, p.batch(), kernels, [&](const Device& device) {
    return is_shaped(p) ? launch_filtered(p, device) : launch_chain(p, device);
  });
}

}  // namespace specdec::cuda
