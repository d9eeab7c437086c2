#include <algorithm>

#include "arguments.h"
#include "ops.h"

namespace hisparse::cpu {

void reset_rows(const Tensor& slot_rows, const Tensor& slot_stamps, const Tensor& clock,
                const Tensor& state_rows) {
  const ResetParams p = reset_rows_params(slot_rows, slot_stamps, clock, state_rows);
  for (int64_t i = 0; i < p.state_rows.count; ++i) {
    const int64_t state = p.state_rows.data[i];
    if (state < 0 || state >= p.hot.states) continue;
    std::fill_n(p.hot.rows + state * p.hot.slots, p.hot.slots, kNone);
    std::fill_n(p.hot.stamps + state * p.hot.slots, p.hot.slots, 0);
    p.hot.clock[state] = 0;
  }
}

}  // namespace hisparse::cpu
