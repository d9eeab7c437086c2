"""All that can happen: `control` and `environment` say what each action does, this file which to try.

Policy is free in the model, and the channel is as bad as can be: whatever is allowed may happen.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from .edit import Edit, NotEnabled
from .environment import Environment
from .state import (
    ABSENT,
    COMPLETED,
    ENQUEUED,
    FAILED,
    IMPORTING,
    LIVE,
    State,
    blank_gpu,
    blank_host,
    hits,
    initial,
    readable_leases,
)

__all__ = ["Action", "Model", "NotEnabled", "kinds"]

Action = tuple[Any, ...]  # name, then arguments


def kinds() -> set[str]:
    """The names of all actions: `grow`, and whatever is given a state and an edit of it."""
    methods = inspect.getmembers(Environment, inspect.isfunction)
    actions = {name for name, method in methods if list(inspect.signature(method).parameters)[1:3] == ["state", "edit"]}
    return actions | {"grow"}


class Model(Environment):
    def initial(self) -> State:
        return initial(self.bounds)

    def apply(self, state: State, action: Action) -> State:
        """The state after `action`; raises `NotEnabled`."""
        for name, *arguments in self.parts(action):
            edit = Edit(self.bounds, state)
            getattr(self, name)(state, edit, *arguments)
            state = edit.freeze()
        return state

    def parts(self, action: Action) -> tuple[Action, ...]:
        """`grow` is a whole page in one action, where what lies between does not matter."""
        if action[0] != "grow":
            return (action,)
        _, r, host, gpu = action
        return (("append", r, host, gpu), *[("write", r, True, False)] * self.bounds.rows, ("seal", r))

    def successors(self, state: State) -> Iterator[tuple[Action, State]]:
        for action in self.candidates(state):
            try:
                yield action, self.apply(state, action)
            except NotEnabled:
                continue

    def enabled(self, state: State) -> list[Action]:
        return [action for action, _ in self.successors(state)]

    # --- what is worth trying; blank blocks are all alike, so the smallest ids stand for any

    def candidates(self, state: State) -> Iterator[Action]:
        blank, blank_hosts = tuple(blank_gpu(state)), tuple(blank_host(state))
        for r, request in enumerate(state.requests):
            if request.status == ABSENT:
                yield from self._arrivals(state, r, blank, blank_hosts)
            else:
                if request.status == LIVE:
                    yield from self._of_live(r, blank, blank_hosts[0] if blank_hosts else 0)
                elif request.status == IMPORTING:
                    yield ("import_end", r, True)
                    yield ("import_end", r, False)
                yield ("preempt", r)
                for p in range(len(request.pages)):
                    yield from self._of_page(r, p, blank)
        for i in range(len(state.transfers)):
            yield from self._of_transfer(i)
        yield from self._of_pools(state, blank, blank_hosts)

    def _arrivals(self, state: State, r: int, blank: tuple[int, ...], blank_hosts: tuple[int, ...]) -> Iterator[Action]:
        bounds, found = self.bounds, hits(self.bounds, state, r)
        yield ("admit", r, len(found))
        if bounds.imports:
            for rows in range(1, bounds.pages * bounds.rows + 1):
                new = -(-rows // bounds.rows) - len(found[: rows // bounds.rows])
                yield ("import_begin", r, rows, blank_hosts[:new], blank[: new * bounds.keys])

    def _of_live(self, r: int, blank: tuple[int, ...], host: int) -> Iterator[Action]:
        bounds = self.bounds
        page_blocks = blank[: bounds.groups + bounds.keys]
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
        yield ("hot", r, blank[: bounds.hot])
        yield ("cool", r)
        yield ("finish", r)
        if bounds.copies:
            yield ("cow", r, host, page_blocks)

    def _of_page(self, r: int, p: int, blank: tuple[int, ...]) -> Iterator[Action]:
        yield ("spill", r, p)
        yield ("unpin", r, p)
        if self.bounds.imports:
            yield ("import_write", r, p)
        if self.bounds.restores:
            yield ("repin", r, p)
            yield ("restore", r, p, blank[: self.bounds.groups])

    def _of_transfer(self, i: int) -> Iterator[Action]:
        faults = self.bounds.faults
        for rank in range(self.bounds.ranks):
            yield ("enqueue", i, rank)
            yield ("complete", i, rank)
            yield ("deliver", i, rank, ENQUEUED)
            yield ("deliver", i, rank, COMPLETED)
            if faults:
                yield ("fail", i, rank)
                yield ("deliver", i, rank, FAILED)
        if faults:
            yield ("set_aside", i)

    def _of_pools(self, state: State, blank: tuple[int, ...], blank_hosts: tuple[int, ...]) -> Iterator[Action]:
        """A block that is still read is reused, and a hit evicted, only when no blank one is left."""
        bounds = self.bounds
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
