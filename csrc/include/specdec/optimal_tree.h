// The draft tree of k nodes with the most expected tokens: Kobus, Gündüz 2025, Algorithm 3. It runs on the host.
#pragma once

#include <cstdint>
#include <optional>
#include <queue>
#include <stdexcept>
#include <string>
#include <vector>

namespace specdec {

struct OptimalTree {
  std::vector<int32_t> parents, child_index;  // of k + 1 nodes; the root is node 0, its entries are -1
};

// A node's value is the product of the acceptances on its path. No acceptance may exceed 1 or that of the elder
// sibling, so a node's value is at most its parent's and its elder sibling's. So a priority queue that holds, for each
// node taken, the next sibling and the first child yields nodes by falling value, in O(k log k); equals in order seen.
//
// `acceptance(tree, parent, child)` gives the probability that the child-th child (from 0) of node `parent` is accepted
// if the parent is, nothing if there is no such child. Throws std::invalid_argument if one rises or is no probability,
// or if there are fewer than k children in all.
template <class Acceptance>
OptimalTree optimal_tree(int32_t k, Acceptance&& acceptance) {
  struct Candidate {
    double value, acceptance;
    int64_t seen;
    int32_t parent, child;
    bool operator<(const Candidate& other) const {
      return value < other.value || (value == other.value && seen > other.seen);
    }
  };
  OptimalTree tree = {{-1}, {-1}};
  std::vector<double> values = {1.0};
  std::priority_queue<Candidate> queue;
  int64_t seen = 0;
  const auto consider = [&](int32_t parent, int32_t child, double elder) {
    const std::optional<double> a = acceptance(tree, parent, child);
    if (!a) return;
    if (!(*a >= 0.0 && *a <= 1.0)) throw std::invalid_argument("probabilities; got " + std::to_string(*a));
    if (*a > elder)
      throw std::invalid_argument("no child more likely than its elder sibling; got " + std::to_string(*a) + " after " +
                                  std::to_string(elder));
    queue.push({values[static_cast<size_t>(parent)] * *a, *a, seen++, parent, child});
  };
  consider(0, 0, 1.0);
  for (int32_t node = 1; node <= k; ++node) {
    if (queue.empty())
      throw std::invalid_argument("at least " + std::to_string(k) + " nodes; got " + std::to_string(node - 1));
    const Candidate best = queue.top();
    queue.pop();
    tree.parents.push_back(best.parent);
    tree.child_index.push_back(best.child);
    values.push_back(best.value);
    consider(best.parent, best.child + 1, best.acceptance);
    consider(node, 0, 1.0);
  }
  return tree;
}

}  // namespace specdec
