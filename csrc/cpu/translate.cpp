#include "arguments.h"
#include "ops.h"

namespace hisparse::cpu {

Tensor translate(const Tensor& positions, const Tensor& state_rows, const Tensor& table, int64_t block_size,
                 int64_t block_stride) {
  const TranslateParams p = translate_params(positions, state_rows, table, block_size, block_stride);
  Tensor rows = new_indices(positions, {p.count});
  int32_t* row = indices_of(rows);
  for (int64_t i = 0; i < p.count; ++i) {
    row[i] = table_row(p.table, p.state_rows[i], p.positions[i], p.blocks);
  }
  return rows;
}

}  // namespace hisparse::cpu
