// Which query rows belong to which request.
#pragma once

#include "hd.h"

namespace hisparse {

struct Span {
  int64_t begin, end;

  HISPARSE_HD int64_t size() const { return end - begin; }
};

HISPARSE_HD int64_t clamp_start(int32_t start, int64_t query_rows) {
  return start < 0 ? 0 : start < query_rows ? start : query_rows;
}

// Query rows of the request that starts at `start`, given the furthest start of any earlier request (all
// clamped). A request that starts before that, or ends before it starts, has none: spans never overlap.
HISPARSE_HD Span query_span(int64_t start, int64_t end, int64_t furthest) {
  return furthest <= start && start <= end ? Span{start, end} : Span{0, 0};
}

}  // namespace hisparse
