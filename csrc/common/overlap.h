// Whether the two pools of a copy share memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "params.h"

namespace hisparse {

// The bytes from the first to the last of a pool layer.
struct Extent {
  uintptr_t begin, end;
};

inline Extent extent(const Layer& layer, int64_t rows, int64_t row_bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(layer.data);
  return {begin, rows == 0 ? begin : begin + (rows - 1) * layer.row_stride + row_bytes};
}

inline Extent extent(const Pool& pool, int64_t row_bytes) {
  Extent whole{UINTPTR_MAX, 0};
  for (const Layer& layer : pool.layers) {
    const Extent part = extent(layer, pool.rows, row_bytes);
    whole = {std::min(whole.begin, part.begin), std::max(whole.end, part.end)};
  }
  return whole;
}

inline bool meet(Extent one, Extent other) { return one.begin < other.end && other.begin < one.end; }

// Whether two pools share a byte. Columns of one tensor lie in one another's extent without meeting.
inline bool overlap(const PoolPair& pair) {
  const auto& [source, destination, width] = pair;
  if (!meet(extent(source, width), extent(destination, width))) return false;
  for (const Layer& from : source.layers) {
    for (const Layer& to : destination.layers) {
      if (!meet(extent(from, source.rows, width), extent(to, destination.rows, width))) continue;
      if (from.row_stride != to.row_stride || from.row_stride == 0) return true;
      const int64_t apart = std::abs(from.data - to.data) % from.row_stride;
      if (apart < width || apart + width > from.row_stride) return true;
    }
  }
  return false;
}

}  // namespace hisparse
