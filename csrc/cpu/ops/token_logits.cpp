// token_logits on the CPU: the logits of some tokens in rows, which may be parts of rows.
#include <optional>

#include "../rows/edits.h"
#include "../rows/law_row.h"
#include "specdec/c/sharded.h"

SPECDEC_BEGIN

void token_logits(const TokenLogitsParams& p, int threads) {
  over_requests(p.batch(), 1, threads, [&](int64_t index, const ThreadTeam&) {
    float* const logits = p.logits.data + index * p.logits.columns;
    const int64_t index_of_row = p.row(index);
    const bool exists = p.rows.has(index_of_row);
    Row row = exists ? row_at(p.rows, p.rows.offset_of(index_of_row)) : Row{};
    std::optional<Editor> editor;
    for (int64_t i = 0; i < p.logits.columns; ++i) {
      const int64_t column = p.token(index, i) - p.rows.vocab_start;
      logits[i] = 0.0f;
      if (!exists || column < 0 || column >= p.rows.vocab) continue;
      if (!editor && p.edits.on()) {  // the first token of this part
        const RowIndex row_index = {index_of_row / p.rows.rows, index_of_row % p.rows.rows};
        editor.emplace(p.edits, p.rows.vocab, row_index, 0);
        editor->edit(&row, row_index);
      }
      logits[i] = element(row, static_cast<int32_t>(column));
    }
  });
}

SPECDEC_END
