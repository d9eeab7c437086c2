"""Registration ranges of a large host pool: where to cut it, in pure integers.

A batched copy refuses a descriptor that crosses two registrations, and one registration is limited in
size. So a seam between two registrations lies on an OS-page boundary and never inside a block.

For a tensor at byte `s` with blocks of `b` bytes and OS pages of `P` bytes, the byte `s + k*b` is a page
boundary iff `k*b = -s (mod P)`. With `d = gcd(b, P)` that has a solution iff `d` divides `s`; then
`k = -(s/d) * (b/d)^-1 (mod P/d)`, so good seams recur every `P/d` blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple


class Extent(NamedTuple):
    """A tensor in the pool: its first byte, the bytes of one block, the number of blocks."""

    name: str
    start: int
    block_bytes: int
    num_blocks: int

    @property
    def end(self) -> int:
        return self.start + self.num_blocks * self.block_bytes


class Range(NamedTuple):
    """Bytes `start .. end-1` of the pool, registered in one call."""

    start: int
    end: int


class RangeError(ValueError):
    """The pool cannot be cut into pieces of the allowed size."""


def _last_seam_in_extent(extent: Extent, high: int, page: int) -> int | None:
    """The largest page boundary <= `high` at an edge of one of the extent's blocks."""
    divisor = gcd(extent.block_bytes, page)
    if extent.start % divisor:
        return None
    period = page // divisor
    first = -(extent.start // divisor) * pow(extent.block_bytes // divisor, -1, period) % period
    last = min(extent.num_blocks, (high - extent.start) // extent.block_bytes)
    if last < first:
        return None
    return extent.start + (last - (last - first) % period) * extent.block_bytes


def _last_seam(extents: Sequence[Extent], low: int, high: int, page: int) -> int | None:
    """The largest seam in `low+1 .. high`: tensors from the last to the first, each after its padding."""
    seam: int | None = None
    gap_end = high
    for extent in reversed(extents):
        in_gap = min(gap_end, high) // page * page
        seam = in_gap if in_gap >= extent.end else _last_seam_in_extent(extent, high, page)
        if seam is not None:
            break
        gap_end = extent.start
    else:
        seam = min(gap_end, high) // page * page  # the padding before the first tensor
    return seam if seam > low else None


def _blame(extents: Sequence[Extent], low: int, limit: int, page: int) -> RangeError:
    """Why there is no seam in the `limit` bytes after `low`: the tensor that those bytes end in or behind."""
    extent = next(extent for extent in reversed(extents) if extent.start < low + limit)
    if extent.block_bytes > limit:
        return RangeError(
            f"{extent.name}: size: a block of {extent.block_bytes} bytes is larger than one registration of {limit}"
        )
    return RangeError(
        f"{extent.name}: alignment: no edge of its {extent.block_bytes}-byte blocks lies on a boundary of "
        f"{page}-byte pages within {limit} bytes after byte {low}"
    )


def plan_ranges(extents: Sequence[Extent], total: int, page: int, limit: int) -> list[Range]:
    """Cuts bytes `0 .. total-1` into the fewest ranges of at most `limit` bytes.

    `extents` are the tensors, by ascending start and disjoint; what lies between them is padding, where
    any page boundary may be a seam. Raises `RangeError` naming the tensor that cannot be cut, and
    whether its size or its alignment is the cause.
    """
    if limit < page:
        raise RangeError(f"limit must be at least one page of {page} bytes, got {limit}")
    ranges: list[Range] = []
    low = 0
    while total - low > limit:
        seam = _last_seam(extents, low, low + limit, page)
        if seam is None:
            raise _blame(extents, low, limit, page)
        ranges.append(Range(low, seam))
        low = seam
    ranges.append(Range(low, total))
    return ranges
