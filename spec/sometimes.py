"""Situations that must have been met, or the search has looked in the wrong places."""

from __future__ import annotations

from collections.abc import Callable

from .bounds import Bounds
from .model import Action
from .state import (
    COMPLETED,
    COPY,
    DETACHED,
    ENQUEUED,
    FAILED,
    IMPORTING,
    LIVE,
    NOBODY,
    RESTORE,
    SENT,
    SPILL,
    Page,
    State,
    name_of,
    pending,
    schedulable,
)

Situation = Callable[[Bounds, State, Action, State], bool]
SITUATIONS: dict[str, Situation] = {}


def situation(sentence: str) -> Callable[[Situation], Situation]:
    def note(test: Situation) -> Situation:
        SITUATIONS[sentence] = test
        return test

    return note


class Sometimes:
    """Which situations have been met so far."""

    def __init__(self) -> None:
        self.met: dict[str, int] = {}
        self._open = dict(SITUATIONS)

    def look(self, bounds: Bounds, before: State, action: Action, after: State) -> None:
        for sentence, test in list(self._open.items()):
            if test(bounds, before, action, after):
                self.met[sentence] = 1
                del self._open[sentence]

    @property
    def missing(self) -> list[str]:
        return list(self._open)


def _pages(state: State) -> list[Page]:
    return [page for request in state.requests for page in request.pages]


def _unpinned(state: State) -> list[Page]:
    return [page for page in _pages(state) if page.gpu and not page.held]


@situation("a page is unpinned")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return bool(_unpinned(after))


@situation("an unpinned page is lost")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return action[0] == "reuse" and any(page.gpu == action[1] for page in _pages(before))


@situation("one block is unpinned under two readers")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    blocks = [page.gpu for page in _unpinned(after)]
    return len(set(blocks)) < len(blocks)


@situation("a block is pinned by one request and unpinned by another")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return bool({p.gpu for p in _unpinned(after)} & {p.gpu for p in _pages(after) if p.held})


@situation("a host-only page is read")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return action[0] == "write" and any(not page.gpu for page in before.requests[action[1]].pages)


@situation("a page is adopted without a transfer")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return action[0] == "admit" and any(page.gpu for page in after.requests[action[1]].pages)


@situation("a page is adopted whose owner is gone")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    pages = after.requests[action[1]].pages if action[0] == "admit" else ()
    return any(page.gpu and page.gpu[0] in before.gpu_free for page in pages)


@situation("a prefix hit comes after the GPU copy was reused: it is read from the host")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return action[0] == "admit" and any(not page.gpu for page in after.requests[action[1]].pages)


@situation("a report reaches a request that is gone")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return bool(action[0] == "deliver" and before.transfers[action[1]].owner == NOBODY)


@situation("a state row has a new owner while a transfer of the old one is under way")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return action[0] == "admit" and any(t.owner == NOBODY for t in before.transfers)


@situation("a completion is reported before its enqueueing")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return action[0] == "deliver" and action[3] == COMPLETED and before.transfers[action[1]].known[action[2]] == SENT


@situation("a report comes twice")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return bool(action[0] == "deliver" and action[3] == before.transfers[action[1]].known[action[2]])


@situation("a GPU block has a new owner before the copy out of it has ended")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    held = {block for request in after.requests for page in request.pages if page.held for block in page.gpu}
    return any(
        t.kind == SPILL and ENQUEUED in t.progress and t.owner == NOBODY and not t.leases_gpu and held & set(t.gpu)
        for t in after.transfers
    )


@situation("a finished request publishes a page later")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    owner = before.transfers[action[1]].owner if action[0] == "deliver" else NOBODY
    return owner != NOBODY and before.requests[owner].status == DETACHED and before.prefix != after.prefix


@situation("a finished request waits for a page that is not yet planned")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return any(
        request.status == DETACHED
        and any(pending(after, r, p) is None for p in range(request.published, len(request.pages)))
        for r, request in enumerate(after.requests)
    )


@situation("a later page is durable before an earlier one: nothing is published yet")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return any(
        request.status == LIVE and any(page.clean for page in request.pages[request.published :])
        for request in after.requests
    )


@situation("a page becomes durable under a name that is published already")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    names = dict(after.prefix)
    return any(
        request.status == LIVE and any(
            names.get(name_of(bounds, r, p), page.host) != page.host
            for p, page in enumerate(request.pages[: request.published])
        )
        for r, request in enumerate(after.requests)
    )  # fmt: skip


@situation("a published page is evicted while a live request has later ones")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return action[0] == "evict" and any(request.published > 1 for request in after.requests)


@situation("a prefix look-up comes while the spill of the next page is pending")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return action[0] == "admit" and any(t.page == action[2] and t.kind == SPILL for t in before.transfers)


@situation("both requests hold a hot region")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return sum(bool(request.hot) for request in after.requests) > 1


@situation("a hot region is given back")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return bool(action[0] == "cool")


@situation("a request with pages on the host alone waits for a hot region")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return any(r.status == LIVE and not schedulable(after, i) for i, r in enumerate(after.requests))


@situation("a request is preempted with two transfers under way")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return bool(action[0] == "preempt" and sum(t.owner == action[1] for t in before.transfers) > 1)


@situation("both pools are reset while a transfer is planned")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return action[0] == "reset" and bool(before.transfers)


@situation("one rank has completed a copy that another has not begun")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return any(COMPLETED in t.progress and SENT in t.progress for t in after.transfers)


@situation("a copy fails on one rank and its page stays dirty")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return bool(action[0] == "deliver" and action[3] == FAILED)


@situation("an overdue transfer is set aside, and its report comes after all")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return action[0] == "deliver" and before.transfers[action[1]].lost


@situation("a sealed page stays dirty, because a row of it missed its mirror")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return bounds.mirror and any(
        page.tainted and (p + 1) * bounds.rows <= request.final
        for request in after.requests
        for p, page in enumerate(request.pages)
    )


@situation("a mirrored draft row is taken back and written again")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    if action[0] != "write" or action[3]:
        return False
    request = before.requests[action[1]]
    p, offset = divmod(request.computed, bounds.rows)
    return bool(before.stream[0][request.pages[p].host][offset])


@situation("an import fails with pages written")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    if action[0] != "import_end" or action[2]:
        return False
    request = before.requests[action[1]]
    return any(any(before.durable[0][page.host]) for page in request.pages[request.published :])


@situation("an import ends with a partial tail, which is restored and appended to")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    if action[0] != "write":
        return False
    request = before.requests[action[1]]
    page = request.pages[request.computed // bounds.rows]
    return 0 < page.proven == request.computed % bounds.rows and not bounds.mirror


@situation("an import begins behind a shared published prefix")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return action[0] == "import_begin" and after.requests[action[1]].published > 0


@situation("two imports are open at once")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return sum(request.status == IMPORTING for request in after.requests) > 1


@situation("a request goes while its restore is under way")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return any(t.kind == RESTORE and t.owner == NOBODY for t in after.transfers)


@situation("the source of a copy-on-write loses its last reader before the copy has ended")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return any(t.kind == COPY and after.host_refs[t.source] == 1 for t in after.transfers)


@situation("a request ends while a step of it is in flight: its blocks rest")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return action[0] in ("finish", "preempt") and len(after.fenced) > len(before.fenced)


@situation("a hot buffer forgets a row because its host block was leased again")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return action[0] == "append" and any(
        len(now.lines) < len(was.lines) for was, now in zip(before.requests, after.requests, strict=True)
    )
