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

// What one block of `resolve`, or several together, answer of a batch. Rows of no request come to somebody,
// too:
//
// | rows                                   | answered by                                   |
// |----------------------------------------|-----------------------------------------------|
// | before the first start, from the last  | all blocks in turn                            |
// | of a real request                      | its block or blocks                           |
// | of a padding request, or skipped by    | the first block of the request from whose     |
// | starts that run backwards              | furthest start they are the next              |
struct Share {
  int32_t begin, end;   // rows answered alone
  bool real;            // whether these are the rows of a request
  int32_t state;        // its state row; kNone when it has none of its own
  int32_t first, last;  // rows that single blocks answer; the others go round
};

// A batch of at least one request as `resolve` reads it.
struct Requests {
  const int32_t* query_start;
  const int32_t* state_rows;
  int32_t count, query_rows, states;

  __device__ __forceinline__ int32_t start_of(int32_t request) const {
    return min(max(query_start[request], 0), query_rows);
  }

  // The share of a request in a regular batch.
  __device__ __forceinline__ Share share(int32_t request) const {
    const int32_t state = state_rows[request];
    return {.begin = start_of(request),
            .end = start_of(request + 1),
            .real = state >= 0,
            .state = state >= 0 && state < states ? state : kNone,
            .first = query_start[0],
            .last = query_start[count]};
  }

  // What a look at the whole batch needs of one request.
  struct Seen {
    int32_t request, start, end, state;

    // Whether it starts behind its end, or is ahead of `other` and has the same state row.
    __device__ __forceinline__ bool odd(int32_t other, int32_t other_state) const {
      return start > end || (other_state != kNone && request < other && state == other_state);
    }
  };
  __device__ __forceinline__ Seen see(int32_t request) const {
    if (request >= count) return {request, 0, 0, kNone};
    return {request, query_start[request], query_start[request + 1], state_rows[request]};
  }

  // This thread's part of a block's look at the whole batch: starts that run backwards or lie outside, or a
  // state row that an earlier request has named. `first` is what it saw of the request with its own number.
  template <int kThreads>
  __device__ __forceinline__ bool irregular(int32_t request, const Share& share, const Seen& first) const {
    bool odd = share.first < 0 || share.last > query_rows || first.odd(request, share.state);
#pragma unroll 1
    for (int32_t r = first.request + kThreads; r < count; r += kThreads) {
      odd |= see(r).odd(request, share.state);
    }
    return odd;
  }

  // The share of a request in any batch, from what share() says of it.
  __device__ __noinline__ Share careful_share(int32_t request, Share share) const {
    const int32_t furthest = furthest_start(query_start, request, query_rows);
    share.real = share.real && query_span(share.begin, share.end, furthest).size() > 0;
    for (int32_t r = 0; r < request && share.state != kNone; ++r) {
      if (state_rows[r] == share.state) share.state = kNone;
    }
    share.begin = max(share.begin, furthest);
    share.end = max(share.begin, share.end);
    share.last = furthest_start(query_start, int64_t{count} + 1, query_rows);
    return share;
  }
};

}  // namespace hisparse::cuda
