"""What `HotState` promises beyond holding tensors."""

from __future__ import annotations

import pytest
import torch

from hisparse_ops import HotState


def test_starts_empty(device: str) -> None:
    hot = HotState.allocate(3, 5, device)
    assert (hot.state_rows, hot.hot_slots) == (3, 5)
    assert hot.slot_rows.eq(-1).all() and hot.slot_stamps.eq(0).all()
    assert hot.clock.tolist() == [0, 0, 0]
    assert hot.counts() == {"resident": 0, "hit": 0, "miss": 0, "padding": 0, "fault": 0}
    hot.check()


@pytest.mark.parametrize(("state_rows", "hot_slots"), [(0, 4), (4, 0), (-1, 4)])
def test_sizes_below_one(state_rows: int, hot_slots: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        HotState.allocate(state_rows, hot_slots)


def test_is_part_of_a_module_but_not_of_its_checkpoint() -> None:
    module = torch.nn.Module()
    module.hot = HotState.allocate(2, 4)
    assert {name for name, _ in module.named_buffers()} == {
        f"hot.{name}" for name in ("slot_rows", "slot_stamps", "clock", "counters")
    }
    assert not module.state_dict()


@pytest.mark.parametrize("damage", ["twice", "negative", "future"])
def test_check_names_what_is_broken(damage: str) -> None:
    hot = HotState.allocate(2, 4)
    if damage == "future":
        hot.slot_stamps[1, 0] = 1
    else:
        hot.slot_rows[1, :2] = 7 if damage == "twice" else -2
    with pytest.raises(AssertionError, match="state row 1"):
        hot.check()


def test_a_region_that_grows_keeps_what_it_knows(device: str) -> None:
    hot = HotState.allocate(2, 3, device)
    for number, tensor in enumerate((hot.slot_rows, hot.slot_stamps, hot.clock, hot.counters), start=1):
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) + 100 * number)
    larger = hot.grown(5)
    assert torch.equal(larger.slot_rows[:, :3], hot.slot_rows) and larger.slot_rows[:, 3:].eq(-1).all()
    assert torch.equal(larger.slot_stamps[:, :3], hot.slot_stamps) and larger.slot_stamps[:, 3:].eq(0).all()
    assert torch.equal(larger.clock, hot.clock) and torch.equal(larger.counters, hot.counters)
    with pytest.raises(ValueError, match="hot_slots must be at least the present 3, got 2"):
        hot.grown(2)
