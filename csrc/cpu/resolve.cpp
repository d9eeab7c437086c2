// Look-up, victim choice and LRU update on the CPU: one thread per request.
//
// Of a request's references, those that need the hot buffer are numbered by distinct host row, in order of
// first reference. Each distinct row then goes through:
//
// | state of a distinct row | slot         | device_row     | counted as                        |
// |-------------------------|--------------|----------------|-----------------------------------|
// | new                     | kNone        | kNone          |                                   |
// | hit                     | the caching  | the slot's     | hit, every reference              |
// | in an unleased block    | the caching  | kNone          | fault, every reference            |
// | loaded                  | its victim   | the slot's     | miss once, then hit               |
// | no victim left          | kNone        | kNone          | fault, every reference            |
#include <algorithm>
#include <array>
#include <atomic>
#include <unordered_set>

#include "arguments.h"
#include "common/lru.h"
#include "numbering.h"
#include "ops.h"
#include "spans.h"

namespace hisparse::cpu {
namespace {

// Work that is worth waking another thread for.
constexpr int64_t kEntriesPerTask = 1 << 12;

struct Outputs {
  int32_t* device_rows;
  int32_t* valid_counts;
  int32_t* miss_host_rows;
  int32_t* miss_device_rows;
  int32_t* miss_counts;
};

struct Distinct {
  int32_t host_row;
  int32_t slot = kNone;
  int32_t device_row = kNone;
};

struct Reference {
  int64_t place;  // in topk and device_rows, row-major
  int32_t host_row;
  int32_t number = kNone;  // of its host row among the distinct ones
};

// One thread's work; its scratch memory serves one request after the other.
class Resolver {
 public:
  Resolver(const ResolveParams& params, const Outputs& outputs) : p_(params), out_(outputs) {}

  // `state` is kNone when the request has no state row of its own.
  void resolve(int64_t request, Span span, int64_t state) {
    if (state != kNone) p_.hot.clock[state] += 1;
    place_references(span, state);
    const int32_t loads = wanted_.empty() ? 0 : use_hot_buffer(span, state);
    out_.miss_counts[request] = loads;
    finish_rows(span, loads);
  }

  const std::array<int64_t, kCounters>& counts() const { return counts_; }

 private:
  // Padding, resident pages and unmapped ones are settled here; what is left becomes wanted_.
  void place_references(Span span, int64_t state) {
    wanted_.clear();
    const int32_t* host_blocks = state == kNone ? nullptr : p_.host_table.row(state);
    const int32_t* resident_blocks = state == kNone ? nullptr : p_.resident_table.row(state);
    for (int64_t row = span.begin; row < span.end; ++row) {
      const int32_t* positions = p_.topk.row(row);
      for (int64_t column = 0; column < p_.topk.columns; ++column) {
        const int64_t place = row * p_.topk.columns + column;
        const Place found =
            find_page(positions[column], host_blocks, resident_blocks, p_.host_table.columns, p_.blocks);
        out_.device_rows[place] = found.kind == Place::kResident ? found.row : kNone;
        switch (found.kind) {
          case Place::kPadding:
            counts_[kPadding] += 1;
            break;
          case Place::kResident:
            counts_[kResident] += 1;
            break;
          case Place::kFault:
            counts_[kFault] += 1;
            break;
          case Place::kHost:
            wanted_.push_back({place, found.row});
            break;
        }
      }
    }
  }

  int32_t use_hot_buffer(Span span, int64_t state) {
    slots_ = p_.hot.rows + state * p_.hot.slots;
    stamps_ = p_.hot.stamps + state * p_.hot.slots;
    hot_blocks_ = p_.hot_table.row(state);
    now_ = p_.hot.clock[state];

    number_wanted();
    find_hits();
    const int32_t loads = load_misses(span.begin * p_.topk.columns);

    int64_t served = 0;
    for (const Reference& reference : wanted_) {
      const int32_t row = distinct_[reference.number].device_row;
      out_.device_rows[reference.place] = row;
      served += row != kNone;
    }
    counts_[kMiss] += loads;
    counts_[kHit] += served - loads;
    counts_[kFault] += static_cast<int64_t>(wanted_.size()) - served;
    return loads;
  }

  void number_wanted() {
    distinct_.clear();
    numbering_.clear(static_cast<int64_t>(wanted_.size()));
    for (Reference& reference : wanted_) {
      const auto next = static_cast<int32_t>(distinct_.size());
      reference.number = numbering_.add(reference.host_row, next);
      if (reference.number == next) distinct_.push_back({reference.host_row});
    }
  }

  void find_hits() {
    for (int32_t slot = 0; slot < p_.hot.slots; ++slot) {
      if (slots_[slot] < 0) continue;
      const int32_t number = numbering_.find(slots_[slot]);
      if (number == kNone || distinct_[number].slot != kNone) continue;
      distinct_[number].slot = slot;
      distinct_[number].device_row = slot_device_row(hot_blocks_, slot, p_.blocks);
      if (distinct_[number].device_row != kNone) stamps_[slot] = now_;
    }
  }

  // Gives victim slots to the misses, in order; returns how many there were enough for.
  int32_t load_misses(int64_t plan) {
    misses_.clear();
    for (Distinct& row : distinct_) {
      if (row.slot == kNone) misses_.push_back(&row);
    }
    if (misses_.empty()) return 0;

    find_victims();
    const size_t loads = std::min(misses_.size(), victims_.size());
    for (size_t i = 0; i < loads; ++i) {
      Distinct& row = *misses_[i];
      row.slot = victim_slot(victims_[i]);
      row.device_row = slot_device_row(hot_blocks_, row.slot, p_.blocks);
      slots_[row.slot] = row.host_row;
      stamps_[row.slot] = now_;
      out_.miss_host_rows[plan + i] = row.host_row;
      out_.miss_device_rows[plan + i] = row.device_row;
    }
    return static_cast<int32_t>(loads);
  }

