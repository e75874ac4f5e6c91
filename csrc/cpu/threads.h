// Requests over threads; with fewer requests than threads, rows over threads instead.
#pragma once

#include "specdec/config.h"

SPECDEC_BEGIN

// Calls f(request, threads_a_row) for every request.
template <class F>
SPECDEC_HD void over_requests(int64_t requests, int threads, F&& f) {
  if (threads <= 1 || requests < threads) {
    for (int64_t b = 0; b < requests; ++b) f(b, threads);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (int64_t b = 0; b < requests; ++b) f(b, 1);
}

SPECDEC_END
