#include "arguments.h"
#include "ops.h"
#include "row_copy.h"
#include "spans.h"

namespace hisparse::cpu {

void gather_compact(const TensorList& host, const TensorList& device, const Tensor& miss_host_rows,
                    const Tensor& miss_device_rows, const Tensor& query_start, const Tensor& miss_counts) {
  const GatherCompactParams p =
      gather_compact_params(host, device, miss_host_rows, miss_device_rows, query_start, miss_counts);

  // The loads of all requests one after the other, so that threads share them evenly.
  std::vector<int32_t> host_rows, device_rows;
  const std::vector<Span> spans = query_spans(p.query_start, p.requests, p.query_rows);
  for (int64_t r = 0; r < p.requests; ++r) {
    const int64_t first = spans[r].begin * p.columns;
    const int64_t last = first + std::clamp<int64_t>(p.counts[r], 0, spans[r].size() * p.columns);
    host_rows.insert(host_rows.end(), p.host_rows + first, p.host_rows + last);
    device_rows.insert(device_rows.end(), p.device_rows + first, p.device_rows + last);
  }
  const auto count = static_cast<int64_t>(host_rows.size());
  copy_rows<BeyondEnd::kZeros>(p.pools, {host_rows.data(), device_rows.data(), count});
}

}  // namespace hisparse::cpu
