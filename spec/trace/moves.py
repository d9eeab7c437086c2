"""Which changes of a page's state are right, and when: the table of the protocol.

| from           | to             | when                                                                   |
|----------------|----------------|------------------------------------------------------------------------|
| fresh          | spilling       | its rows are final, and its spill is planned                            |
| spilling       | clean-pinned   | every writer has completed, no copy failed, every row's mirror is proven |
| spilling       | fresh          | otherwise, when the spill is over                                      |
| clean-pinned   | clean-unpinned | the request is live and hot, the page not among the last two            |
| clean-unpinned | clean-pinned   | its blocks still hold it                                               |
| clean-unpinned | host-only      | its blocks are handed out in the same call                             |
| host-only      | clean-pinned   | the blocks hold the rows of its host block                             |
| host-only      | restoring      | a restore into these blocks is planned                                 |
| restoring      | clean-pinned, fresh   | every rank has completed; clean-pinned if the host copy was final |
| restoring      | host-only, import hole | a rank has failed, or the restore was given up                   |
| import hole    | host-only, restoring | the import has ended well                                        |
"""

from __future__ import annotations

from collections.abc import Callable

from .books import (
    FRESH,
    HOLE,
    HOST_ONLY,
    PINNED,
    RESTORING,
    SPILLING,
    UNPINNED,
    WRITABLE_PAGES,
    Books,
    Import,
    Page,
    Transfer,
)
from .holdings import Lease, require

Rule = Callable[[Books, Page, Lease | None], None]


def move(books: Books, page: Page, state: str, kv: Lease | None) -> None:
    """Refuse the change, or make it."""
    rule = RULES.get((page.state, state))
    require(rule is not None, "B7", f"{page} goes from {page.state} to {state}")
    assert rule is not None
    require((kv is None) == (state in (HOST_ONLY, HOLE)), "S16", f"{page} is {state}, read from {kv and kv.blocks}")
    rule(books, page, kv)
    books.reassign(page, state, kv)


def _spill(books: Books, page: Page, kv: Lease | None) -> None:
    final = page.request.final
    require((page.index + 1) * books.size <= final, "S4", f"{page} spills with {final} final rows")
    require(not page.tainted, "S15", f"{page} spills, and rows of it missed their mirror")
    require(page.transfer is not None and page.transfer.kind == "SPILL", "B7", f"{page} spills without a transfer")
    require(kv is page.kv, "B7", f"{page} spills from other blocks than its own")


def _durable(books: Books, page: Page, kv: Lease | None) -> None:
    ended = _ended(page, "SPILL")
    silent = sorted(ended.writers - ended.completed)
    require(not silent, "S2", f"{page} is durable before rank {silent and silent[0][0]} completed transfer {ended.id}")
    require(not ended.failed, "S2", f"{page} is durable after a copy of transfer {ended.id} failed")
    require(not page.tainted and not page.unproven, "S15", f"{page} is durable, its mirror in {_steps(page)} unproven")
    require(kv is page.kv, "B7", f"{page} is read from other blocks than it was spilled from")
    books.set_clean(page)
    _holds(page, kv)


def _steps(page: Page) -> str:
    return f"steps {sorted(page.unproven)}" if page.unproven else "some step"


def _not_durable(books: Books, page: Page, kv: Lease | None) -> None:
    ended = _ended(page, "SPILL")
    require(ended.failed or ended.aside or page.tainted, "B7", f"{page} is fresh again, and nothing failed")
    page.tainted = True


def _unpin(books: Books, page: Page, kv: Lease | None) -> None:
    request = page.request
    require(
        page.transfer is None, "S5", f"{page} is unpinned with transfer {page.transfer and page.transfer.id} pending"
    )
    require(not request.detached and request.hot is not None, "S6", f"{page} is unpinned without a hot region")
    last = len(request.pages) - WRITABLE_PAGES
    require(page.index < last, "S7", f"{page} of {len(request.pages)} pages is unpinned")
    require(kv is page.kv, "B7", f"{page} is unpinned, read from other blocks")


def _pin(books: Books, page: Page, kv: Lease | None) -> None:
    require(kv is page.kv and kv is not None and kv.whole, "B12", f"{page} is pinned, and its blocks are gone")


def _lose(books: Books, page: Page, kv: Lease | None) -> None:
    assert page.kv is not None
    require(not page.kv.refs, "B5", f"{page} loses {page.kv.name}, which is held")
    books.lost.add(page.kv)


