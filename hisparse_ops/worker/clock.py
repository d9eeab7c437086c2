"""When has the device done what it was given? Asked here and nowhere else, and never by waiting.

All of a worker's work goes into one stream, in the order in which it is issued: a copy after the write
that made its bytes, a restore after the attention that still reads the block. A clock marks a position in
that order.
"""

from __future__ import annotations

from typing import Protocol

import torch


class Event(Protocol):
    """A position in the stream."""

    def done(self) -> bool:
        """Whether everything issued before it has ended."""


class Clock(Protocol):
    def record(self) -> Event:
        """Marks the present position."""


class _Past:
    def done(self) -> bool:
        return True


class ImmediateClock:
    """For devices that have done the work when the call returns: the CPU."""

    def record(self) -> Event:
        return _Past()


class _StreamEvent:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def done(self) -> bool:
        return bool(self._event.query())


class StreamClock:
    """For a CUDA device: events of its current stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def record(self) -> Event:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return _StreamEvent(event)


def clock_of(device: torch.device) -> Clock:
    """The clock that is right for a device."""
    return StreamClock(device) if device.type == "cuda" else ImmediateClock()
