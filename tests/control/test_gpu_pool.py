"""The GPU pool: leases, the order of reuse, watchers."""

from __future__ import annotations

import pytest

from hisparse_ops.control.errors import ControlError, CountError
from hisparse_ops.control.gpu_pool import GpuPool, Lease


class Reader:
    def __init__(self) -> None:
        self.heard: list[Lease] = []

    def lost(self, lease: Lease) -> None:
        self.heard.append(lease)


def readable(pool: GpuPool, count: int, age: int, *readers: Reader) -> Lease:
    """A lease that was given up at `age`, and that `readers` still read."""
    lease = pool.lease(count)
    for reader in readers:
        pool.watch(lease, reader)
    lease.age = (age, 0, 0)
    pool.release(lease)
    return lease


def test_hands_out_each_block_once_and_never_the_null_block() -> None:
    pool = GpuPool(7)
    blocks = [block for _ in range(3) for block in pool.lease(2).blocks]
    assert sorted(blocks) == [1, 2, 3, 4, 5, 6] and pool.free == 0
    with pytest.raises(ControlError, match="1 GPU blocks asked, 0 free"):
        pool.lease(1)


def test_blank_blocks_go_first_then_the_oldest_readable() -> None:
    pool = GpuPool(7)
    young, old = readable(pool, 2, 9, Reader()), readable(pool, 2, 3, Reader())
    assert pool.free == 6
    assert set(pool.lease(2).blocks).isdisjoint(young.blocks + old.blocks)
    assert pool.lease(2).blocks == old.blocks and young.whole


def test_reuse_of_one_block_loses_the_whole_lease_for_every_reader_once() -> None:
    pool, readers = GpuPool(4), [Reader(), Reader()]
    lost = readable(pool, 3, 1, *readers)
    taken = pool.lease(1)
    assert [reader.heard for reader in readers] == [[lost], [lost]] and not lost.whole
    assert pool.free == 2 and set(taken.blocks) | set(pool.blank_blocks()) == set(lost.blocks)
    pool.release(taken)
    pool.release(pool.lease(3))
    assert [len(reader.heard) for reader in readers] == [1, 1]


def test_a_shared_lease_leaves_the_free_queue_and_returns_with_the_last_holder() -> None:
    pool, reader = GpuPool(3), Reader()
    lease = readable(pool, 2, 1, reader)
    pool.share(lease)
    pool.share(lease)
    assert pool.free == 0 and lease.refs == 2
    pool.release(lease)
    assert pool.free == 0
    pool.release(lease)
    assert pool.free == 2 and pool.readable_leases() == [lease] and not reader.heard


def test_a_free_lease_that_nobody_reads_any_more_becomes_blank() -> None:
    pool, reader = GpuPool(3), Reader()
    lease = readable(pool, 2, 1, reader)
    pool.unwatch(lease, reader)
    assert not lease.whole and not pool.readable_leases() and len(list(pool.blank_blocks())) == 2
    with pytest.raises(ControlError, match="the lease is gone"):
        pool.share(lease)
    with pytest.raises(ControlError, match="nothing to watch"):
        pool.watch(lease, reader)
    unread = pool.lease(1)
    pool.release(unread)
    assert not unread.whole, "nobody ever read it"


def test_counts_never_go_negative() -> None:
    """Fault 32: giving back what is not held raises; nothing is clamped."""
    pool = GpuPool(3)
    lease = pool.lease(1)
    with pytest.raises(CountError, match="not watched"):
        pool.unwatch(lease, Reader())
    pool.release(lease)
    with pytest.raises(CountError, match="nobody holds"):
        pool.release(lease)
    assert pool.free == 2


def test_stale_queue_entries_do_not_pile_up() -> None:
    pool = GpuPool(3)
    lease = readable(pool, 2, 1, Reader())
    for _ in range(1000):
        pool.share(lease)
        pool.release(lease)
    assert pool.readable_leases() == [lease] and len(pool._readable) < 100


@pytest.mark.parametrize("order", [[1, 2], [1, 2, 2], [0, 1, 2]], ids=["short", "repeated", "null block"])
def test_refuses_a_wrong_order(order: list[int]) -> None:
    with pytest.raises(ValueError, match="order: expected 3 distinct blocks"):
        GpuPool(4, order)


def test_the_null_block_alone_is_a_pool() -> None:
    assert GpuPool(1).usable == 0
    with pytest.raises(ValueError, match="num_blocks: expected at least the null block, got 0"):
        GpuPool(0)
