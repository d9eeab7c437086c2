"""Whether a step of the coordinator is a step of the model.

`judge` asks every invariant about the state that a call left, and about the change. `compare` says
more: control's books must be exactly the model's. Where control has nothing to choose (reports, steps
that end, requests that end) after the same action, else after the actions that `witness` reads off.
`check_free_queue` holds it to the order of its queue.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from protocol.abstraction import FOREVER
from protocol.witness import Beyond, decisions, follow

from spec.invariants import check_state, check_step
from spec.model import NotEnabled
from spec.state import (
    COMPLETED,
    DETACHED,
    ENQUEUED,
    FAILED,
    IMPORTING,
    NOBODY,
    RESTORE,
    Fenced,
    Request,
    State,
    Transfer,
)

if TYPE_CHECKING:
    from protocol.abstraction import Order
    from protocol.world import World

Action = tuple[Any, ...]
Gpu = tuple[int, ...]  # a page's blocks, one per resident group
FACTS = {"enqueued": ENQUEUED, "completed": COMPLETED, "failed": FAILED}
CHOOSES = ("admit", "step")
FORGETS = ("reset", "restart")
NOTHING_HAPPENS = ("query", "lose", "stranger", "run", "arrive", "import_write", "takeback")
ENDS = {"finish": "finish", "abort": "preempt", "preempt": "preempt"}


def judge(world: World, before: State, action: Action, after: State) -> None:
    """Every invariant of the model, of the state and of the step."""
    check_state(world.bounds, after)
    name = action[0]
    if name in ("abort", "preempt"):
        check_step(world.bounds, before, ("preempt", world.leaving), after)
    elif name != "restart":
        check_step(world.bounds, before, (name if name in ("query", "reset") else "other",), after)


def compare(world: World, before: State, action: Action, after: State) -> list[Action]:
    """Control's books against the model's after the same call. Where control has nothing to choose that is one
    action, else those that `witness` finds. Returns them; empty where the model does not go."""
    try:
        taken = _in_the_model(world, before, action, after)
    except NotEnabled as need:
        raise AssertionError(f"control did {action}, for which the model needs {need}") from None
    if taken is None:
        return []
    expected, steps = taken
    for field in ("prefix", "copies", "key_copies", "gpu_refs", "host_refs", "gpu_free", "host_free"):
        want, got = getattr(expected, field), getattr(after, field)
        assert want == got, f"model: {field} after {action[0]} is {got}, not {want}"
    want_fenced, got_fenced = _for_steps(expected), _for_steps(after)
    assert want_fenced == got_fenced, f"model: fenced after {action[0]} is {got_fenced}, not {want_fenced}"
    for want_request, request in zip(expected.requests, after.requests, strict=True):
        want, got = _books(want_request), _books(request)
        assert want == got, f"model: a request after {action[0]} is {got}, not {want}"
    want, got = [_entry(t) for t in expected.transfers], [_entry(t) for t in after.transfers]
    assert sorted(want) == sorted(got), f"model: transfers after {action[0]} are {got}, not {want}"
    return steps


def _in_the_model(world: World, before: State, action: Action, after: State) -> tuple[State, list[Action]] | None:
    """The model's state after the call and the actions that led there; None where the model does not go."""
    model, name, world.beyond = world.model, action[0], ""
    before = before._replace(fenced=tuple(_for_steps(before)))
    if name in NOTHING_HAPPENS:
        return before, [action] if name in ("query", "takeback") else []
    if name in FORGETS:
        return model.initial(), [("reset",)]
    if name in CHOOSES:
        try:
            if not set(world.unproven) <= set(world.c._state.mirror.open):
                raise Beyond("a step whose mirror is not proven in time is given up")
            return follow(model, before, decisions(before, after), after)
        except Beyond as reason:
            world.beyond = str(reason)
            return None
    only = _only_action(world, before, action)
    if only is None:
        return None
    return (before, []) if only == () else (model.apply(*only), [only[1]])


