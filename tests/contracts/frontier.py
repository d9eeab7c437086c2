"""The durable frontier: the longest gap-free run of durable pages."""

from hisparse_ops.control.metrics import Totals
from hisparse_ops.control.pages import Page, PageState, RequestPages, TableChanges
from hisparse_ops.control.publication import Publisher
from hisparse_ops.control.request import Request
from hisparse_ops.control.types import Limits

PAGES = 3


class Offers(Publisher):
    """The publisher, with a list in place of the prefix index."""

    def __init__(self) -> None:
        self.published: list[int] = []

    def _publish(self, page: Page, token_hash: int) -> None:
        self.published.append(page.index)


def a_request(durable: list[bool], sealed: int, known: int) -> Request:
    request = Request("r", 0, Limits(1, 1), list(range(known)), RequestPages(0, TableChanges(Totals())))
    for clean in durable:
        request.pages.append(PageState.HOST_ONLY if clean else PageState.FRESH, 1, None, None)
    request.sealed_pages = sealed
    return request


def pages_are_published_in_order_without_a_gap(durable: list[bool], sealed: int, known: int) -> None:
    assert len(durable) <= PAGES and 0 <= sealed <= len(durable) and 0 <= known <= len(durable)
    request, publisher = a_request(durable, sealed, known), Offers()
    publisher.advance(request)
    end = request.frontier
    assert publisher.published == list(range(end))
    assert all(durable[:end]) and end <= min(sealed, known)
    assert end == min(sealed, known) or not durable[end]


def nothing_is_published_twice(durable: list[bool], later: int) -> None:
    """A second pass, after one more page became durable, goes on where the first one stopped."""
    assert 0 <= later < len(durable) <= PAGES and not durable[later]
    request, publisher = a_request(durable, len(durable), len(durable)), Offers()
    publisher.advance(request)
    page = request.pages[later]
    request.pages.move(page, PageState.SPILLING)
    request.pages.move(page, PageState.CLEAN_PINNED)
    publisher.advance(request)
    assert publisher.published == list(range(request.frontier))
