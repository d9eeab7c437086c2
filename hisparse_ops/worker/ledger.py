"""What has been issued and what has ended: the worker's reports.

| set | enters | leaves, once |
|---|---|---|
| enqueued, failed | when a copy was issued, or raised | with the next report |
| completed, copied, mirrored | when its step ends | with a report after that step's event is done |
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hisparse_ops.control.types import RankReport, TransferId
from hisparse_ops.worker.streams import Event


@dataclass(frozen=True)
class FinishedStep:
    """A step that was issued to its end. `mirrored` is [envelopes] int64 in host memory, valid once
    `event` is done; None if this rank mirrored nothing."""

    sequence: int
    event: Event
    transfers: frozenset[TransferId]
    copies: frozenset[TransferId]
    mirrored: torch.Tensor | None


class Ledger:
    """Stamps reports with the rank and its epoch."""

    def __init__(self, rank: int, epoch: int) -> None:
        self._rank = rank
        self._epoch = epoch
        self._enqueued: set[TransferId] = set()
        self._failed: set[TransferId] = set()
        self._steps: list[FinishedStep] = []

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Steps whose end was not seen yet."""
        return tuple(step.sequence for step in self._steps)

    def enqueue(self, ids: frozenset[TransferId]) -> None:
        self._enqueued |= ids

    def fail(self, ids: frozenset[TransferId]) -> None:
        self._failed |= ids

    def finish(self, step: FinishedStep) -> None:
        self._steps.append(step)

    def wait(self) -> None:
        """Until every step has ended."""
        for step in self._steps:
            step.event.synchronize()

    def poll(self) -> list[RankReport]:
        """One report of what was issued since the last, and one for every step that has ended."""
        reports: list[RankReport] = []
        if self._enqueued or self._failed:
            enqueued, failed = frozenset(self._enqueued), frozenset(self._failed)
            reports.append(RankReport(self._rank, self._epoch, enqueued=enqueued, failed=failed))
            self._enqueued.clear()
            self._failed.clear()
        ended = [step for step in self._steps if step.event.query()]
        self._steps = [step for step in self._steps if step not in ended]
        reports.extend(
            RankReport(
                self._rank,
                self._epoch,
                completed=step.transfers,
                copied=step.copies,
                mirrored={} if step.mirrored is None else {step.sequence: tuple(step.mirrored.tolist())},
            )
            for step in ended
        )
        return reports