  // The slots to give up first, in order; no more than there are misses.
  void find_victims() {
    in_use_.assign(p_.hot.slots, false);
    for (const Distinct& row : distinct_) {
      if (row.slot != kNone) in_use_[row.slot] = true;
    }
    victims_.clear();
    for (int32_t slot = 0; slot < p_.hot.slots; ++slot) {
      if (in_use_[slot] || slot_device_row(hot_blocks_, slot, p_.blocks) == kNone) continue;
      victims_.push_back(victim_key(slots_[slot], stamps_[slot], slot));
    }
    if (victims_.size() > misses_.size()) {
      const auto end = victims_.begin() + static_cast<int64_t>(misses_.size());
      std::nth_element(victims_.begin(), end, victims_.end());
      victims_.erase(end, victims_.end());
    }
    std::sort(victims_.begin(), victims_.end());
  }

  // Counts what each query row may read, and marks the rest of the plan as unused.
  void finish_rows(Span span, int32_t loads) {
    const int64_t columns = p_.topk.columns;
    for (int64_t row = span.begin; row < span.end; ++row) {
      const int32_t* rows = out_.device_rows + row * columns;
      out_.valid_counts[row] =
          static_cast<int32_t>(std::count_if(rows, rows + columns, [](int32_t r) { return r >= 0; }));
    }
    for (int32_t* plan : {out_.miss_host_rows, out_.miss_device_rows}) {
      std::fill(plan + span.begin * columns + loads, plan + span.end * columns, kNone);
    }
  }

  const ResolveParams& p_;
  const Outputs& out_;
  std::array<int64_t, kCounters> counts_{};

  // Of the present request.
  int32_t* slots_ = nullptr;
  int32_t* stamps_ = nullptr;
  const int32_t* hot_blocks_ = nullptr;
  int32_t now_ = 0;
  std::vector<Reference> wanted_;
  std::vector<Distinct> distinct_;
  Numbering numbering_;
  std::vector<Distinct*> misses_;
  std::vector<int64_t> victims_;
  std::vector<char> in_use_;
};

void fill_padding_rows(const Outputs& out, int64_t begin, int64_t end, int64_t columns) {
  for (int32_t* rows : {out.device_rows, out.miss_host_rows, out.miss_device_rows}) {
    std::fill(rows + begin * columns, rows + end * columns, kNone);
  }
  std::fill(out.valid_counts + begin, out.valid_counts + end, 0);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> resolve(
    const Tensor& topk, const Tensor& query_start, const Tensor& state_rows, const Tensor& host_table,
    const Tensor& resident_table, const Tensor& hot_table, const Tensor& slot_rows, const Tensor& slot_stamps,
    const Tensor& clock, const Tensor& counters, int64_t block_size, int64_t block_stride) {
  const ResolveParams p = resolve_params(topk, query_start, state_rows, host_table, resident_table, hot_table,
                                         slot_rows, slot_stamps, clock, counters, block_size, block_stride);
  const int64_t query_rows = p.topk.rows, columns = p.topk.columns;
  Tensor device_rows = new_indices(topk, {query_rows, columns});
  Tensor valid_counts = new_indices(topk, {query_rows});
  Tensor miss_host_rows = new_indices(topk, {query_rows, columns});
  Tensor miss_device_rows = new_indices(topk, {query_rows, columns});
  Tensor miss_counts = new_indices(topk, {p.requests});
  const Outputs out{indices_of(device_rows), indices_of(valid_counts), indices_of(miss_host_rows),
                    indices_of(miss_device_rows), indices_of(miss_counts)};

  // Who owns which query rows and which state row. Rows of no real request are padding.
  std::vector<Span> spans = query_spans(p.query_start, p.requests, query_rows);
  std::vector<int64_t> states(p.requests);
  std::unordered_set<int32_t> taken;
  int64_t owned = 0;
  for (int64_t r = 0; r < p.requests; ++r) {
    const int32_t state = p.state_rows[r];
    if (state < 0) spans[r] = {0, 0};
    states[r] = state >= 0 && state < p.hot.states && taken.insert(state).second ? state : kNone;
    if (spans[r].size() == 0) continue;
    fill_padding_rows(out, owned, spans[r].begin, columns);
    owned = spans[r].end;
  }
  fill_padding_rows(out, owned, query_rows, columns);

  const int64_t entries = std::max<int64_t>(1, columns + p.hot.slots);  // that one request makes us look at
  const int64_t requests_per_task = std::max<int64_t>(1, kEntriesPerTask / entries);
  parallel_for(0, p.requests, requests_per_task, [&](int64_t begin, int64_t end) {
    Resolver resolver(p, out);
    for (int64_t r = begin; r < end; ++r) resolver.resolve(r, spans[r], states[r]);
    for (int counter = 0; counter < kCounters; ++counter) {
      std::atomic_ref(p.counters[counter]).fetch_add(resolver.counts()[counter], std::memory_order_relaxed);
    }
  });
  return {device_rows, valid_counts, miss_host_rows, miss_device_rows, miss_counts};
}

}  // namespace hisparse::cpu
