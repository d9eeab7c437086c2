"""S1-S19: every row that is read or published is what it should be."""

from __future__ import annotations

from collections.abc import Iterator

from ..bounds import WRITABLE_PAGES, Bounds
from ..model import Action
from ..state import (
    IMPORTING,
    LIVE,
    NOBODY,
    RESTORE,
    Content,
    Page,
    State,
    draft_tag,
    final_content,
    name_of,
    pages_of,
    pending,
    schedulable,
)
from .registry import of_state, of_step


def expected_rows(bounds: Bounds, state: State, r: int, p: int) -> Content:
    """The rows of the page that are computed, as they should be."""
    request = state.requests[r]
    count = max(0, min(bounds.rows, request.computed - p * bounds.rows))
    rows = list(final_content(bounds, name_of(bounds, r, p))[:count])
    if request.draft and p == (request.computed - 1) // bounds.rows:
        rows[-1] = draft_tag(rows[-1])
    return tuple(rows)


@of_state("S1", "Every position below a scheduled request's length is readable.")
def s1(bounds: Bounds, state: State) -> str | None:
    for r, request in enumerate(state.requests):
        if not schedulable(state, r):
            continue
        for p, page in enumerate(request.pages):
            rows = expected_rows(bounds, state, r, p)
            sources = [state.gpu[page.gpu[0]]] if page.gpu else [view[page.host] for view in state.stream]
            if any(source[: len(rows)] != rows for source in sources):
                return f"request {r} reads {sources} for {rows} in page {p}"
    return None


@of_state("S2", "A hash is visible only if every rank's backing holds the block's final bytes.")
def s2(bounds: Bounds, state: State) -> str | None:
    for name, host in state.prefix:
        for rank, view in enumerate(state.durable):
            if view[host] != final_content(bounds, name):
                return f"rank {rank} holds {view[host]} in host block {host}, published as {name}"
    return None


@of_state("S3", "Published pages of a request are a gap-free prefix.")
def s3(bounds: Bounds, state: State) -> str | None:
    published = dict(state.prefix)
    for r, p, page in pages_of(state):
        request = state.requests[r]
        if p < request.published and not page.clean:
            return f"page {p} of request {r} is below its frontier and not durable"
        above = request.status != IMPORTING and p >= request.published  # an import may share what is published
        if above and published.get(name_of(bounds, r, p)) == page.host:
            return f"page {p} of request {r} is published above its frontier"
    return None


@of_step("S4", "Only sealed pages spill: no draft rows, no row that will be recomputed.", "spill")
def s4(bounds: Bounds, before: State, action: Action, after: State) -> str | None:
    _, r, p = action
    request = before.requests[r]
    settled = request.computed - request.draft
    if (p + 1) * bounds.rows > min(request.final, settled):
        return f"page {p} of request {r} with {request.final} final rows, {settled} of them settled"
    return None


def unpinned(state: State) -> Iterator[tuple[int, int, Page]]:
    return ((r, p, page) for r, p, page in pages_of(state) if page.gpu and not page.held)


@of_state("S5", "Unpinned implies durable, no transfer pending, not pinned.")
def s5(bounds: Bounds, state: State) -> str | None:
    for r, p, page in unpinned(state):
        want = final_content(bounds, name_of(bounds, r, p))
        if not page.clean or any(view[page.host] != want for view in state.durable):
            return f"page {p} of request {r} is unpinned and not durable"
        if pending(state, r, p) is not None:
            return f"page {p} of request {r} is unpinned with a transfer pending"
    return None


@of_state("S6", "Unpinned implies the request holds its whole hot region in every hot group.")
def s6(bounds: Bounds, state: State) -> str | None:
    for r, p, _ in unpinned(state):
        if state.requests[r].status == LIVE and len(state.requests[r].hot) != bounds.hot:
            return f"page {p} of request {r} is unpinned without a hot region"
    return None


@of_state("S7", "The last two pages of a live request's row are never unpinned.")
def s7(bounds: Bounds, state: State) -> str | None:
    for r, p, _ in unpinned(state):
        if state.requests[r].status == LIVE and p >= len(state.requests[r].pages) - WRITABLE_PAGES:
            return f"page {p} of {len(state.requests[r].pages)} of request {r} is unpinned"
    return None


@of_state("S8", "A leased block keeps a reference until its phase ends. Nothing is freed on planned.")
def s8(bounds: Bounds, state: State) -> str | None:
    for transfer in state.transfers:
        if state.host_refs[transfer.host] < 1:
            return f"host block {transfer.host} of a transfer has no reference"
        if transfer.leases_gpu and any(state.gpu_refs[block] < 1 for block in transfer.gpu):
            return f"GPU blocks {transfer.gpu} of a transfer have no reference"
        if transfer.gpu and not transfer.leases_gpu and min(transfer.known) == 0:
            return f"GPU blocks {transfer.gpu} were given back before every rank enqueued"
    return None


