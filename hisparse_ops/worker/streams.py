"""The device's streams, and when they have done what they were given. Asked here and nowhere else. The CPU
waits in one place, `Worker.wait`: when there is nothing else to do.

| stream | work |
|---|---|
| compute: the caller's current one | tables, hot state, the model with its gathers, the row mirror |
| copy: the worker's own | whole pages: copy-on-write, restores, spills |

Within a stream work is done in the order in which it was issued. Between the two:

| who waits | for whom | because |
|---|---|---|
| copies ahead of a step's model | all compute before them | the step before may still read what they overwrite |
| the step's model | these copies | it reads what they bring |
| spills | all compute before them: the host-write event | its rows, and their mirror, come first |
| compute of a later step | a spill whose blocks it is given | they were given back when the spill was *enqueued* |
| reports of *completed* | the copy stream if the step spilled, else compute | spills come last, behind compute |
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import torch


class Event(Protocol):
    """A position in a stream."""

    def query(self) -> bool:
        """Whether everything issued before it has ended."""

    def synchronize(self) -> None:
        """Holds up the CPU until it has."""


class Stream(Protocol):
    def current(self) -> AbstractContextManager[object]:
        """What is issued inside goes into this stream."""

    def record(self) -> Event:
        """Marks the present end of the stream."""

    def wait(self, event: Event) -> None:
        """What is issued into this stream from now on begins after `event`. Does not hold up the CPU."""


class Streams(NamedTuple):
    compute: Stream
    copy: Stream


class _Past:
    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class ImmediateStream:
    """For devices that have done the work when the call returns: the CPU."""

    def current(self) -> AbstractContextManager[object]:
        return nullcontext()

    def record(self) -> Event:
        return _Past()

    def wait(self, event: Event) -> None:
        pass


class CudaStream:
    """A stream of its own on a CUDA device or, without one, whichever is current there."""

    def __init__(self, device: torch.device, own: torch.cuda.Stream | None = None) -> None:
        self._device = device
        self._own = own

    @property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device) if self._own is None else self._own

    def current(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)

    def record(self) -> Event:
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, torch.cuda.Event)  # one of another device's streams
        self._stream.wait_event(event)


def streams_of(device: torch.device) -> Streams:
    """The streams that are right for a device."""
    if device.type != "cuda":
        return Streams(ImmediateStream(), ImmediateStream())
    copy = torch.cuda.Stream(device)
    copy.wait_stream(torch.cuda.current_stream(device))  # the pools were made there
    return Streams(CudaStream(device), CudaStream(device, copy))
