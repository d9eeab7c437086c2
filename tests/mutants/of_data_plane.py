"""Faults of the data plane: the CPU kernels, what they share with the CUDA ones, and the Python around them.

Each is one small patch, and names the tests that have to notice it.
"""

from __future__ import annotations

from typing import NamedTuple

RESOLVE = ("test_resolve.py", "test_resolve_hot_state.py", "test_histories.py")
ROWS = ("test_gather_compact.py", "test_gather_plan.py", "test_mirror_rows.py")
WORKER = ("worker/test_worker.py", "worker/test_sparse_kv.py", "worker/test_schedules.py")


class OpsMutant(NamedTuple):
    name: str
    family: str
    file: str  # from the root of the repository
    old: str
    new: str
    tests: tuple[str, ...]  # files below tests/, the most likely first


OPS_MUTANTS = [
    # -- victims and stamps
    OpsMutant(
        "a slot used in this call is a victim", "hot state", "csrc/cpu/resolve.cpp",
        "if (in_use_[slot] || slot_device_row(", "if (slot_device_row(", RESOLVE,
    ),
    OpsMutant(
        "a hit does not refresh its stamp", "hot state", "csrc/cpu/resolve.cpp",
        "if (distinct_[number].device_row != kNone) stamps_[slot] = now_;", "", RESOLVE,
    ),
    OpsMutant(
        "of equal stamps the last slot goes first", "hot state", "csrc/common/lru.h",
        "return last_use * (int64_t{1} << 32) + slot;\n}\n\n"
        "HISPARSE_HD int32_t victim_slot(int64_t key) { return static_cast<int32_t>(key & INT32_MAX); }",
        "return last_use * (int64_t{1} << 32) + (INT32_MAX - slot);\n}\n\n"
        "HISPARSE_HD int32_t victim_slot(int64_t key) { return INT32_MAX - static_cast<int32_t>(key & INT32_MAX); }",
        RESOLVE,
    ),
    OpsMutant(
        "an empty slot keeps the rank of its old stamp", "hot state", "csrc/common/lru.h",
        "const int64_t last_use = cached_row < 0 ? 0 : stamp;",
        "const int64_t last_use = cached_row < -1 ? 0 : stamp;", RESOLVE,
    ),
    OpsMutant(
        "a slot that is loaded keeps its old host row", "hot state", "csrc/cpu/resolve.cpp",
        "      slots_[row.slot] = row.host_row;\n", "", RESOLVE,
    ),
    OpsMutant(
        "slots of blocks that are not leased are victims", "hot state", "csrc/cpu/resolve.cpp",
        "if (in_use_[slot] || slot_device_row(hot_blocks_, slot, p_.blocks) == kNone) continue;",
        "if (in_use_[slot]) continue;", RESOLVE,
    ),
    OpsMutant(
        "the clock stands still when nothing is wanted of the hot buffer", "hot state", "csrc/cpu/resolve.cpp",
        "    if (state != kNone) p_.hot.clock[state] += 1;\n    place_references(span, state);\n",
        "    place_references(span, state);\n    if (state != kNone && !wanted_.empty()) p_.hot.clock[state] += 1;\n",
        RESOLVE,
    ),
    OpsMutant(
        "a state row gets a new owner with its old stamps", "hot state", "csrc/cpu/reset_rows.cpp",
        "    std::fill_n(p.hot.stamps + state * p.hot.slots, p.hot.slots, 0);\n", "",
        ("test_invalidate.py", "test_histories.py"),
    ),
    OpsMutant(
        "a state row gets a new owner with its old clock", "hot state", "csrc/cpu/reset_rows.cpp",
        "    p.hot.clock[state] = 0;\n", "", ("test_invalidate.py", "test_histories.py"),
    ),
    OpsMutant(
        "a region that grows forgets its stamps", "hot state", "hisparse_ops/hot_state.py",
        "        larger.slot_stamps[:, : self.hot_slots] = self.slot_stamps\n", "", ("test_hot_state.py",),
    ),
    OpsMutant(
        "empty slots are said to cache row 0", "hot state", "hisparse_ops/hot_state.py",
        "EMPTY = -1\n", "EMPTY = 0\n", ("test_hot_state.py", *RESOLVE),
    ),
    # -- the plan and its outputs
    OpsMutant(
        "duplicate positions are loaded twice", "plan", "csrc/cpu/resolve.cpp",
        "reference.number = numbering_.add(reference.host_row, next);",
        "numbering_.add(reference.host_row, next), reference.number = next;", RESOLVE,
    ),
    OpsMutant(
        "one miss too many is counted", "plan", "csrc/cpu/resolve.cpp",
        "out_.miss_counts[request] = loads;", "out_.miss_counts[request] = loads + 1;", RESOLVE,
    ),
    OpsMutant(
        "every entry counts as valid", "plan", "csrc/cpu/resolve.cpp",
        "[](int32_t r) { return r >= 0; }", "[](int32_t r) { return r >= kNone; }", RESOLVE,
    ),
    OpsMutant(
        "query rows behind the last request are not filled", "plan", "csrc/cpu/resolve.cpp",
        "  fill_padding_rows(out, owned, query_rows, columns);\n\n", "\n", RESOLVE,
    ),
    OpsMutant(
        "a load counts as a hit as well", "plan", "csrc/cpu/resolve.cpp",
        "counts_[kHit] += served - loads;", "counts_[kHit] += served;", RESOLVE,
    ),
    OpsMutant(
        "what is left of a plan is not marked as unused", "plan", "csrc/cpu/resolve.cpp",
        "      std::fill(plan + span.begin * columns + loads, plan + span.end * columns, kNone);\n",
        "      std::fill(plan + span.begin * columns + loads, plan + span.begin * columns + loads, kNone);\n", RESOLVE,
    ),
    OpsMutant(
        "counts beyond the plan are believed", "plan", "csrc/cpu/gather_compact.cpp",
        "std::clamp<int64_t>(p.counts[r], 0, spans[r].size() * p.columns)", "std::max<int64_t>(p.counts[r], 0)",
        ROWS,
    ),
    # -- addressing
    OpsMutant(
        "-1 is a position", "addressing", "csrc/common/addressing.h",
        "if (position < 0) return {Place::kPadding, kNone};", "if (position < -1) return {Place::kPadding, kNone};",
        RESOLVE,
    ),
    OpsMutant(
        "the page behind the table is read", "addressing", "csrc/common/addressing.h",
        "if (page >= pages) return", "if (page > pages) return", RESOLVE,
    ),
    OpsMutant(
        "the state row behind the tables has pages", "addressing", "csrc/cpu/resolve.cpp",
        "states[r] = state >= 0 && state < p.hot.states &&", "states[r] = state >= 0 && state <= p.hot.states &&",
        RESOLVE,
    ),
    OpsMutant(
        "a state row named twice is served twice", "addressing", "csrc/cpu/resolve.cpp",
        "taken.insert(state).second ? state : kNone", "(taken.insert(state), true) ? state : kNone", RESOLVE,
    ),
    OpsMutant(
        "host rows are counted with the device's stride", "addressing", "csrc/common/addressing.h",
        ": block_row(host_block, blocks.size, offset);", ": block_row(host_block, blocks.stride, offset);", RESOLVE,
    ),
    OpsMutant(
        "the host goes before the resident page", "addressing", "csrc/common/addressing.h",
        "const bool resident = resident_block > 0;", "const bool resident = resident_block > 0 && host_block <= 0;",
        RESOLVE,
    ),
    OpsMutant(
        "row numbers wrap at 2^31", "addressing", "csrc/common/addressing.h",
        "return block > 0 && row <= kMaxRow ? static_cast<int32_t>(row) : kNone;",
        "return block > 0 ? static_cast<int32_t>(row) : kNone;", (*RESOLVE, "test_translate.py"),
    ),
    OpsMutant(
        "a row is translated to the next block", "addressing", "csrc/cpu/translate.cpp",
        "p.positions[i], p.blocks)", "p.positions[i] + p.blocks.size, p.blocks)", ("test_translate.py",),
    ),
    OpsMutant(
        "the null block holds rows", "addressing", "csrc/common/addressing.h",
        "return block > 0 && row <= kMaxRow", "return block >= 0 && row <= kMaxRow", (*RESOLVE, "test_translate.py"),
    ),
    # -- moving rows and blocks
    OpsMutant(
        "the last layer is not copied", "copies", "csrc/cpu/row_copy.h",
        "      for (size_t l = 0; l < layers; ++l) {",
        "      for (size_t l = 0; l < std::max<size_t>(1, layers - 1); ++l) {", ROWS,
    ),
    OpsMutant(
        "the mirror skips the last row", "copies", "csrc/cpu/mirror_rows.cpp",
        "(p.pools, p.pairs)", "(p.pools, {p.pairs.source, p.pairs.destination, p.pairs.count - 1})", ROWS,
    ),
    OpsMutant(
        "a mirror of nothing writes zeros", "copies", "csrc/cpu/mirror_rows.cpp",
        "copy_rows<BeyondEnd::kSkip>", "copy_rows<BeyondEnd::kZeros>", ROWS,
    ),
    OpsMutant(
        "a host row beyond the end leaves old bytes", "copies", "csrc/cpu/gather_plan.cpp",
        "copy_rows<BeyondEnd::kZeros>", "copy_rows<BeyondEnd::kSkip>", ROWS,
    ),
    OpsMutant(
        "the row behind a pool is a destination", "copies", "csrc/cpu/row_copy.h",
        "to >= pools.destination.rows", "to > pools.destination.rows", ROWS,
    ),
    OpsMutant(
        "destination blocks are found with the source's stride", "copies", "csrc/cpu/copy_blocks.cpp",
        "first_row(p.pairs.destination[pair], p.destination,", "first_row(p.pairs.destination[pair], p.source,",
        ("test_copy_blocks.py",),
    ),
    OpsMutant(
        "a block that reaches beyond its pool is copied", "copies", "csrc/cpu/copy_blocks.cpp",
        "row + shape.size <= pool_rows", "row <= pool_rows", ("test_copy_blocks.py",),
    ),
    OpsMutant(
        "rows of a strided pool are copied as if dense", "copies", "csrc/cpu/row_copy.h",
        "if (src.row_stride == pools.row_bytes && dst.row_stride == pools.row_bytes) {",
        "if (src.row_stride == pools.row_bytes) {", ("test_copy_blocks.py",),
    ),
    OpsMutant(
        "the partial last page is not staged", "copies", "csrc/cpu/stage_prefill.cpp",
        "pages_of(p.context_lens[r], p.block_size)", "p.context_lens[r] / p.block_size", ("test_stage_prefill.py",),
    ),
    OpsMutant(
        "a resident page is staged from the host too", "copies", "csrc/cpu/stage_prefill.cpp",
        "host[used] = on_device == 0 ? on_host : 0;", "host[used] = on_host;", ("test_stage_prefill.py",),
    ),
    # -- forgetting
    OpsMutant(
        "only the first stale slot is emptied", "invalidation", "csrc/cpu/invalidate.cpp",
        "if (slots[s] >= 0 && rows.find(slots[s]) != kNone) slots[s] = kNone;",
        "if (slots[s] >= 0 && rows.find(slots[s]) != kNone) {\n        slots[s] = kNone;\n        break;\n      }",
        ("test_invalidate.py", "test_histories.py"),
    ),
    OpsMutant(
        "half of a block's rows are forgotten", "invalidation", "csrc/cpu/invalidate_blocks.cpp",
        "if (*slot < start + block_size)", "if (*slot < start + (block_size + 1) / 2)", ("test_invalidate.py",),
    ),
    OpsMutant(
        "only the first state row forgets a block", "invalidation", "csrc/cpu/invalidate_blocks.cpp",
        "parallel_for(0, p.hot.states * p.hot.slots,", "parallel_for(0, p.hot.slots,", ("test_invalidate.py",),
    ),
    OpsMutant(
        "a row of a neighbour is forgotten", "invalidation", "csrc/cpu/invalidate.cpp",
        "int32_t* slots = p.hot.rows + first->state * p.hot.slots;", "int32_t* slots = p.hot.rows;",
        ("test_invalidate.py",),
    ),
    # -- what torch is told
    OpsMutant(
        "the fake gives counts another shape", "declaration", "hisparse_ops/ops.py",
        "return device_rows, topk.new_empty(query_rows), miss_host_rows",
        "return device_rows, topk.new_empty(query_rows + 1), miss_host_rows", ("test_contract.py",),
    ),
    OpsMutant(
        "the schema hides that counters change", "declaration", "hisparse_ops/ops.py",
        "Tensor(c!) clock, Tensor(d!) counters,", "Tensor(c!) clock, Tensor counters,", ("test_contract.py",),
    ),
    OpsMutant(
        "the schema hides that the pool changes", "declaration", "hisparse_ops/ops.py",
        "mirror_rows(Tensor[] device, Tensor(a!)[] host,", "mirror_rows(Tensor[] device, Tensor[] host,",
        ("test_contract.py",),
    ),
    OpsMutant(
        "the tables are handed over crosswise", "declaration", "hisparse_ops/ops.py",
        "        tables.host,\n        tables.resident,\n", "        tables.resident,\n        tables.host,\n",
        ("test_resolve.py", "worker/test_sparse_kv.py"),
    ),
    OpsMutant(
        "the fake lets any dtype pass", "declaration", "hisparse_ops/_checks.py",
        "self.require(value.dtype == dtype,", "self.require(True,", ("test_bad_input.py",),
    ),
    # -- the worker
    OpsMutant(
        "only the first group's table is written", "worker", "hisparse_ops/worker/tables.py",
        "self.resident[:, rows, pages] = columns[3 : 3 + len(no_blocks)]",
        "self.resident[:1, rows, pages] = columns[3:4]", WORKER,
    ),
    OpsMutant(
        "a row counts as mirrored when one layer was written", "worker", "hisparse_ops/worker/row_mirror.py",
        "(torch.cat(written) == layout.spec.num_layers)", "(torch.cat(written) > 0)", WORKER,
    ),
    OpsMutant(
        "mirrored rows stay in the hot buffer as they were", "worker", "hisparse_ops/worker/row_mirror.py",
        "if not tables.rows_with_hot_region.isdisjoint(", "if tables.rows_with_hot_region.isdisjoint(", WORKER,
    ),
    OpsMutant(
        "an area once staged is taken for another unit's", "worker", "hisparse_ops/worker/staging.py",
        "if self._holds == holds:", "if self._holds is not None and self._holds[0] == holds[0]:", WORKER,
    ),
    OpsMutant(
        "staged rows are read from the null block on", "worker", "hisparse_ops/worker/staging.py",
        "first = self._layout.block_size  # behind the null block", "first = 0", WORKER,
    ),
    OpsMutant(
        "restores and spills are the same direction", "worker", "hisparse_ops/worker/page_copies.py",
        "ops.copy_blocks(source, target, gpu_blocks, host_blocks, size, stride, size)",
        "ops.copy_blocks(target, source, host_blocks, gpu_blocks, size, size, stride)", WORKER,
    ),
    OpsMutant(
        "a failed restore leaves its page mapped", "worker", "hisparse_ops/worker/tables.py",
        "        _forget(self.resident, blocks)\n", "", WORKER,
    ),
]  # fmt: skip
