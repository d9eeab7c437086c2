// What a kernel needs of its op's arguments, once they are checked.
#pragma once

#include <cstdint>
#include <vector>

#include "addressing.h"

namespace hisparse {

// The hot state, contiguous: rows and stamps [states, slots], clock [states]. An op that has no use for
// stamps and clock leaves them null.
struct HotSlots {
  int32_t* rows;
  int32_t* stamps;
  int32_t* clock;
  int64_t states, slots;
};

struct ResolveParams {
  IndexMatrix topk;
  const int32_t* query_start;
  const int32_t* state_rows;
  int64_t requests;
  IndexMatrix host_table, resident_table, hot_table;
  HotSlots hot;
  int64_t* counters;
  BlockShape blocks;
};

// One layer of a pool. `row_stride` is in bytes.
struct Layer {
  char* data;
  int64_t row_stride;
};

struct Pool {
  std::vector<Layer> layers;
  int64_t rows;
};

// Layer l of `source` goes to layer l of `destination`.
struct PoolPair {
  Pool source, destination;
  int64_t row_bytes;
};

// Entry i moves row (or block) source[i] to destination[i].
struct PairList {
  const int32_t* source;
  const int32_t* destination;
  int64_t count;
};

struct NumberList {
  const int32_t* data;
  int64_t count;
};

struct GatherCompactParams {
  PoolPair pools;            // host -> device
  const int32_t* host_rows;  // [query_rows, columns], contiguous
  const int32_t* device_rows;
  int64_t query_rows, columns;
  const int32_t* query_start;
  const int32_t* counts;
  int64_t requests;
};

struct RowCopyParams {
  PoolPair pools;
  PairList pairs;
};

struct BlockCopyParams {
  PoolPair pools;
  PairList pairs;
  BlockShape source, destination;
};

struct InvalidateParams {
  HotSlots hot;
  const int32_t* state_rows;
  const int32_t* host_rows;
  int64_t count;
};

struct InvalidateBlocksParams {
  HotSlots hot;
  NumberList blocks;
  int32_t block_size;
};

struct ResetParams {
  HotSlots hot;
  NumberList state_rows;
};

struct TranslateParams {
  const int32_t* positions;
  const int32_t* state_rows;
  int64_t count;
  IndexMatrix table;
  BlockShape blocks;
};

struct StagePrefillParams {
  const int32_t* context_lens;
  const int32_t* state_rows;
  int64_t requests;
  IndexMatrix resident_table, host_table;
  int32_t block_size;
  int64_t staging_blocks;
};

}  // namespace hisparse
