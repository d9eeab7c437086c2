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

OfState = Callable[[Bounds, State], bool]
OfAction = Callable[[Bounds, State, Action, State], bool]
OF_STATES: dict[str, OfState] = {}
OF_ACTIONS: dict[str, tuple[tuple[str, ...], OfAction]] = {}  # by what kinds of action it can come about


def of_state(sentence: str) -> Callable[[OfState], OfState]:
    def note(test: OfState) -> OfState:
        OF_STATES[sentence] = test
        return test

    return note


def of_action(sentence: str, *kinds: str) -> Callable[[OfAction], OfAction]:
    def note(test: OfAction) -> OfAction:
        OF_ACTIONS[sentence] = (kinds, test)
        return test

    return note


class Sometimes:
    """Which situations have been met so far."""

    def __init__(self) -> None:
        self.met: set[str] = set()
        self._of_states: dict[str, OfState] = dict(OF_STATES)
        self._of_actions: dict[str, dict[str, OfAction]] = {}
        for sentence, (kinds, test) in OF_ACTIONS.items():
            for kind in kinds:
                self._of_actions.setdefault(kind, {})[sentence] = test

    def look_at_state(self, bounds: Bounds, state: State) -> None:
        self._note([sentence for sentence, test in self._of_states.items() if test(bounds, state)])

    def look_at_step(self, bounds: Bounds, before: State, action: Action, after: State) -> None:
        tests = self._of_actions.get(action[0], {})
        self._note([sentence for sentence, test in tests.items() if test(bounds, before, action, after)])

    def _note(self, met: list[str]) -> None:
        """A situation that has been met is not asked for any more."""
        for sentence in met:
            self.met.add(sentence)
            self._of_states.pop(sentence, None)
            for tests in self._of_actions.values():
                tests.pop(sentence, None)

    @property
    def missing(self) -> list[str]:
        return [sentence for sentence in (*OF_STATES, *OF_ACTIONS) if sentence not in self.met]


def _pages(state: State) -> list[Page]:
    return [page for request in state.requests for page in request.pages]


def _unpinned(state: State) -> list[Page]:
    return [page for page in _pages(state) if page.gpu and not page.held]


@of_state("a page is unpinned")
def _(bounds: Bounds, state: State) -> bool:
    return bool(_unpinned(state))


@of_action("an unpinned page is lost", "reuse")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return any(page.gpu == action[1] for page in _pages(before))


@of_state("one block is unpinned under two readers")
def _(bounds: Bounds, state: State) -> bool:
    blocks = [page.gpu for page in _unpinned(state)]
    return len(set(blocks)) < len(blocks)


@of_state("a block is pinned by one request and unpinned by another")
def _(bounds: Bounds, state: State) -> bool:
    return bool({p.gpu for p in _unpinned(state)} & {p.gpu for p in _pages(state) if p.held})


@of_action("a host-only page is read", "write")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return any(not page.gpu for page in before.requests[action[1]].pages)


@of_action("a page is adopted without a transfer", "admit")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return any(page.gpu for page in after.requests[action[1]].pages)


@of_action("a page is adopted whose owner is gone", "admit")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    pages = after.requests[action[1]].pages
    return any(page.gpu and page.gpu[0] in before.gpu_free for page in pages)


@of_action("a prefix hit comes after the GPU copy was reused: it is read from the host", "admit")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return any(not page.gpu for page in after.requests[action[1]].pages)


@of_action("a report reaches a request that is gone", "deliver")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return bool(before.transfers[action[1]].owner == NOBODY)


@of_action("a state row has a new owner while a transfer of the old one is under way", "admit")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return any(t.owner == NOBODY for t in before.transfers)


@of_action("a completion is reported before its enqueueing", "deliver")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return action[3] == COMPLETED and before.transfers[action[1]].known[action[2]] == SENT


@of_action("a report comes twice", "deliver")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return bool(action[3] == before.transfers[action[1]].known[action[2]])


@of_state("a GPU block has a new owner before the copy out of it has ended")
def _(bounds: Bounds, state: State) -> bool:
    held = {block for request in state.requests for page in request.pages if page.held for block in page.gpu}
    return any(
        t.kind == SPILL and ENQUEUED in t.progress and t.owner == NOBODY and not t.leases_gpu and held & set(t.gpu)
        for t in state.transfers
    )


