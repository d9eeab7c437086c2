"""Who gives way first."""

from hisparse_ops.control.gpu_pool import GpuPool, Lease
from hisparse_ops.control.metrics import Totals
from hisparse_ops.control.pages import PageState, RequestPages, TableChanges
from hisparse_ops.control.policy import Candidate, WatermarkPolicy
from hisparse_ops.control.request import WRITABLE_PAGES, Request
from hisparse_ops.control.types import Limits

FEW = 4


def the_first_of_those_that_free_most_is_moved(frees: list[int]) -> None:
    assert len(frees) <= FEW
    victim = WatermarkPolicy(1, 1, 1).victim([Candidate(place, blocks, 1) for place, blocks in enumerate(frees)])
    assert (victim is None) == (not frees)
    if victim is not None:
        assert all(blocks <= victim.frees for blocks in frees)
        assert all(blocks < victim.frees for blocks in frees[: victim.request])


def the_first_of_the_cheapest_comes_back(costs: list[int]) -> None:
    assert len(costs) <= FEW
    chosen = WatermarkPolicy(1, 1, 1).returning([Candidate(place, 1, blocks) for place, blocks in enumerate(costs)])
    assert (chosen is None) == (not costs)
    if chosen is not None:
        assert all(chosen.costs <= blocks for blocks in costs)
        assert all(chosen.costs < blocks for blocks in costs[: chosen.request])


def clean_pages_are_given_up_tail_first_and_never_the_last_two(clean: list[bool]) -> None:
    assert len(clean) <= FEW
    request = Request("r", 0, Limits(1, 1), [], RequestPages(0, TableChanges(Totals())))
    for is_clean in clean:
        page = request.pages.append(PageState.FRESH, 1, None, None)
        if is_clean:
            request.pages.move(page, PageState.SPILLING)
            request.pages.move(page, PageState.CLEAN_PINNED)
    given_up = [page.index for page in request.unpinnable()]
    assert given_up == [p for p in reversed(range(len(clean) - WRITABLE_PAGES)) if clean[p]]
    assert request.unpinnable_count() == len(given_up)


class Reader:
    def __init__(self) -> None:
        self.lost_leases: list[Lease] = []

    def lost(self, lease: Lease) -> None:
        self.lost_leases.append(lease)


def readable_blocks_are_reused_oldest_first(ages: list[int]) -> None:
    assert 1 <= len(ages) <= 3
    pool, reader = GpuPool(len(ages) + 1), Reader()
    leases = [pool.lease(1) for _ in ages]
    for lease, age in zip(leases, ages, strict=True):
        lease.age = (age, 0, 0)
        pool.watch(lease, reader)
        pool.release(lease)
    pool.lease(len(ages))
    assert reader.lost_leases == [
        lease for _, lease in sorted(zip(ages, leases, strict=True), key=lambda pair: pair[0])
    ]
