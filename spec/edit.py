"""A state being changed: leases, fences and bytes. Policy-free; `model` says when what is done."""

from __future__ import annotations

from .bounds import Bounds
from .state import (
    Blocks,
    Content,
    Fenced,
    Page,
    Request,
    State,
)


class Edit:
    def __init__(self, bounds: Bounds, state: State) -> None:
        self.bounds = bounds
        self.requests = list(state.requests)
        self.transfers = list(state.transfers)
        self.prefix = dict(state.prefix)
        self.copies = dict(state.copies)
        self.key_copies = dict(state.key_copies)
        self.gpu_refs = list(state.gpu_refs)
        self.host_refs = list(state.host_refs)
        self.gpu_free = set(state.gpu_free)
        self.host_free = set(state.host_free)
        self.steps = list(state.steps)
        self.fenced = list(state.fenced)
        self.gpu = list(state.gpu)
        self.stream = [list(view) for view in state.stream]
        self.durable = [list(view) for view in state.durable]

    def freeze(self) -> State:
        return State(
            tuple(self.requests),
            tuple(self.transfers),
            tuple(sorted(self.prefix.items())),
            tuple(sorted(self.copies.items())),
            tuple(sorted(self.key_copies.items())),
            tuple(self.gpu_refs),
            tuple(self.host_refs),
            frozenset(self.gpu_free),
            frozenset(self.host_free),
            tuple(self.steps),
            tuple(self.fenced),
            tuple(self.gpu),
            tuple([tuple(view) for view in self.stream]),
            tuple([tuple(view) for view in self.durable]),
        )

    # --- requests and pages

    def change(self, request: int, **fields: object) -> Request:
        self.requests[request] = self.requests[request]._replace(**fields)  # type: ignore[arg-type]
        return self.requests[request]

    def change_page(self, request: int, index: int, **fields: object) -> Page:
        pages = self.requests[request].pages
        page = pages[index]._replace(**fields)  # type: ignore[arg-type]
        self.change(request, pages=(*pages[:index], page, *pages[index + 1 :]))
        return page

    # --- GPU blocks

    def take_gpu(self, blocks: Blocks) -> None:
        """Lease blank blocks: what they held is garbage to the new owner."""
        for block in blocks:
            self.gpu_free.discard(block)
            self.gpu_refs[block] += 1
            self.gpu[block] = (0,) * self.bounds.rows

    def hold_gpu(self, blocks: Blocks) -> None:
        for block in blocks:
            self.gpu_free.discard(block)
            self.gpu_refs[block] += 1

    def release_gpu(self, blocks: Blocks) -> None:
        """Give one reference back; the last one waits for the steps in flight."""
        if not blocks:
            return
        waiting = Fenced(len(self.steps), blocks, 0)
        resting = sum(entry.gpu == blocks for entry in self.fenced)
        if self.steps and self.gpu_refs[blocks[0]] - resting == 1 and waiting not in self.fenced:
            self.fenced.append(waiting)
        else:
            self.drop_gpu(blocks)

    def drop_gpu(self, blocks: Blocks) -> None:
        for block in blocks:
            self.gpu_refs[block] -= 1
            if self.gpu_refs[block] == 0:
                self.gpu_free.add(block)

    # --- host blocks

    def take_host(self, host: int) -> None:
        self.host_free.discard(host)
        self.host_refs[host] += 1
        for view in (*self.stream, *self.durable):
            view[host] = (0,) * self.bounds.rows
        self.recycle(host)

    def recycle(self, host: int) -> None:
        """No hot buffer may go on holding rows of a block that changes hands."""
        for index, request in enumerate(self.requests):
            if request.lines:
                self.change(index, lines=tuple([line for line in request.lines if line[0] != host]))

    def hold_host(self, host: int) -> None:
        self.host_free.discard(host)
        self.host_refs[host] += 1

    def release_host(self, host: int) -> None:
        waiting = Fenced(len(self.steps), (), host)
        resting = sum(entry.host == host for entry in self.fenced)
        if self.steps and self.host_refs[host] - resting == 1 and waiting not in self.fenced:
            self.fenced.append(waiting)
        else:
            self.drop_host(host)

    def drop_host(self, host: int) -> None:
        self.host_refs[host] -= 1
        if self.host_refs[host] == 0:
            self.host_free.add(host)

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

    # --- bytes

    def write_gpu(self, blocks: Blocks, content: Content) -> None:
        for block in blocks:
            self.gpu[block] = content
