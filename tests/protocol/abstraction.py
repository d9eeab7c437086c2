"""The coordinator's books and the ranks' bytes, seen as a state of the model.

It looks into control's private state, and only here. Block ids stay as they are; host ids are brought
down to 1, 2, ...
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hisparse_ops.control import pages as real_pages
from hisparse_ops.control import request as real_request
from hisparse_ops.control import transfers as real_transfers
from hisparse_ops.control.gpu_pool import Lease
from hisparse_ops.control.types import TransferKind
from spec.bounds import Bounds
from spec.state import (
    COMPLETED,
    COPY,
    DETACHED,
    ENQUEUED,
    FAILED,
    IMPORTING,
    LIVE,
    NEW_REQUEST,
    NOBODY,
    RESTORE,
    SENT,
    SPILL,
    Content,
    Fenced,
    Page,
    Request,
    State,
    Step,
    Transfer,
)

if TYPE_CHECKING:
    from protocol.world import World

Order = tuple[list[int], list[tuple[int, ...]]]
KINDS = {TransferKind.SPILL: SPILL, TransferKind.RESTORE: RESTORE}
FOREVER = 99  # steps to wait for, where it is not a step that is waited for


def abstract(world: World) -> State:
    """The whole of it."""
    return _Abstraction(world).state()


def transfer_ids(world: World) -> list[int]:
    """The ids of the transfers that are waited for, in the order of `State.transfers`."""
    transfers = world.c._state.transfers
    return [*transfers.active, *transfers.copies]


def free_order(world: World) -> Order:
    """The free queue of GPU blocks: blank ones first, then readable leases, next to go first."""
    pool = world.c._state.gpu
    return list(pool.blank_blocks()), [lease.blocks for lease in pool.readable_leases() if lease.blocks]


class _Abstraction:
    def __init__(self, world: World) -> None:
        self.world = world
        self.bounds: Bounds = world.bounds
        self.control = world.c._state
        self.base = min(self.control.host.refs) - 1
        self.leases: dict[int, Lease] = {}
        self.done = {(f.rank, f.kind, f.id) for f in world.facts if f.epoch == world.epoch}
        self.extra: list[Fenced] = []

    def host(self, block: int) -> int:
        return block - self.base if block else 0

    def lease(self, lease: Lease | None) -> tuple[int, ...]:
        if lease is None or not lease.blocks:
            return ()
        self.leases[id(lease)] = lease
        return lease.blocks

    def state(self) -> State:
        control, bounds = self.control, self.bounds
        requests = [NEW_REQUEST] * bounds.requests
        for record in (*control.live.values(), *control.detached):
            requests[self.world.slots[record]] = self.request(record)
        for incoming in control.orphaned.values():
            self.orphan(incoming)
        transfers = [self.transfer(t) for t in (*control.transfers.active.values(), *control.transfers.copies.values())]
        transfers += [
            self.transfer(t)._replace(lost=True, owner=NOBODY) for t in control.transfers.quarantined.values()
        ]
        copies = sorted([(self.host(b), self.lease(lease)) for b, lease in control.kv_copies.items()])
        keys = sorted([(self.host(b), self.lease(lease)) for b, lease in control.key_copies.items()])
        fenced = [Fenced(self.steps_until(at), self.lease(lease), 0) for at, lease in control.fence.leases._queue]
        fenced += [Fenced(self.steps_until(at), (), self.host(block)) for at, block in control.fence.blocks._queue]
        fenced = [entry for entry in fenced if entry.gpu or entry.host]
        gpu_refs = [0] * (bounds.gpu + 1)
        for lease in self.leases.values():
            for block in lease.blocks:
                gpu_refs[block] += lease.refs
        host_refs = [0] * (bounds.host + 1)
        for block, refs in control.host.refs.items():
            host_refs[self.host(block)] = refs
        for entry, count in Counter(fenced).items():  # the fence may hold one thing several times, to one end
            for block in entry.gpu:
                gpu_refs[block] -= count - 1
            host_refs[entry.host] -= count - 1 if entry.host else 0
        blank, readable = free_order(self.world)
        return State(
            requests=tuple(requests),
            transfers=tuple(transfers),
            prefix=tuple(sorted([(self.world.names[h], self.host(b)) for h, b in control.prefix.items()])),
            copies=tuple(copies),
            key_copies=tuple(keys) if bounds.keys else (),
            gpu_refs=tuple(gpu_refs),
            host_refs=tuple(host_refs),
            gpu_free=frozenset([*blank, *(block for blocks in readable for block in blocks)]),
            host_free=frozenset([self.host(b) for b in (*control.host._blank, *control.host._cached)]),
            steps=tuple(
                [
                    Step(gpu, frozenset(map(self.host, host)), ())
                    for _, (gpu, host) in sorted(self.world.open_steps.items())
                ]
            ),
            fenced=tuple(sorted([*set(fenced), *self.extra])),
            gpu=self.gpu(),
            stream=(self.view(self.world.memory.stream),) * bounds.ranks,
            durable=tuple([self.view(rank.durable) for rank in self.world.ranks]),
        )

    def steps_until(self, sequence: int) -> int:
        return sum(step <= sequence for step in self.world.open_steps)

    def request(self, record: real_request.Request) -> Request:
        slot = self.world.slots[record]
        detached = record.fate is real_request.Fate.DETACHED
        pages = [self.page(page, slot, gone=detached and page.index < record.frontier) for page in record.pages.table]
        player = self.world.players.get(record.id)
        draft = player.draft if player is not None and player.record is record else 0
        computed, final, status = record.computed, record.final_tokens, LIVE
        if player is not None and player.record is record:
            computed = player.computed
        if detached:
            status, computed = DETACHED, record.sealed_pages * self.bounds.rows
        elif record.incoming is not None:
            status, computed, final = IMPORTING, record.incoming.tokens, record.final_tokens
            self.extra += [Fenced(FOREVER, self.lease(lease), 0) for lease in record.incoming.kv.values()]
            first = len(pages) - len(record.incoming.pages)
            # In the model a request imports behind its hit. Pages that are its own by now are told when it ends.
            pages[record.frontier : first] = [
                page._replace(clean=False, proven=0) for page in pages[record.frontier : first]
            ]
        return Request(status, tuple(pages), computed, final, draft, self.lease(record.hot), record.frontier, ())

    def page(self, page: real_pages.Page, slot: int, gone: bool = False) -> Page:
        transfer = self.control.transfers.active.get(page.transfer) if page.transfer is not None else None
        restored = page.state is real_pages.PageState.RESTORING and transfer is not None and transfer.durable
        shared_hole = page.state is real_pages.PageState.IMPORT_HOLE and page.host in self.control.host.hash_of
        clean = page.durable or restored or shared_hole
        if gone:  # published, whatever else was going on with it
            return Page(self.host(page.host), (), (), False, True, self.bounds.rows, page.tainted)
        held = page.state in real_pages.HOLDS_KV
        proven = self.bounds.rows if clean else 0
        return Page(self.host(page.host), self.lease(page.kv), self.lease(page.keys), held, clean, proven, page.tainted)

    def orphan(self, incoming: real_request.Incoming) -> None:
        """An import whose request has left: its blocks rest until the transport has ended."""
        for page in incoming.pages:
            self.extra += [Fenced(FOREVER, (), self.host(page.host)), Fenced(FOREVER, self.lease(page.keys), 0)]
        self.extra += [Fenced(FOREVER, self.lease(lease), 0) for lease in incoming.kv.values()]

    def transfer(self, t: real_transfers.Transfer | real_transfers.Copy) -> Transfer:
        ranks = range(self.bounds.ranks)
        if isinstance(t, real_transfers.Copy):
            owned = t.request.incoming is not None and t.request.incoming.copy == t.id
            owner = self.world.slots[t.request] if owned else NOBODY
            known = [SENT if (r, self.world.epoch) in t.not_copied else COMPLETED for r in ranks]
            progress = [self.progress(r, t.id, "copied") for r in ranks]
            ends = (self.host(t.destination), self.host(t.source))
            kind, gpu, leased, moves = COPY, (), False, True
        else:
            owner = self.world.slots[t.request] if t.request.owns(t.page) else NOBODY
            known = [self.known(t, (r, self.world.epoch)) for r in ranks]
            progress = [self.progress(r, t.id, "completed") for r in ranks]
            ends = (self.host(t.host), 0)
            kind, gpu, leased, moves = KINDS[t.kind], self.lease(t.lease), t.holds_lease, t.moves_data
        progress = [max(a, b) for a, b in zip(progress, known, strict=True)]
        nothing = ((0,) * self.bounds.rows,) * self.bounds.ranks
        return Transfer(
            kind, owner, t.page.index, *ends, gpu, leased, moves, tuple(progress), tuple(known), nothing, False
        )

    @staticmethod
    def known(t: real_transfers.Transfer, writer: tuple[int, int]) -> int:
        if writer not in t.not_completed:
            return FAILED if t.failed else COMPLETED
        return SENT if writer in t.not_enqueued else ENQUEUED

    def progress(self, rank: int, number: int, last: str) -> int:
        if (rank, "failed", number) in self.done:
            return FAILED
        if (rank, last, number) in self.done:
            return COMPLETED
        return ENQUEUED if (rank, "enqueued", number) in self.done else SENT

    def gpu(self) -> tuple[Content, ...]:
        """As the next step will find it: restores that are planned go ahead of everything."""
        rows = range(self.bounds.rows)
        memory = self.world.memory
        content = [tuple([memory.gpu.get((block, o), 0) for o in rows]) for block in range(self.bounds.gpu + 1)]
        for t in self.control.transfers.active.values():
            if t.kind is TransferKind.RESTORE and t.sent_at == real_transfers.UNSENT:
                for block in t.lease.blocks:
                    content[block] = tuple([memory.stream.get((t.host, o), 0) for o in rows])
        return tuple(content)

    def view(self, memory: dict[tuple[int, int], int]) -> tuple[Content, ...]:
        rows = range(self.bounds.rows)
        blocks = range(1, self.bounds.host + 1)
        return ((0,) * len(rows), *[tuple([memory.get((self.base + b, o), 0) for o in rows]) for b in blocks])
