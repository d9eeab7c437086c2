#include "arguments.h"
#include "ops.h"
#include "row_copy.h"

namespace hisparse::cpu {

void mirror_rows(const TensorList& device, const TensorList& host, const Tensor& device_rows,
                 const Tensor& host_rows) {
  const RowCopyParams p = mirror_rows_params(device, host, device_rows, host_rows);
  copy_rows<BeyondEnd::kSkip>(p.pools, p.pairs);
}

}  // namespace hisparse::cpu
