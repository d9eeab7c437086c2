"""The host pool: counts, the cache of free blocks, and which blocks are recycled."""

from __future__ import annotations

import pytest

from hisparse_ops.control.errors import ControlError, CountError
from hisparse_ops.control.host_pool import HostPool


@pytest.fixture
def evicted() -> list[tuple[int, int]]:
    return []


@pytest.fixture
def pool(evicted: list[tuple[int, int]]) -> HostPool:
    return HostPool(4, lambda block, token_hash: evicted.append((block, token_hash)), order=[11, 12, 13])


def cached(pool: HostPool, token_hash: int) -> int:
    block = pool.lease()
    pool.set_hash(block, token_hash)
    pool.release(block)
    return block


def test_blank_blocks_go_first_then_the_one_cached_longest(pool: HostPool, evicted: list[tuple[int, int]]) -> None:
    first, second = cached(pool, 100), cached(pool, 200)
    assert pool.free == 3 and pool.lease() not in (first, second) and not evicted
    assert pool.lease() == first and evicted == [(first, 100)]
    assert first not in pool.hash_of and second in pool.hash_of


def test_a_hit_takes_a_block_out_of_the_cache_and_renews_its_age(pool: HostPool) -> None:
    first, second = cached(pool, 100), cached(pool, 200)
    pool.share(first)
    assert pool.cached == 1
    pool.release(first)
    pool.lease()
    assert pool.lease() == second


def test_every_lease_is_recycled_once(pool: HostPool) -> None:
    """Fault 28: whatever was leased is named, an evicted block and one given back at once included."""
    block = cached(pool, 100)
    pool.take_recycled()
    taken = [pool.lease() for _ in range(3)]
    pool.release(taken[0])
    assert block in taken and sorted(pool.take_recycled()) == sorted(taken) and pool.take_recycled() == ()


def test_a_hit_is_not_recycled(pool: HostPool) -> None:
    block = cached(pool, 100)
    pool.take_recycled()
    pool.share(block)
    assert pool.take_recycled() == ()


def test_a_cached_block_that_loses_its_hash_is_blank(pool: HostPool) -> None:
    block = cached(pool, 100)
    assert pool.drop_hash(block) == 100
    assert pool.free == 3 and block in pool.blank_blocks()
    with pytest.raises(ControlError, match="blank"):
        pool.share(block)


def test_counts_never_go_negative(pool: HostPool) -> None:
    """Fault 32."""
    block = pool.lease()
    pool.release(block)
    with pytest.raises(CountError, match="nobody holds"):
        pool.release(block)


def test_only_an_owned_block_without_a_hash_is_published(pool: HostPool) -> None:
    block = pool.lease()
    pool.set_hash(block, 100)
    with pytest.raises(ControlError, match="without a hash"):
        pool.set_hash(block, 200)
    pool.release(block)
    with pytest.raises(ControlError, match="without a hash"):
        pool.set_hash(13, 200)  # type: ignore[arg-type]


def test_an_empty_pool_says_so(pool: HostPool) -> None:
    for _ in range(3):
        pool.lease()
    with pytest.raises(ControlError, match="none free"):
        pool.lease()


@pytest.mark.parametrize(
    "order", [[1, 2], [1, 2, 2], [1, 2, 3, 3], [0, 1, 2]], ids=["short", "repeated", "one too many", "null block"]
)
def test_refuses_a_wrong_order(order: list[int]) -> None:
    with pytest.raises(ValueError, match="order: expected 3 distinct blocks"):
        HostPool(4, lambda block, token_hash: None, order)


def test_the_null_block_alone_is_a_pool() -> None:
    assert HostPool(1, lambda block, token_hash: None).free == 0
    with pytest.raises(ValueError, match="num_blocks: expected at least the null block, got 0"):
        HostPool(0, lambda block, token_hash: None)
