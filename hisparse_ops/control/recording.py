"""Traces: what a coordinator was asked, what it answered, and every id that changed hands on the way.

A trace is JSON lines: a header, one line for each call, an end line. `python -m spec check TRACE` replays it
through books of its own. Off by default and then free: `record` puts itself in front of the methods of the one
coordinator that is recorded, and of its parts; no method knows of it.

| event | meaning |
|---|---|
| gpu lease / share / release BLOCKS | a GPU lease is handed out, gains a holder, loses one |
| host lease / share / release BLOCK | the same of a host block |
| publish / unpublish BLOCK HASH | a host block becomes a prefix hit, or is none any more |
| enter REQUEST ID ROW | a request is live; its number in the trace, its id, its state row |
| page REQUEST INDEX STATE HOST KEYS KV | a new page at the end of the request's row |
| move REQUEST INDEX STATE KV | a page changes its state, and is now read from these GPU blocks |
| drop REQUEST INDEX | a page that stays in its row gives back what it holds of the GPU |
| pop REQUEST INDEX | the last page leaves the row |
| hot REQUEST BLOCKS, cool REQUEST | a hot region is granted, given back |
| transfer ID KIND REQUEST INDEX HOST BLOCKS MOVES | a page transfer is planned |
| copy ID REQUEST INDEX SOURCE DESTINATION | a block copy is planned |
| retire ID, aside ID | it is over; of these, it was given up and keeps its leases |
| planned | the plan is made; what follows in the call is told with the next one |
"""

from __future__ import annotations

import inspect
import json
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import SupportsIndex

from .coordinator import Coordinator
from .gpu_pool import Lease
from .pages import Page, RequestPages
from .request import Fate, Request
from .state import ControlState
from .transfers import Copy, Transfer

FORMAT = 1
CALLS = (
    "admit",
    "extend",
    "seal",
    "finish",
    "preempt",
    "begin_import",
    "end_import",
    "plan_step",
    "apply",
    "step_done",
    "reset",
    "restart_rank",
    "cached_tokens",
)


class Trace:
    """The file. A context manager: a trace that was not closed has no end line, and is refused as truncated."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if `path` cannot be written."""
        self._file = path.open("w", encoding="utf-8")
        self._lines = 0

    def __enter__(self) -> Trace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def write(self, line: Mapping[str, object]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":"), default=_plain) + "\n")
        self._lines += 1

    def close(self) -> None:
        """Ends the trace. Nothing that is recorded in it may be called any more."""
        if not self._file.closed:
            self.write({"end": self._lines})
            self._file.close()


def record(coordinator: Coordinator, trace: Trace, versions: Mapping[str, str] | None = None) -> None:
    """Record all that happens to `coordinator`, from now, before its first call, until the trace is closed.
    `versions` name what else took part."""
    state = coordinator._state
    shape = state.shape
    trace.write(
        {
            "trace": "hisparse_ops",
            "format": FORMAT,
            "versions": {"python": platform.python_version(), **(versions or {})},
            "layout": {
                name: getattr(shape, name) for name in ("block_size", "num_groups", "num_indexer_groups", "hot_blocks")
            },
            "config": asdict(state.config),
            "gpu_blocks": _runs(state.gpu.blank_blocks()),
            "host_blocks": _runs(state.host.blank_blocks()),
        }
    )
    _Recorder(coordinator, trace)