@of_state("S9", "An import writes only unhashed host blocks.")
def s9(bounds: Bounds, state: State) -> str | None:
    hashed = {host for _, host in state.prefix}
    for r, p, page in pages_of(state):
        request = state.requests[r]
        if request.status == IMPORTING and p >= request.published and page.host in hashed and not page.clean:
            return f"page {p} of the import in request {r} lands in published block {page.host}"
    return None


@of_step("S10", "A restore precedes any append to the page.", "write")
def s10(bounds: Bounds, before: State, action: Action, after: State) -> str | None:
    r = action[1]
    p, offset = divmod(before.requests[r].computed, bounds.rows)
    rows = expected_rows(bounds, before, r, p)[:offset]
    gpu = before.requests[r].pages[p].gpu
    if not gpu:
        return f"request {r} appends to page {p}, which is not resident"
    for block in gpu:
        if before.gpu[block][:offset] != rows:
            return f"request {r} appends to page {p} behind {before.gpu[block][:offset]}, not {rows}"
    return None


@of_state("S11", "A page being restored is no copy source.")
def s11(bounds: Bounds, state: State) -> str | None:
    restoring = {t.gpu for t in state.transfers if t.kind == RESTORE}
    for host, gpu in state.copies:
        if gpu in restoring:
            return f"the copy of host block {host} is still being restored"
    return None


@of_state("S12", "A failed import proves nothing.")
def s12(bounds: Bounds, state: State) -> str | None:
    hashed = {host for _, host in state.prefix}
    for r, p, page in pages_of(state):
        if not page.clean:
            continue
        shared = page.host in hashed
        if state.requests[r].status == IMPORTING and p >= state.requests[r].published and not shared:
            return f"page {p} of request {r} is clean before its import has ended"
        want = final_content(bounds, name_of(bounds, r, p))
        if any(view[page.host] != want for view in state.durable):
            return f"page {p} of request {r} is called clean and is not durable"
    return None


@of_state("S13", "An unsealed imported tail is not valid.")
def s13(bounds: Bounds, state: State) -> str | None:
    for r, p, page in pages_of(state):
        request = state.requests[r]
        known = request.computed if request.status == IMPORTING else request.final
        if page.clean and (p + 1) * bounds.rows > known:
            return f"page {p} of request {r} is clean with {known} final rows"
    return None


@of_step("S14", "Preemption drops what was pending to be published; what is published stays.", "preempt", "deliver")
def s14(bounds: Bounds, before: State, action: Action, after: State) -> str | None:
    if action[0] == "preempt":
        if before.prefix != after.prefix:
            return f"preempting request {action[1]} changed what is published"
        if any(t.owner == action[1] for t in after.transfers):
            return f"a transfer still belongs to preempted request {action[1]}"
    if action[0] == "deliver" and before.transfers[action[1]].owner == NOBODY and before.prefix != after.prefix:
        return "a transfer without owner published something"
    return None


@of_state("S15", "Rows mirrored = rows written; a row not mirrored keeps its page from ever becoming clean.")
def s15(bounds: Bounds, state: State) -> str | None:
    for r, p, page in pages_of(state):
        if page.clean and (page.tainted or page.proven != bounds.rows):
            return f"page {p} of request {r} is clean with {page.proven} of {bounds.rows} rows proven"
        rows = expected_rows(bounds, state, r, p)[: page.proven]
        if state.requests[r].status == LIVE and any(view[page.host][: len(rows)] != rows for view in state.stream):
            return f"page {p} of request {r} has {page.proven} rows proven that the host does not hold"
    return None


@of_state("S16", "Residency is the same in all resident groups.")
def s16(bounds: Bounds, state: State) -> str | None:
    for r, p, page in pages_of(state):
        rows = len(expected_rows(bounds, state, r, p))
        if len(page.gpu) not in (0, bounds.groups) or len({state.gpu[block][:rows] for block in page.gpu}) > 1:
            return f"page {p} of request {r} is resident as {page.gpu}"
    return None


@of_state("S17", "No page has a GPU block without a host block.")
def s17(bounds: Bounds, state: State) -> str | None:
    for r, p, page in pages_of(state):
        if page.gpu and not page.host:
            return f"page {p} of request {r}"
    return None


@of_state("S18", "A recycled host block's rows are invalid in every hot buffer before a resolve could see them.")
def s18(bounds: Bounds, state: State) -> str | None:
    for r, request in enumerate(state.requests):
        for host, content in request.lines:
            if content != state.stream[0][host]:
                return f"request {r} caches {content} of host block {host}, which holds {state.stream[0][host]}"
    return None


@of_step("S19", "No block of a request in an unprocessed step returns to a pool.")
def s19(bounds: Bounds, before: State, action: Action, after: State) -> str | None:
    if action[0] == "reset":
        return None
    for step in after.steps:
        back = (after.gpu_free - before.gpu_free) & step.gpu
        if back:
            return f"GPU blocks {sorted(back)} of a step in flight are free"
        back = (after.host_free - before.host_free) & step.host
        if back:
            return f"host blocks {sorted(back)} of a step in flight are free"
    return None
