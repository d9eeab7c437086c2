"""What control does not choose: what engine and transport ask of it, and what ranks do.

| who       | actions                                                                 |
|-----------|-------------------------------------------------------------------------|
| engine    | admit append write grow takeback seal finish preempt cow reset query    |
| transport | import_begin import_write import_end                                    |
| a rank    | enqueue complete fail step_done                                         |
"""

from __future__ import annotations

from .control import Control
from .edit import Edit, require
from .state import (
    ABSENT,
    COMPLETED,
    COPY,
    DETACHED,
    ENQUEUED,
    FAILED,
    IMPORTING,
    LIVE,
    RESTORE,
    SENT,
    SPILL,
    Blocks,
    Page,
    State,
    Step,
    blank_host,
    draft_tag,
    final_content,
    hits,
    name_of,
    pending,
    schedulable,
    with_item,
)


class Environment(Control):
    # --- the engine: a request grows

    def admit(self, state: State, edit: Edit, r: int, cached: int) -> None:
        """A request takes a state row. Of the pages it hits, those with a readable copy are adopted."""
        require(state.requests[r].status == ABSENT, "a free state row")
        found = hits(self.bounds, state, r)
        require(cached <= len(found), "that many published pages")
        pages = []
        for host in found[:cached]:
            gpu = edit.copies.get(host, ())
            keys = edit.key_copies.get(host, ())
            edit.hold_host(host)
            edit.hold_gpu(gpu)
            edit.hold_gpu(keys)
            pages.append(Page(host, gpu, keys, bool(gpu), True, self.bounds.rows))
        rows = cached * self.bounds.rows
        self.vacate(edit, r, status=LIVE, pages=tuple(pages), computed=rows, final=rows, published=cached)

    def append(self, state: State, edit: Edit, r: int, host: int, gpu: Blocks) -> None:
        request = state.requests[r]
        require(request.status == LIVE and len(request.pages) < self.bounds.pages, "a live request with room")
        require(request.computed == len(request.pages) * self.bounds.rows, "a full last page")
        groups = self.bounds.groups
        self.require_blank(state, gpu, groups + self.bounds.keys)
        require(host in blank_host(state), "a blank host block")
        edit.take_gpu(gpu)
        edit.take_host(host)
        edit.change(r, pages=(*request.pages, Page(host, gpu[:groups], gpu[groups:], True, False, 0)))

    def write(self, state: State, edit: Edit, r: int, mirrored: bool, draft: bool) -> None:
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
        for block in page.gpu:
            edit.gpu[block] = with_item(edit.gpu[block], offset, tag)
        if bounds.mirror and mirrored:
            for view in edit.stream:
                view[page.host] = with_item(view[page.host], offset, tag)
            if page.proven == offset:
                edit.change_page(r, p, proven=offset + 1)
        elif bounds.mirror:
            edit.change_page(r, p, tainted=True)
        if bounds.lines:
            self.cache_lines(edit, r)
        edit.change(r, computed=request.computed + 1, draft=int(draft))
        if bounds.steps:
            edit.steps.append(
                Step(
                    frozenset(block for q in request.pages if q.held for block in q.gpu),
                    frozenset(q.host for q in request.pages),
                    tuple([(q.host, q.gpu) for q in request.pages]),
                )
            )

    def cache_lines(self, edit: Edit, r: int) -> None:
        """The rows read from the host stay in the hot buffer, until it is told to forget them."""
        request = edit.requests[r]
        cached = dict(request.lines)
        for page in request.pages:
            if not page.gpu and page.host not in cached:
                cached[page.host] = edit.stream[0][page.host]
        edit.change(r, lines=tuple(sorted(cached.items())))

    def takeback(self, state: State, edit: Edit, r: int) -> None:
        """The last row was a draft and was not accepted."""
        request = state.requests[r]
        require(request.status == LIVE and request.draft, "a draft row")
        p, offset = divmod(request.computed - 1, self.bounds.rows)
        edit.change(r, computed=request.computed - 1, draft=0)
        edit.change_page(r, p, proven=min(request.pages[p].proven, offset))

    def seal(self, state: State, edit: Edit, r: int) -> None:
        request = state.requests[r]
        final = self.final_rows(state, r)
        require(request.status == LIVE and request.final < final, "rows that became final")
        edit.change(r, final=final)

    def final_rows(self, state: State, r: int) -> int:
        return state.requests[r].computed - state.requests[r].draft

    def cow(self, state: State, edit: Edit, r: int, host: int, gpu: Blocks) -> None:
        """All tokens were hits, so the last row is computed again, in a copy of the shared page."""
        request, bounds = state.requests[r], self.bounds
        rows, p = len(request.pages) * bounds.rows, len(request.pages) - 1
        require(request.status == LIVE and p >= 0 and request.computed == rows, "a full last page")
        page = request.pages[p]
        require(page.host in dict(state.prefix).values() and request.published == p + 1, "a shared last page")
        require(pending(state, r, p) is None, "no transfer of the page")
        self.require_blank(state, gpu, bounds.groups + bounds.keys)
        require(host in blank_host(state), "a blank host block")
        resident, keys = gpu[: bounds.groups], gpu[bounds.groups :]
        edit.take_host(host)
        edit.take_gpu(gpu)
        edit.write_gpu(resident, edit.stream[0][page.host])
        for view in edit.stream:
            view[host] = view[page.host]
        edit.change_page(r, p, host=host, gpu=resident, keys=keys, held=True, clean=False, proven=bounds.rows - 1)
        edit.change(r, computed=rows - 1, final=rows - 1, published=p)
        self.plan_transfer(edit, COPY, r, p, source=page.host)
        if page.held:
            edit.release_gpu(page.gpu)
        edit.release_gpu(page.keys)
        edit.release_host(page.host)

    # --- the engine: a request ends

    def finish(self, state: State, edit: Edit, r: int) -> None:
        """The request ends well: its sealed pages are still spilled and published, the rest is given back."""
        request = state.requests[r]
        require(request.status == LIVE, "a live request")
        edit.release_gpu(request.hot)
        request = edit.change(r, status=DETACHED, draft=0, hot=())
        last = next((p for p in range(len(request.pages)) if not self.publishable(request, p)), len(request.pages))
        self.cut(edit, r, last if last > request.published else 0)
        for p in range(min(request.published, len(edit.requests[r].pages))):
            self.give_back_gpu(edit, r, p)
        self.publish(edit, r)

    def preempt(self, state: State, edit: Edit, r: int) -> None:
        """The request ends here and now, and publishes nothing more. An abort is the same."""
        require(state.requests[r].status != ABSENT, "a request")
        edit.release_gpu(state.requests[r].hot)
        self.cut(edit, r, 0)
        self.vacate(edit, r)

    def reset(self, state: State, edit: Edit) -> None:
        """Both pools at once, and only while no copy is running: a running one would write on."""
        require(not state.steps, "no step in flight")
        require(not any(ENQUEUED in t.progress for t in state.transfers), "no copy running")
        edit.reset()

    def query(self, state: State, edit: Edit) -> None:
        """Somebody asks what could be had."""

    # --- the transport: another machine writes host blocks, outside every stream

    def import_begin(self, state: State, edit: Edit, r: int, rows: int, hosts: tuple[int, ...], keys: Blocks) -> None:
        """Takes all that its pages need; what is published already is shared."""
        require(state.requests[r].status == ABSENT, "a free state row")
        found = hits(self.bounds, state, r)[: rows // self.bounds.rows]
        require(len(found) + len(hosts) == -(-rows // self.bounds.rows), "a block for each page")
        require(hosts and set(hosts) <= set(blank_host(state)), "blank host blocks")
        each = self.bounds.keys
        self.require_blank(state, keys, each * len(hosts))
        for host in found:
            edit.hold_host(host)
            edit.hold_gpu(edit.key_copies.get(host, ()))
        for host in hosts:
            edit.take_host(host)
        edit.take_gpu(keys)
        shared = [Page(host, (), edit.key_copies.get(host, ()), False, True, self.bounds.rows) for host in found]
        holes = [Page(host, (), keys[i * each : (i + 1) * each], False, False, 0) for i, host in enumerate(hosts)]
        self.vacate(edit, r, status=IMPORTING, pages=(*shared, *holes), computed=rows, published=len(shared))

    def import_write(self, state: State, edit: Edit, r: int, p: int) -> None:
        request, bounds = state.requests[r], self.bounds
        require(request.status == IMPORTING and p >= request.published, "a hole of an import")
        rows = min(bounds.rows, request.computed - p * bounds.rows)
        content = final_content(bounds, name_of(bounds, r, p))[:rows] + (0,) * (bounds.rows - rows)
        for view in (*edit.stream, *edit.durable):
            view[request.pages[p].host] = content

    def import_end(self, state: State, edit: Edit, r: int, ok: bool) -> None:
        request, bounds = state.requests[r], self.bounds
        require(request.status == IMPORTING, "an import")
        if not ok:
            self.preempt(state, edit, r)
            return
        holes = range(request.published, len(request.pages))
        require(all(state.durable[0][request.pages[p].host][0] for p in holes), "every page written")
        edit.change(r, status=LIVE, final=request.computed)
        for p in holes:
            rows = min(bounds.rows, request.computed - p * bounds.rows)
            edit.change_page(r, p, proven=rows, clean=rows == bounds.rows)
        self.publish(edit, r)

    # --- a rank

    def enqueue(self, state: State, edit: Edit, i: int, rank: int) -> None:
        """A rank puts a spill on its stream: the bytes are fixed now, wherever the DMA engine stands."""
        transfer = state.transfers[i]
        require(transfer.progress[rank] == SENT, "a transfer not yet enqueued")
        payload = state.gpu[transfer.gpu[0]] if transfer.moves else state.stream[rank][transfer.host]
        edit.stream[rank][transfer.host] = payload
        edit.transfers[i] = transfer._replace(
            progress=with_item(transfer.progress, rank, ENQUEUED), payload=with_item(transfer.payload, rank, payload)
        )

    def complete(self, state: State, edit: Edit, i: int, rank: int) -> None:
        transfer = state.transfers[i]
        require(transfer.progress[rank] == ENQUEUED, "an enqueued transfer")
        if transfer.kind != RESTORE:
            edit.durable[rank][transfer.host] = transfer.payload[rank]
        edit.transfers[i] = transfer._replace(progress=with_item(transfer.progress, rank, COMPLETED))

    def fail(self, state: State, edit: Edit, i: int, rank: int) -> None:
        transfer = state.transfers[i]
        require(transfer.kind == SPILL and transfer.progress[rank] == ENQUEUED, "an enqueued spill")
        edit.transfers[i] = transfer._replace(progress=with_item(transfer.progress, rank, FAILED))

    def step_done(self, state: State, edit: Edit) -> None:
        require(state.steps, "a step in flight")
        edit.end_oldest_step()
