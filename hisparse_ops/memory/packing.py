"""Packing of pieces into bins of one size: how units become groups.

A pool block has room for `capacity` layers. Every group costs a whole block per page, so the fewer
groups, the less is wasted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def first_fit(sizes: Sequence[int], capacity: int, order: Iterable[int] | None = None) -> list[list[int]]:
    """Put piece after piece into the first bin that has room for it.

    `order` is the order in which pieces are tried, by default as they come. Returns the bins as
    lists of piece numbers; every size must be <= `capacity`.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for piece in range(len(sizes)) if order is None else order:
        for number, left in enumerate(room):
            if sizes[piece] <= left:
                bins[number].append(piece)
                room[number] -= sizes[piece]
                break
        else:
            bins.append([piece])
            room.append(capacity - sizes[piece])
    return bins


def pack(sizes: Sequence[int], capacity: int) -> tuple[tuple[int, ...], ...]:
    """Few bins for `sizes`: first-fit with the largest piece first, unless the given order does better.

    Largest first usually needs fewest bins but not always, so taking the better of the two is what
    makes the result never worse than first-fit. Bins come out by their lowest piece, pieces ascending.
    """
    largest_first = sorted(range(len(sizes)), key=lambda piece: -sizes[piece])
    bins = min(first_fit(sizes, capacity, largest_first), first_fit(sizes, capacity), key=len)
    return tuple(sorted(tuple(sorted(pieces)) for pieces in bins))
