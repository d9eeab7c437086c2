"""What control decides, and what it does with what it hears.

| when                | actions                                                  |
|---------------------|----------------------------------------------------------|
| freely, at any time | spill unpin repin hot cool reuse evict restore set_aside |
| when a rank reports | deliver (any true fact: late, split, twice, or never)    |

*Freely*: any policy is a way to choose among these, so what holds here holds for all. There are no
watchers, owner indexes or callbacks: `reuse` looks into the page tables.

Every action is given the state and an edit of it. It asks the state whether it is allowed, raises
`NotEnabled` if not, and then changes the edit.
"""

from __future__ import annotations

from typing import Any

from .bounds import WRITABLE_PAGES, Bounds, ReleaseAt
from .edit import Edit, require
from .state import (
    COMPLETED,
    COPY,
    DETACHED,
    ENQUEUED,
    FAILED,
    LIVE,
    NEW_REQUEST,
    NOBODY,
    RESTORE,
    SENT,
    SPILL,
    Blocks,
    Page,
    Request,
    State,
    Transfer,
    blank_gpu,
    blank_host,
    name_of,
    pending,
    readable_leases,
    with_item,
)


class Control:
    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds

    def require_blank(self, state: State, gpu: Blocks, count: int) -> None:
        require(len(gpu) == count and set(gpu) <= set(blank_gpu(state)), "blank GPU blocks")

    # --- decisions

    def spill(self, state: State, edit: Edit, r: int, p: int) -> None:
        request = state.requests[r]
        page = request.pages[p]
        require(request.status in (LIVE, DETACHED) and page.gpu and page.held and not page.clean, "a fresh page")
        require(not page.tainted, "a page that can be proven")
        require(self.sealed(request, p), "a sealed page")
        require(pending(state, r, p) is None, "no transfer of the page")
        self.plan_transfer(edit, SPILL, r, p)

    def unpin(self, state: State, edit: Edit, r: int, p: int) -> None:
        request = state.requests[r]
        page = request.pages[p]
        require(request.status == LIVE and page.gpu and page.held, "a pinned page of a live request")
        require(self.may_unpin(state, r, p), "a clean page before the tail, and the hot region")
        edit.change_page(r, p, held=False)
        edit.release_gpu(page.gpu)

    def may_unpin(self, state: State, r: int, p: int) -> bool:
        request = state.requests[r]
        settled = request.pages[p].clean and pending(state, r, p) is None
        return settled and bool(request.hot) and p < len(request.pages) - WRITABLE_PAGES

    def repin(self, state: State, edit: Edit, r: int, p: int) -> None:
        page = state.requests[r].pages[p]
        require(state.requests[r].status == LIVE and page.gpu and not page.held, "an unpinned page")
        edit.change_page(r, p, held=True)
        edit.hold_gpu(page.gpu)

    def hot(self, state: State, edit: Edit, r: int, blocks: Blocks) -> None:
        require(state.requests[r].status == LIVE and not state.requests[r].hot, "a live request without hot region")
        self.require_blank(state, blocks, self.bounds.hot)
        edit.take_gpu(blocks)
        edit.change(r, hot=blocks, lines=())

    def cool(self, state: State, edit: Edit, r: int) -> None:
        request = state.requests[r]
        require(request.hot and all(page.gpu and page.held for page in request.pages), "hot, and all pinned")
        edit.release_gpu(request.hot)
        edit.change(r, hot=())

    def reuse(self, state: State, edit: Edit, gpu: Blocks) -> None:
        """The pool wants blocks that are free but still read: whoever reads them loses the page, in all groups."""
        require(gpu in readable_leases(state), "free blocks that are still read")
        for r, request in enumerate(state.requests):
            for p, page in enumerate(request.pages):
                if page.gpu == gpu and not page.held:
                    edit.change_page(r, p, gpu=())
        edit.copies = {host: copy for host, copy in edit.copies.items() if copy != gpu}
        edit.key_copies = {host: copy for host, copy in edit.key_copies.items() if copy != gpu}

    def evict(self, state: State, edit: Edit, host: int) -> None:
        """The pool wants a host block that nobody holds but that is still a hit."""
        require(host in state.host_free and host not in blank_host(state), "a cached host block")
        edit.prefix = {name: block for name, block in edit.prefix.items() if block != host}
        edit.copies.pop(host, None)
        edit.key_copies.pop(host, None)

    def restore(self, state: State, edit: Edit, r: int, p: int, gpu: Blocks) -> None:
        """A page comes back from the host, ahead of everything that reads it."""
        request, rows = state.requests[r], self.bounds.rows
        page = request.pages[p]
        require(request.status == LIVE and not page.gpu, "a page that is not resident")
        require(pending(state, r, p) is None, "no transfer of the page")
        require(page.proven >= min(rows, request.computed - p * rows), "a host copy of all its rows")
        self.require_blank(state, gpu, self.bounds.groups)
        edit.take_gpu(gpu)
        edit.write_gpu(gpu, edit.stream[0][page.host])
        edit.change_page(r, p, gpu=gpu, held=True)
        self.plan_transfer(edit, RESTORE, r, p)

    def set_aside(self, state: State, edit: Edit, i: int) -> None:
        """Overdue: its blocks rest until a reset, and its page is never believed."""
        transfer = state.transfers[i]
        require(transfer.kind == SPILL and not transfer.lost, "a spill that is waited for")
        edit.transfers[i] = transfer._replace(lost=True, owner=NOBODY)
        if transfer.owner != NOBODY:
            edit.change_page(transfer.owner, transfer.page, tainted=True)
            self.publish(edit, transfer.owner)

    # --- transfers: planned, enqueued, completed

    def plan_transfer(self, edit: Edit, kind: int, r: int, p: int, source: int = 0) -> None:
        """From now on the transfer holds its blocks itself."""
        bounds, page = self.bounds, edit.requests[r].pages[p]
        require(sum(not t.lost for t in edit.transfers) < bounds.transfers, "fewer transfers under way")
        gpu = () if kind == COPY else page.gpu
        edit.hold_gpu(gpu)
        edit.hold_host(page.host)
        if source:
            edit.hold_host(source)
        payload = edit.stream[0][source] if source else (0,) * bounds.rows
        progress = SENT if kind == SPILL else ENQUEUED  # others go ahead of all reads: in stream order they are done
        edit.transfers.append(
            Transfer(
                kind=kind,
                owner=r,
                page=p,
                host=page.host,
                source=source,
                gpu=gpu,
                leases_gpu=bool(gpu),
                moves=kind != SPILL or not bounds.mirror,
                progress=(progress,) * bounds.ranks,
                known=(SENT,) * bounds.ranks,
                payload=(payload,) * bounds.ranks,
                lost=False,
            )
        )

    def deliver(self, state: State, edit: Edit, i: int, rank: int, fact: int) -> None:
        """Control hears that `rank` has come so far. Hearing it again, or late, changes nothing."""
        transfer = state.transfers[i]
        told = transfer.progress[rank]
        require(told == fact or (told > fact and fact == ENQUEUED), "a true fact")
        if transfer.lost or transfer.known[rank] >= fact:
            return
        transfer = transfer._replace(known=with_item(transfer.known, rank, fact))
        edit.transfers[i] = transfer
        if min(transfer.known) >= ENQUEUED:
            self.all_enqueued(edit, i)
        if min(transfer.known) >= COMPLETED:
            self.all_completed(edit, i)

    def all_enqueued(self, edit: Edit, i: int) -> None:
        transfer = edit.transfers[i]
        if transfer.kind == SPILL and self.bounds.release_at is ReleaseAt.ENQUEUED and transfer.leases_gpu:
            edit.transfers[i] = transfer._replace(leases_gpu=False)
            edit.release_gpu(transfer.gpu)

    def all_completed(self, edit: Edit, i: int) -> None:
        """Retired: its leases end, and if nothing failed its page is durable."""
        transfer = edit.transfers.pop(i)
        if transfer.kind == RESTORE and transfer.host in edit.prefix.values():
            self.index_copy(edit, transfer.host, transfer.gpu)
        if transfer.leases_gpu:
            edit.release_gpu(transfer.gpu)
        edit.release_host(transfer.host)
        if transfer.source:
            edit.release_host(transfer.source)
        if transfer.kind == SPILL and transfer.owner != NOBODY:
            page = edit.requests[transfer.owner].pages[transfer.page]
            if FAILED in transfer.known or page.tainted:
                edit.change_page(transfer.owner, transfer.page, tainted=True)
            else:
                edit.change_page(transfer.owner, transfer.page, clean=True, proven=self.bounds.rows)
            self.publish(edit, transfer.owner)

    # --- publication

    def sealed(self, request: Request, p: int) -> bool:
        return (p + 1) * self.bounds.rows <= request.final

    def publishable(self, request: Request, p: int) -> bool:
        """Whether a page is or may still become durable."""
        return request.pages[p].clean or (self.sealed(request, p) and not request.pages[p].tainted)

    def publish(self, edit: Edit, r: int) -> None:
        """Offer the durable pages without a gap; a finished request goes when no more can come."""
        request = edit.requests[r]
        while request.published < len(request.pages) and request.pages[request.published].clean:
            p = request.published
            self.offer(edit, name_of(self.bounds, r, p), request.pages[p])
            request = edit.change(r, published=p + 1)
            if request.status == DETACHED:
                self.give_back_gpu(edit, r, p)
        if request.status == DETACHED:
            self.end_detached(edit, r)

    def offer(self, edit: Edit, name: int, page: Page) -> None:
        """Make a page a hit, unless a twin of it is one already. A twin whose index keys are lost is none."""
        twin = edit.prefix.get(name)
        if twin is not None:
            if not self.bounds.keys or twin in edit.key_copies:
                return
            edit.copies.pop(twin, None)
        edit.prefix[name] = page.host
        if page.keys:
            edit.key_copies[page.host] = page.keys
        if page.gpu:
            self.index_copy(edit, page.host, page.gpu)

    def index_copy(self, edit: Edit, host: int, gpu: Blocks) -> None:
        """Others may adopt these blocks instead of restoring the published page."""
        if host not in edit.copies and gpu not in edit.copies.values():
            edit.copies[host] = gpu

    def end_detached(self, edit: Edit, r: int) -> None:
        """Pages behind one that can never be published are not waited for; at the end nothing is held."""
        pages = range(edit.requests[r].published, len(edit.requests[r].pages))
        last = next((p for p in pages if edit.requests[r].pages[p].tainted), len(edit.requests[r].pages))
        self.cut(edit, r, last)
        if edit.requests[r].published >= len(edit.requests[r].pages):
            self.cut(edit, r, 0)
            self.vacate(edit, r)

    # --- what a request gives back

    def cut(self, edit: Edit, r: int, keep: int) -> None:
        """The pages from `keep` on leave their request, the last one first."""
        pages = edit.requests[r].pages
        for p in reversed(range(keep, len(pages))):
            self.let_go(edit, r, p)
            edit.release_host(pages[p].host)
        edit.change(r, pages=pages[:keep])

    def give_back_gpu(self, edit: Edit, r: int, p: int) -> None:
        self.let_go(edit, r, p)
        edit.change_page(r, p, gpu=(), keys=(), held=False)

    def let_go(self, edit: Edit, r: int, p: int) -> None:
        """Nothing is read from the page's GPU blocks any more; a transfer of it goes on without an owner."""
        page = edit.requests[r].pages[p]
        if page.held:
            edit.release_gpu(page.gpu)
        edit.release_gpu(page.keys)
        self.disown(edit, r, p)

    def disown(self, edit: Edit, r: int, p: int) -> None:
        for i, transfer in enumerate(edit.transfers):
            if transfer.owner == r and transfer.page == p:
                edit.transfers[i] = transfer._replace(owner=NOBODY)

    def vacate(self, edit: Edit, r: int, **fields: Any) -> None:
        """The state row is empty, or has a new request. What its hot buffer caches stays until a new
        region is granted."""
        edit.requests[r] = NEW_REQUEST._replace(lines=edit.requests[r].lines, **fields)
