"""Requests from a trace: how long they are and which prefixes they share.

The format is Mooncake's (FAST'25): one JSON object a line with `timestamp` (ms), `input_length`,
`output_length` (tokens) and `hash_ids`, one per 512 prompt tokens; equal ids mean equal prefixes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_FIELDS = ("input_length", "output_length", "hash_ids")


class TraceError(ValueError):
    """A trace that cannot be read; the message names file, line and what was expected."""


@dataclass(frozen=True)
class TraceRequest:
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def read_trace(path: Path, count: int) -> list[TraceRequest]:
    """The first `count` requests of a trace. TraceError if it has fewer or a line is not one of the format."""
    requests: list[TraceRequest] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if len(requests) == count:
                    break
                requests.append(_parse(line, f"trace {path}, line {number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"trace {path} cannot be read: {error}") from error
    if len(requests) < count:
        raise TraceError(f"trace {path} has {len(requests)} requests: expected at least {count}")
    return requests


def _parse(line: str, where: str) -> TraceRequest:
    try:
        record = json.loads(line)
        lengths = (record["input_length"], record["output_length"])
        ids = record["hash_ids"]
        numbers = (*lengths, *ids)
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{where}: expected a JSON object with {', '.join(_FIELDS)}") from error
    if (
        not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers)
        or min(lengths) < 1
        or not ids
    ):
        raise TraceError(f"{where}: expected lengths of at least 1 and non-negative integer hash_ids")
    return TraceRequest(*lengths, tuple(ids))


def scaled_prompts(trace: Sequence[TraceRequest], corpus: Sequence[int], context: int) -> list[tuple[int, ...]]:
    """Prompts of the trace's shape, the longest cut to `context` tokens.

    Every hash id stands for one window of `corpus`, so requests share exactly the prefixes that they share in
    the trace. All lengths shrink by one factor; a request keeps at least one token.
    """
    longest = max(r.input_length for r in trace)
    most_ids = max(len(r.hash_ids) for r in trace)
    window = max(context // most_ids, 1)
    prompts = []
    for request in trace:
        length = max(min(request.input_length * context // longest, window * len(request.hash_ids)), 1)
        tokens = [corpus[(hash_id * window + i) % len(corpus)] for hash_id in request.hash_ids for i in range(window)]
        prompts.append(tuple(tokens[:length]))
    return prompts