def _only_action(world: World, before: State, action: Action) -> tuple[State, Action] | tuple[()] | None:
    """What happens where control has no choice, and the state it happens in; () for nothing."""
    name = action[0]
    if name in ("step_done", "end_step"):
        return before, ("step_done",)
    if name in ENDS and world.leaving is not None:
        own_way = before.requests[world.leaving].status == IMPORTING or _in_its_own_time(before, world.leaving)
        return None if own_way else (before, (ENDS[name], world.leaving))
    if name == "seal":
        r = world.players[action[1]].slot
        return None if _in_its_own_time(before, r) else (before, ("seal", r))
    if name in ("deliver", "hear") and world.last is not None and world.last.kind in FACTS:
        fact = world.last
        if fact.id not in world.ids or fact.life != world.life:
            return ()
        index = world.ids.index(fact.id)
        transfer = before.transfers[index]
        importing = transfer.owner != NOBODY and before.requests[transfer.owner].status == IMPORTING
        waits_for_proof = fact.id in world.c._state.transfers.unproven
        if _in_its_own_time(before, transfer.owner):
            return None
        if importing or waits_for_proof or (transfer.kind == RESTORE and fact.kind == "failed"):
            return None
        told = FACTS[fact.kind]
        truth = tuple([max(p, told if rank == fact.rank else 0) for rank, p in enumerate(transfer.progress)])
        transfers = (*before.transfers[:index], transfer._replace(progress=truth), *before.transfers[index + 1 :])
        return before._replace(transfers=transfers), ("deliver", index, fact.rank, told)
    return None


def _in_its_own_time(state: State, owner: int) -> bool:
    """Whether control does for a request later what the model does at once: publish a durable page that is on its way
    back to the GPU, and give up what lies behind a page that missed its mirror when the request was finished."""
    if owner == NOBODY:
        return False
    request = state.requests[owner]
    restored = [request.pages[t.page] for t in state.transfers if t.kind == RESTORE and t.owner == owner]
    awaited = any(page.clean for page in restored if page in request.pages[request.published :])
    return awaited or (request.status == DETACHED and any(page.tainted for page in request.pages))


def _for_steps(state: State) -> list[Fenced]:
    """What rests until steps end; the rest of `fenced` stands for holders that the model does not have."""
    return sorted([entry for entry in state.fenced if entry.steps < FOREVER // 2])


def _books(request: Request) -> tuple[Any, ...]:
    holes = request.published if request.status == IMPORTING else len(request.pages)  # they prove nothing yet
    pages = [page._replace(proven=0, clean=page.clean and p < holes) for p, page in enumerate(request.pages)]
    return (request.status, request.published, request.hot, pages)


def _entry(t: Transfer) -> tuple[Any, ...]:
    return (t.kind, t.owner, t.page, t.host, t.source, t.gpu, t.leases_gpu, t.known, t.lost)


def check_news(before: State, action: Action, after: State) -> None:
    """What nobody reported cannot have become durable. A spill that has ended may wait for the proof of steps
    that did not write its page, and end when those are given up."""
    if action[0] in ("deliver", "hear", "seal", "import_end"):
        return
    ended = {(t.owner, t.page) for t in before.transfers if min(t.known) == COMPLETED}
    for r, (was, now) in enumerate(zip(before.requests, after.requests, strict=True)):
        for p, (page, later) in enumerate(zip(was.pages, now.pages, strict=False)):
            news = page.host == later.host and later.clean and not page.clean and now.status == was.status
            assert not news or (r, p) in ended, (
                f"L1: host block {page.host} became durable in {action[0]}, of which nobody has reported"
            )


def read_by_several(before: frozenset[Gpu], state: State) -> frozenset[Gpu]:
    """The pages' blocks that several requests read, or did: they go when the last of these has left, so
    that a request's own pages may be given up in another order."""
    readers = Counter(page.gpu for request in state.requests for page in request.pages if page.gpu)
    return frozenset([gpu for gpu, count in readers.items() if count > 1 or gpu in before])


def check_free_queue(before: Order, after: Order, action: Action, state: State, shared: frozenset[Gpu]) -> None:
    """Blank blocks are taken from the front and given back to the back; readable ones go tail first."""
    if action[0] in ("reset", "restart"):
        return
    blank, now = before[0], after[0]
    taken = next(i for i in range(len(blank) + 1) if now[: len(blank) - i] == blank[i:])
    back = action[0] == "step"  # a hot region granted for an extension may come back when the step is planned
    assert back or set(blank[:taken]).isdisjoint(now), f"B3: the free queue {blank} became {now}"
    place = {gpu: index for index, gpu in enumerate(after[1])}
    for request in state.requests:
        own = [p.gpu for p in request.pages if p.gpu and not p.held and p.gpu not in shared and p.gpu in place]
        assert own == sorted(own, key=place.__getitem__, reverse=True), f"a prefix loses its head first: {after[1]}"
