/* specdec-kernels for ranks that share a vocabulary: the ops that specdec_kernels.sharded is made of, which verification
 * over parts of rows needs beside those of specdec.h. Each rank has a part of every row, beginning with a multiple of 1,024
 * tokens. Races give the scores of their part's candidates, by which they are compared. All that specdec.h says of ops
 * holds here.
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
