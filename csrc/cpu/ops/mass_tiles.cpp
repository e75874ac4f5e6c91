// mass_tiles on the CPU: what the tiles of rows weigh.
#include "../rows/edits.h"
#include "../rows/law_row.h"
#include "specdec/c/sharded.h"
#include "specdec/request.h"

SPECDEC_BEGIN

void mass_tiles(const MassTilesParams& p, int threads) {
  const int32_t count = static_cast<int32_t>(p.tiles.columns / 3);
  over_requests(p.count(), tiles_of(p.rows.vocab), threads, [&](int64_t index, const ThreadTeam& team) {
    const int64_t i = index / p.rows.rows, j = index % p.rows.rows;
    int32_t* row_tiles = p.tiles.data + index * p.tiles.columns;
    const Entry source = decode_entry(p.request_index, i);
    int32_t status = source.status();
    const Law law = source.live() ? law_at(p.law, source.index, j, &status) : Law{};
    const bool weighs = source.live() && !law.greedy;
    Row row = row_at(p.rows, p.rows.offset(i, j));
    Editor editor(p.edits, p.rows.vocab, {source.index, j}, 0);
    if (source.live()) editor.edit(&row, {i, j});
    status |= editor.status;
    const RowMemory memory(0, row, false);
    if (weighs) status |= row_cells_and_masses(row, law.logits(), team, memory.cells, memory.mass_tiles);
    for (int32_t tile = 0; tile < count; ++tile)
      put_tile(row_tiles, count, tile, weighs ? memory.mass_tiles[tile] : kNoTile);
    p.status.data[index] = status;
  });
}

SPECDEC_END