class _Recorder:
    """Collects the events of a call; writes one line when the call is over."""

    def __init__(self, coordinator: Coordinator, trace: Trace) -> None:
        self._coordinator = coordinator
        self._trace = trace
        self._events: list[list[object]] = []
        self._numbers: dict[RequestPages, int] = {}  # of the requests that something may still be heard of
        self._entered = 0
        self._inside = False  # calls that one public method makes of another are part of it
        for name in CALLS:
            self._record_call(name)
        _behind(coordinator, "_assemble", lambda _, state: self._attach(state))  # a reset makes new parts
        self._attach(coordinator._state)

    def _record_call(self, name: str) -> None:
        original = getattr(self._coordinator, name)
        signature = inspect.signature(original)

        def recorded(*args: object, **named: object) -> object:
            if self._inside:
                return original(*args, **named)
            line: dict[str, object] = {"call": name, "args": signature.bind(*args, **named).arguments}
            self._inside = True
            try:
                answer = original(*args, **named)
                line["answer"] = answer._asdict() if hasattr(answer, "_asdict") else answer
                return answer
            except BaseException as error:
                line["raised"] = type(error).__name__
                raise
            finally:
                self._inside = False
                line |= {"events": self._events, "counts": _counts(self._coordinator._state)}
                self._trace.write(line)
                self._events = []

        setattr(self._coordinator, name, recorded)

    def _attach(self, state: ControlState) -> None:
        """Listen to the parts of a state."""
        residency, planner = self._coordinator._residency, self._coordinator._planner
        self._numbers.clear()
        _behind(state.gpu, "lease", lambda lease, _: self._lease("lease", lease))
        _behind(state.gpu, "share", lambda _, lease: self._lease("share", lease))
        _behind(state.gpu, "release", lambda _, lease: self._lease("release", lease))
        _behind(state.host, "lease", lambda block: self._note("host lease", block))
        _behind(state.host, "share", lambda _, block: self._note("host share", block))
        _behind(state.host, "release", lambda _, block: self._note("host release", block))
        _behind(state.host, "set_hash", lambda _, block, token_hash: self._note("publish", block, token_hash))
        _behind(state.host, "drop_hash", lambda token_hash, block: self._note("unpublish", block, token_hash))
        _behind(residency, "enter", self._enter)
        _behind(residency, "grant_hot", self._hot)
        _behind(residency, "return_hot", lambda _, request: self._note("cool", self._numbers[request.pages]))
        _behind(residency, "leave", lambda _, request, keep: self._forget(request))
        _behind(residency, "end_detached", lambda _, request: self._forget(request))
        _ahead(residency, "drop_gpu", self._drop)
        _behind(state.transfers, "plan", self._transfer)
        _behind(state.transfers, "plan_copy", self._copy)
        for name in ("retire", "retire_copy"):
            _behind(state.transfers, name, lambda _, thing: self._note("retire", thing.id))
        for name in ("quarantine_transfers", "quarantine_copies"):
            _behind(state.transfers, name, self._aside)
        _behind(planner, "plan", lambda _, scheduled: self._note("planned"))

    # What the parts say.

    def _note(self, *event: object) -> None:
        self._events.append(list(event))

    def _lease(self, what: str, lease: Lease) -> None:
        if lease.blocks:  # a layout without indexer groups has empty leases
            self._note(f"gpu {what}", lease.blocks)

    def _enter(self, _: None, request: Request, reserved_pages: int) -> None:
        self._entered += 1
        number = self._numbers[request.pages] = self._entered
        self._note("enter", number, request.id, request.state_row)
        pages = request.pages
        _behind(pages, "append", lambda page, *_: self._page(number, page))
        _behind(pages, "move", lambda _, page, state: self._note("move", number, page.index, state, _kv(page)))
        _behind(pages, "pop", lambda page: self._note("pop", number, page.index))

    def _page(self, number: int, page: Page) -> None:
        self._note("page", number, page.index, page.state, page.host, page.keys.blocks, _kv(page))

    def _drop(self, page: Page, stamp: int) -> None:
        pages = page.pages
        if page.index < len(pages) and pages[page.index] is page:
            self._note("drop", self._numbers[pages], page.index)

    def _hot(self, _: None, request: Request) -> None:
        assert request.hot is not None
        self._note("hot", self._numbers[request.pages], request.hot.blocks)

    def _forget(self, request: Request) -> None:
        if request.fate is Fate.GONE:
            del self._numbers[request.pages]

    def _transfer(self, transfer: Transfer, *_: object) -> None:
        page, message = transfer.page, transfer.message()
        self._note("transfer", message.id, message.kind, self._numbers[page.pages], page.index, *message[2:])

    def _copy(self, copy: Copy, *_: object) -> None:
        self._note("copy", copy.id, self._numbers[copy.page.pages], copy.page.index, copy.source, copy.destination)

    def _aside(self, overdue: Iterable[Transfer | Copy], sequence: int) -> None:
        for thing in overdue:
            self._note("aside", thing.id)


def _behind(thing: object, name: str, note: Callable[..., None]) -> None:
    """`note(answer, *arguments)` is called behind every call of this one object's method."""
    original = getattr(thing, name)

    def noted(*arguments: object, **named: object) -> object:
        answer = original(*arguments, **named)
        note(answer, *arguments, **named)
        return answer

    setattr(thing, name, noted)


def _ahead(thing: object, name: str, note: Callable[..., None]) -> None:
    """`note(*arguments)` is called ahead of every call of this one object's method."""
    original = getattr(thing, name)

    def noted(*arguments: object) -> object:
        note(*arguments)
        return original(*arguments)

    setattr(thing, name, noted)


def _counts(state: ControlState) -> dict[str, int]:
    return {
        "gpu_free": state.gpu.free,
        "host_free": state.host.free,
        "host_cached": state.host.cached,
        "published": len(state.prefix),
        "live": len(state.live),
        "detached": len(state.detached),
        "transfers": len(state.transfers.active),
        "copies": len(state.transfers.copies),
        "aside": len(state.transfers.quarantined),
    }


def _kv(page: Page) -> tuple[int, ...]:
    return page.kv.blocks if page.kv is not None else ()


def _runs(blocks: Iterator[int]) -> list[tuple[int, int]]:
    """Ids as (first, last) of their runs, ascending."""
    runs: list[tuple[int, int]] = []
    for block in sorted(blocks):
        if runs and block == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], block)
        else:
            runs.append((block, block))
    return runs


def _plain(value: object) -> object:
    """What JSON has no word for."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Sequence):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, SupportsIndex):
        return int(value)
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"a trace has no word for {type(value).__name__}")