@of_action("a finished request publishes a page later", "deliver")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    owner = before.transfers[action[1]].owner
    return owner != NOBODY and before.requests[owner].status == DETACHED and before.prefix != after.prefix


@of_state("a finished request waits for a page that is not yet planned")
def _(bounds: Bounds, state: State) -> bool:
    return any(
        request.status == DETACHED
        and any(pending(state, r, p) is None for p in range(request.published, len(request.pages)))
        for r, request in enumerate(state.requests)
    )


@of_state("a later page is durable before an earlier one: nothing is published yet")
def _(bounds: Bounds, state: State) -> bool:
    return any(
        request.status == LIVE and any(page.clean for page in request.pages[request.published :])
        for request in state.requests
    )


@of_state("a page becomes durable under a name that is published already")
def _(bounds: Bounds, state: State) -> bool:
    names = dict(state.prefix)
    return any(
        request.status == LIVE and any(
            names.get(name_of(bounds, r, p), page.host) != page.host
            for p, page in enumerate(request.pages[: request.published])
        )
        for r, request in enumerate(state.requests)
    )  # fmt: skip


@of_action("a published page is evicted while a live request has later ones", "evict")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return any(request.published > 1 for request in after.requests)


@of_action("a prefix look-up comes while the spill of the next page is pending", "admit")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return any(t.page == action[2] and t.kind == SPILL for t in before.transfers)


@of_state("both requests hold a hot region")
def _(bounds: Bounds, state: State) -> bool:
    return sum(bool(request.hot) for request in state.requests) > 1


@of_action("a hot region is given back", "cool")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return True


@of_state("a request with pages on the host alone waits for a hot region")
def _(bounds: Bounds, state: State) -> bool:
    return any(r.status == LIVE and not schedulable(state, i) for i, r in enumerate(state.requests))


@of_action("a request is preempted with two transfers under way", "preempt")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return bool(sum(t.owner == action[1] for t in before.transfers) > 1)


@of_action("both pools are reset while a transfer is planned", "reset")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return bool(before.transfers)


@of_state("one rank has completed a copy that another has not begun")
def _(bounds: Bounds, state: State) -> bool:
    return any(COMPLETED in t.progress and SENT in t.progress for t in state.transfers)


@of_action("a copy fails on one rank and its page stays dirty", "deliver")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return bool(action[3] == FAILED)


@of_action("an overdue transfer is set aside, and its report comes after all", "deliver")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return before.transfers[action[1]].lost


@of_state("a sealed page stays dirty, because a row of it missed its mirror")
def _(bounds: Bounds, state: State) -> bool:
    return bounds.mirror and any(
        page.tainted and (p + 1) * bounds.rows <= request.final
        for request in state.requests
        for p, page in enumerate(request.pages)
    )


@of_action("a mirrored draft row is taken back and written again", "write")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    if action[3]:
        return False
    request = before.requests[action[1]]
    p, offset = divmod(request.computed, bounds.rows)
    return bool(before.stream[0][request.pages[p].host][offset])


@of_action("an import fails with pages written", "import_end")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    if action[2]:
        return False
    request = before.requests[action[1]]
    return any(any(before.durable[0][page.host]) for page in request.pages[request.published :])


@of_action("an import ends with a partial tail, which is restored and appended to", "write")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    request = before.requests[action[1]]
    page = request.pages[request.computed // bounds.rows]
    return 0 < page.proven == request.computed % bounds.rows and not bounds.mirror


@of_action("an import begins behind a shared published prefix", "import_begin")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return after.requests[action[1]].published > 0


@of_state("two imports are open at once")
def _(bounds: Bounds, state: State) -> bool:
    return sum(request.status == IMPORTING for request in state.requests) > 1


@of_state("a request goes while its restore is under way")
def _(bounds: Bounds, state: State) -> bool:
    return any(t.kind == RESTORE and t.owner == NOBODY for t in state.transfers)


@of_state("the source of a copy-on-write loses its last reader before the copy has ended")
def _(bounds: Bounds, state: State) -> bool:
    return any(t.kind == COPY and state.host_refs[t.source] == 1 for t in state.transfers)


@of_action("a request ends while a step of it is in flight: its blocks rest", "finish", "preempt")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return len(after.fenced) > len(before.fenced)


@of_action("a hot buffer forgets a row because its host block was leased again", "append")
def _(bounds: Bounds, before: State, action: Action, after: State) -> bool:
    return any(len(now.lines) < len(was.lines) for was, now in zip(before.requests, after.requests, strict=True))
