// Which query rows a request owns: `query_start` as kernels read it.
#pragma once

#include "common/spans.h"
#include "warp.cuh"

namespace hisparse::cuda {

// The furthest start of the requests before `request`, for batches whose starts run backwards somewhere; in
// all others it is the request's own start.
__device__ __forceinline__ int64_t furthest_start(const int32_t* query_start, int64_t request,
                                                  int64_t query_rows) {
  int64_t furthest = 0;
  for (int64_t r = 0; r < request; ++r) furthest = max(furthest, clamp_start(query_start[r], query_rows));
  return furthest;
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
  Span rows;      // answered alone
  bool real;      // whether these are the rows of a request
  int32_t state;  // its state row; kNone when it has none of its own
  Span middle;    // rows that single blocks answer; the others go round
};

// For the whole block; `requests` may be 0.
__device__ __forceinline__ Share request_share(const int32_t* query_start, const int32_t* state_rows,
                                               int64_t requests, int64_t request, int64_t query_rows,
                                               int64_t states) {
  if (request >= requests) {
    __syncthreads();
    return {{0, 0}, false, kNone, {0, 0}};
  }
  int64_t start = clamp_start(query_start[request], query_rows);
  int64_t end = clamp_start(query_start[request + 1], query_rows);
  const int64_t first = clamp_start(query_start[0], query_rows);
  int64_t last = clamp_start(query_start[requests], query_rows);
  int32_t state = state_rows[request];

  // Every block looks at the whole batch: starts that run backwards, and state rows named twice.
  bool odd = false;
  for (int64_t r = threadIdx.x; r < requests; r += blockDim.x) {
    odd |= clamp_start(query_start[r], query_rows) > clamp_start(query_start[r + 1], query_rows);
    odd |= r < request && state >= 0 && state_rows[r] == state;
  }
  bool real = state >= 0;
  bool known = real && state < states;
  if (__syncthreads_or(odd)) {
    const int64_t furthest = furthest_start(query_start, request, query_rows);
    real = real && query_span(start, end, furthest).size() > 0;
    for (int64_t r = 0; r < request; ++r) known = known && state_rows[r] != state;
    start = max(start, furthest);
    end = max(start, end);
    last = furthest_start(query_start, requests + 1, query_rows);
  }
  return {{start, end}, real, known ? state : kNone, {first, last}};
}

}  // namespace hisparse::cuda
