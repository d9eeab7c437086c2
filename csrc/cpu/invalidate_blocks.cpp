#include <algorithm>

#include "arguments.h"
#include "ops.h"

namespace hisparse::cpu {

void invalidate_blocks(const Tensor& slot_rows, const Tensor& host_blocks, int64_t block_size) {
  const InvalidateBlocksParams p = invalidate_blocks_params(slot_rows, host_blocks, block_size);

  // First rows of the blocks, in order: the last one not above a row tells whether the row is stale.
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < p.blocks.count; ++i) {
    if (p.blocks.data[i] >= 0) starts.push_back(p.blocks.data[i] * block_size);
  }
  if (starts.empty()) return;
  std::sort(starts.begin(), starts.end());

  constexpr int64_t kSlotsPerTask = 1 << 14;
  parallel_for(0, p.hot.states * p.hot.slots, kSlotsPerTask, [&](int64_t begin, int64_t end) {
    for (int32_t* slot = p.hot.rows + begin; slot != p.hot.rows + end; ++slot) {
      if (*slot < starts.front()) continue;  // empty slots too
      const int64_t start = *std::prev(std::upper_bound(starts.begin(), starts.end(), *slot));
      if (*slot < start + block_size) *slot = kNone;
    }
  });
}

}  // namespace hisparse::cpu
