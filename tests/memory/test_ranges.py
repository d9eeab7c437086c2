"""Registration ranges against brute force: every byte is tried as a seam."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hisparse_ops.memory.ranges import Extent, Range, RangeError, plan_ranges

PAGE = 16


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[Extent], int]:
    extents: list[Extent] = []
    end = 0
    for number in range(draw(st.integers(0, 4))):
        start = end + draw(st.integers(0, 40))
        extents.append(Extent(f"tensor {number}", start, draw(st.integers(1, 60)), draw(st.integers(1, 12))))
        end = extents[-1].end
    return extents, end + draw(st.integers(0, 40))


def is_seam(byte: int, extents: list[Extent]) -> bool:
    inside_a_block = any(
        extent.start < byte < extent.end and (byte - extent.start) % extent.block_bytes for extent in extents
    )
    return byte % PAGE == 0 and not inside_a_block


def fewest_ranges(extents: list[Extent], total: int, limit: int) -> int | None:
    """Shortest way from 0 to `total` over all seams: breadth first."""
    stops = [byte for byte in range(1, total) if is_seam(byte, extents)] + [total]
    reached, count = {0}, 0
    while total not in reached:
        further = {stop for stop in stops if stop not in reached and any(0 < stop - at <= limit for at in reached)}
        if not further:
            return None
        reached, count = reached | further, count + 1
    return count


@given(pools(), st.integers(PAGE, 200))
@example(([Extent("exact", 0, PAGE, 4)], 4 * PAGE), PAGE)
@example(([Extent("after padding", 3, 5, 40)], 210), 64)
@example(([Extent("short", 0, 8, 5), Extent("never on a page", 40, 16, 2)], 72), 60)
def test_as_few_ranges_as_brute_force_finds(pool: tuple[list[Extent], int], limit: int) -> None:
    extents, total = pool
    if total == 0:
        return
    fewest = fewest_ranges(extents, total, limit)
    if fewest is None:
        with pytest.raises(RangeError):
            plan_ranges(extents, total, PAGE, limit)
        return
    ranges = plan_ranges(extents, total, PAGE, limit)
    assert len(ranges) == fewest
    assert [ranges[0].start, ranges[-1].end] == [0, total]
    for before, after in pairwise(ranges):
        assert before.end == after.start
        assert is_seam(before.end, extents)
    assert all(0 < end - start <= limit for start, end in ranges)


def test_the_real_sizes() -> None:
    """300 GiB of 4-layer units of 656-byte rows: cut once, at a block that starts an OS page."""
    block, gib = 4 * 64 * 656, 2**30
    extents = [Extent("unit 0", 0, block, 300 * gib // block)]
    first, second = plan_ranges(extents, extents[0].end, 4096, 256 * gib)
    assert first == Range(0, 256 * gib // block * block)
    assert first.end % 4096 == 0 and second.end == extents[0].end


def test_size_is_blamed_for_a_block_larger_than_a_registration() -> None:
    with pytest.raises(RangeError, match="unit 1: size"):
        plan_ranges([Extent("unit 0", 0, 16, 4), Extent("unit 1", 64, 160, 2)], 384, PAGE, 128)


def test_alignment_is_blamed_for_blocks_that_never_meet_a_page() -> None:
    with pytest.raises(RangeError, match="unit 0: alignment"):
        plan_ranges([Extent("unit 0", 8, 16, 20)], 328, PAGE, 128)


def test_a_limit_below_a_page_is_refused() -> None:
    with pytest.raises(RangeError, match="limit"):
        plan_ranges([], 64, PAGE, PAGE - 1)
