"""What a request could give up."""

from __future__ import annotations

import pytest

from hisparse_ops.control.gpu_pool import Lease
from hisparse_ops.control.metrics import Totals
from hisparse_ops.control.pages import PageState, RequestPages, TableChanges
from hisparse_ops.control.request import Request
from hisparse_ops.control.types import HostBlock, Limits


@pytest.mark.parametrize(
    ("pages", "sealed", "tainted", "releasable"),
    [
        (2, 2, (), 0),  # the last two pages are written or computed again
        (3, 3, (), 1),
        (5, 5, (), 3),
        (5, 1, (), 1),  # what is not final has no host copy to come
        (5, 5, (0,), 2),  # nor has what is in doubt
        (5, 5, (3,), 3),  # one of the last two: it stays anyway
    ],
)
def test_pages_that_can_be_given_up_sooner_or_later(
    pages: int, sealed: int, tainted: tuple[int, ...], releasable: int
) -> None:
    request = Request("r", 0, Limits(40, 8), [], RequestPages(0, TableChanges(Totals())))
    for block in range(pages):
        request.pages.append(PageState.FRESH, HostBlock(1 + block), Lease(()), Lease(()))
    request.sealed_pages = sealed
    for index in tainted:
        request.pages[index].taint()
    assert request.releasable() == releasable
