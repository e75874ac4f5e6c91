// tree_parents on the CPU.
#include "../threads.h"
#include "specdec/links.h"

SPECDEC_BEGIN

void tree_parents(const LinksParams& p, int threads) {
  over_requests(p.parents.rows, 1, threads, [&](int64_t b, const ThreadTeam&) {
    const Links links(p, b);
    const auto over_nodes = [&](auto&& f) {
      for (int32_t node = 0; node < links.nodes; ++node) f(node);
    };
    p.status.data[b] = read_links(links, over_nodes, [](int32_t* word, int32_t value) {
      if (*word < value) *word = value;
    });
  });
}

SPECDEC_END
