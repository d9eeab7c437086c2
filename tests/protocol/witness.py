"""What control decided in a call, told as actions of the model.

`admit`, `step`, `seal` leave control choices: who is unpinned, moved, reused, evicted, restored, spilled.
From the books before and after, `decisions` reads which of them were made; `follow` does them in the
model, in some order that the model allows. If there is none, or if the books that come out are not
control's, then control has done something that the protocol does not know.
"""

from __future__ import annotations

from collections.abc import Iterator

from spec.edit import Edit, require
from spec.invariants import check_step
from spec.model import Action, Model, NotEnabled
from spec.state import ABSENT, DETACHED, IMPORTING, LIVE, NOBODY, RESTORE, SPILL, Blocks, Request, State, Transfer

# Room is made first, then the request comes, then it takes what it needs; transfers are given up last.
ORDER = ("unpin", "hot", "reuse", "evict", "admit", "land")
LAST = ("set_aside",)


class Wider(Model):
    """The model, and two decisions of control that it does not have."""

    def land(self, state: State, edit: Edit, r: int, cached: int, left: tuple[int, ...]) -> None:
        """Admit, but leave the readable copies of some host blocks alone: those pages are read from the host."""
        hidden = {host: edit.copies.pop(host) for host in left if host in edit.copies}
        self.admit(state, edit, r, cached)
        edit.copies.update(hidden)

    def adopt(self, state: State, edit: Edit, r: int, p: int) -> None:
        """A live request reads a page from a copy that it did not have before."""
        page = state.requests[r].pages[p]
        require(state.requests[r].status == LIVE and not page.gpu and page.clean, "a page on the host alone")
        require(page.host in edit.copies, "a readable copy")
        edit.hold_gpu(edit.copies[page.host])
        edit.change_page(r, p, gpu=edit.copies[page.host], held=True)


class Beyond(Exception):
    """Control did something legal that the model has no action for; the message names it."""


def decisions(before: State, after: State) -> list[Action]:
    """The actions of the model that lead from one state to the other. Raises `Beyond`."""
    found: list[Action] = []
    evicted = {host for _, host in before.prefix} - {host for _, host in after.prefix}
    found += [("evict", host) for host in sorted(evicted)]
    found += [("reuse", gpu) for gpu in sorted(_reused(before, after, evicted))]
    started = [t for t in after.transfers if not t.lost and not any(_same(t, other) for other in before.transfers)]
    lost = [t for t in after.transfers if t.lost and not any(_same(t, other) for other in before.transfers)]
    if any(t.kind != SPILL for t in lost):
        raise Beyond("a restore or a copy is overdue")
    rests = {entry.gpu for entry in after.fenced} - {entry.gpu for entry in before.fenced}
    if any(not before.gpu_refs[block] for gpu in rests for block in gpu):
        raise Beyond("a hot region is granted for an extension, and given back when the step is planned")
    for r, (was, now) in enumerate(zip(before.requests, after.requests, strict=True)):
        if IMPORTING in (was.status, now.status) and was != now:
            raise Beyond("an import moves on")
        doubtful = any(page.tainted for page in was.pages) or not any(_was_of(r, t, before) for t in lost)
        if was.status == DETACHED and now != was and doubtful:
            raise Beyond("a finished request gives up a page whose mirror is not proven")
        if now.status == LIVE:
            found += _of_request(r, was, now, before, started, rests)
    spilled = [t for t in started if t.kind == SPILL]
    if any(t.owner == NOBODY for t in spilled):
        raise Beyond("a page spills and is given up in one call")
    if any(after.requests[t.owner].status == IMPORTING for t in spilled):
        raise Beyond("a page spills while its request imports others")
    found += [("spill", t.owner, t.page) for t in spilled]
    found += [("set_aside", t.host, t.page) for t in lost]
    return found


def _was_of(r: int, lost: Transfer, before: State) -> bool:
    return any((t.owner, t.page, t.host) == (r, lost.page, lost.host) for t in before.transfers)


def _of_request(
    r: int, was: Request, now: Request, before: State, started: list[Transfer], rests: set[Blocks]
) -> Iterator[Action]:
    copies = dict(before.copies)
    if was.status == ABSENT:
        left = tuple([page.host for page in now.pages if not page.gpu and page.host in copies])
        yield ("land", r, len(now.pages), left) if left else ("admit", r, len(now.pages))
    restored = {t.page for t in started if t.kind == RESTORE and t.owner == r}
    for p, page in enumerate(now.pages):
        if p >= len(was.pages) and was.status == LIVE:
            yield ("append", r, page.host, page.gpu + page.keys)
            continue
        old = was.pages[p] if was.status == LIVE else None
        if p in restored:
            yield ("restore", r, p, page.gpu)
        elif old is None:
            continue
        elif old.held and not page.held:
            yield ("unpin", r, p)
        elif old.gpu and page.held and not old.held:
            yield ("repin", r, p)
        elif old.held and page.held and page.gpu in rests:  # for an extension, and back when the step was planned
            yield ("unpin", r, p)
            yield ("repin", r, p)
        elif page.gpu and not old.gpu:
            yield ("adopt", r, p)
    if now.hot and now.hot != was.hot:
        yield ("hot", r, now.hot)
    if was.hot and not now.hot:
        yield ("cool", r)
    rows = now.computed - (was.computed if was.status == LIVE else now.final)
    for left in reversed(range(rows)):
        yield ("write", r, True, left < now.draft)


def _reused(before: State, after: State, evicted: set[int]) -> set[Blocks]:
    """What was still read, or indexed as a copy of a block that is still published, and is no more."""
    gone = set()
    for was, now in zip(before.requests, after.requests, strict=True):
        if was.status == now.status == LIVE:
            # A page that is elsewhere now was lost for an extension, and restored when the step was planned.
            gone |= {old.gpu for old, new in zip(was.pages, now.pages, strict=False) if old.gpu and old.gpu != new.gpu}
    for index, later in ((before.copies, after.copies), (before.key_copies, after.key_copies)):
        gone |= {gpu for host, gpu in index if host not in dict(later) and host not in evicted}
    return gone


def _same(one: Transfer, other: Transfer) -> bool:
    """A page's host block has one transfer at a time, but for those that were given up."""
    mine, its = ((t.kind, t.page, t.host, t.gpu, t.lost) for t in (one, other))
    return mine == its


def follow(model: Model, state: State, todo: list[Action], after: State) -> tuple[State, list[Action]]:
    """The state after all of `todo`, in an order in which each is enabled, and that order. What is overdue is
    given up behind the new step: its blocks rest until that is done."""
    waiting = sorted(todo, key=_place)
    done: list[Action] = []
    while waiting:
        for action in waiting:
            named = _with_index(state, action)
            if action[0] in LAST:
                state = state._replace(steps=after.steps)
            try:
                reached = model.apply(state, named)
            except NotEnabled as need:
                reason = need
                continue
            if action[0] != "write":  # what a step reads and writes is judged by its bytes
                check_step(model.bounds, state, named, reached)
            state = reached
            done.append(named)
            waiting.remove(action)
            break
        else:
            raise AssertionError(f"model: control did {waiting}, for which the model needs {reason}")
    return state, done


def _place(action: Action) -> int:
    if action[0] in LAST:
        return len(ORDER) + 1
    return ORDER.index(action[0]) if action[0] in ORDER else len(ORDER)


def _with_index(state: State, action: Action) -> Action:
    if action[0] != "set_aside":
        return action
    places = [(t.host, t.page, t.lost) for t in state.transfers]
    return ("set_aside", places.index((*action[1:], False)))
