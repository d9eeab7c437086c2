"""What an ended transfer means, and when a hash becomes visible.

A page is durable when every writer rank has completed its spill *and* the mirror proof covers every
step that wrote it. Durable pages are published in order, without a gap: `request.frontier`.
A page whose copy failed, or whose rows are not proven, is tainted: it stays on the GPU, and nothing
behind it is published.
"""

from __future__ import annotations

from collections.abc import Iterable

from .gpu_pool import Lease
from .pages import Page, PageState
from .request import Fate, Request
from .residency import Residency
from .state import ControlState
from .transfers import Transfer
from .types import HostBlock, RankReport, TokenHash, TransferKind


class Publisher:
    def __init__(self, state: ControlState, residency: Residency) -> None:
        self._state = state
        self._residency = residency

    def apply(self, report: RankReport) -> None:
        """Take in what one rank says it has done."""
        writer = (report.rank, report.epoch)
        transfers, mirror = self._state.transfers, self._state.mirror
        closed = False
        for sequence, copied in report.mirrored.items():
            closed |= mirror.report(writer, sequence, copied)
        if closed:
            self._settle(list(transfers.unproven.values()))
        transfers.failed(writer, report.failed)
        over = report.completed | report.failed
        for transfer in transfers.enqueued(writer, report.enqueued | over):
            self._enqueued(transfer)
        if over:
            self._settle(transfers.completed(writer, over))

    def give_up_overdue(self, sequence: int) -> None:
        """Stop waiting for reports that are overdue at step `sequence`."""
        if self._state.mirror.give_up_overdue(sequence):
            self._settle(list(self._state.transfers.unproven.values()))
        for transfer in self._state.transfers.quarantine_transfers(sequence):
            self._state.totals.overdue += 1
            self._end(transfer, good=False)

    def advance(self, request: Request) -> None:
        """Publish what has become durable without a gap."""
        pages, known = request.pages, len(request.hashes)
        while request.frontier < min(len(pages), request.sealed_pages, known):
            page = pages[request.frontier]
            if not page.durable:
                break
            self._publish(page, request.hashes[request.frontier])
            request.frontier += 1
            if request.fate is Fate.DETACHED:
                self._residency.drop_gpu(page, request.stamp)
        if request.fate is Fate.DETACHED:
            self._shrink(request)

    def detach(self, request: Request) -> int:
        """How many pages of a finishing request must stay until they are published; 0 if none."""
        pages = request.pages
        end = request.frontier
        while end < min(len(pages), request.sealed_pages, len(request.hashes)) and not pages[end].hopeless:
            end += 1
        return end if end > request.frontier else 0

    def _enqueued(self, transfer: Transfer) -> None:
        if transfer.kind is TransferKind.SPILL:
            transfer.holds_lease = False
            self._state.fence.release_gpu(transfer.lease)

    def _settle(self, transfers: Iterable[Transfer]) -> None:
        """End transfers that every rank has completed, as far as the mirror proof is there."""
        for transfer in transfers:
            spill = transfer.kind is TransferKind.SPILL
            doubtful = transfer.failed or (spill and transfer.page.tainted)  # a restore needs no mirror
            if spill and not doubtful and not self._state.mirror.covers(transfer.page):
                self._state.transfers.unproven[transfer.id] = transfer
                continue
            self._state.transfers.retire(transfer)
            if transfer.kind is TransferKind.RESTORE and not doubtful:
                self._index_copy(transfer.host, transfer.lease)
            if transfer.holds_lease:
                self._state.fence.release_gpu(transfer.lease)
            self._state.fence.release_host(transfer.host)
            self._end(transfer, good=not doubtful)

    def _end(self, transfer: Transfer, good: bool) -> None:
        """The page's side of the end of a transfer, if the page is still its request's."""
        request, page = transfer.request, transfer.page
        if not request.owns(page):
            return
        if transfer.kind is TransferKind.SPILL:
            self._spilled(transfer, good)
        else:
            self._restored(transfer, good)

    def _spilled(self, transfer: Transfer, good: bool) -> None:
        request, page = transfer.request, transfer.page
        if good:
            self._state.totals.spilled_pages += 1
            self._state.totals.spill_steps += self._state.sequence - transfer.sent_at
        else:
            page.taint()
        request.pages.move(page, PageState.CLEAN_PINNED if good else PageState.FRESH)
        self.advance(request)

    def _restored(self, transfer: Transfer, good: bool) -> None:
        request, page = transfer.request, transfer.page
        if not good:
            # A durable page is still read from the host; the tail of an import is valid nowhere.
            self._residency.release_kv(
                request, page, PageState.HOST_ONLY if transfer.durable else PageState.IMPORT_HOLE
            )
            if request.live and request.hot is None:
                self._state.stranded[request] = None
        elif transfer.durable:
            request.pages.move(page, PageState.CLEAN_PINNED)
        else:
            request.pages.move(page, PageState.FRESH)
            if page.index < request.sealed_pages:
                self._state.spill_queue.append((request, page))
        self.advance(request)

    def _publish(self, page: Page, token_hash: TokenHash) -> None:
        """Make a durable page a prefix hit, unless a twin of it is one already."""
        state = self._state
        holder = state.prefix.get(token_hash)
        if holder is not None:
            if state.key_copies.get(holder) is not None:
                return
            # The twin's index keys are lost, so nobody can hit it: this page takes its place.
            state.forget_hash(holder, state.host.drop_hash(holder))
        state.totals.published_pages += 1
        state.host.set_hash(page.host, token_hash)
        state.prefix.add(token_hash, page.host)
        state.key_copies.add(page.host, page.keys)
        if page.kv is not None:
            self._index_copy(page.host, page.kv)

    def _index_copy(self, host: HostBlock, lease: Lease) -> None:
        """`lease` holds the final rows of `host`: if that is published, others may adopt them."""
        if host in self._state.host.hash_of:
            self._state.kv_copies.add(host, lease)

    def _shrink(self, request: Request) -> None:
        """A detached request holds no more than may still be published."""
        pages = request.pages
        end = next((page.index for page in pages.table[request.frontier :] if page.hopeless), len(pages))
        self._residency.cut(request, end)
        if request.frontier == len(pages):
            self._residency.end_detached(request)
