#include "arguments.h"
#include "ops.h"
#include "row_copy.h"

namespace hisparse::cpu {

void gather_plan(const TensorList& host, const TensorList& device, const Tensor& host_rows,
                 const Tensor& device_rows) {
  const RowCopyParams p = gather_plan_params(host, device, host_rows, device_rows);
  copy_rows<BeyondEnd::kZeros>(p.pools, p.pairs);
}

}  // namespace hisparse::cpu
