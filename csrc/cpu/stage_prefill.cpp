#include <algorithm>

#include "arguments.h"
#include "ops.h"

namespace hisparse::cpu {

std::tuple<Tensor, Tensor, Tensor, Tensor> stage_prefill(const Tensor& context_lens, const Tensor& state_rows,
                                                         const Tensor& resident_table,
                                                         const Tensor& host_table, int64_t block_size,
                                                         int64_t staging_blocks) {
  const StagePrefillParams p =
      stage_prefill_params(context_lens, state_rows, resident_table, host_table, block_size, staging_blocks);
  const int64_t pages = p.resident_table.columns;
  Tensor staging_table = new_indices(context_lens, {p.requests, pages});
  Tensor staged_blocks = new_indices(context_lens, {staging_blocks});
  Tensor resident_blocks = new_indices(context_lens, {staging_blocks});
  Tensor host_blocks = new_indices(context_lens, {staging_blocks});
  int32_t* staged = indices_of(staged_blocks);
  int32_t* resident = indices_of(resident_blocks);
  int32_t* host = indices_of(host_blocks);

  // Mapped pages get the next staging block, while there is one.
  int64_t used = 0;
  for (int64_t r = 0; r < p.requests; ++r) {
    int32_t* row = indices_of(staging_table) + r * pages;
    std::fill_n(row, pages, 0);
    const int64_t state = p.state_rows[r];
    if (state < 0 || state >= p.resident_table.rows) continue;
    const int64_t in_context = pages_of(p.context_lens[r], p.block_size);
    for (int64_t page = 0; page < std::min(in_context, pages) && used < staging_blocks; ++page) {
      const int32_t on_device = std::max(p.resident_table.row(state)[page], 0);
      const int32_t on_host = std::max(p.host_table.row(state)[page], 0);
      if (on_device == 0 && on_host == 0) continue;
      resident[used] = on_device;
      host[used] = on_device == 0 ? on_host : 0;
      row[page] = staged[used] = static_cast<int32_t>(used + 1);
      ++used;
    }
  }

  // What is left of the area is unused.
  for (int32_t* list : {staged, resident, host}) std::fill(list + used, list + staging_blocks, 0);
  return {staging_table, staged_blocks, resident_blocks, host_blocks};
}

}  // namespace hisparse::cpu
