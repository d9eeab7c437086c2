"""Streams as queues: can two operations that touch the same bytes ever run at once?

A program is what the CPU issues, in its order. Each stream works its queue off in order, at its own pace;
what lies in different streams is ordered only where one waits for an event of the other, or where the CPU
went on only after it had seen an event done.

| item   | meaning                                                                                     |
|--------|---------------------------------------------------------------------------------------------|
| Op     | an operation that reads and writes places: pages, tables, hot slots, host rows, staging       |
| Record | the event is done when everything before it in the stream is                                 |
| Wait   | nothing behind it in the stream begins before the event; before its record it waits for nothing |
| Seen   | the CPU issued all that follows after it had found the event done                            |

A race is a reachable moment at which two operations may both run, and one writes what the other touches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Place = str


class Op(NamedTuple):
    stream: str
    name: str
    reads: frozenset[Place] = frozenset()
    writes: frozenset[Place] = frozenset()


class Record(NamedTuple):
    stream: str
    event: str


class Wait(NamedTuple):
    stream: str
    event: str


class Seen(NamedTuple):
    event: str


Order = Record | Wait | Seen
Item = Op | Order
Program = Sequence[Item]
Moment = tuple[int, ...]  # how many segments each stream has finished


class Race(NamedTuple):
    place: Place
    first: Op
    second: Op
    before: tuple[str, ...]  # what has run by then, in a shortest order

    def __str__(self) -> str:
        both = " while ".join(
            f"{op.stream} {'writes' if self.place in op.writes else 'reads'} it ({op.name})"
            for op in (self.first, self.second)
        )
        return "\n".join([f"race on {self.place}: {both}", *(f"    after {segment}" for segment in self.before)])


@dataclass
class Segment:
    """Operations of one stream between which nobody can tell: they count as one."""

    needs: dict[str, int]  # segments of other streams that must have ended
    ops: list[Op] = field(default_factory=list)
    closed: bool = False  # an event was recorded behind it
    reads: set[Place] = field(default_factory=set)
    writes: set[Place] = field(default_factory=set)

    def add(self, op: Op) -> None:
        self.ops.append(op)
        self.reads |= op.reads
        self.writes |= op.writes

    def conflict(self, other: Segment) -> Place | None:
        places = (self.writes & (other.reads | other.writes)) | (self.reads & other.writes)
        return min(places, default=None)

    def toucher(self, place: Place, other: Segment) -> Op:
        """An operation that conflicts with the other segment on this place."""
        touching = [op for op in self.ops if place in op.writes or place in op.reads]
        return next((op for op in touching if place in op.writes), touching[0])

    def __str__(self) -> str:
        names = list(dict.fromkeys(op.name for op in self.ops))
        shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        return f"{self.ops[0].stream}: {shown}"


def queues_of(program: Program) -> dict[str, list[Segment]]:
    """Each stream's queue, its operations joined where no event comes between them."""
    queues: dict[str, list[Segment]] = {}
    marks: dict[str, tuple[str, int]] = {}  # event -> stream, segments that must have ended
    waits: dict[str, dict[str, int]] = {}  # stream -> what its next operation needs
    seen: dict[str, int] = {}
    for item in program:
        if isinstance(item, Seen):
            _need(seen, marks.get(item.event))
            continue
        queue = queues.setdefault(item.stream, [])
        needs = waits.setdefault(item.stream, {})
        if isinstance(item, Wait):
            _need(needs, marks.get(item.event))
        elif isinstance(item, Record):
            marks[item.event] = (item.stream, len(queue))
            if queue:
                queue[-1].closed = True
        else:
            for stream, count in seen.items():
                _need(needs, (stream, count))
            if not queue or queue[-1].closed or needs != queue[-1].needs:
                queue.append(Segment(dict(needs)))
            queue[-1].add(item)
    return queues


def _need(needs: dict[str, int], mark: tuple[str, int] | None) -> None:
    if mark is not None:
        stream, count = mark
        needs[stream] = max(needs.get(stream, 0), count)


def find_race(program: Program) -> Race | None:
    """Visit every moment that any pace of the streams can reach; the first race, in the fewest segments."""
    queues = queues_of(program)
    streams = list(queues)
    start: Moment = (0,) * len(streams)
    came_from: dict[Moment, tuple[Moment, Segment] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        moment = waiting.popleft()
        finished = dict(zip(streams, moment, strict=True))
        ready = [
            (i, queues[stream][done])
            for i, (stream, done) in enumerate(finished.items())
            if done < len(queues[stream])
            and all(finished[other] >= count for other, count in queues[stream][done].needs.items())
        ]
        for n, (_, one) in enumerate(ready):
            for _, other in ready[n + 1 :]:
                place = one.conflict(other)
                if place is not None:
                    first, second = one.toucher(place, other), other.toucher(place, one)
                    return Race(place, first, second, _story(came_from, moment))
        for i, segment in ready:
            after = (*moment[:i], moment[i] + 1, *moment[i + 1 :])
            if after not in came_from:
                came_from[after] = (moment, segment)
                waiting.append(after)
    return None


def _story(came_from: dict[Moment, tuple[Moment, Segment] | None], moment: Moment) -> tuple[str, ...]:
    story: list[str] = []
    while (step := came_from[moment]) is not None:
        moment, segment = step
        story.append(str(segment))
    return tuple(reversed(story))


def orders(program: Program) -> Iterator[tuple[Order, Program]]:
    """Each item that orders streams, and the program without it."""
    for i, item in enumerate(program):
        if not isinstance(item, Op):
            yield item, [*program[:i], *program[i + 1 :]]


def op(stream: str, name: str, reads: Iterable[Place] = (), writes: Iterable[Place] = ()) -> Op:
    return Op(stream, name, frozenset(reads), frozenset(writes))
