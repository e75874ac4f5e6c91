/* specdec-kernels for engines in C and C++: every op, on rows in the memory of the host or of a GPU, without Python or
 * torch.
 *
 * Each op has a struct of parameters and two functions:
 *
 *   int specdec_cpu_<op>(params, threads)
 *   int specdec_cuda_<op>(params, workspace, workspace_bytes, needed, stream)
 *
 * They write into the outputs that the struct points to. Both return SPECDEC_OK or an error, which specdec_last_error()
 * then describes. The parameters are checked first: a null pointer, an unknown dtype or sizes that do not fit together
 * are an error, and nothing runs. Memory cannot be checked: each pointer must be to memory of the right size and kind,
 * aligned as its elements are, and no output may overlap anything else.
 *
 * What the ops compute, and from which random numbers, is documented with the Python functions of the same names. The
 * bits are the same as theirs.
 *
 * Structs. Write them with designated initialisers, or zero them first: zero means "off" or "not given" in each field
 * that may be left out. Code written so compiles with newer headers, too: new fields come at the end of the parts below
 * (laws, noise, ...), and zero turns them off. Strides count elements. The last dimension of rows and outputs has a
 * stride of 1.
 *
 * CUDA. A function enqueues its kernel on `stream` (a cudaStream_t; NULL is the default stream) of the current device
 * and returns. It never waits for the device, so a graph can capture it. Its workspace is device memory that
 *
 *   - is aligned to 16 bytes, and zeroed once before its first use. Every kernel leaves it ready for the next.
 *   - serves one stream at a time. Kernels that may run at the same time need a workspace each, and so do graphs that
 *     are replayed on several streams.
 *   - keeps its size: pass the same `workspace_bytes` with the same memory, or zero it again.
 *   - is large enough. If it is not, SPECDEC_WORKSPACE_TOO_SMALL is returned, nothing is launched, and *needed is the
 *     number of bytes the call takes. Otherwise *needed is 0. `needed` may be NULL. Few calls take more than 256 KiB;
 *     some take none and run with NULL and 0.
 *
 * Threads may call all functions at the same time. Header and library must be of one version: compare specdec_version()
 * with SPECDEC_VERSION.
 */
#ifndef SPECDEC_H
#define SPECDEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SPECDEC_VERSION 100 /* 10,000 * major + 100 * minor + patch */

#if defined(__cplusplus)
extern "C++" { /* where this is included in a block of extern "C", no template may stand without it */
#endif

#include "specdec/c/parts.h"

/* ---- errors ----------------------------------------------------------------------------------------------------- */

enum {
  SPECDEC_OK = 0,
  SPECDEC_INVALID_ARGUMENT = 1,
  SPECDEC_WORKSPACE_TOO_SMALL = 2, /* CUDA functions: see above */
  SPECDEC_NO_CUDA = 3,             /* built without CUDA, or no device */
  SPECDEC_CUDA_ERROR = 4,
  SPECDEC_OUT_OF_MEMORY = 5, /* of the host */
  SPECDEC_INTERNAL_ERROR = 6
};

SPECDEC_API int specdec_version(void);
/* The meaning of an error number. */
SPECDEC_API const char* specdec_error_string(int error);
/* The last failure in this thread: the op, the argument, what was expected and what was given. Empty before the first
 * failure. The text is valid until the thread's next failure. */
SPECDEC_API const char* specdec_last_error(void);
/* SPECDEC_OK if the CUDA functions have a device to run on. */
SPECDEC_API int specdec_cuda_available(void);
/* Writes into `capture` the id of the capture that the stream is in, 0 if none. Each capture needs a separate
 * workspace, because the graph holds it. */
SPECDEC_API int specdec_cuda_capture(void* stream, uint64_t* capture);
/* Waits until the stream, which is in no capture, has finished its work. Other threads may capture meanwhile. */
SPECDEC_API int specdec_cuda_wait(void* stream);

/* ---- ops -------------------------------------------------------------------------------------------------------- */

#include "specdec/c/verify_chain.h"
#include "specdec/c/verify_tree.h"
#include "specdec/c/verify_linked_tree.h"
#include "specdec/c/races.h"
#include "specdec/c/pairs.h"
#include "specdec/c/rows.h"
#include "specdec/c/trees.h"
#include "specdec/c/caches.h"
#include "specdec/c/noise.h"

#if defined(__cplusplus)
}
#endif

#endif
