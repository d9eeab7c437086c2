#include <algorithm>

#include "arguments.h"
#include "numbering.h"
#include "ops.h"

namespace hisparse::cpu {
namespace {

struct Stale {
  int32_t state, host_row;
};

}  // namespace

void invalidate(const Tensor& slot_rows, const Tensor& state_rows, const Tensor& host_rows) {
  const InvalidateParams p = invalidate_params(slot_rows, state_rows, host_rows);

  // The pairs by state row, so that the slots of each are read once.
  std::vector<Stale> stale;
  for (int64_t i = 0; i < p.count; ++i) {
    const Stale pair{p.state_rows[i], p.host_rows[i]};
    if (pair.state >= 0 && pair.state < p.hot.states && pair.host_row >= 0) stale.push_back(pair);
  }
  std::sort(stale.begin(), stale.end(), [](Stale one, Stale other) { return one.state < other.state; });

  Numbering rows;
  for (auto first = stale.begin(); first != stale.end();) {
    const auto last =
        std::find_if(first, stale.end(), [&](Stale pair) { return pair.state != first->state; });
    rows.clear(last - first);
    for (auto pair = first; pair != last; ++pair) rows.add(pair->host_row, 0);
    int32_t* slots = p.hot.rows + first->state * p.hot.slots;
    for (int64_t s = 0; s < p.hot.slots; ++s) {
      if (slots[s] >= 0 && rows.find(slots[s]) != kNone) slots[s] = kNone;
    }
    first = last;
  }
}

}  // namespace hisparse::cpu
