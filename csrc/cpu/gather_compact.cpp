#include "arguments.h"
#include "ops.h"
#include "row_copy.h"
#include "spans.h"

namespace hisparse::cpu {

void gather_compact(const TensorList& host, const TensorList& device, const Tensor& miss_host_rows,
                    const Tensor& miss_device_rows, const Tensor& query_start, const Tensor& miss_counts) {
  const GatherCompactParams p =
      gather_compact_params(host, device, miss_host_rows, miss_device_rows, query_start, miss_counts);

  // Loads of all requests in one row of numbers: request r has first[r] .. first[r + 1] - 1.
  const std::vector<Span> spans = query_spans(p.query_start, p.requests, p.query_rows);
  std::vector<int64_t> first(p.requests + 1, 0);
  for (int64_t r = 0; r < p.requests; ++r) {
    const int64_t planned = std::clamp<int64_t>(p.counts[r], 0, spans[r].size() * p.columns);
    first[r + 1] = first[r] + planned;
  }

  const Prefetcher prefetcher(p.pools);
  // Every thread gets an equal share of that row, whichever requests it belongs to.
  parallel_for(0, first.back(), rows_per_task(p.pools), [&](int64_t begin, int64_t end) {
    auto next = std::upper_bound(first.begin(), first.end(), begin);
    while (begin < end) {
      const int64_t r = next - first.begin() - 1;
      const int64_t stop = std::min(end, *next++);
      const int64_t entry = spans[r].begin * p.columns + begin - first[r];
      copy_rows<BeyondEnd::kZeros>(p.pools, prefetcher, p.host_rows + entry, p.device_rows + entry,
                                   stop - begin);
      begin = stop;
    }
  });
}

}  // namespace hisparse::cpu
