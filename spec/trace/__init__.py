"""Traces of real runs, replayed through books that know the protocol and nothing of the code.

`calls` reads the calls, `books` what changes hands, `moves` the states of pages, `plans` what workers are
told, `ranks` what they say, `holdings` counts references twice. Line by line: memory is bounded by what is live.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..invariants import Broken
from .calls import Calls

FORMAT = 1
HEADER = {"trace", "format", "versions", "layout", "config", "gpu_blocks", "host_blocks"}


class Unreadable(ValueError):
    """A file that is no whole trace; says what was expected, and in which line."""


class Refused(AssertionError):
    """A line that breaks an invariant."""

    def __init__(self, number: int, broken: Broken) -> None:
        super().__init__(f"line {number}: {broken}")
        self.line = number
        self.invariant = broken.invariant


def check_trace(path: Path) -> int:
    """The number of lines of a trace in which nothing is wrong. Raises `Unreadable` or `Refused`."""
    lines = _lines(path)
    _, header = next(lines, (0, None))
    if not isinstance(header, dict) or not header.keys() >= HEADER or header["trace"] != "hisparse_ops":
        raise Unreadable(f"{path} is no trace: its first line is not the header of one")
    if header["format"] != FORMAT:
        raise Unreadable(f"{path} is of format {header['format']}, and this reads format {FORMAT}")
    number, ended = 1, False
    try:
        calls = Calls(header)
        for number, line in lines:
            if ended:
                raise Unreadable(f"{path}, line {number}: the trace goes on behind its end")
            if "end" in line:
                ended = True
                if line["end"] != number - 1:
                    raise Unreadable(f"{path}, line {number}: {line['end']} lines were written, {number - 1} are there")
            else:
                calls.line(line)
    except Broken as broken:
        raise Refused(number, broken) from broken
    except (AssertionError, LookupError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, Unreadable):
            raise
        raise Unreadable(
            f"{path}, line {number}: not a line of the format ({type(error).__name__}: {error})"
        ) from error
    if not ended:
        raise Unreadable(f"{path} is truncated: it has no end line")
    return number


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                try:
                    line = json.loads(text)
                except ValueError:
                    whole = text.endswith("\n")
                    what = "not JSON" if whole else "truncated: the line is cut off"
                    raise Unreadable(f"{path}, line {number}: {what}") from None
                if not isinstance(line, dict):
                    raise Unreadable(f"{path}, line {number}: expected a JSON object")
                yield number, line
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(f"{path} cannot be read: {error}") from error