def _adopt(books: Books, page: Page, kv: Lease | None) -> None:
    assert kv is not None and page.host is not None
    same = kv.rows_of == (page.host.block, page.host.life)
    require(same, "B12", f"{page} adopts {kv.name}, which is no copy of {page.host.name}")


def _restore(books: Books, page: Page, kv: Lease | None) -> None:
    transfer = page.transfer
    require(transfer is not None and transfer.kind == "RESTORE", "B7", f"{page} is restored without a transfer")
    assert transfer is not None and kv is not None
    require(kv.blocks == transfer.blocks, "B7", f"{page} is restored into {transfer.blocks} and read from {kv.blocks}")
    incoming = page.request.incoming
    if incoming is not None and kv in incoming.kv:
        incoming.kv.discard(kv)
        books.held.drop(kv)
    require(kv.holders == 1, "B1", f"{page} is restored into {kv.name}, which has an owner")  # the transfer


def _restored(books: Books, page: Page, kv: Lease | None) -> None:
    _arrived(page, kv)
    require(page.clean, "S13", f"{page} is clean, and its host rows are not final")


def _restored_tail(books: Books, page: Page, kv: Lease | None) -> None:
    _arrived(page, kv)
    require(not page.clean, "B7", f"{page} is writable, and its host copy is final")


def _arrived(page: Page, kv: Lease | None) -> None:
    ended = _ended(page, "RESTORE")
    require(ended.done and not ended.failed, "S10", f"{page} is there before every rank restored it")
    require(kv is page.kv, "B7", f"{page} is read from other blocks than it was restored into")
    if page.clean:
        _holds(page, kv)


def _not_restored(books: Books, page: Page, kv: Lease | None) -> None:
    ended = _ended(page, "RESTORE")
    require(ended.failed or ended.aside, "B7", f"{page} did not arrive, and nothing failed")


def _lost_restore(books: Books, page: Page, kv: Lease | None) -> None:
    _not_restored(books, page, kv)
    require(page.clean, "S13", f"{page} is read from the host, and its rows there are not final")


def _imported(books: Books, page: Page, kv: Lease | None) -> None:
    incoming = _good(page)
    page.request.final = incoming.pages[-1].index * books.size
    require(page is not incoming.pages[-1], "S13", f"{page} is the tail of an import, and is called final")
    books.set_clean(page)


def _imported_tail(books: Books, page: Page, kv: Lease | None) -> None:
    incoming = _good(page)
    require(page is incoming.pages[-1], "S12", f"{page} is restored before it is on the host")
    _restore(books, page, kv)
    request = page.request
    request.final = page.index * books.size
    request.length = request.computed = incoming.tokens


def _good(page: Page) -> Import:
    incoming = page.request.incoming
    ok = incoming is not None and incoming.ok and not incoming.outside and page in incoming.pages
    require(ok, "S12", f"{page} is valid, and its import has not ended well")
    assert incoming is not None
    copied = incoming.copy is None or (incoming.copy.done and not incoming.copy.failed)
    require(copied, "S12", f"{page} is valid before the tail of its import was copied")
    return incoming


def _ended(page: Page, kind: str) -> Transfer:
    ended = page.ended
    require(ended is not None and ended.kind == kind, "S2", f"{page} leaves {page.state} with its transfer pending")
    assert ended is not None
    page.ended = None
    return ended


def _holds(page: Page, kv: Lease | None) -> None:
    if kv is not None and page.host is not None:
        kv.rows_of = (page.host.block, page.host.life)


RULES: dict[tuple[str, str], Rule] = {
    (FRESH, SPILLING): _spill,
    (SPILLING, PINNED): _durable,
    (SPILLING, FRESH): _not_durable,
    (PINNED, UNPINNED): _unpin,
    (UNPINNED, PINNED): _pin,
    (UNPINNED, HOST_ONLY): _lose,
    (HOST_ONLY, PINNED): _adopt,
    (HOST_ONLY, RESTORING): _restore,
    (RESTORING, PINNED): _restored,
    (RESTORING, FRESH): _restored_tail,
    (RESTORING, HOST_ONLY): _lost_restore,
    (RESTORING, HOLE): _not_restored,
    (HOLE, HOST_ONLY): _imported,
    (HOLE, RESTORING): _imported_tail,
}
