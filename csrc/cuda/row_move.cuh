// Moves rows of all layers from one pool to another in one launch: the body of gather_compact, gather_plan,
// mirror_rows and copy_blocks, which differ only in their route, the list of (source row, destination row).
//
// Where the rows of a token's layers lie side by side in one of the pools, they form a segment, which is read
// or written as one piece; else every row is a segment of its own.
//
// | unit    | what                                                                  | done by               |
// |---------|-----------------------------------------------------------------------|-----------------------|
// | token   | one entry of the route, in all layers                                 |                       |
// | piece   | as many segments of a token as kRounds rounds hold, at least one      | one warp              |
// | round   | 32 words of a segment, cut at 128-byte lines of the segment's pool    | one access of a warp  |
//
// The rounds of a piece are all in flight before the first is stored. Pieces of the whole batch go round the
// warps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "common/params.h"
#include "divisor.cuh"
#include "launch.cuh"
#include "warp.cuh"

namespace hisparse::cuda {

// A link to host memory is busy with few SMs; the others stay free for the attention that runs beside.
constexpr int kMoveBlocks = 16;
constexpr int kMoveThreads = 512;
constexpr int kMoveWarps = kMoveThreads / kWarp;
constexpr int kRounds = 8;
constexpr int kLineBytes = 128;
constexpr int kLayersPerLaunch = 64;  // their addresses are kernel arguments

struct RowPair {
  int64_t source, destination;
};

// What becomes of a destination whose source row lies beyond the end.
enum class BeyondEnd { kSkip, kZeros };

struct LayerPair {
  Layer source, destination;
};

struct RowMove {
  LayerPair layers[kLayersPerLaunch];
  int64_t source_rows, destination_rows;
  BeyondEnd beyond_end;
  bool segments_in_source;
  Divisor words_per_row;
  int32_t segment_words, segment_layers;
  int32_t segments, segments_per_piece, rounds_per_segment, pieces;
};

// Moves the words of one piece of a token. `zeros` stands for a source that does not exist.
template <class Word>
__device__ __forceinline__ void move_piece(const RowMove& move, RowPair rows, int32_t piece, bool zeros) {
  constexpr int kWordsPerLine = kLineBytes / sizeof(Word);
  const int32_t first_segment = piece * move.segments_per_piece;
  const int32_t last_segment = min(first_segment + move.segments_per_piece, move.segments);

  int32_t segment = first_segment, round = 0;
  while (segment < last_segment) {
    Word words[kRounds];
    Word* targets[kRounds];

    // Issue every load of up to kRounds rounds.
#pragma unroll
    for (int u = 0; u < kRounds; ++u) {
      targets[u] = nullptr;
      if (segment < last_segment) {
        const int32_t first_layer = segment * move.segment_layers;
        const LayerPair& first = move.layers[first_layer];
        const auto start = reinterpret_cast<uintptr_t>(
            move.segments_in_source
                ? first.source.data + rows.source * first.source.row_stride
                : first.destination.data + rows.destination * first.destination.row_stride);
        const auto skew = static_cast<int32_t>(start / sizeof(Word) % kWordsPerLine);
        const int32_t word = round * kWarp + lane_number() - skew;
        if (word >= 0 && word < move.segment_words) {
          const int32_t layer = move.words_per_row.divide(word);
          const int32_t offset = word - layer * move.words_per_row.value;
          const LayerPair& pair = move.layers[first_layer + layer];
          targets[u] = reinterpret_cast<Word*>(pair.destination.data +
                                               rows.destination * pair.destination.row_stride) +
                       offset;
          const auto* from =
              reinterpret_cast<const Word*>(pair.source.data + rows.source * pair.source.row_stride) + offset;
          words[u] = zeros ? Word{} : __ldcs(from);
        }
        if (++round == move.rounds_per_segment) {
          round = 0;
          ++segment;
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kRounds; ++u) {
      if (targets[u] != nullptr) *targets[u] = words[u];
    }
  }
}

template <class Word, class Route>
__global__ void __launch_bounds__(kMoveThreads)
    row_move_kernel(const __grid_constant__ RowMove move, const __grid_constant__ Route route) {
  wait_for_previous_kernel();
  const int64_t warp = int64_t{blockIdx.x} * kMoveWarps + warp_number();
  const int64_t warps = int64_t{gridDim.x} * kMoveWarps;
  route.each_share(warp, warps, move.pieces, [&](RowPair rows, int32_t piece) {
    if (rows.source < 0 || rows.destination < 0 || rows.destination >= move.destination_rows) return;
    const bool beyond = rows.source >= move.source_rows;
    if (beyond && move.beyond_end == BeyondEnd::kSkip) return;
    move_piece<Word>(move, rows, piece, beyond);
  });
}

// Calls share(row pair of token, piece) for this warp's pieces of `count` tokens, the piece going fastest.
template <class RowsOf, class Share>
__device__ __forceinline__ void each_piece(int64_t count, int64_t warp, int64_t warps, int32_t pieces,
                                           RowsOf rows_of, Share share) {
  for (int64_t i = warp; i < count * pieces; i += warps) {
    const int64_t token = pieces == 1 ? i : i / pieces;  // no division for the usual segment
    share(rows_of(token), static_cast<int32_t>(i - token * pieces));
  }
}

// Entry i goes from row source[i] to row destination[i].
struct PairRoute {
  PairList pairs;

  template <class Share>
  __device__ void each_share(int64_t warp, int64_t warps, int32_t pieces, Share share) const {
    each_piece(
        pairs.count, warp, warps, pieces,
        [&](int64_t i) { return RowPair{pairs.source[i], pairs.destination[i]}; }, share);
  }
};

// The largest number of layers, a divisor of `layers`, that lie side by side wherever one of that many
// begins.
inline int32_t segment_layers(const Layer* const* layers, int32_t count, int64_t row_bytes) {
  int32_t size = count, begin = 0;
  for (int32_t l = 1; l <= count; ++l) {
    const bool joined = l < count && layers[l]->data == layers[l - 1]->data + row_bytes &&
                        layers[l]->row_stride == layers[l - 1]->row_stride;
    if (joined) continue;
    size = std::gcd(size, l - begin);
    begin = l;
  }
  return size;
}

template <class Word>
RowMove planned_move(const PoolPair& pools, size_t first, int32_t count, BeyondEnd beyond_end) {
  RowMove move{.words_per_row = Divisor(static_cast<int32_t>(pools.row_bytes / sizeof(Word)))};
  const Layer *sources[kLayersPerLaunch], *destinations[kLayersPerLaunch];
  for (int32_t l = 0; l < count; ++l) {
    sources[l] = &pools.source.layers[first + l];
    destinations[l] = &pools.destination.layers[first + l];
    move.layers[l] = {*sources[l], *destinations[l]};
  }
  move.source_rows = pools.source.rows;
  move.destination_rows = pools.destination.rows;
  move.beyond_end = beyond_end;

  const int32_t in_source = segment_layers(sources, count, pools.row_bytes);
  const int32_t in_destination = segment_layers(destinations, count, pools.row_bytes);
  move.segments_in_source = in_source >= in_destination;
  move.segment_layers = std::max(in_source, in_destination);
  move.segment_words = move.segment_layers * move.words_per_row.value;
  move.segments = count / move.segment_layers;
  constexpr int32_t kWordsPerLine = kLineBytes / sizeof(Word);
  move.rounds_per_segment = divide_up<int32_t>(move.segment_words + kWordsPerLine - 1, kWarp);
  move.segments_per_piece = std::max(1, kRounds / move.rounds_per_segment);
  move.pieces = divide_up(move.segments, move.segments_per_piece);
  return move;
}

template <class Word, class Route>
void launch_moves(const Queue& queue, const PoolPair& pools, const Route& route, BeyondEnd beyond_end) {
  const size_t layers = pools.source.layers.size();
  for (size_t first = 0; first < layers; first += kLayersPerLaunch) {
    const auto count = static_cast<int32_t>(std::min<size_t>(kLayersPerLaunch, layers - first));
    queue.launch(row_move_kernel<Word, Route>, {kMoveBlocks, kMoveThreads},
                 planned_move<Word>(pools, first, count, beyond_end), route);
  }
}

// What every address, stride and width of a copy is a multiple of, as far as words go.
inline int64_t common_alignment(const PoolPair& pools) {
  uint64_t bits = sizeof(int4) | static_cast<uint64_t>(pools.row_bytes);
  for (const Pool* pool : {&pools.source, &pools.destination}) {
    for (const Layer& layer : pool->layers) {
      bits |= reinterpret_cast<uintptr_t>(layer.data) | static_cast<uint64_t>(layer.row_stride);
    }
  }
  return static_cast<int64_t>(bits & -bits);
}

template <class Route>
void move_rows(const Queue& queue, const PoolPair& pools, const Route& route, BeyondEnd beyond_end) {
  if (pools.row_bytes == 0) return;
  switch (common_alignment(pools)) {
    case 16:
      return launch_moves<int4>(queue, pools, route, beyond_end);
    case 8:
      return launch_moves<int2>(queue, pools, route, beyond_end);
    case 4:
      return launch_moves<int>(queue, pools, route, beyond_end);
    case 2:
      return launch_moves<short>(queue, pools, route, beyond_end);
    default:
      return launch_moves<char>(queue, pools, route, beyond_end);
  }
}

}  // namespace hisparse::cuda
