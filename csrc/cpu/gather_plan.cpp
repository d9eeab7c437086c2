#include "arguments.h"
#include "ops.h"
#include "row_copy.h"

namespace hisparse::cpu {

void gather_plan(const TensorList& host, const TensorList& device, const Tensor& host_rows,
                 const Tensor& device_rows) {
  const RowCopyParams p = gather_plan_params(host, device, host_rows, device_rows);
  const Prefetcher prefetcher(p.pools);
  parallel_for(0, p.pairs.count, rows_per_task(p.pools), [&](int64_t begin, int64_t end) {
    copy_rows<BeyondEnd::kZeros>(p.pools, prefetcher, p.pairs.source + begin, p.pairs.destination + begin,
                                 end - begin);
  });
}

}  // namespace hisparse::cpu
