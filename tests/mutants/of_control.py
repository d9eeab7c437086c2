"""Faults of the control plane, one small patch each: `old` becomes `new` in one file.

`like` names what a real system of this sort has had; `None` where the fault is only conceivable. A
patch that no longer fits the code is an error: the list is kept in step with what it breaks.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    family: str
    file: str
    old: str
    new: str
    like: str | None = None
    directed: str = ""  # a test below tests/ that leads where walks get too rarely; tried when they find nothing


MUTANTS = [
    # -- acknowledgements
    Mutant(
        "publish on enqueue", "acknowledgement", "publication.py",
        "transfers.enqueued(writer, report.enqueued | over):\n            self._enqueued(transfer)",
        "transfers.enqueued(writer, report.enqueued | over):\n            self._enqueued(transfer)\n"
        "            self._settle([transfer])",
    ),
    Mutant(
        "one rank's completion is enough", "acknowledgement", "transfers.py",
        "    waiting.discard(writer)\n    return not waiting", "    waiting.clear()\n    return True",
        "a page was published when the first rank had copied it",
    ),
    Mutant(
        "counts instead of sets", "acknowledgement", "transfers.py",
        "    if writer not in waiting:\n        return False\n    waiting.discard(writer)",
        "    if not waiting:\n        return False\n    waiting.pop()",
        "a duplicated report was counted as another rank's",
    ),
    Mutant(
        "reports of any epoch count", "acknowledgement", "coordinator.py",
        "split or foreign parts change nothing.\"\"\"\n",
        "split or foreign parts change nothing.\"\"\"\n"
        "        report = type(report)(report.rank, self._state.epoch, report.enqueued, report.completed,\n"
        "            report.copied, report.failed, report.mirrored)\n",
        "a restarted worker's earlier life was believed",
    ),
    Mutant(
        "a foreign rank may speak for the writer", "acknowledgement", "publication.py",
        "writer = (report.rank, report.epoch)", "writer = (0, report.epoch)",
    ),
    Mutant(
        "a failed copy counts as completed", "acknowledgement", "publication.py",
        "doubtful = transfer.failed or (spill and transfer.page.tainted)", "doubtful = spill and transfer.page.tainted",
        "a copy that raised in a background thread left its page valid",
    ),
    Mutant(
        "a report of failure is lost", "acknowledgement", "publication.py",
        "over = report.completed | report.failed", "over = report.completed",
    ),
    Mutant(
        "a late report of an overdue transfer is believed", "acknowledgement", "transfers.py",
        "found = [self.active.get(transfer_id) for transfer_id in ids]",
        "found = [self.active.get(transfer_id, self.quarantined.get(transfer_id)) for transfer_id in ids]",
        "a late report freed the block of a new owner",
    ),
    Mutant(
        "overdue transfers are taken for done", "acknowledgement", "publication.py",
        "self._end(transfer, good=False)", "self._end(transfer, good=True)",
    ),
    Mutant(
        "transfer ids start again after a reset", "acknowledgement", "state.py",
        "before.transfers.last_id if before else 0", "0",
        "a report of an earlier life of an id was taken for news",
    ),
    # -- leases
    Mutant(
        "free on plan", "leases", "residency.py",
        "        state.gpu.share(page.kv)\n        state.host.share(page.host)\n"
        "        writers = state.writers(state.config.writer_ranks)",
        "        state.host.share(page.host)\n        writers = state.writers(state.config.writer_ranks)",
        "GPU blocks were freed when their copy was only planned",
    ),
    Mutant(
        "the host block of a transfer is not held", "leases", "publication.py",
        "            self._state.fence.release_host(transfer.host)\n            self._end(",
        "            self._end(",
    ),
    Mutant(
        "the lease is released twice", "leases", "publication.py",
        "            transfer.holds_lease = False\n", "",
    ),
    Mutant(
        "released when the first rank enqueued", "leases", "transfers.py",
        "return [t for t in self._reported(ids) if _strike(t.not_enqueued, writer)]",
        "return [t for t in self._reported(ids) if t.holds_lease]",
    ),
    Mutant(
        "fence off", "leases", "fence.py",
        "if self._in_flight and others == 1:\n            self.leases.put(self._last_planned, lease)\n        else:",
        "if False:\n            self.leases.put(self._last_planned, lease)\n        else:",
        "a block was reused while a step in flight still read it",
    ),
    Mutant(
        "the fence waits for one step too few", "leases", "fence.py",
        "while self._queue and self._queue[0][0] < before:", "while self._queue and self._queue[0][0] <= before:",
    ),
    Mutant(
        "fence off for host blocks", "leases", "fence.py",
        "if self._in_flight and others == 1:\n            self.blocks.put(self._last_planned, block)",
        "if False:\n            self.blocks.put(self._last_planned, block)",
    ),
    Mutant(
        "a hot region is not given back", "leases", "residency.py",
        "        if request.hot is not None:\n            state.fence.release_gpu(request.hot)\n"
        "            request.hot = None\n        del",
        "        del",
    ),
    Mutant(
        "index keys leak when a request leaves", "leases", "residency.py",
        "        page.keys.age = (stamp, KEYS, -page.index)\n        state.fence.release_gpu(page.keys)",
        "        page.keys.age = (stamp, KEYS, -page.index)",
        "blocks leaked on abort",
    ),
    Mutant(
        "counts are clamped at zero", "leases", "gpu_pool.py",
        "        lease.refs -= 1\n        if lease.refs == 0:",
        "        lease.refs = max(lease.refs - 2, 0)\n        if lease.refs == 0:",
    ),
    Mutant(
        "the null block is leased", "leases", "gpu_pool.py",
        "return Lease(tuple([self._blank.popleft() for _ in range(count)]))",
        "return Lease(tuple([NO_GPU_BLOCK if self.free < 4 else self._blank.popleft() for _ in range(count)]))",
        "the null block was handed out when the pool was nearly full",
    ),
    Mutant(
        "freed blocks go to the front", "leases", "gpu_pool.py",
        "            else:\n                self._blank.extend(lease.blocks)",
        "            else:\n                self._blank.extendleft(lease.blocks)",
    ),
    Mutant(
        "the head of a prefix is reused first", "leases", "residency.py",
        "page.kv.age = (request.stamp, KV, -page.index)", "page.kv.age = (request.stamp, KV, page.index)",
    ),
    # -- unpinning and reuse
    Mutant(
        "unpin dirty pages", "unpinning", "request.py",
        "clean = self.pages.in_state[PageState.CLEAN_PINNED]\n        return [",
        "clean = self.pages.in_state[PageState.CLEAN_PINNED] | self.pages.in_state[PageState.FRESH]\n        return [",
    ),
    Mutant(
        "unpin the last page but one", "unpinning", "request.py", "WRITABLE_PAGES = 2", "WRITABLE_PAGES = 1",
    ),
    Mutant(
        "watcher forgotten", "unpinning", "residency.py",
        "        self._state.gpu.watch(page.kv, page)\n", "",
        "nobody heard that an unpinned block was handed out",
    ),
    Mutant(
        "watcher overwritten by a second one", "unpinning", "gpu_pool.py",
        "lease.watchers += (watcher,)", "lease.watchers = (watcher,)",
        "a second subscriber replaced the first",
    ),
    Mutant(
        "only the first watcher hears", "unpinning", "gpu_pool.py",
        "        for watcher in watchers:\n            watcher.lost(lease)",
        "        for watcher in watchers[:1]:\n            watcher.lost(lease)",
    ),
    Mutant(
        "watcher fires twice", "unpinning", "gpu_pool.py",
        "            watcher.lost(lease)", "            watcher.lost(lease)\n            watcher.lost(lease)",
    ),
    Mutant(
        "a pinned page is still watched", "unpinning", "residency.py",
        "        self._state.gpu.unwatch(page.kv, page)\n        request.pages.move(page, PageState.CLEAN_PINNED)",
        "        request.pages.move(page, PageState.CLEAN_PINNED)",
    ),
    Mutant(
        "the lost page keeps its blocks in the tables", "unpinning", "pages.py",
        "        page.kv = None\n        self.move(page, _S.HOST_ONLY)", "        self.move(page, _S.HOST_ONLY)",
    ),
    Mutant(
        "no hot region before unpinning", "unpinning", "pressure.py",
        "        self._residency.grant_hot(chosen.request)\n        self._squeeze(chosen.request)",
        "        self._squeeze(chosen.request)\n        self._residency.grant_hot(chosen.request)",
    ),
    Mutant(
        "a hot region is returned with pages still away", "unpinning", "pressure.py",
        "if pages.resident and not pages.in_state[PageState.RESTORING]:",
        "if not pages.in_state[PageState.RESTORING]:",
    ),
    # -- publication
    Mutant(
        "publish with a gap", "publication", "publication.py",
        "            if not page.durable:\n                break\n            self._publish",
        "            if not page.durable:\n                request.frontier += 1\n                continue\n"
        "            self._publish",
    ),
    Mutant(
        "publish what is sealed, durable or not", "publication", "publication.py",
        "            if not page.durable:\n                break\n            self._publish",
        "            if False:\n                break\n            self._publish",
    ),
    Mutant(
        "the mirror needs no proof", "publication", "publication.py",
        "if spill and not doubtful and not self._state.mirror.covers(transfer.page):", "if False:",
        "a graph replay skipped the hook that copied the rows, and the page became valid all the same",
    ),
    Mutant(
        "short mirror counts are ignored", "publication", "mirror.py",
        "        if copied != step.rows:", "        if False:",
    ),
    Mutant(
        "the proof looks at the last write only", "publication", "mirror.py",
        "range(max(page.first_write, oldest), page.last_write + 1)", "range(page.last_write, page.last_write + 1)",
    ),
    Mutant(
        "a short mirror taints the first page only", "publication", "mirror.py",
        "for page in request.pages.table[first : last + 1]:", "for page in request.pages.table[first : first + 1]:",
        "one page that could not be mapped hid its neighbours",
    ),
    Mutant(
        "preempted requests go on publishing", "publication", "coordinator.py",
        "        self._residency.leave(self._leaving(request_id), keep=0)",
        "        request = self._leaving(request_id)\n"
        "        self._residency.leave(request, keep=self._publisher.detach(request))",
    ),
    Mutant(
        "a finished request drops what is not yet published", "publication", "coordinator.py",
        "keep = self._publisher.detach(request) if publish and self._config.host_tier else 0", "keep = 0",
        "the page that became full in the last step was never spilled",
    ),
    Mutant(
        "a twin is published over the first", "publication", "publication.py",
        "            if state.key_copies.get(holder) is not None:\n                return\n", "",
    ),
    Mutant(
        "a recycled block keeps its hash", "publication", "host_pool.py",
        "        self._on_evict(block, self.drop_hash(block))",
        "        del self._cached[block]\n        self._blank.append(block)",
        "a reused block was still a prefix hit",
    ),
    Mutant(
        "the copy index is not dropped on eviction", "publication", "state.py",
        "        self.kv_copies.drop(block)\n", "",
        "a copy index outlived the block it described",
    ),
    Mutant(
        "only half of the copy index is dropped on reuse", "publication", "copies.py",
        "        del self._lease_of[self._block_of.pop(lease)]", "        self._block_of.pop(lease)",
    ),
    Mutant(
        "seal one page too many", "publication", "coordinator.py",
        "        sealed = final_tokens // self._block_size\n",
        "        sealed = -(-final_tokens // self._block_size)\n",
        "an unsealed tail was taken for final",
    ),
    Mutant(
        "a hit reaches beyond its index keys", "publication", "state.py",
        "if block is None or self.key_copies.get(block) is None:", "if block is None:",
        "the longest of several prefixes was used, not the common one",
    ),
    # -- admission and adoption
    Mutant(
        "adopt without pinning", "admission", "residency.py",
        "        self._state.gpu.share(copy)\n        page.kv = copy", "        page.kv = copy",
    ),
    Mutant(
        "shared host blocks are not held", "admission", "residency.py",
        "        self._state.host.share(host)\n        self._state.gpu.share(keys)",
        "        self._state.gpu.share(keys)",
        "a page was evicted while a reader held it",
    ),
    Mutant(
        "the hit is chosen before room is made, and kept", "admission", "landing.py",
        "            if choice == self._choose(self._usable_hit(token_hashes, num_tokens, limits), limits):\n",
        "            if choice:\n",
        "pages were adopted whose blocks had just been handed out",
        "control/test_prefix.py::test_b12_a_hit_that_is_handed_out_while_room_is_made_for_it",
    ),
    Mutant(
        "a capacity query has a side effect", "admission", "coordinator.py",
        "        return len(self._state.hit(token_hashes)) * self._block_size",
        "        for block in self._state.hit(token_hashes):\n            self._state.kv_copies.drop(block)\n"
        "        return len(self._state.hit(token_hashes)) * self._block_size",
        "asking for room evicted something",
    ),
    Mutant(
        "an admission charges nothing", "admission", "admission.py",
        "        self.charged += charge.blocks\n", "",
        "all waiting requests were admitted against the same free room",
    ),
    Mutant(
        "reset of one pool only", "admission", "state.py",
        "        self.gpu = GpuPool(shape.num_blocks, gpu_order)",
        "        self.gpu = before.gpu if before else GpuPool(shape.num_blocks, gpu_order)",
        "one pool was reset and the other not",
    ),
    # -- what the workers are told
    Mutant(
        "an import that lands on the host is not told", "tables", "pages.py",
        "        if SOURCE[before] is not SOURCE[state]:",
        "        if (before in READ_FROM_GPU) != (state in READ_FROM_GPU):",
    ),
    Mutant(
        "a page that lost its blocks is not told", "tables", "pages.py",
        "        if SOURCE[before] is not SOURCE[state]:\n            self._note(page)",
        "        if state in READ_FROM_GPU and before not in READ_FROM_GPU:\n            self._note(page)",
    ),
    Mutant(
        "a readmitted request is told only what changed", "tables", "pages.py",
        "        self.in_state[state].add(page.index)\n        self._note(page)\n        return page",
        "        self.in_state[state].add(page.index)\n        if state is not _S.HOST_ONLY:\n"
        "            self._note(page)\n        return page",
        "the first update after readmission did not cover every page",
    ),
    Mutant(
        "state rows change hands without a word", "tables", "residency.py",
        "        state.cleared_rows[request.state_row] = None\n", "",
    ),
    Mutant(
        "recycled blocks are not invalidated", "tables", "host_pool.py",
        "        self._recycled[block] = None\n", "",
        "rows of a block's former content were served from the hot buffer",
    ),
    Mutant(
        "a new hot region does not reset the hot state", "tables", "residency.py",
        "        self._state.hot_changed[request] = None\n        self._state.stranded.pop",
        "        self._state.stranded.pop",
    ),
    Mutant(
        "residency is read off before room is made", "tables", "planner.py",
        "            self._start_spills()\n            self._pressure.relieve()\n"
        "            self._pressure.bring_back()\n        envelopes",
        "            early = self._take_residency()\n            self._start_spills()\n"
        "            self._pressure.relieve()\n            self._pressure.bring_back()\n"
        "            state.changes.pages.clear()\n        envelopes",
    ),
    # -- imports
    Mutant(
        "a failed import is valid", "imports", "imports.py",
        "        incoming.good &= ok\n", "        incoming.good = True\n",
        "an import that failed half-way left its pages valid",
    ),
    Mutant(
        "an import writes a published block", "imports", "imports.py",
        "NO_HOST_BLOCK if here else page.host", "page.host",
    ),
    Mutant(
        "the tail of an import is shared", "imports", "imports.py",
        "here.get(index) if index != tail else None) for index in wanted", "here.get(index)) for index in wanted",
    ),
    Mutant(
        "an import that leaves gives its blocks back at once", "imports", "imports.py",
        "        if incoming.outside:\n            self._state.orphaned[request.id] = incoming\n        else:",
        "        if False:\n            pass\n        else:",
        "a transport wrote into blocks of a new owner",
    ),
    Mutant(
        "the source of a copy is not held", "imports", "imports.py",
        "            self._state.fence.release_host(copy.source)\n", "",
    ),
    Mutant(
        "an import is done before its tail is copied", "imports", "imports.py",
        "        if not incoming.good or incoming.copy is None:", "        if True:",
    ),
]  # fmt: skip
