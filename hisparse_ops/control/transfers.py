"""The ledger of page transfers and block copies: who still has to say what about each.

planned -> sent -> enqueued by every expected rank -> completed by every expected rank -> retired.

The expected ranks, with their epochs, are fixed when a transfer is planned, and reports are sets:
a duplicate, a late, a split or a foreign report changes nothing. *completed* implies *enqueued*.
A transfer that is not retired after `overdue_after` steps is quarantined: it keeps its leases,
what it copied is never believed, and a late report finds nothing to change.

The ledger keeps the books only. What an ended phase means for pages and leases is decided by
`publication.Publisher`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from .gpu_pool import Lease
from .pages import Page
from .request import Request
from .types import BlockCopy, HostBlock, PageTransfer, TransferId, TransferKind

Writer = tuple[int, int]  # rank, epoch
UNSENT = -1


@dataclass(slots=True, eq=False)
class Transfer:
    """One page under way. Holds one reference on the host block until it is retired, and one on
    the KV lease: until *enqueued* for a spill (stream order protects the bytes), until retired for
    a restore (the copy stream still writes)."""

    id: TransferId
    kind: TransferKind
    request: Request
    page: Page
    lease: Lease
    host: HostBlock
    durable: bool  # whether the host block holds the page's final rows already
    moves_data: bool
    not_enqueued: set[Writer]
    not_completed: set[Writer]
    sent_at: int = UNSENT
    holds_lease: bool = True
    failed: bool = False

    def message(self) -> PageTransfer:
        return PageTransfer(self.id, self.kind, self.host, self.lease.blocks, self.moves_data)


@dataclass(slots=True, eq=False)
class Copy:
    """A copy-on-write under way for `page`. Holds one reference on both its ends."""

    id: TransferId
    request: Request
    page: Page
    source: HostBlock
    destination: HostBlock
    not_copied: set[Writer]
    sent_at: int = UNSENT
    failed: bool = False

    def message(self) -> BlockCopy:
        return BlockCopy(self.id, self.source, self.destination)


T = TypeVar("T", Transfer, Copy)


class TransferLedger:
    def __init__(self, overdue_after: int, last_id: int = 0) -> None:
        self._overdue_after = overdue_after
        self.last_id = last_id  # ids are never used again, not even after a reset
        self._outbox: list[Transfer] = []
        self._copy_outbox: list[Copy] = []
        self.active: dict[TransferId, Transfer] = {}
        self.unproven: dict[TransferId, Transfer] = {}  # of these, completed but for the mirror proof
        self.copies: dict[TransferId, Copy] = {}
        self.quarantined: dict[TransferId, Transfer | Copy] = {}

    def plan(
        self,
        kind: TransferKind,
        request: Request,
        page: Page,
        lease: Lease,
        moves_data: bool,
        writers: Iterable[Writer],
    ) -> Transfer:
        """Enter a transfer before its page changes its state; the caller has taken its references."""
        expected = set(writers)
        transfer = Transfer(
            self._next_id(), kind, request, page, lease, page.host, page.durable, moves_data, expected, set(expected)
        )
        page.transfer = transfer.id
        self.active[transfer.id] = transfer
        self._outbox.append(transfer)
        return transfer

    def plan_copy(self, request: Request, page: Page, source: HostBlock, writers: Iterable[Writer]) -> Copy:
        copy = Copy(self._next_id(), request, page, source, page.host, set(writers))
        self.copies[copy.id] = copy
        self._copy_outbox.append(copy)
        return copy

    def send(self, sequence: int) -> tuple[tuple[PageTransfer, ...], tuple[BlockCopy, ...]]:
        """The messages of everything planned since the last call; they go out with step `sequence`."""
        transfers, self._outbox = self._outbox, []
        copies, self._copy_outbox = self._copy_outbox, []
        for transfer in transfers:
            transfer.sent_at = sequence
        for copy in copies:
            copy.sent_at = sequence
        return tuple([transfer.message() for transfer in transfers]), tuple([copy.message() for copy in copies])

    def enqueued(self, writer: Writer, ids: Iterable[TransferId]) -> list[Transfer]:
        """Note a report; returns the transfers that every expected rank has enqueued by now."""
        return [t for t in self._reported(ids) if _strike(t.not_enqueued, writer)]

    def completed(self, writer: Writer, ids: Iterable[TransferId]) -> list[Transfer]:
        """Note a report; returns the transfers that every expected rank has completed by now."""
        return [t for t in self._reported(ids) if _strike(t.not_completed, writer)]

    def failed(self, writer: Writer, ids: Iterable[TransferId]) -> list[Transfer]:
        """The transfers among `ids` that this rank was to carry out and could not: never believed."""
        lost = [t for t in self._reported(ids) if writer in t.not_completed]
        for transfer in lost:
            transfer.failed = True
        return lost

    def copy_failed(self, writer: Writer, ids: Iterable[TransferId]) -> None:
        for transfer_id in ids:
            copy = self.copies.get(transfer_id)
            if copy is not None and writer in copy.not_copied:
                copy.failed = True

    def copied(self, writer: Writer, ids: Iterable[TransferId]) -> list[Copy]:
        done = []
        for transfer_id in ids:
            copy = self.copies.get(transfer_id)
            if copy is not None and copy.sent_at != UNSENT and _strike(copy.not_copied, writer):
                done.append(copy)
        return done

    def retire(self, transfer: Transfer) -> None:
        """The transfer is over; its references are the caller's to give back."""
        transfer.page.transfer = None
        del self.active[transfer.id]
        self.unproven.pop(transfer.id, None)

    def retire_copy(self, copy: Copy) -> None:
        del self.copies[copy.id]

    def quarantine_transfers(self, sequence: int) -> list[Transfer]:
        """Set aside the transfers sent more than `overdue_after` steps before `sequence`."""
        overdue = _overdue(self.active.values(), sequence - self._overdue_after)
        for transfer in overdue:
            self.retire(transfer)
            self.quarantined[transfer.id] = transfer
        return overdue

    def quarantine_copies(self, sequence: int) -> list[Copy]:
        """Set aside the block copies sent more than `overdue_after` steps before `sequence`."""
        overdue = _overdue(self.copies.values(), sequence - self._overdue_after)
        for copy in overdue:
            self.retire_copy(copy)
            self.quarantined[copy.id] = copy
        return overdue

    def _next_id(self) -> TransferId:
        self.last_id += 1
        return TransferId(self.last_id)

    def _reported(self, ids: Iterable[TransferId]) -> list[Transfer]:
        """The transfers among `ids` that are under way: others were retired, or never were."""
        found = [self.active.get(transfer_id) for transfer_id in ids]
        return [transfer for transfer in found if transfer is not None and transfer.sent_at != UNSENT]


def _strike(waiting: set[Writer], writer: Writer) -> bool:
    """Take `writer` off the list; whether that was the last one."""
    if writer not in waiting:
        return False
    waiting.discard(writer)
    return not waiting


def _overdue(under_way: Iterable[T], limit: int) -> list[T]:
    """What was sent before step `limit`. Things are entered in the order in which they are sent."""
    overdue = []
    for thing in under_way:
        if thing.sent_at == UNSENT or thing.sent_at >= limit:
            break
        overdue.append(thing)
    return overdue
