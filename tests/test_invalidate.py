"""What `invalidate`, `invalidate_blocks` and `reset_rows` promise."""

from __future__ import annotations

import torch
from worlds import ints

import hisparse_ops
from hisparse_ops import HotState


def filled(device: str) -> HotState:
    hot = HotState.allocate(3, 4, device)
    hot.slot_rows.copy_(ints([[40, 41, 42, -1], [44, 41, 7, 4000], [-1, 0, 3, 1]], device))
    hot.slot_stamps.copy_(ints([[1, 2, 3, 4]] * 3, device))
    hot.clock.fill_(4)
    return hot


def test_exact_pairs_only(device: str) -> None:
    hot = filled(device)
    hisparse_ops.invalidate(hot.slot_rows, ints([0, 1, 1], device), ints([41, 42, 4000], device))
    assert hot.slot_rows.tolist() == [[40, -1, 42, -1], [44, 41, 7, -1], [-1, 0, 3, 1]]


def test_numbers_that_mean_nothing(device: str) -> None:
    hot, before = filled(device), filled(device)
    states, rows = [-1, 3, 2**31 - 1, -(2**31), 0, 0, 0], [41, 41, 41, 41, -1, -(2**31), 2**31 - 1]
    hisparse_ops.invalidate(hot.slot_rows, ints(states, device), ints(rows, device))
    hisparse_ops.invalidate_blocks(hot.slot_rows, ints([-1, -(2**31), 2**31 - 1], device), 4)
    hisparse_ops.reset_rows(hot.slot_rows, hot.slot_stamps, hot.clock, ints([-1, 3, 2**31 - 1, -(2**31)], device))
    for tensor, old in zip(hot.buffers(), before.buffers(), strict=True):
        assert torch.equal(tensor, old)


def test_blocks_of_every_state_row(device: str) -> None:
    hot = filled(device)
    hisparse_ops.invalidate_blocks(hot.slot_rows, ints([10, 1000, 1], device), 4)
    assert hot.slot_rows.tolist() == [[-1, -1, -1, -1], [44, -1, -1, -1], [-1, 0, 3, 1]]


def test_many_pairs_for_one_state_row(device: str) -> None:
    """More pairs than slots, in any order and with repetitions."""
    hot = HotState.allocate(2, 100, device)
    hot.slot_rows[1] = torch.arange(100, dtype=torch.int32, device=device) * 3
    rows = torch.cat((torch.arange(300), torch.arange(300))).int().flip(0).to(device)
    rows = rows[rows != 150]
    hisparse_ops.invalidate(hot.slot_rows, torch.ones_like(rows), rows)
    assert hot.slot_rows[1][hot.slot_rows[1] >= 0].tolist() == [150]


def test_a_new_owner_starts_empty(device: str) -> None:
    hot, before = filled(device), filled(device)
    hisparse_ops.reset_rows(hot.slot_rows, hot.slot_stamps, hot.clock, ints([2, 0], device))
    for state in (0, 2):
        assert hot.slot_rows[state].eq(-1).all()
        assert hot.slot_stamps[state].eq(0).all() and hot.clock[state] == 0
    for tensor, old in zip((hot.slot_rows, hot.slot_stamps, hot.clock), before.buffers(), strict=False):
        assert torch.equal(tensor[1], old[1])
