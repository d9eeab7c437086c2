"""What must hold: of every state, and of every step from one state to the next.

Each predicate carries its number and sentence from the protocol, and answers with what is wrong.
Contents are judged by the ghost bytes alone, book-keeping by counting who holds what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .bounds import WRITABLE_PAGES, Bounds
from .model import Action
from .state import (
    ABSENT,
    COPY,
    DETACHED,
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
    pending,
    schedulable,
)

OfState = Callable[[Bounds, State], str | None]
OfStep = Callable[[Bounds, State, Action, State], str | None]


class Broken(AssertionError):
    """An invariant does not hold; says which, its sentence, and where."""

    def __init__(self, invariant: str, sentence: str, where: str) -> None:
        super().__init__(f"{invariant} broken: {sentence} Here: {where}.")
        self.invariant = invariant


class Invariant(NamedTuple):
    name: str
    sentence: str
    check: Callable[..., str | None]


STATE_INVARIANTS: list[Invariant] = []
STEP_INVARIANTS: list[Invariant] = []


def of_state(name: str, sentence: str) -> Callable[[OfState], OfState]:
    def note(check: OfState) -> OfState:
        STATE_INVARIANTS.append(Invariant(name, sentence, check))
        return check

    return note


def of_step(name: str, sentence: str) -> Callable[[OfStep], OfStep]:
    def note(check: OfStep) -> OfStep:
        STEP_INVARIANTS.append(Invariant(name, sentence, check))
        return check

    return note


def check_state(bounds: Bounds, state: State) -> None:
    for name, sentence, check in STATE_INVARIANTS:
        where = check(bounds, state)
        if where is not None:
            raise Broken(name, sentence, where)


def check_step(bounds: Bounds, before: State, action: Action, after: State) -> None:
    for name, sentence, check in STEP_INVARIANTS:
        where = check(bounds, before, action, after)
        if where is not None:
            raise Broken(name, sentence, where)


def pages_of(state: State) -> Iterator[tuple[int, int, Page]]:
    for r, request in enumerate(state.requests):
        for p, page in enumerate(request.pages):
            yield r, p, page


def expected_rows(bounds: Bounds, state: State, r: int, p: int) -> Content:
    """The rows of the page that are computed, as they should be."""
    request = state.requests[r]
    count = max(0, min(bounds.rows, request.computed - p * bounds.rows))
    rows = list(final_content(bounds, name_of(bounds, r, p))[:count])
    if request.draft and p == (request.computed - 1) // bounds.rows:
        rows[-1] = draft_tag(rows[-1])
    return tuple(rows)


# --- contents


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


@of_step("S4", "Only sealed pages spill: no draft rows, no row that will be recomputed.")
def s4(bounds: Bounds, before: State, action: Action, after: State) -> str | None:
    if action[0] == "spill":
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


@of_step("S10", "A restore precedes any append to the page.")
def s10(bounds: Bounds, before: State, action: Action, after: State) -> str | None:
    if action[0] == "write":
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


@of_step("S14", "Preemption drops what was pending to be published; what is published stays.")
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


# --- book-keeping


@of_state("B1", "Reference counts of GPU blocks equal the holders.")
def b1(bounds: Bounds, state: State) -> str | None:
    held: Counter[int] = Counter()
    for _, _, page in pages_of(state):
        held.update(page.keys)
        if page.held:
            held.update(page.gpu)
    for request in state.requests:
        held.update(request.hot)
    for transfer in state.transfers:
        if transfer.leases_gpu:
            held.update(transfer.gpu)
    for entry in state.fenced:
        held.update(entry.gpu)
    for block, refs in enumerate(state.gpu_refs):
        if refs != held[block]:
            return f"GPU block {block} has count {refs} and {held[block]} holders"
    return None


@of_state("B2", "Reference counts of host blocks equal the holders.")
def b2(bounds: Bounds, state: State) -> str | None:
    held: Counter[int] = Counter()
    held.update(page.host for _, _, page in pages_of(state))
    held.update(transfer.host for transfer in state.transfers)
    held.update(transfer.source for transfer in state.transfers if transfer.source)
    held.update(entry.host for entry in state.fenced if entry.host)
    for block, refs in enumerate(state.host_refs):
        if refs != held[block]:
            return f"host block {block} has count {refs} and {held[block]} holders"
    return None


@of_state("B3", "The free queue is exactly the blocks of count 0 without the null block; no repeats.")
def b3(bounds: Bounds, state: State) -> str | None:
    for free, refs in ((state.gpu_free, state.gpu_refs), (state.host_free, state.host_refs)):
        want = {block for block, count in enumerate(refs) if count == 0 and block}
        if free != want:
            return f"free {sorted(free)}, of count 0 {sorted(want)}"
    return None


@of_state("B4", "The null block is never leased, freed, hashed or queued.")
def b4(bounds: Bounds, state: State) -> str | None:
    if state.gpu_refs[0] or state.host_refs[0] or 0 in state.gpu_free or 0 in state.host_free:
        return "block 0 is counted or queued"
    if any(host == 0 for _, host in state.prefix) or any(0 in gpu for _, gpu in state.copies):
        return "block 0 is published or indexed"
    return None


@of_state("B5", "Whoever still reads a free block loses it when it is handed out, and only then.")
def b5(bounds: Bounds, state: State) -> str | None:
    owner_of: dict[int, tuple[str, int]] = {}
    claims = [(page.gpu, ("host block", page.host)) for _, _, page in pages_of(state)]
    claims += [(gpu, ("host block", host)) for host, gpu in state.copies]
    claims += [(page.keys, ("keys of host block", page.host)) for _, _, page in pages_of(state)]
    claims += [(keys, ("keys of host block", host)) for host, keys in state.key_copies]
    claims += [(request.hot, ("the hot region of", r)) for r, request in enumerate(state.requests)]
    for blocks, owner in claims:
        for block in blocks:
            if owner_of.setdefault(block, owner) != owner:
                return f"GPU block {block} is read for {owner_of[block]} and for {owner}"
    return None


@of_state("B6", "The copy index and its inverse agree; a reused block drops the whole tuple.")
def b6(bounds: Bounds, state: State) -> str | None:
    name_by_host = {host: name for name, host in state.prefix}
    if len({gpu for _, gpu in state.copies}) != len(state.copies):
        return "one GPU copy is indexed for two host blocks"
    for host, _ in state.key_copies:
        if host not in name_by_host:
            return f"the index keys of host block {host} outlive its hash"
    for host, gpu in state.copies:
        if host not in name_by_host:
            return f"the copy of host block {host} outlives its hash"
        if any(state.gpu[block] != final_content(bounds, name_by_host[host]) for block in gpu):
            return f"the copy of host block {host} holds other bytes"
    return None


@of_state("B7", "A page's pending transfer and the ledger agree.")
def b7(bounds: Bounds, state: State) -> str | None:
    for transfer in state.transfers:
        if transfer.owner == NOBODY:
            continue
        pages = state.requests[transfer.owner].pages
        if transfer.page >= len(pages):
            return f"a transfer of page {transfer.page} of request {transfer.owner}, which has {len(pages)}"
        page = pages[transfer.page]
        if page.host != transfer.host or (transfer.kind != COPY and page.gpu != transfer.gpu):
            return f"a transfer of page {transfer.page} of request {transfer.owner} moves other blocks than the page's"
    return None


@of_step("B8", "Retiring is idempotent.")
def b8(bounds: Bounds, before: State, action: Action, after: State) -> str | None:
    if action[0] == "deliver":
        _, i, rank, fact = action
        if (before.transfers[i].known[rank] >= fact or before.transfers[i].lost) and before != after:
            return f"a repeated or late report of rank {rank} changed something"
    return None


@of_state("B9", "One pending transfer per page.")
def b9(bounds: Bounds, state: State) -> str | None:
    owned = [(t.owner, t.page) for t in state.transfers if t.owner != NOBODY]
    return "two transfers of one page" if len(set(owned)) != len(owned) else None


@of_state("B10", "Both ends of a block copy are held until acknowledged.")
def b10(bounds: Bounds, state: State) -> str | None:
    for t in state.transfers:
        if t.kind == COPY and not (state.host_refs[t.host] and state.host_refs[t.source]):
            return f"the copy from host block {t.source} to {t.host} does not hold both"
    return None


@of_step("B11", "Capacity queries are pure.")
def b11(bounds: Bounds, before: State, action: Action, after: State) -> str | None:
    return "a query changed something" if action[0] == "query" and before != after else None


@of_step("B12", "Adoption pins only after the admitting allocation.")
def b12(bounds: Bounds, before: State, action: Action, after: State) -> str | None:
    if action[0] == "admit":
        copies = dict(before.copies)
        for p, page in enumerate(after.requests[action[1]].pages):
            if page.gpu and (copies.get(page.host) != page.gpu or not page.held):
                return f"page {p} adopted {page.gpu}, which is no readable copy of host block {page.host}"
    return None


@of_step("B13", "The worker's residency view is control's at the last scheduled step.")
def b13(bounds: Bounds, before: State, action: Action, after: State) -> str | None:
    if action[0] in ("write", "grow") and after.steps:
        table = tuple([(page.host, page.gpu) for page in after.requests[action[1]].pages])
        if after.steps[-1].sent != table:
            return f"request {action[1]} was sent {after.steps[-1].sent} and is at {table}"
    return None


@of_step("B14", "Table rows are append-only.")
def b14(bounds: Bounds, before: State, action: Action, after: State) -> str | None:
    for r, (was, now) in enumerate(zip(before.requests, after.requests, strict=True)):
        if was.status in (ABSENT, DETACHED) or now.status != was.status:
            continue
        kept = len(was.pages) - (action[0] == "cow" and action[1] == r)
        if [p.host for p in now.pages[:kept]] != [p.host for p in was.pages[:kept]]:
            return f"an earlier page of request {r} has another host block"
    return None
