#include "arguments.h"
#include "ops.h"
#include "row_copy.h"

namespace hisparse::cpu {

void mirror_rows(const TensorList& device, const TensorList& host, const Tensor& device_rows,
                 const Tensor& host_rows) {
  const RowCopyParams p = mirror_rows_params(device, host, device_rows, host_rows);
  const Prefetcher prefetcher(p.pools);
  parallel_for(0, p.pairs.count, rows_per_task(p.pools), [&](int64_t begin, int64_t end) {
    copy_rows<BeyondEnd::kSkip>(p.pools, prefetcher, p.pairs.source + begin, p.pairs.destination + begin,
                                end - begin);
  });
}

}  // namespace hisparse::cpu
