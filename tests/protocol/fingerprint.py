"""What decides the future of a world, and nothing else: two worlds with equal fingerprints go on alike.

| left out or renamed                | because                                                             |
|------------------------------------|---------------------------------------------------------------------|
| names of blocks, requests, rows    | interchangeable: numbered in the order in which they are met        |
| step numbers, transfer ids, epochs | only their order counts: positions among what is under way          |
| ages of leases                     | only their order counts: ranks                                      |
| blank blocks and what they hold    | alike: `World` wipes a block when it becomes blank                  |
| table lines of the workers         | equal to control's pages (B13), but for the changes not yet told    |
| metrics                            | nothing reads them                                                  |

The bytes that come out are exact, no digest. That they do decide the future is tested: worlds that
are merged have the same successors (`test_explore.py`).
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from protocol.ranks import Job, Work
from protocol.setup import NEVER
from protocol.world import World

from hisparse_ops.control.gpu_pool import Lease
from hisparse_ops.control.pages import NEVER_WRITTEN, Page, PageState
from hisparse_ops.control.request import Fate, Request
from hisparse_ops.control.request import Landing as Where
from hisparse_ops.control.transfers import UNSENT, Copy, Transfer
from hisparse_ops.control.types import TransferKind
from spec.state import name_of

PLAIN = 2  # the version of marshal that writes equal values as equal bytes
STATES = {state: number for number, state in enumerate(PageState)}
KINDS = {kind: number for number, kind in enumerate(TransferKind)}
LANDINGS = {None: 0, Where.RESIDENT: 1, Where.HOST: 2}
OVER = -1  # of a thing that control does not wait for any more
FACTS = {"enqueued": 0, "completed": 1, "failed": 2, "copied": 3, "mirrored": 4, "ended": 5}
Key = tuple[Any, ...]


def fingerprint(world: World) -> bytes:
    return marshal.dumps(_Fingerprint(world).key(), PLAIN)


class _Fingerprint:
    def __init__(self, world: World) -> None:
        control = world.c._state
        self.world = world
        self.control = control
        self.requests: list[Request] = [*control.live.values(), *control.detached]
        self.place = {request: number for number, request in enumerate(self.requests)}
        self.transfers = {number: i for i, number in enumerate([*control.transfers.active, *control.transfers.copies])}
        self.mirrored = {sequence: i for i, sequence in enumerate(control.mirror.open)}
        self.open = {sequence: i for i, sequence in enumerate(sorted(world.open_steps))}
        self.leases: dict[Lease, int] = {}
        self.hosts: dict[int, int] = {0: 0}
        self.tags = self._tags()
        self.ages = self._ages()

    def key(self) -> Key:
        control, world = self.control, self.world
        requests = [self.request(request) for request in self.requests]
        orphans = [self.incoming(incoming) for incoming in control.orphaned.values()]
        transfers = [self.transfer(t) for t in control.transfers.active.values()]
        copies = [self.copy(t) for t in control.transfers.copies.values()]
        resting = [self.given_up(t) for t in control.transfers.quarantined.values()]
        fence = (
            [(self.steps_until(at), self.lease(lease)) for at, lease in self.resting(control.fence.leases, _refs)],
            [(self.steps_until(at), self.host(block)) for at, block in self.resting(control.fence.blocks, self.refs)],
        )
        readable = [(self.lease(lease), self.age(lease.age)) for lease in control.gpu.readable_leases()]
        cached = [self.host(block) for block in control.host._cached]
        names = sorted([(self.tags[2 * world.names[h]], self.host(block)) for h, block in control.prefix.items()])
        indexes = [sorted([(self.host(b), self.lease(x)) for b, x in index.items()]) for index in self.indexes()]
        queue = [(self.place[r], page.index) for r, page in control.spill_queue if r.owns(page)]
        groups = [[self.place[r] for r in part] for part in (control.movable, control.moved, control.stranded)]
        told = sorted([self.place[r] for r in control.hot_changed])
        proofs = [self.proof(at, step) for at, step in control.mirror.open.items()]
        recycled = sorted([self.host(block) for block in control.host._recycled if self.matters(block)])
        steps = [self.sent(sequence) for sequence in sorted(world.open_steps)]
        ranks = [(tuple(map(self.work, rank.stream)), tuple(map(self.job, rank.dma))) for rank in world.ranks]
        ended = [sum(sequence <= rank.ended for sequence in world.open_steps) for rank in world.ranks]
        facts = sorted([self.fact(f.kind, f.id, (f.rank, *f.counts)) for f in world.facts if f.epoch == world.epoch])
        lines = [self.lines(request) for request in control.live.values()]
        return (
            requests, orphans, transfers, copies, resting, fence, readable, cached, names, indexes, queue, groups, told,
            proofs, recycled, steps, ranks, ended, [fact for fact in facts if fact[1] != OVER], lines, self.contents(),
            [(self.hosts[block], place) for place, block in enumerate(control.host._blank) if block in self.hosts],
        )  # fmt: skip

    # -- names ---------------------------------------------------------------------------------

    def host(self, block: int) -> int:
        return self.hosts.setdefault(block, len(self.hosts))

    def matters(self, block: int) -> bool:
        """Of a block leased anew: whether anybody holds it, or caches rows of what it was."""
        cached = any(block == host for line in self.world.memory.table.values() for host, _ in line.lines)
        return cached or self.control.host.refs[block] > 0  # type: ignore[index]

    def lease(self, lease: Lease | None) -> int:
        return OVER if lease is None else self.leases.setdefault(lease, len(self.leases))

    def age(self, age: tuple[int, ...]) -> tuple[int, ...]:
        return (self.ages.get(age[0], 0), *age[1:])

    def indexes(self) -> Iterable[Any]:
        return (self.control.kv_copies, self.control.key_copies)

    def _tags(self) -> dict[int, int]:
        """Page names after the slots have changed places: as their requests come, then the others."""
        world, bounds = self.world, self.world.bounds
        slots = list(dict.fromkeys([world.slots[request] for request in self.requests]))
        slots += [slot for slot in range(bounds.requests) if slot not in slots]
        renamed = {}
        for place, slot in enumerate(slots):
            for page in range(bounds.pages):
                renamed[2 * name_of(bounds, slot, page)] = name_of(bounds, place, page)
        return renamed

    def tag(self, tag: int) -> int:
        """A tag names a page, a row and whether it is a draft (see `spec.state.final_content`)."""
        if not tag:
            return 0
        name, row = divmod(tag - 1, 2 * self.world.bounds.rows)
        return self.tags[2 * name] * 2 * self.world.bounds.rows + row + 1

    def _ages(self) -> dict[int, int]:
        held = [page.kv for request in self.requests for page in request.pages.table if page.kv is not None]
        keys = [page.keys for request in self.requests for page in request.pages.table]
        leases = [*held, *keys, *self.control.gpu.readable_leases(), *self.control.fence.leases.holds]
        leases += [lease for index in self.indexes() for _, lease in index.items()]
        stamps = {lease.age[0] for lease in leases} | {request.stamp for request in self.requests} | {0}
        return {stamp: rank for rank, stamp in enumerate(sorted(stamps))}

    # -- control -------------------------------------------------------------------------------

    def request(self, r: Request) -> Key:
        gone = r.frontier if r.fate is Fate.DETACHED else 0
        pages = [self.page(page, page.index < gone) for page in r.pages.table]
        tokens = (r.length, r.computed, r.final_tokens, r.sealed_pages, r.frontier, len(r.hashes), r.reserved_pages)
        key = (r.live, r.movable, r.limits.max_tokens, LANDINGS[r.landing], self.ages[r.stamp], self.lease(r.hot))
        player = self.world.players.get(r.id) if r.live else None
        engine: Key = ()
        if player is not None:
            busy = self.open.get(player.planned, OVER)
            fresh = player.planned < 0
            prompt = player.prompt if self.world.bounds.imports and fresh else 0
            engine = (player.computed, player.draft, prompt, player.imported, busy, fresh)
        incoming = () if r.incoming is None else self.incoming(r.incoming)
        return (*key, *tokens, *pages, engine, incoming)

    def page(self, page: Page, published: bool) -> Key:
        if published:  # its request has left: only the host block is still held
            return (self.host(page.host), page.tainted)
        told = page not in self.control.changes.pages
        transfer = self.transfers.get(page.transfer, OVER) if page.transfer is not None else OVER
        blocks = (self.host(page.host), self.lease(page.kv), self.lease(page.keys))
        return (STATES[page.state], *blocks, transfer, page.tainted, told, *self.writes(page))

    def writes(self, page: Page) -> tuple[int, ...]:
        """Which of the steps that are not proven may have written the page."""
        if page.last_write == NEVER_WRITTEN:
            return ()
        opened = self.control.mirror.open
        return (sum(s < page.first_write for s in opened), sum(s <= page.last_write for s in opened))

    def incoming(self, incoming: Any) -> Key:
        pages = [(self.host(page.host), self.lease(page.keys)) for page in incoming.pages]
        kv = [(page.index, self.lease(lease)) for page, lease in incoming.kv.items()]
        copy = self.transfers.get(incoming.copy, OVER)
        return (incoming.tokens, *pages, *kv, copy, incoming.good, incoming.outside)

    def owner(self, request: Request, page: Page) -> tuple[int, int]:
        return (self.place[request], page.index) if request in self.place and request.owns(page) else (OVER, OVER)

    def transfer(self, t: Transfer) -> Key:
        who = (sorted(t.not_enqueued), sorted(t.not_completed))
        waiting = [[rank for rank, epoch in part if epoch == self.world.epoch] for part in who]
        flags = (t.durable, t.moves_data, t.holds_lease, t.failed, t.id in self.control.transfers.unproven)
        lease = self.lease(t.lease) if t.holds_lease else OVER  # its blocks may have another owner by now
        ends = (lease, self.host(t.host), self.age_of(t.sent_at), t.request.live)
        return (KINDS[t.kind], *self.owner(t.request, t.page), *ends, *waiting, *flags)

    def copy(self, t: Copy) -> Key:
        ends = (self.host(t.source), self.host(t.destination), self.age_of(t.sent_at))
        return (*self.owner(t.request, t.page), *ends, sorted([rank for rank, _ in t.not_copied]), t.failed)

    def given_up(self, t: Transfer | Copy) -> Key:
        if isinstance(t, Copy):
            return (self.host(t.source), self.host(t.destination))
        return (self.lease(t.lease) if t.holds_lease else OVER, self.host(t.host))

    def proof(self, at: int, step: Any) -> Key:
        spans = [(self.place.get(request, OVER), first, last) for request, first, last in step.spans]
        return (self.age_of(at), step.rows, spans, sorted([rank for rank, _ in step.silent]))

    def age_of(self, sent_at: int) -> int:
        """Steps since something was sent, as far as it matters to when it is given up."""
        if sent_at == UNSENT:
            return OVER
        limit = self.world.setup.overdue_after
        return 0 if limit == NEVER else min(self.control.sequence - sent_at, limit)

    def steps_until(self, sequence: int) -> int:
        return sum(step <= sequence for step in self.world.open_steps)

    def resting(self, shelf: Any, refs: Callable[[Any], int]) -> list[tuple[int, Any]]:
        """What the fence alone holds, in the order in which it will be let go: a thing that waits several
        times goes with the last."""
        last = {thing: at for at, thing in shelf._queue if refs(thing) == shelf.holds[thing]}
        order = dict.fromkeys([thing for _, thing in reversed(shelf._queue) if thing in last])
        return [(last[thing], thing) for thing in reversed(order)]

    def refs(self, block: int) -> int:
        return self.control.host.refs[block]  # type: ignore[index]

    # -- ranks ---------------------------------------------------------------------------------

    def fact(self, kind: str, number: int, more: tuple[int, ...]) -> tuple[int, ...]:
        among = {"mirrored": self.mirrored, "ended": self.open}.get(kind, self.transfers)
        return (FACTS[kind], among.get(number, OVER), *more)

    def rows(self, rows: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        return [(self.host(block), offset, self.tag(tag)) for block, offset, tag in rows]

    def job(self, job: Job) -> Key:
        return (*self.fact(job.kind, job.id, job.counts), self.rows(job.rows))

    def work(self, work: Work) -> Key:
        enqueued = [self.fact("enqueued", number, ()) for number in work.enqueued]
        failed = [self.fact("failed", number, ()) for number in work.failed]
        return (enqueued, failed, [self.job(job) for job in work.jobs])

    def sent(self, sequence: int) -> Key:
        """What a step in flight holds, as the judge of S19 knows it."""
        gpu, hosts = self.world.open_steps[sequence]
        leases = [number for lease, number in self.leases.items() if gpu.intersection(lease.blocks)]
        return (leases, sorted([self.host(block) for block in hosts]))

    def lines(self, request: Request) -> list[tuple[int, int, int]]:
        """What the hot buffer caches; after a change of hands it will be told to forget all."""
        control = self.control
        if request in control.hot_changed or request.state_row in control.cleared_rows:
            return []
        line = self.world.memory.table.get(request.state_row)
        return sorted(self.rows([(*key, tag) for key, tag in line.lines.items()])) if line is not None else []

    def contents(self) -> Key:
        """The bytes of every block that is named: on the GPU, in stream order, durable on each rank."""
        memory, offsets = self.world.memory, range(self.world.bounds.rows)
        views: list[Callable[[Hashable], int]] = [memory.stream.get, *[rank.durable.get for rank in self.world.ranks]]  # type: ignore[list-item]
        gpu = [self.tag(memory.gpu.get((b, o), 0)) for lease in self.leases for b in lease.blocks for o in offsets]  # type: ignore[call-overload]
        host = [self.tag(get((b, o)) or 0) for b in self.hosts if b for get in views for o in offsets]
        return (gpu, host)


def _refs(lease: Lease) -> int:
    return lease.refs
