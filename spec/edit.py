"""A state being changed: leases, fences and bytes. Policy-free; the actions say when what is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .bounds import Bounds
from .state import Blocks, Content, Fenced, Page, Request, State, Step, Transfer, initial


class NotEnabled(Exception):
    """The state does not allow the action; the message says what it would need."""


def require(condition: object, need: str) -> None:
    if not condition:
        raise NotEnabled(need)


def _map_of(pairs: dict[int, Any]) -> tuple[tuple[int, Any], ...]:
    return tuple(sorted(pairs.items()))


def _views(views: tuple[Any, ...]) -> list[Any]:
    return [list(view) for view in views]


def _frozen_views(views: list[Any]) -> tuple[Any, ...]:
    return tuple([tuple(view) for view in views])


# part of a state -> how it is made changeable, and how it is made a value again
_FORMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    **dict.fromkeys(("requests", "transfers", "gpu_refs", "host_refs", "steps", "fenced", "gpu"), (list, tuple)),
    **dict.fromkeys(("prefix", "copies", "key_copies"), (dict, _map_of)),
    **dict.fromkeys(("gpu_free", "host_free"), (set, frozenset)),
    **dict.fromkeys(("stream", "durable"), (_views, _frozen_views)),
}


class Edit:
    """Each part is copied when it is first touched; the others stay those of the state it began with."""

    requests: list[Request]
    transfers: list[Transfer]
    prefix: dict[int, int]
    copies: dict[int, Blocks]
    key_copies: dict[int, Blocks]
    gpu_refs: list[int]
    host_refs: list[int]
    gpu_free: set[int]
    host_free: set[int]
    steps: list[Step]
    fenced: list[Fenced]
    gpu: list[Content]
    stream: list[list[Content]]
    durable: list[list[Content]]

    def __init__(self, bounds: Bounds, state: State) -> None:
        self.bounds = bounds
        self._began = state

    def __getattr__(self, part: str) -> Any:
        """Called for a part that has not been touched yet."""
        thaw, _ = _FORMS[part]
        value = thaw(getattr(self._began, part))
        setattr(self, part, value)
        return value

    def freeze(self) -> State:
        touched = {part: _FORMS[part][1](value) for part, value in vars(self).items() if part in _FORMS}
        return self._began._replace(**touched) if touched else self._began

    def reset(self) -> None:
        """Everything is as in the beginning."""
        for part in _FORMS:
            vars(self).pop(part, None)
        self._began = initial(self.bounds)

    # --- requests and pages

    def change(self, request: int, **fields: object) -> Request:
        self.requests[request] = self.requests[request]._replace(**fields)  # type: ignore[arg-type]
        return self.requests[request]

    def change_page(self, request: int, index: int, **fields: object) -> None:
        pages = self.requests[request].pages
        page: Page = pages[index]._replace(**fields)  # type: ignore[arg-type]
        self.change(request, pages=(*pages[:index], page, *pages[index + 1 :]))

    # --- GPU blocks

    def take_gpu(self, blocks: Blocks) -> None:
        """Lease blank blocks: what they held is garbage to the new owner."""
        self.hold_gpu(blocks)
        self.write_gpu(blocks, (0,) * self.bounds.rows)

    def hold_gpu(self, blocks: Blocks) -> None:
        for block in blocks:
            self.gpu_free.discard(block)
            self.gpu_refs[block] += 1

    def release_gpu(self, blocks: Blocks) -> None:
        """Give one reference back; the last one waits for the steps in flight."""
        if not (self.steps and blocks and self._rests(Fenced(len(self.steps), blocks, 0), self.gpu_refs[blocks[0]])):
            self.drop_gpu(blocks)

    def drop_gpu(self, blocks: Blocks) -> None:
        for block in blocks:
            self.gpu_refs[block] -= 1
            if self.gpu_refs[block] == 0:
                self.gpu_free.add(block)

    def write_gpu(self, blocks: Blocks, content: Content) -> None:
        for block in blocks:
            self.gpu[block] = content

    # --- host blocks

    def take_host(self, host: int) -> None:
        """Lease a blank block: what it held is garbage, and no hot buffer may go on caching rows of it."""
        self.hold_host(host)
        for view in (*self.stream, *self.durable):
            view[host] = (0,) * self.bounds.rows
        for index, request in enumerate(self.requests):
            if request.lines:
                self.change(index, lines=tuple([line for line in request.lines if line[0] != host]))

    def hold_host(self, host: int) -> None:
        self.host_free.discard(host)
        self.host_refs[host] += 1

    def release_host(self, host: int) -> None:
        if not (self.steps and self._rests(Fenced(len(self.steps), (), host), self.host_refs[host])):
            self.drop_host(host)

    def drop_host(self, host: int) -> None:
        self.host_refs[host] -= 1
        if self.host_refs[host] == 0:
            self.host_free.add(host)

    # --- steps

    def _rests(self, last: Fenced, refs: int) -> bool:
        """Whether this was the last reference but those that rest already: then it rests, too."""
        resting = sum(entry.gpu == last.gpu and entry.host == last.host for entry in self.fenced)
        if refs - resting != 1 or last in self.fenced:
            return False
        self.fenced.append(last)
        return True

    def end_oldest_step(self) -> None:
        self.steps.pop(0)
        waiting = [entry._replace(steps=entry.steps - 1) for entry in self.fenced]
        self.fenced = [entry for entry in waiting if entry.steps]
        for entry in waiting:
            if entry.steps:
                continue
            self.drop_gpu(entry.gpu)
            if entry.host:
                self.drop_host(entry.host)
