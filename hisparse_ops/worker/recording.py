"""What a worker was told to do and what it said, as lines of a trace (`hisparse_ops.control.recording`).

Off by default and then free: `record` puts itself in front of the methods of one worker.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from hisparse_ops.worker.worker import Worker

CALLS = ("begin_step", "kv", "end_step", "poll")
Line = Mapping[str, object]


def record(worker: Worker, write: Callable[[Line], None]) -> None:
    """Write a line for every call of `worker` from now, before its first step. Of a plan only the sequence
    number is written, of a forward pass what it may touch; reports are written whole, unless there are none."""
    write({"worker": worker.rank, "call": "made", "epoch": worker.epoch})
    for name in CALLS:
        _record_call(worker, name, write)


def _record_call(worker: Worker, name: str, write: Callable[[Line], None]) -> None:
    original = getattr(worker, name)
    signature = inspect.signature(original)

    def recorded(*args: object, **named: object) -> object:
        arguments = dict(signature.bind(*args, **named).arguments)
        if "plan" in arguments:
            arguments["plan"] = arguments["plan"].sequence
        line: dict[str, object] = {"worker": worker.rank, "call": name, "args": arguments}
        try:
            answer = original(*args, **named)
        except BaseException as error:
            write({**line, "raised": type(error).__name__})
            raise
        if name != "poll":
            write(line)
        elif answer:
            write({**line, "answer": answer})
        return answer

    setattr(worker, name, recorded)
