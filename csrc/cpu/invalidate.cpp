#include <algorithm>

#include "arguments.h"
#include "ops.h"

namespace hisparse::cpu {
namespace {

struct Stale {
  int32_t state, host_row;

  auto operator<=>(const Stale&) const = default;
};

}  // namespace

void invalidate(const Tensor& slot_rows, const Tensor& state_rows, const Tensor& host_rows) {
  const InvalidateParams p = invalidate_params(slot_rows, state_rows, host_rows);

  // The pairs in order, so that each state row's are one piece, and its slots are read once.
  std::vector<Stale> stale;
  for (int64_t i = 0; i < p.count; ++i) {
    const Stale pair{p.state_rows[i], p.host_rows[i]};
    if (pair.state >= 0 && pair.state < p.hot.states && pair.host_row >= 0) stale.push_back(pair);
  }
  std::sort(stale.begin(), stale.end());

  for (auto first = stale.begin(); first != stale.end();) {
    const auto last =
        std::find_if(first, stale.end(), [&](Stale pair) { return pair.state != first->state; });
    int32_t* slots = p.hot.rows + first->state * p.hot.slots;
    for (int64_t s = 0; s < p.hot.slots; ++s) {
      if (std::binary_search(first, last, Stale{first->state, slots[s]})) slots[s] = kNone;
    }
    first = last;
  }
}

}  // namespace hisparse::cpu
