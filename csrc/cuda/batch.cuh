// Which query rows a request owns: `query_start` as kernels read it.
#pragma once

#include "common/spans.h"
#include "warp.cuh"

namespace hisparse::cuda {

// The furthest start of the requests before `request`, for batches whose starts run backwards somewhere; in
// all others it is the request's own start.
inline __device__ __noinline__ int32_t furthest_start(const int32_t* query_start, int64_t request,
                                                      int64_t query_rows) {
  int64_t furthest = 0;
  for (int64_t r = 0; r < request; ++r) furthest = max(furthest, clamp_start(query_start[r], query_rows));
  return static_cast<int32_t>(furthest);
}

// The part of a batch that one block of `resolve` answers. Rows of no request come to one block each, too:
//
// | rows                                   | answered by                                   |
// |----------------------------------------|-----------------------------------------------|
// | before the first start, from the last  | all blocks in turn                            |
// | of a real request                      | its block                                     |
// | of a padding request, or skipped by    | the block of the request from whose furthest  |
// | starts that run backwards              | start they are the next                       |
struct Share {
  int32_t begin, end;   // rows answered alone
  bool real;            // whether these are the rows of a request
  int32_t state;        // its state row; kNone when it has none of its own
  int32_t first, last;  // rows that single blocks answer; the others go round
};

// For the whole block; `requests` may be 0.
template <int kThreads>
__device__ __forceinline__ Share request_share(const int32_t* query_start, const int32_t* state_rows,
                                               int32_t requests, int64_t query_rows, int64_t states) {
  const auto request = static_cast<int32_t>(blockIdx.x);
  if (request >= requests) {
    __syncthreads();
    return {0, 0, false, kNone, 0, 0};
  }
  const auto limit = static_cast<int32_t>(min(query_rows, int64_t{INT32_MAX}));
  const auto start_of = [&](int32_t r) { return min(max(query_start[r], 0), limit); };
  int32_t begin = start_of(request), end = start_of(request + 1);
  const int32_t first = start_of(0);
  int32_t last = start_of(requests);
  const int32_t state = state_rows[request];

  // Every block looks at the whole batch: starts that run backwards, and state rows named twice.
  bool real = state >= 0;
  bool odd = false;
  for (auto r = static_cast<int32_t>(threadIdx.x); r < requests; r += kThreads) {
    odd |= start_of(r) > start_of(r + 1);
    odd |= real && r < request && state_rows[r] == state;
  }
  bool known = real && state < states;
  if (__syncthreads_or(odd)) {
    const int32_t furthest = furthest_start(query_start, request, query_rows);
    real = real && query_span(begin, end, furthest).size() > 0;
    for (int32_t r = 0; r < request; ++r) known = known && state_rows[r] != state;
    begin = max(begin, furthest);
    end = max(begin, end);
    last = furthest_start(query_start, int64_t{requests} + 1, query_rows);
  }
  return {begin, end, real, known ? state : kNone, first, last};
}

}  // namespace hisparse::cuda
