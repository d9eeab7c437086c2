"""What `gather_compact` promises beyond `gather_plan`."""

from __future__ import annotations

import torch
from worlds import ints, named_rows

import hisparse_ops
from hisparse_ops import MissPlan


def plan(host_rows: list[list[int]], device_rows: list[list[int]], starts: list[int], counts: list[int], device: str):
    planned = ints(host_rows, device), ints(device_rows, device), ints(counts, device), ints(starts, device)
    unused = ints([], device)
    return MissPlan(unused, unused, *planned)


def test_only_the_planned_part_is_loaded(device: str) -> None:
    """Entries behind a request's count are not read, even where they look like loads."""
    (host,) = named_rows(30, 1, 8, device)
    rows = torch.zeros(30, 8, dtype=torch.uint8, device=device)
    loads = plan([[1, 2], [3, 4], [5, 6]], [[11, 12], [13, 14], [15, 16]], [0, 2, 3], [3, 1], device)
    hisparse_ops.gather_compact([host], [rows], loads)
    loaded = [11, 12, 13, 15]
    assert torch.equal(rows[loaded], host[[1, 2, 3, 5]])
    assert rows.any(1).sum() == len(loaded)


def test_counts_beyond_the_plan_are_clamped(device: str) -> None:
    """A count never reaches into the next request's rows, into padding rows, or behind the tensor."""
    (host,) = named_rows(30, 1, 8, device)
    rows = torch.zeros(30, 8, dtype=torch.uint8, device=device)
    loads = plan([[1, 2], [3, 4], [5, 6]], [[11, 12], [13, 14], [15, 16]], [0, 1, 2], [2**31 - 1, -(2**31)], device)
    hisparse_ops.gather_compact([host], [rows], loads)
    assert torch.equal(rows[[11, 12]], host[[1, 2]])
    assert rows.any(1).sum() == 2


def test_starts_outside_the_plan_are_clamped(device: str) -> None:
    (host,) = named_rows(30, 1, 8, device)
    rows = torch.zeros(30, 8, dtype=torch.uint8, device=device)
    loads = plan([[1, 2]], [[11, 12]], [-7, 99, 3], [9, 9], device)
    hisparse_ops.gather_compact([host], [rows], loads)
    assert torch.equal(rows[[11, 12]], host[[1, 2]])
    assert rows.any(1).sum() == 2
