"""What can happen. Each action checks that the state allows it, then says what changes.

| who             | actions                                                                             |
|-----------------|-------------------------------------------------------------------------------------|
| engine          | admit append write grow takeback seal finish preempt cow reset query                |
| transport       | import_begin import_write import_end                                                |
| control, freely | spill unpin repin hot cool reuse evict restore set_aside                            |
| a rank          | enqueue complete fail step_done                                                     |
| the channel     | deliver (any true fact, at any time, again and again: late, split, twice, or never) |

*control, freely*: any policy is a way to choose among these, so what holds here holds for all.
There are no watchers, owner indexes or callbacks: `reuse` looks into the page tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .bounds import WRITABLE_PAGES, Bounds, ReleaseAt
from .edit import Edit
from .state import (
    ABSENT,
    COMPLETED,
    COPY,
    DETACHED,
    ENQUEUED,
    FAILED,
    IMPORTING,
    LIVE,
    NEW_REQUEST,
    NOBODY,
    RESTORE,
    SENT,
    SPILL,
    Blocks,
    Page,
    State,
    Step,
    Transfer,
    blank_gpu,
    blank_host,
    draft_tag,
    final_content,
    hits,
    initial,
    name_of,
    pending,
    readable_leases,
    schedulable,
)

Action = tuple[Any, ...]  # name, then arguments


class NotEnabled(Exception):
    """The state does not allow the action; the message says what it would need."""


def require(condition: object, need: str) -> None:
    if not condition:
        raise NotEnabled(need)


class Model:
    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds

    def initial(self) -> State:
        return initial(self.bounds)

    def apply(self, state: State, action: Action) -> State:
        """The state after `action`; raises `NotEnabled`."""
        edit: Edit = getattr(self, action[0])(state, *action[1:])
        return edit.freeze()

    def successors(self, state: State) -> Iterator[tuple[Action, State]]:
        for action in self.candidates(state):
            try:
                yield action, self.apply(state, action)
            except NotEnabled:
                continue

    def enabled(self, state: State) -> list[Action]:
        return [action for action, _ in self.successors(state)]

    def candidates(self, state: State) -> Iterator[Action]:
        """Every action worth trying. Blank blocks are all alike: the smallest ids stand for any."""
        bounds = self.bounds
        blank, blank_hosts = blank_gpu(state), blank_host(state)
        page_blocks, host = tuple(blank[: bounds.groups + bounds.keys]), blank_hosts[0] if blank_hosts else 0
        for r, request in enumerate(state.requests):
            if request.status == ABSENT:
                yield ("admit", r, len(hits(bounds, state, r)))
                if bounds.imports:
                    for rows in range(1, bounds.pages * bounds.rows + 1):
                        new = -(-rows // bounds.rows) - len(hits(bounds, state, r)[: rows // bounds.rows])
                        yield ("import_begin", r, rows, tuple(blank_hosts[:new]), tuple(blank[: new * bounds.keys]))
                continue
            if request.status == LIVE:
                if bounds.one_action_pages:
                    yield ("grow", r, host, page_blocks)
                else:
                    yield ("append", r, host, page_blocks)
                    yield ("write", r, True, False)
                    yield ("seal", r)
                if bounds.faults and bounds.mirror:
                    yield ("write", r, False, False)
                if bounds.drafts:
                    yield ("write", r, True, True)
                    yield ("takeback", r)
                yield ("hot", r, tuple(blank[: bounds.hot]))
                yield ("cool", r)
                yield ("finish", r)
                if bounds.copies:
                    yield ("cow", r, host, page_blocks[: bounds.groups])
            if request.status == IMPORTING:
                yield ("import_end", r, True)
                yield ("import_end", r, False)
            yield ("preempt", r)
            for p in range(len(request.pages)):
                yield ("spill", r, p)
                yield ("unpin", r, p)
                if bounds.imports:
                    yield ("import_write", r, p)
                if bounds.restores:
                    yield ("repin", r, p)
                    yield ("restore", r, p, page_blocks[: bounds.groups])
        for i in range(len(state.transfers)):
            for rank in range(bounds.ranks):
                yield ("enqueue", i, rank)
                yield ("complete", i, rank)
                for fact in (ENQUEUED, COMPLETED):
                    yield ("deliver", i, rank, fact)
                if bounds.faults:
                    yield ("fail", i, rank)
                    yield ("deliver", i, rank, FAILED)
            if bounds.faults:
                yield ("set_aside", i)
        if len(blank) < max(bounds.groups + bounds.keys, bounds.hot):
            for gpu in sorted(readable_leases(state)):
                yield ("reuse", gpu)
        if not blank_hosts:
            for block in sorted(state.host_free):
                yield ("evict", block)
        if bounds.steps:
            yield ("step_done",)
        yield ("reset",)
        yield ("query",)

    # --- the engine

    def admit(self, state: State, r: int, cached: int) -> Edit:
        """A request takes a state row. Of the pages it hits, those with a readable copy are adopted."""
        require(state.requests[r].status == ABSENT, "a free state row")
        found = hits(self.bounds, state, r)
        require(cached <= len(found), "that many published pages")
        edit = Edit(self.bounds, state)
        pages = []
        for host in found[:cached]:
            edit.hold_host(host)
            gpu = edit.copies.get(host, ())
            keys = edit.key_copies.get(host, ())
            edit.hold_gpu(gpu)
            edit.hold_gpu(keys)
            pages.append(Page(host, gpu, keys, bool(gpu), True, self.bounds.rows))
        rows = cached * self.bounds.rows
        self.vacate(edit, r, status=LIVE, pages=tuple(pages), computed=rows, final=rows, published=cached)
        return edit

    def append(self, state: State, r: int, host: int, gpu: Blocks) -> Edit:
        request = state.requests[r]
        require(request.status == LIVE and len(request.pages) < self.bounds.pages, "a live request with room")
        require(request.computed == len(request.pages) * self.bounds.rows, "a full last page")
        groups = self.bounds.groups
        require(len(gpu) == groups + self.bounds.keys and set(gpu) <= set(blank_gpu(state)), "blank GPU blocks")
        require(host in blank_host(state), "a blank host block")
        edit = Edit(self.bounds, state)
        edit.take_gpu(gpu)
        edit.take_host(host)
        edit.change(r, pages=(*request.pages, Page(host, gpu[:groups], gpu[groups:], True, False, 0)))
        return edit

    def write(self, state: State, r: int, mirrored: bool, draft: bool) -> Edit:
        """A step computes one row of `r`, reading all rows before it."""
        request, bounds = state.requests[r], self.bounds
        require(schedulable(state, r), "every row readable")
        require(request.computed < len(request.pages) * bounds.rows and not request.draft, "room for a row")
        require(not bounds.steps or len(state.steps) < bounds.steps, "fewer steps in flight")
        p, offset = divmod(request.computed, bounds.rows)
        page = request.pages[p]
        require(page.gpu and page.held and not page.clean, "a pinned page that may change")
        tag = final_content(bounds, name_of(bounds, r, p))[offset]
        tag = draft_tag(tag) if draft else tag
        edit = Edit(bounds, state)
        for block in page.gpu:
            edit.gpu[block] = _with_row(edit.gpu[block], offset, tag)
        if bounds.mirror and mirrored:
            for view in edit.stream:
                view[page.host] = _with_row(view[page.host], offset, tag)
            if page.proven == offset:
                edit.change_page(r, p, proven=offset + 1)
        elif bounds.mirror:
            edit.change_page(r, p, tainted=True)
        if bounds.lines:
            self.cache_lines(edit, r)
        edit.change(r, computed=request.computed + 1, draft=int(draft))
        if bounds.steps:
            pages = edit.requests[r].pages
            edit.steps.append(
                Step(
                    frozenset(block for q in pages if q.held for block in q.gpu),
                    frozenset(q.host for q in pages),
                    tuple([(q.host, q.gpu) for q in pages]),
                )
            )
        return edit

    def grow(self, state: State, r: int, host: int, gpu: Blocks) -> Edit:
        """A whole page in one action, where what lies between does not matter."""
        for action in (("append", r, host, gpu), *[("write", r, True, False)] * self.bounds.rows):
            state = self.apply(state, action)
        return self.seal(state, r)

    def cache_lines(self, edit: Edit, r: int) -> None:
        """The rows read from the host stay in the hot buffer, until it is told to forget them."""
        request = edit.requests[r]
        cached = dict(request.lines)
        for page in request.pages:
            if not page.gpu and page.host not in cached:
                cached[page.host] = edit.stream[0][page.host]
        edit.change(r, lines=tuple(sorted(cached.items())))

    def takeback(self, state: State, r: int) -> Edit:
        """The last row was a draft and was not accepted."""
        request = state.requests[r]
        require(request.status == LIVE and request.draft, "a draft row")
        edit = Edit(self.bounds, state)
        p, offset = divmod(request.computed - 1, self.bounds.rows)
        edit.change(r, computed=request.computed - 1, draft=0)
        edit.change_page(r, p, proven=min(request.pages[p].proven, offset))
        return edit

    def seal(self, state: State, r: int) -> Edit:
        request = state.requests[r]
        final = self.final_rows(state, r)
        require(request.status == LIVE and request.final < final, "rows that became final")
        edit = Edit(self.bounds, state)
        edit.change(r, final=final)
        return edit

    def final_rows(self, state: State, r: int) -> int:
        return state.requests[r].computed - state.requests[r].draft

    def finish(self, state: State, r: int) -> Edit:
        """The request ends well: its sealed pages are still spilled and published, the rest is given back."""
        require(state.requests[r].status == LIVE, "a live request")
        edit = Edit(self.bounds, state)
        request = edit.change(r, status=DETACHED, draft=0)
        edit.release_gpu(request.hot)
        edit.change(r, hot=())
        last = next((p for p in range(len(request.pages)) if not self.publishable(edit, r, p)), len(request.pages))
        self.cut(edit, r, last if last > request.published else 0)
        for p in range(min(request.published, len(edit.requests[r].pages))):
            self.give_back_gpu(edit, r, p)
        self.publish(edit, r)
        return edit

    def publishable(self, edit: Edit, r: int, p: int) -> bool:
        """Whether a page is or may still become durable."""
        page = edit.requests[r].pages[p]
        return page.clean or (self.sealed(edit, r, p) and not page.tainted)

    def preempt(self, state: State, r: int) -> Edit:
        """The request ends here and now, and publishes nothing more. An abort is the same."""
        require(state.requests[r].status != ABSENT, "a request")
        edit = Edit(self.bounds, state)
        edit.release_gpu(state.requests[r].hot)
        self.cut(edit, r, 0)
        self.vacate(edit, r)
        return edit

    def cut(self, edit: Edit, r: int, keep: int) -> None:
        """The pages from `keep` on leave their request."""
        for p in reversed(range(keep, len(edit.requests[r].pages))):
            self.give_back_gpu(edit, r, p)
            edit.release_host(edit.requests[r].pages[p].host)
            edit.change(r, pages=edit.requests[r].pages[:p])

    def give_back_gpu(self, edit: Edit, r: int, p: int) -> None:
        """Nothing is read from the page any more; a transfer of it goes on without an owner."""
        page = edit.requests[r].pages[p]
        if page.held:
            edit.release_gpu(page.gpu)
        edit.release_gpu(page.keys)
        edit.change_page(r, p, gpu=(), keys=(), held=False)
        self.disown(edit, r, p)

    def vacate(self, edit: Edit, r: int, **fields: Any) -> None:
        """The state row is empty, or has a new request. What its hot buffer caches stays until a new
        region is granted."""
        edit.requests[r] = NEW_REQUEST._replace(lines=edit.requests[r].lines, **fields)

    def disown(self, edit: Edit, r: int, p: int) -> None:
        edit.transfers = [t._replace(owner=NOBODY) if (t.owner, t.page) == (r, p) else t for t in edit.transfers]

    def reset(self, state: State) -> Edit:
        """Both pools at once, and only while no copy is running: a running one would write on."""
        require(not state.steps, "no step in flight")
        require(not any(ENQUEUED in t.progress for t in state.transfers), "no copy running")
        return Edit(self.bounds, initial(self.bounds))

    def query(self, state: State) -> Edit:
        """Somebody asks what could be had."""
        return Edit(self.bounds, state)

    # --- imports: another machine writes host blocks, outside every stream

    def import_begin(self, state: State, r: int, rows: int, hosts: tuple[int, ...], keys: Blocks) -> Edit:
        """Takes all that its pages need; what is published already is shared."""
        require(state.requests[r].status == ABSENT, "a free state row")
        found = hits(self.bounds, state, r)[: rows // self.bounds.rows]
        require(len(found) + len(hosts) == -(-rows // self.bounds.rows), "a block for each page")
        require(hosts and set(hosts) <= set(blank_host(state)), "blank host blocks")
        each = self.bounds.keys
        require(len(keys) == each * len(hosts) and set(keys) <= set(blank_gpu(state)), "blank GPU blocks")
        edit = Edit(self.bounds, state)
        for host in found:
            edit.hold_host(host)
            edit.hold_gpu(edit.key_copies.get(host, ()))
        for host in hosts:
            edit.take_host(host)
        edit.take_gpu(keys)
        shared = [Page(host, (), edit.key_copies.get(host, ()), False, True, self.bounds.rows) for host in found]
        holes = [Page(host, (), keys[i * each : (i + 1) * each], False, False, 0) for i, host in enumerate(hosts)]
        self.vacate(edit, r, status=IMPORTING, pages=(*shared, *holes), computed=rows, published=len(shared))
        return edit

    def import_write(self, state: State, r: int, p: int) -> Edit:
        request, bounds = state.requests[r], self.bounds
        require(request.status == IMPORTING and p >= request.published, "a hole of an import")
        rows = min(bounds.rows, request.computed - p * bounds.rows)
        content = final_content(bounds, name_of(bounds, r, p))[:rows] + (0,) * (bounds.rows - rows)
        edit = Edit(bounds, state)
        for view in (*edit.stream, *edit.durable):
            view[request.pages[p].host] = content
        return edit

    def import_end(self, state: State, r: int, ok: bool) -> Edit:
        request, bounds = state.requests[r], self.bounds
        require(request.status == IMPORTING, "an import")
        if not ok:
            return self.preempt(state, r)
        holes = range(request.published, len(request.pages))
        require(all(state.durable[0][request.pages[p].host][0] for p in holes), "every page written")
        edit = Edit(bounds, state)
        edit.change(r, status=LIVE, final=request.computed)
        for p in holes:
            rows = min(bounds.rows, request.computed - p * bounds.rows)
            edit.change_page(r, p, proven=rows, clean=rows == bounds.rows)
        self.publish(edit, r)
        return edit

    # --- control

    def sealed(self, edit: Edit | State, r: int, p: int) -> bool:
        return (p + 1) * self.bounds.rows <= edit.requests[r].final

    def spill(self, state: State, r: int, p: int) -> Edit:
        request = state.requests[r]
        page = request.pages[p]
        require(request.status in (LIVE, DETACHED) and page.gpu and page.held and not page.clean, "a fresh page")
        require(not page.tainted, "a page that can be proven")
        require(self.sealed(state, r, p), "a sealed page")
        require(pending(state, r, p) is None, "no transfer of the page")
        edit = Edit(self.bounds, state)
        self.lease_transfer(edit, SPILL, r, p, moves=not self.bounds.mirror)
        return edit

    def lease_transfer(self, edit: Edit, kind: int, r: int, p: int, moves: bool = True, source: int = 0) -> None:
        """A transfer is planned: from now on it holds its blocks itself."""
        waiting = sum(not t.lost for t in edit.transfers)
        require(waiting < self.bounds.transfers, "fewer transfers under way")
        page, ranks = edit.requests[r].pages[p], self.bounds.ranks
        at_once = kind != SPILL  # sent ahead of the model's reads: in stream order it is done
        payload: Blocks = (0,) * self.bounds.rows
        gpu = () if kind == COPY else page.gpu
        edit.hold_gpu(gpu)
        edit.hold_host(page.host)
        if source:
            edit.hold_host(source)
            payload = edit.stream[0][source]
        progress = (ENQUEUED if at_once else SENT,) * ranks
        transfer = Transfer(
            kind, r, p, page.host, source, gpu, bool(gpu), moves, progress, (SENT,) * ranks, (payload,) * ranks, False
        )
        edit.transfers.append(transfer)

    def unpin(self, state: State, r: int, p: int) -> Edit:
        request = state.requests[r]
        page = request.pages[p]
        require(request.status == LIVE and page.gpu and page.held, "a pinned page of a live request")
        require(self.may_unpin(state, r, p), "a clean page before the tail, and the hot region")
        edit = Edit(self.bounds, state)
        edit.change_page(r, p, held=False)
        edit.release_gpu(page.gpu)
        return edit

    def may_unpin(self, state: State, r: int, p: int) -> bool:
        request = state.requests[r]
        return (
            request.pages[p].clean
            and bool(request.hot)
            and p < len(request.pages) - WRITABLE_PAGES
            and pending(state, r, p) is None
        )

    def repin(self, state: State, r: int, p: int) -> Edit:
        page = state.requests[r].pages[p]
        require(state.requests[r].status == LIVE and page.gpu and not page.held, "an unpinned page")
        edit = Edit(self.bounds, state)
        edit.change_page(r, p, held=True)
        edit.hold_gpu(page.gpu)
        return edit

    def hot(self, state: State, r: int, blocks: Blocks) -> Edit:
        require(state.requests[r].status == LIVE and not state.requests[r].hot, "a live request without hot region")
        require(len(blocks) == self.bounds.hot and set(blocks) <= set(blank_gpu(state)), "blank GPU blocks")
        edit = Edit(self.bounds, state)
        edit.take_gpu(blocks)
        edit.change(r, hot=blocks, lines=())
        return edit

    def cool(self, state: State, r: int) -> Edit:
        request = state.requests[r]
        require(request.hot and all(page.gpu and page.held for page in request.pages), "hot, and all pinned")
        edit = Edit(self.bounds, state)
        edit.release_gpu(request.hot)
        edit.change(r, hot=())
        return edit

    def reuse(self, state: State, gpu: Blocks) -> Edit:
        """The pool wants blocks that are free but still read: whoever reads them loses the page, in all groups."""
        require(gpu in readable_leases(state), "free blocks that are still read")
        edit = Edit(self.bounds, state)
        for r, request in enumerate(state.requests):
            for p, page in enumerate(request.pages):
                if page.gpu == gpu and not page.held:
                    edit.change_page(r, p, gpu=())
        edit.copies = {host: copy for host, copy in edit.copies.items() if copy != gpu}
        edit.key_copies = {host: copy for host, copy in edit.key_copies.items() if copy != gpu}
        return edit

    def evict(self, state: State, host: int) -> Edit:
        """The pool wants a host block that nobody holds but that is still a hit."""
        require(host in state.host_free and host not in blank_host(state), "a cached host block")
        edit = Edit(self.bounds, state)
        edit.prefix = {name: block for name, block in edit.prefix.items() if block != host}
        edit.copies.pop(host, None)
        edit.key_copies.pop(host, None)
        return edit

    def restore(self, state: State, r: int, p: int, gpu: Blocks) -> Edit:
        """A page comes back from the host, ahead of everything that reads it."""
        request, bounds = state.requests[r], self.bounds
        page = request.pages[p]
        require(request.status == LIVE and not page.gpu, "a page that is not resident")
        require(pending(state, r, p) is None, "no transfer of the page")
        require(page.proven >= min(bounds.rows, request.computed - p * bounds.rows), "a host copy of all its rows")
        require(len(gpu) == bounds.groups and set(gpu) <= set(blank_gpu(state)), "blank GPU blocks")
        edit = Edit(bounds, state)
        edit.take_gpu(gpu)
        edit.write_gpu(gpu, edit.stream[0][page.host])
        edit.change_page(r, p, gpu=gpu, held=True)
        self.lease_transfer(edit, RESTORE, r, p)
        return edit

    def cow(self, state: State, r: int, host: int, gpu: Blocks) -> Edit:
        """All tokens were hits, so the last row is computed again, in a copy of the shared page."""
        request, bounds = state.requests[r], self.bounds
        rows, p = len(request.pages) * bounds.rows, len(request.pages) - 1
        require(request.status == LIVE and p >= 0 and request.computed == rows, "a full last page")
        page = request.pages[p]
        require(page.host in dict(state.prefix).values() and request.published == p + 1, "a shared last page")
        require(pending(state, r, p) is None, "no transfer of the page")
        require(len(gpu) == bounds.groups and set(gpu) <= set(blank_gpu(state)), "blank GPU blocks")
        require(host in blank_host(state), "a blank host block")
        edit = Edit(bounds, state)
        edit.take_host(host)
        edit.take_gpu(gpu)
        edit.write_gpu(gpu, edit.stream[0][page.host])
        for view in edit.stream:
            view[host] = view[page.host]
        edit.change_page(r, p, host=host, gpu=gpu, held=True, clean=False, proven=bounds.rows - 1)
        edit.change(r, computed=rows - 1, final=rows - 1, published=p)
        self.lease_transfer(edit, COPY, r, p, source=page.host)
        if page.held:
            edit.release_gpu(page.gpu)
        edit.release_host(page.host)
        return edit

    # --- ranks and their reports

    def enqueue(self, state: State, i: int, rank: int) -> Edit:
        """A rank puts a spill on its stream: the bytes are fixed now, wherever the DMA engine stands."""
        transfer = state.transfers[i]
        require(transfer.progress[rank] == SENT, "a transfer not yet enqueued")
        edit = Edit(self.bounds, state)
        payload = state.gpu[transfer.gpu[0]] if transfer.moves else state.stream[rank][transfer.host]
        edit.stream[rank][transfer.host] = payload
        edit.transfers[i] = transfer._replace(
            progress=_with_row(transfer.progress, rank, ENQUEUED),
            payload=(*transfer.payload[:rank], payload, *transfer.payload[rank + 1 :]),
        )
        return edit

    def complete(self, state: State, i: int, rank: int) -> Edit:
        transfer = state.transfers[i]
        require(transfer.progress[rank] == ENQUEUED, "an enqueued transfer")
        edit = Edit(self.bounds, state)
        if transfer.kind != RESTORE:
            edit.durable[rank][transfer.host] = transfer.payload[rank]
        edit.transfers[i] = transfer._replace(progress=_with_row(transfer.progress, rank, COMPLETED))
        return edit

    def fail(self, state: State, i: int, rank: int) -> Edit:
        transfer = state.transfers[i]
        require(transfer.kind == SPILL and transfer.progress[rank] == ENQUEUED, "an enqueued spill")
        edit = Edit(self.bounds, state)
        edit.transfers[i] = transfer._replace(progress=_with_row(transfer.progress, rank, FAILED))
        return edit

    def step_done(self, state: State) -> Edit:
        require(state.steps, "a step in flight")
        edit = Edit(self.bounds, state)
        edit.end_oldest_step()
        return edit

    def deliver(self, state: State, i: int, rank: int, fact: int) -> Edit:
        """Control hears that `rank` has come so far. Hearing it again, or late, changes nothing."""
        transfer = state.transfers[i]
        told = transfer.progress[rank]
        require(told == fact or (told > fact and fact == ENQUEUED), "a true fact")
        edit = Edit(self.bounds, state)
        if transfer.lost or transfer.known[rank] >= fact:
            return edit
        transfer = transfer._replace(known=_with_row(transfer.known, rank, fact))
        edit.transfers[i] = transfer
        if min(transfer.known) >= ENQUEUED:
            self.all_enqueued(edit, i)
        if min(transfer.known) >= COMPLETED:
            self.all_completed(edit, i)
        return edit

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

    def set_aside(self, state: State, i: int) -> Edit:
        """Overdue: its blocks rest until a reset, and its page is never believed."""
        transfer = state.transfers[i]
        require(transfer.kind == SPILL and not transfer.lost, "a spill that is waited for")
        edit = Edit(self.bounds, state)
        edit.transfers[i] = transfer._replace(lost=True, owner=NOBODY)
        if transfer.owner != NOBODY:
            edit.change_page(transfer.owner, transfer.page, tainted=True)
            self.publish(edit, transfer.owner)
        return edit

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


def _with_row(content: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*content[:index], value, *content[index + 1 :])
