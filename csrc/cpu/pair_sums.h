// Sums over the rows of a pair, p and q, that were looked through.
#pragma once

#include "law_row.h"
#include "specdec/traversal.h"

SPECDEC_BEGIN

// W and R (specdec/walk.h) for this T; `tried` are the tokens of the children tried. Without it R is not summed.
Masses pair_sums(const LawRow& target, const LawRow& draft, float taken, const TokenList* tried, const Crew& crew);

// The same by bounds of p, q and T, after look_roughly.
SumsOf<Range> pair_sums(const LawRow& target, const LawRow& draft, Range taken, const TokenList* tried, const Crew& crew);

SPECDEC_END
