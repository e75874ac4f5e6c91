/* specdec-kernels for ranks that share a vocabulary: the ops that verification over parts of rows needs beside those of
 * specdec.h, as specdec_kernels.sharded calls them. Each rank has a part of every row, beginning with a multiple
 * of 1,024 tokens. Races also write the scores of their part's candidates, by which these are compared. The rules of
 * specdec.h apply.
 */
#ifndef SPECDEC_SHARDED_H
#define SPECDEC_SHARDED_H

#include "specdec.h"

#if defined(__cplusplus)
extern "C++" {
#endif

#include "specdec/c/sharded.h"

#if defined(__cplusplus)
}
#endif

#endif
