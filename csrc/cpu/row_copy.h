// Row copies between two pools, shared by gather_compact, gather_plan and mirror_rows.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/params.h"
#include "stable.h"

namespace hisparse::cpu {

// Bytes that are worth waking another thread for.
constexpr int64_t kBytesPerTask = 1 << 15;

inline int64_t rows_per_task(const PoolPair& pools) {
  const int64_t row = pools.row_bytes * static_cast<int64_t>(pools.source.layers.size());
  return std::max<int64_t>(1, kBytesPerTask / std::max<int64_t>(1, row));
}

// Asks memory for rows before they are needed: they lie anywhere, so the hardware cannot see the next one
// coming. Random copies become 1.6 times as fast.
class Prefetcher {
 public:
  explicit Prefetcher(const PoolPair& pools)
      : pools_(pools), sources_(pieces(pools.source)), destinations_(pieces(pools.destination)) {}

  // Called when pair i is next, of those before `end`.
  [[gnu::always_inline]] void look_ahead(PairList pairs, int64_t i, int64_t end) const {
    // A source row needs only a push: the hardware reads on from there. Lines to be written need to be asked
    // for, each, and earlier.
    constexpr int64_t kPush = 256;
    constexpr int64_t kReadAhead = 2, kWriteAhead = 8;
    if (i + kReadAhead < end && inside(pools_.source, pairs.source[i + kReadAhead])) {
      for (const Piece& piece : sources_) {
        touch<false>(piece, pairs.source[i + kReadAhead], std::min(kPush, piece.bytes));
      }
    }
    if (i + kWriteAhead < end && inside(pools_.destination, pairs.destination[i + kWriteAhead])) {
      for (const Piece& piece : destinations_) {
        touch<true>(piece, pairs.destination[i + kWriteAhead], piece.bytes);
      }
    }
  }

 private:
  // The bytes of a row that lie side by side: one layer, or several of a token-major pool.
  struct Piece {
    const char* data;
    int64_t row_stride, bytes;
  };

  std::vector<Piece> pieces(const Pool& pool) const {
    std::vector<Piece> found;
    for (const Layer& layer : pool.layers) {
      if (!found.empty() && found.back().data + found.back().bytes == layer.data) {
        found.back().bytes += pools_.row_bytes;
      } else {
        found.push_back({layer.data, layer.row_stride, pools_.row_bytes});
      }
    }
    return found;
  }

  static bool inside(const Pool& pool, int64_t row) { return row >= 0 && row < pool.rows; }

  template <bool for_writing>
  [[gnu::always_inline]] static void touch(const Piece& piece, int64_t row, int64_t bytes) {
    constexpr uintptr_t kLine = 64;
    constexpr int kSecondLevel = 2;  // the first-level cache is too small for what is on its way
    const auto first = reinterpret_cast<uintptr_t>(piece.data + row * piece.row_stride);
    for (uintptr_t line = first / kLine * kLine; line < first + bytes; line += kLine) {
      __builtin_prefetch(reinterpret_cast<const void*>(line), for_writing, kSecondLevel);
    }
  }

  const PoolPair& pools_;
  std::vector<Piece> sources_, destinations_;
};

// What becomes of a destination whose source row lies beyond the end.
enum class BeyondEnd { kSkip, kZeros };

// Copies row source[i] of every layer to row destination[i], for all pairs. The layer goes fastest: where a
// token's rows lie side by side, they are read as one piece.
template <BeyondEnd beyond_end>
void copy_rows(const PoolPair& pools, PairList pairs) {
  const size_t layers = pools.source.layers.size();
  const Prefetcher prefetcher(pools);
  parallel_for(0, pairs.count, rows_per_task(pools), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      prefetcher.look_ahead(pairs, i, end);
      const int64_t from = pairs.source[i], to = pairs.destination[i];
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
  });
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
