"""Blocks that a step in flight may still read or write rest here until that step is over.

A release while no step is in flight is immediate. Otherwise the *last* reference that anybody but
the fence holds is taken over by the fence, until every step planned so far is done: only then can
a writer outside the compute stream take the block. References before the last pass at once,
because the last one comes later and waits at least as long.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Generic, TypeVar

from .errors import CountError
from .gpu_pool import GpuPool, Lease
from .host_pool import HostPool
from .types import HostBlock

T = TypeVar("T", Lease, HostBlock)


class Shelf(Generic[T]):
    """References that wait, oldest first. One thing may wait with several."""

    def __init__(self) -> None:
        self._queue: deque[tuple[int, T]] = deque()
        self.holds: Counter[T] = Counter()

    def put(self, sequence: int, thing: T) -> None:
        self._queue.append((sequence, thing))
        self.holds[thing] += 1

    def take(self, before: int) -> list[T]:
        """The things that waited for a step earlier than `before`."""
        ready = []
        while self._queue and self._queue[0][0] < before:
            thing = self._queue.popleft()[1]
            self.holds[thing] -= 1
            if not self.holds[thing]:
                del self.holds[thing]
            ready.append(thing)
        return ready


class Fence:
    def __init__(self, gpu: GpuPool, host: HostPool, last_planned: int) -> None:
        self._gpu = gpu
        self._host = host
        self._in_flight: dict[int, None] = {}  # sequences planned and not done, ascending
        self._last_planned = last_planned
        self.leases: Shelf[Lease] = Shelf()
        self.blocks: Shelf[HostBlock] = Shelf()

    @property
    def newest_in_flight(self) -> int | None:
        """The last step planned, unless all that were planned are done."""
        return self._last_planned if self._in_flight else None

    @property
    def resting_gpu(self) -> int:
        """GPU blocks that become free when the steps in flight are done."""
        return sum(len(lease.blocks) for lease, holds in self.leases.holds.items() if lease.refs == holds)

    @property
    def resting_host(self) -> int:
        return sum(self._host.refs[block] == holds for block, holds in self.blocks.holds.items())

    def planned(self, sequence: int) -> None:
        self._in_flight[sequence] = None
        self._last_planned = sequence

    def done(self, sequence: int) -> None:
        """Every rank's device work of step `sequence` has ended. A repeated call does nothing."""
        if not 0 <= sequence <= self._last_planned:
            raise ValueError(f"sequence: expected a planned step (0 .. {self._last_planned}), got {sequence}")
        self._in_flight.pop(sequence, None)
        oldest = next(iter(self._in_flight), self._last_planned + 1)
        for lease in self.leases.take(oldest):
            self._gpu.release(lease)
        for block in self.blocks.take(oldest):
            self._host.release(block)

    def release_gpu(self, lease: Lease) -> None:
        """Give back one reference, now or when the steps in flight are done."""
        others = lease.refs - self.leases.holds[lease]
        if others == 0:
            raise CountError("release of a GPU lease that only the fence holds")
        if self._in_flight and others == 1:
            self.leases.put(self._last_planned, lease)
        else:
            self._gpu.release(lease)

    def release_host(self, block: HostBlock) -> None:
        others = self._host.refs[block] - self.blocks.holds[block]
        if others == 0:
            raise CountError(f"release of host block {block}, which only the fence holds, or nobody")
        if self._in_flight and others == 1:
            self.blocks.put(self._last_planned, block)
        else:
            self._host.release(block)
