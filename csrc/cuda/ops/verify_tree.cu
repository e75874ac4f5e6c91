// verify_tree in one launch: a team of blocks walks each request's tree and stops (tree/walk_request.cuh). Rows off the
// accepted path are not read, but for those that traversal visits.
#include "../tree/walk_request.cuh"

namespace specdec::cuda {

namespace {

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) tree_kernel(const WalkArguments a) {
  wait_for_kernel_before();
  walk_request<NoShape>(a);
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    shaped_tree_kernel(const ShapedWalkArguments a) {
  wait_for_kernel_before();
  walk_request<RequestShape>(a);
}

// Shared memory of walk_paths.
size_t bytes_of_paths(const TreeParams& p, const TeamShape& shape) {
  if (p.method != SPECDEC_PATHS) return 0;
  return bytes_of_chosen(p.width()) + (bytes_of_buckets(shape.threads / 32) + 15) / 16 * 16;
}

cudaError_t launch_tree(const TreeParams& p, const Device& device) {
  const int sides = p.draft.data ? 2 : 1;
  const bool shaped = is_shaped(p);
  ShapedWalkArguments a = {};
  a.p = p;
  a.edited = p.edits.on();
  a.tiles = longest_tiles(p);
  const size_t marks = p.method != SPECDEC_RACE ? (p.target.vocab + 127) / 128 * size_t{16} : 0;
  // Shared memory that still lets a second block run on the multiprocessor. The device takes 1 KiB for each of them.
  const size_t room_of_block = device.dynamic_shared / kBlocksAMultiprocessor - 512;
  TeamShape shape = shaped ? shaped_team(device, p.batch(), p.target, sides, Ends::kOneByOne)
                           : team_shape(device, p.batch(), p.target, sides, Ends::kOneByOne);
  const size_t drafts = shaped ? bytes_of_drafts(p) : 0, staged = shaped || p.method == SPECDEC_RACE ? 0 : kStagedBytes;
  const size_t taken = plan_rows(a, 16) + drafts + marks + bytes_of_paths(p, shape);
  CutPlan cut = cut_plan(shape, p.batch(), longest(p), taken, shape.grid ? room_of_block : device.dynamic_shared);
  // Blocks that wait for each other must run at the same time.
  if (shape.grid && taken + (shaped ? cut.shared_bytes : staged) > room_of_block) {
    shape = {shape.threads, 1, false};
    cut = cut_plan(shape, p.batch(), longest(p), taken, device.dynamic_shared);
  }
  const size_t cuts = shaped ? cut.shared_bytes : 0;
  const int items = shaped ? cut.items : words_of_items(shape, sides * a.tiles, kWordsATile);
  const int sums = items_of_members(shape, p.method == SPECDEC_PATHS ? kBucketSums : 2);
  const int64_t draws = shape.size > 1 ? p.batch() : 0;  // the last block of a team gets the draw
  const TeamPlan plan =
      team_plan(shape, p.batch(), items > sums ? items : sums, draws, draws * shape.size * kWordsAPartial);
  if (plan.lacks(device.workspace)) return cudaSuccess;
  a.team = plan.team(device.workspace);
  a.draws = {device.workspace.tickets, device.workspace.partials, shape.size};
  a.cut = cut.memory;
  a.cut.at = plan.shared_bytes();
  a.drafted_at = plan_rows(a, plan.shared_bytes() + cuts);
  a.tried_at = a.drafted_at + drafts;
  a.paths_at = a.tried_at + marks;
  a.held_at = a.paths_at + bytes_of_paths(p, shape);
  const int fours = items_a_member(sum_tiles_of(p.target.vocab), shape.size) * kSumTile / 4;
  const size_t held = 2 * sizeof(Four) * fours;
  if (sides == 2 && a.held_at + held <= room_of_block) a.held_fours = fours;
  const size_t shared = a.held_at + (a.held_fours && held > staged ? held : staged);
  if (shaped) return launch_teams(shaped_tree_kernel, plan, device, a, shared);
  return launch_teams<WalkArguments>(tree_kernel, plan, device, a, shared);
}

}  // namespace

cudaError_t verify_tree(const TreeParams& p, const Call& call) {
  static const Kernels kernels(tree_kernel, shaped_tree_kernel);
  return on_device(call, p.batch(), kernels, [&](const Device& device) { return launch_tree(p, device); });
}

}  // namespace specdec::cuda
