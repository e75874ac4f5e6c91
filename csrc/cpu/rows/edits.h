// The edits of the target's rows (specdec/edit.h). The few tokens with a bias or a penalty are listed with their edited
// logits, once a row. A grammar's mask is read in place. So nothing as long as a row is written.
#pragma once

#include "law_row.h"
#include "specdec/edit.h"
#include "specdec/walk.h"

SPECDEC_BEGIN

// Edits the rows of one request, one after another. It uses scratch memory, so a thread has one Editor at a time.
class Editor {
 public:
  // `entry` is the index of the request's numbers and lists. At most `later` different tokens will be counted.
  Editor(const specdec_edits& params, int32_t vocabulary, const RowIndex& entry, int32_t later)
      : p(params), vocab(vocabulary), entry(entry) {
    if (p.on()) begin(later);
  }

  int32_t status = SPECDEC_STATUS_OK;

  // Edits a row, which has this index among the target's. The row reads the edits until the next call.
  void edit(Row* row, const RowIndex& target) {
    if (p.on()) edit_row(row, target);
  }

  // Counts a token as output, from the next row on.
  void count(int32_t token) {
    if (penalties.on()) count_token(token);
  }

  // Reverts the last `count`, from the next row on.
  void uncount() {
    if (penalties.on()) uncount_token();
  }

 private:
  // edited_row.cpp.
  void begin(int32_t later);
  void edit_row(Row* row, const RowIndex& target);
  void count_token(int32_t token);
  void uncount_token();
  void list_tokens(const RowIndex& of_bias);
  void mark(const int32_t* output, const int32_t* prompt, const BiasSpan& span);
  void write_tokens();
  void write_counts(const int32_t* output, const int32_t* prompt, const int32_t* output_counts);
  template <class F>
  void each_bias(const BiasSpan& span, F&& f);

  int32_t index_of(int32_t token) const;

  const specdec_edits& p;
  const int32_t vocab;
  const RowIndex entry;
  ListIndex seen;  // the entry's masks and counts
  Penalties penalties;
  RowEdits edits = {};

  // Tokens that count as output and are not in its mask: the pending ones, and those of the draft.
  int32_t* extra;
  int32_t* earlier;  // the draft tokens' counts before
  int32_t extras = 0;

  // The listed tokens, by rising id.
  int32_t listed = 0, more = 0;  // how many are listed, and how many may be added
  uint64_t* bits;
  int32_t *before, *tokens, *counts;
  float *bias, *values;  // `values` are those of the row edited last
};

// A target's row with its law and its edits, as ops on rows read it. `row` points into this object.
class TargetRow {
 public:
  int32_t status = SPECDEC_STATUS_OK;  // bits of the law's and the edits' numbers
  LawRow row;

  // Row (i, j), with the law and edits of entry n.
  TargetRow(const Rows& rows, const specdec_law& law, const specdec_edits& edits, int64_t n, int64_t i, int64_t j)
      : row(law_row_of(rows, rows.offset(i, j), law, n, j, {nullptr, rows.vocab}, &status)),
        editor_(edits, rows.vocab, {n, j}, 0) {
    editor_.edit(&row.row, {i, j});
    status |= editor_.status;
  }
  TargetRow(const TargetRow&) = delete;

 private:
  Editor editor_;
};

SPECDEC_END
