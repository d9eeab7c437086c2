"""The one pool of GPU blocks, handed out as leases.

A lease is the blocks that live and die together: a page's blocks in every resident group, its
index keys' blocks, or a whole hot region. One count for all of them keeps the groups in step.

| lease        | refs | watchers | its blocks                                             |
|--------------|------|----------|--------------------------------------------------------|
| held         | >= 1 | any      | belong to the holders                                  |
| readable     | 0    | some     | free, but whole: still read, or indexed as a copy      |
| gone         | 0    | none     | blank in the free queue, or already in another lease   |

Free queue: blank blocks first, then readable leases, oldest age first. When the pool needs one
block of a readable lease, the lease is gone as a whole: every watcher hears of it once, and its
other blocks become blank.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

from .errors import ControlError, CountError
from .types import NO_GPU_BLOCK, GpuBlock

Age = tuple[int, int, int]  # (when given up, kind, -page): smaller is reused earlier
NEW: Age = (0, 0, 0)


class Watcher(Protocol):
    """Somebody who reads, or would adopt, a lease without holding it."""

    def lost(self, lease: Lease) -> None:
        """`lease` was handed out again. Called inside the pool: note it, take nothing."""


class Lease:
    """Blocks that are leased, read, given up and reused together."""

    __slots__ = ("age", "blocks", "refs", "ticket", "watchers")

    def __init__(self, blocks: tuple[GpuBlock, ...]) -> None:
        self.blocks = blocks
        self.refs = 1
        self.watchers: tuple[Watcher, ...] = ()
        self.age: Age = NEW
        self.ticket = 0  # its place in the free queue; 0 = not queued

    @property
    def whole(self) -> bool:
        """Whether the blocks still hold what they were leased for."""
        return self.refs > 0 or self.ticket > 0


class GpuPool:
    """Blocks 1 .. num_blocks - 1; block 0 is the null block and never leaves its place."""

    def __init__(self, num_blocks: int, order: Iterable[int] | None = None) -> None:
        """`order` is the initial order of the free queue (default: ascending)."""
        if num_blocks < 1:
            raise ValueError(f"num_blocks: expected at least the null block, got {num_blocks}")
        ids = range(1, num_blocks) if order is None else order
        self._blank: deque[GpuBlock] = deque(map(GpuBlock, ids))
        self.usable = len(self._blank)
        self.free = self.usable  # blank blocks and the blocks of readable leases
        if NO_GPU_BLOCK in self._blank or len(set(self._blank)) != self.usable or self.usable != num_blocks - 1:
            raise ValueError(f"order: expected {num_blocks - 1} distinct blocks without the null block")
        self._readable: list[tuple[Age, int, Lease]] = []  # heap; an entry is stale if its ticket is
        self._readable_count = 0
        self._tickets = 0

    def lease(self, count: int) -> Lease:
        """Take `count` blocks: blank ones, then those of the oldest readable leases."""
        if count > self.free:
            raise ControlError(f"{count} GPU blocks asked, {self.free} free: the caller did not check")
        while len(self._blank) < count:
            self._reuse_oldest()
        self.free -= count
        return Lease(tuple([self._blank.popleft() for _ in range(count)]))

    def share(self, lease: Lease) -> None:
        """One more holder. A readable lease leaves the free queue: this is adoption."""
        if not lease.whole:
            raise ControlError("the lease is gone: its blocks belong to somebody else")
        if lease.refs == 0:
            self._unqueue(lease)
            self.free -= len(lease.blocks)
        lease.refs += 1

    def release(self, lease: Lease) -> None:
        """One holder less. The last one leaves the blocks readable if somebody watches."""
        if lease.refs == 0:
            raise CountError("release of a GPU lease that nobody holds")
        lease.refs -= 1
        if lease.refs == 0:
            self.free += len(lease.blocks)
            if lease.watchers:
                self._queue(lease)
            else:
                self._blank.extend(lease.blocks)

    def watch(self, lease: Lease, watcher: Watcher) -> None:
        """Tell `watcher` when the blocks are handed out again."""
        if not lease.whole:
            raise ControlError("the lease is gone: there is nothing to watch")
        lease.watchers += (watcher,)

    def unwatch(self, lease: Lease, watcher: Watcher) -> None:
        """`watcher` reads the lease no more; a free lease that nobody watches becomes blank."""
        if watcher not in lease.watchers:
            raise CountError("the lease was not watched by this watcher")
        rest = list(lease.watchers)
        rest.remove(watcher)
        lease.watchers = tuple(rest)
        if lease.refs == 0 and not rest:
            self._unqueue(lease)
            self._blank.extend(lease.blocks)

    def blank_blocks(self) -> Iterator[GpuBlock]:
        return iter(self._blank)

    def readable_leases(self) -> list[Lease]:
        """The readable leases, next to be reused first."""
        return [lease for _, ticket, lease in sorted(self._readable, key=lambda e: e[:2]) if lease.ticket == ticket]

    def _queue(self, lease: Lease) -> None:
        self._tickets += 1
        lease.ticket = self._tickets
        self._readable_count += 1
        heapq.heappush(self._readable, (lease.age, lease.ticket, lease))
        if len(self._readable) > 2 * self._readable_count + 64:  # mostly stale: rebuild
            self._readable = [entry for entry in self._readable if entry[2].ticket == entry[1]]
            heapq.heapify(self._readable)

    def _unqueue(self, lease: Lease) -> None:
        lease.ticket = 0
        self._readable_count -= 1

    def _reuse_oldest(self) -> None:
        while True:
            _, ticket, lease = heapq.heappop(self._readable)
            if lease.ticket == ticket:
                break
        self._unqueue(lease)
        self._blank.extend(lease.blocks)
        watchers, lease.watchers = lease.watchers, ()
        for watcher in watchers:
            watcher.lost(lease)
