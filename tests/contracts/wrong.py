"""A contract that does not hold, in one place among very many: crosshair must find it. Not among the topics."""

from contracts.shapes import ledger


def no_request_has_987654_pages(tokens: int) -> None:
    assert tokens >= 0
    assert ledger().pages(tokens) != 987_654
