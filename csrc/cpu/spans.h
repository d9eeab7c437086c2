// The query rows of every request of a batch, in one pass.
#pragma once

#include <algorithm>
#include <vector>

#include "common/spans.h"

namespace hisparse::cpu {

inline std::vector<Span> query_spans(const int32_t* query_start, int64_t requests, int64_t query_rows) {
  std::vector<Span> spans;
  spans.reserve(requests);
  int64_t furthest = 0;
  for (int64_t r = 0; r < requests; ++r) {
    const int64_t start = clamp_start(query_start[r], query_rows);
    spans.push_back(query_span(start, clamp_start(query_start[r + 1], query_rows), furthest));
    furthest = std::max(furthest, start);
  }
  return spans;
}

}  // namespace hisparse::cpu
