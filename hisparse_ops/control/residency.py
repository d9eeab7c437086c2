"""How a page takes and gives up its blocks, and a request its hot region.

Everything here is mechanism: the callers have made sure that the blocks are there.
"""

from __future__ import annotations

from .gpu_pool import Lease
from .pages import HOLDS_KV, Page, PageState
from .request import Fate, Request
from .state import ControlState
from .types import NO_HOST_BLOCK, HostBlock, TransferKind

KV, KEYS = 0, 1  # of what is given up together, KV is reused first: without index keys a hit ends


class Residency:
    def __init__(self, state: ControlState) -> None:
        self._state = state
        self._config = state.config

    # -- taking ------------------------------------------------------------------------------

    def add_fresh(self, request: Request) -> None:
        """A new page at the end of the row, resident and writable."""
        request.pages.append(PageState.FRESH, self.lease_host(), self.lease_keys(), self.lease_kv())

    def lease_host(self) -> HostBlock:
        return self._state.host.lease() if self._config.host_tier else NO_HOST_BLOCK

    def lease_keys(self) -> Lease:
        return self._state.gpu.lease(self._state.shape.num_indexer_groups)

    def lease_kv(self) -> Lease:
        return self._state.gpu.lease(self._state.shape.num_groups)

    def add_shared(self, request: Request, host: HostBlock, keys: Lease) -> Page:
        """A page of a prefix hit at the end of the row: host block and index keys are shared."""
        self._state.host.share(host)
        self._state.gpu.share(keys)
        return request.pages.append(PageState.HOST_ONLY, host, keys, None)

    def adopt(self, request: Request, page: Page) -> bool:
        """Read a host-only page from a GPU copy of its host block, if there is one."""
        copy = self._state.kv_copies.get(page.host)
        if copy is None:
            return False
        self._state.gpu.share(copy)
        page.kv = copy
        self._state.totals.adopted_pages += 1
        request.pages.move(page, PageState.CLEAN_PINNED)
        return True

    def restore(self, request: Request, page: Page, lease: Lease | None = None) -> None:
        """Bring a page from the host into `lease` (default: a new one) by a transfer of the next step."""
        state = self._state
        state.totals.restored_pages += 1
        page.kv = self.lease_kv() if lease is None else lease
        state.gpu.share(page.kv)
        state.host.share(page.host)
        writers = state.writers(state.config.ranks)
        state.transfers.plan(TransferKind.RESTORE, request, page, page.kv, True, writers)
        request.pages.move(page, PageState.RESTORING)

    def spill(self, request: Request, page: Page) -> None:
        """Make a sealed page durable: by a copy, or by the barrier behind the rows mirrored."""
        assert page.kv is not None
        state = self._state
        state.gpu.share(page.kv)
        state.host.share(page.host)
        writers = state.writers(state.config.writer_ranks)
        state.transfers.plan(TransferKind.SPILL, request, page, page.kv, not state.config.eager_mirror, writers)
        request.pages.move(page, PageState.SPILLING)

    # -- giving up ---------------------------------------------------------------------------

    def unpin(self, request: Request, page: Page) -> None:
        """Give the blocks of a clean page back; it is read from them until they are reused."""
        assert request.hot is not None and page.kv is not None and page.transfer is None
        request.pages.move(page, PageState.CLEAN_UNPINNED)
        self._state.gpu.watch(page.kv, page)
        page.kv.age = (request.stamp, KV, -page.index)
        self._state.fence.release_gpu(page.kv)

    def pin(self, request: Request, page: Page) -> None:
        """Take the blocks of an unpinned page again."""
        assert page.kv is not None
        self._state.gpu.share(page.kv)
        self._state.gpu.unwatch(page.kv, page)
        request.pages.move(page, PageState.CLEAN_PINNED)

    def drop_gpu(self, page: Page, stamp: int) -> None:
        """Give back what a page holds of the GPU."""
        state = self._state
        if page.kv is not None:
            page.kv.age = (stamp, KV, -page.index)
            if page.state in HOLDS_KV:
                state.fence.release_gpu(page.kv)
            else:
                state.gpu.unwatch(page.kv, page)
        page.keys.age = (stamp, KEYS, -page.index)
        state.fence.release_gpu(page.keys)

    def drop_host(self, page: Page) -> None:
        if page.host != NO_HOST_BLOCK:
            self._state.fence.release_host(page.host)

    def release_kv(self, request: Request, page: Page, to: PageState) -> None:
        """A restore failed: the page is not on the GPU."""
        assert page.kv is not None
        self._state.fence.release_gpu(page.kv)
        page.kv = None
        request.pages.move(page, to)

    # -- hot regions -------------------------------------------------------------------------

    def grant_hot(self, request: Request) -> None:
        """Lease the whole hot region, in every group: from now on pages may be dropped."""
        request.hot = self._state.gpu.lease(self._state.ledger.hot_cost)
        request.stamp = self._state.tick()
        self._state.totals.moved_requests += 1
        self._state.hot_changed[request] = None
        self._state.stranded.pop(request, None)
        self._state.movable.pop(request, None)
        self._state.moved[request] = None

    def return_hot(self, request: Request) -> None:
        assert request.hot is not None
        self._state.fence.release_gpu(request.hot)
        request.hot = None
        self._state.hot_changed[request] = None
        del self._state.moved[request]
        self._state.movable[request] = None

    # -- the whole request -------------------------------------------------------------------

    def enter(self, request: Request, reserved_pages: int) -> None:
        """The request is live."""
        state = self._state
        state.live[request.id] = request
        state.ledger.admit(request, reserved_pages)
        if request.movable:
            state.movable[request] = None

    def leave(self, request: Request, keep: int) -> None:
        """The request is no longer live. Of its pages, those from the frontier to `keep` stay with
        it until they are published; `keep` 0: none."""
        state = self._state
        if request.hot is not None:
            state.fence.release_gpu(request.hot)
            request.hot = None
        del state.live[request.id]
        for part in (state.movable, state.moved, state.stranded, state.hot_changed):
            part.pop(request, None)
        state.ledger.leave(request)
        state.free_rows.append(request.state_row)
        state.cleared_rows[request.state_row] = None
        request.pages.row = None
        request.stamp = state.tick()
        self.cut(request, keep)
        for page in request.pages.table[: request.frontier]:
            self.drop_gpu(page, request.stamp)
        request.fate = Fate.DETACHED if keep else Fate.GONE
        if keep:
            state.detached[request] = None

    def cut(self, request: Request, keep: int) -> None:
        """Give up the pages from `keep` on, tail first: the head of a prefix is reused last."""
        while len(request.pages) > keep:
            page = request.pages.pop()
            self.drop_gpu(page, request.stamp)
            self.drop_host(page)

    def end_detached(self, request: Request) -> None:
        """Everything that could be published is; the GPU leases are given back already."""
        while len(request.pages):
            self.drop_host(request.pages.pop())
        request.fate = Fate.GONE
        del self._state.detached[request]
