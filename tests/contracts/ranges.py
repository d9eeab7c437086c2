"""Where a host pool may be cut. The hypothesis tests of `tests/memory` go further, against brute force."""

from hisparse_ops.memory.ranges import Extent, RangeError, _last_seam_in_extent, plan_ranges

PAGE = 4096
BLOCK = 64 * 656  # every fourth edge of such blocks is a page boundary
SMALL_PAGE = 4


def a_seam_is_a_page_boundary_between_blocks(start: int, blocks: int, high: int) -> None:
    assert start >= 0 and blocks >= 1 and high >= start
    seam = _last_seam_in_extent(Extent("tensor", start, BLOCK, blocks), high, PAGE)
    if seam is not None:
        assert seam % PAGE == 0 and (seam - start) % BLOCK == 0
        assert start <= seam <= min(high, start + blocks * BLOCK)


def no_later_seam_is_missed(start: int, blocks: int, high: int, edge: int) -> None:
    assert start >= 0 and 0 <= edge <= blocks and start + edge * BLOCK <= high and (start + edge * BLOCK) % PAGE == 0
    seam = _last_seam_in_extent(Extent("tensor", start, BLOCK, blocks), high, PAGE)
    assert seam is not None and seam >= start + edge * BLOCK


def ranges_cover_the_pool_and_cut_no_block(start: int, blocks: int, padding: int) -> None:
    assert 0 <= start <= 12 and 1 <= blocks <= 3 and 0 <= padding <= 4
    check_cuts(Extent("tensor", start, 6, blocks), padding, limit=16)


def whatever_the_sizes_ranges_cut_no_block(start: int, block: int, blocks: int, padding: int, limit: int) -> None:
    assert 0 <= start <= 4 and 1 <= block <= 6 and 1 <= blocks <= 3 and 0 <= padding <= 4 and SMALL_PAGE <= limit <= 12
    check_cuts(Extent("tensor", start, block, blocks), padding, limit)


def check_cuts(extent: Extent, padding: int, limit: int) -> bool:
    """Whether the pool can be cut at all; the cuts are asserted to be good."""
    total = extent.end + padding
    try:
        ranges = plan_ranges([extent], total, SMALL_PAGE, limit)
    except RangeError:
        return False
    at = 0
    for first, end in ranges:
        assert first == at and first < end <= first + limit
        assert end == total or end % SMALL_PAGE == 0
        assert not extent.start < end < extent.end or (end - extent.start) % extent.block_bytes == 0
        at = end
    assert at == total
    return True


def a_pool_within_the_limit_is_one_range(total: int, limit: int) -> None:
    assert 0 <= total <= limit and limit >= PAGE
    assert plan_ranges([], total, PAGE, limit) == [(0, total)]
