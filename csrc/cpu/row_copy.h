// Row copies between two pools, shared by gather_compact, gather_plan and mirror_rows.
#pragma once

#include <algorithm>
#include <cstring>

#include "common/params.h"

namespace hisparse::cpu {

// Bytes that are worth waking another thread for.
constexpr int64_t kBytesPerTask = 1 << 15;

inline int64_t rows_per_task(const PoolPair& pools) {
  const int64_t row = pools.row_bytes * static_cast<int64_t>(pools.source.layers.size());
  return std::max<int64_t>(1, kBytesPerTask / std::max<int64_t>(1, row));
}

// What becomes of a destination whose source row lies beyond the end.
enum class BeyondEnd { kSkip, kZeros };

// Copies row source[i] of every layer to destination[i]. The layer goes fastest: where a token's rows lie side by
// side, they are read as one piece.
template <BeyondEnd beyond_end>
void copy_rows(const PoolPair& pools, const int32_t* source, const int32_t* destination, int64_t count) {
  const size_t layers = pools.source.layers.size();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t from = source[i], to = destination[i];
    if (from < 0 || to < 0 || to >= pools.destination.rows) continue;
    const bool inside = from < pools.source.rows;
    if (!inside && beyond_end == BeyondEnd::kSkip) continue;
    for (size_t l = 0; l < layers; ++l) {
      const Layer& src = pools.source.layers[l];
      const Layer& dst = pools.destination.layers[l];
      char* target = dst.data + to * dst.row_stride;
      if (inside) {
        std::memcpy(target, src.data + from * src.row_stride, pools.row_bytes);
      } else {
        std::memset(target, 0, pools.row_bytes);
      }
    }
  }
}

// Copies `count` consecutive rows of every layer.
inline void copy_extent(const PoolPair& pools, int64_t from, int64_t to, int64_t count) {
  for (size_t l = 0; l < pools.source.layers.size(); ++l) {
    const Layer& src = pools.source.layers[l];
    const Layer& dst = pools.destination.layers[l];
    const char* source = src.data + from * src.row_stride;
    char* target = dst.data + to * dst.row_stride;
    if (src.row_stride == pools.row_bytes && dst.row_stride == pools.row_bytes) {
      std::memcpy(target, source, count * pools.row_bytes);
      continue;
    }
    for (int64_t row = 0; row < count; ++row) {
      std::memcpy(target + row * dst.row_stride, source + row * src.row_stride, pools.row_bytes);
    }
  }
}

}  // namespace hisparse::cpu
