// verify_chain in one launch: the kernels of chain/.
#include "../chain/chunks.cuh"
#include "../chain/filtered.cuh"

namespace specdec::cuda {
namespace {

cudaError_t launch_chain(const ChainParams& p, const Device& device) {
  if (p.method == SPECDEC_RACE) return launch_chain_race(p, device);
  const bool block = p.method == SPECDEC_BLOCK;
  const int64_t requests = p.batch(), drafts = p.max_drafts();
  ChainArguments a = {};
  a.p = p;
  const bool weighs =
      block || p.target_law.space == SPECDEC_LOGITS || (p.draft.data && p.draft_law.space == SPECDEC_LOGITS);
  const int64_t together = (weighs ? kRowsTogether : kProbsTogether) / requests, at_once = blocks_at_once(device);
  a.chunk_size = static_cast<int>(together < 1 ? 1 : together < kLaneDrafts ? together : kLaneDrafts);
  if (a.chunk_size > drafts) a.chunk_size = drafts < 1 ? 1 : static_cast<int>(drafts);
  const bool in_chunks = !block && a.chunk_size < drafts;
  const int64_t chunks = in_chunks ? (drafts + a.chunk_size - 1) / a.chunk_size + 1 : 1;
  // A chunk has two blocks for each resident one, so most of the chunk before have ended when they start.
  const int64_t wanted = in_chunks ? (2 * at_once + requests - 1) / requests : device.teams ? at_once / requests : 1;
  a.parts = parts_of_rows(p.target.vocab, wanted);
  a.rows = p.draft.data ? 2 * a.chunk_size : a.chunk_size + 1;
  const int parts = a.parts.count.by(), tiles = a.parts.tiles;
  // Double-buffered: a fast block weighs the next chunk while others still read the words of this one.
  a.sets = (in_chunks || parts > 1) && a.chunk_size < drafts ? 2 : 1;
  const int64_t words = a.sets * requests * a.rows * kWordsATile * tiles, sums = block ? requests * p.width() * parts : 0;
  const int64_t tickets = kTicketSize * (in_chunks ? 2 * requests + 1 : requests);
  const Workspace& workspace = device.workspace;
  if (workspace.lacks(tickets, words + sums)) return cudaSuccess;
  a.tickets = reinterpret_cast<Ticket*>(workspace.tickets);
  a.chunks = reinterpret_cast<DraftChunks*>(a.tickets + requests);
  a.started = reinterpret_cast<unsigned*>(a.chunks + requests);
  a.tile_words = workspace.partials, a.sums = workspace.partials + words;
  a.requests = quotient(requests);
  Shape shape = {requests * parts * chunks, kThreads};
  shape.overlaps = true;
  shape.cooperative = !in_chunks && parts > 1, shape.multiprocessors = device.multiprocessors;
  shape.dynamic_shared = kStagedBytes + rows_in_shared(a) * sizeof(RowStats) + (block ? p.width() * sizeof(Leaf) : 0);
  if (shape.dynamic_shared > device.dynamic_shared) return cudaErrorLaunchOutOfResources;
  return launch(block ? chain_block_kernel : in_chunks ? chain_chunk_kernel : chain_rejection_kernel, shape, a,
                device.stream);
}

}  // namespace

cudaError_t verify_chain(const ChainParams& p, const Call& call) {
  static const Kernels kernels(filtered_chain_kernel, chain_race_kernel, chain_rejection_kernel,
                               chain_chunk_kernel, chain_block_kernel);
  return on_device(call, p.batch(), kernels, [&](const Device& device) {
    return is_shaped(p) ? launch_filtered(p, device) : launch_chain(p, device);
  });
}

}  // namespace specdec::cuda
