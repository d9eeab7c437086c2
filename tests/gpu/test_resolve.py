"""`resolve` on a GPU equals the CPU on histories, at every size that chooses another kernel or fills a warp oddly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from .histories import History, Shape

pytestmark = pytest.mark.gpu

ODD_SIZES = [1, 2, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025]


def run(shape: Shape, steps: int, seed: int = 0) -> History:
    history = History(shape, seed)
    for _ in range(steps):
        history.resolve(history.advance())
    return history


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_small_histories(data: st.DataObject) -> None:
    share = st.sampled_from([0.0, 0.3, 0.9, 1.0])
    shape = Shape(
        rows=data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=5)),
        columns=data.draw(st.integers(1, 70)),
        slots=data.draw(st.integers(1, 150)),
        pages=data.draw(st.integers(1, 12)),
        block_size=data.draw(st.integers(1, 20)),
        stride_factor=data.draw(st.integers(1, 4)),
        padding_rows=data.draw(st.integers(0, 3)),
        resident=data.draw(share),
        mapped=data.draw(share),
        leased=data.draw(share),
        overlap=data.draw(share),
    )
    run(shape, steps=5, seed=data.draw(st.integers(0, 99)))


@pytest.mark.parametrize("slots", ODD_SIZES)
@pytest.mark.parametrize("columns", ODD_SIZES)
def test_odd_sizes(slots: int, columns: int) -> None:
    run(Shape(rows=(1, 2, 1), columns=columns, slots=slots, pages=40, block_size=64), steps=6)


@pytest.mark.parametrize(
    "shape",
    {
        "few requests": Shape(rows=(1,) * 8, columns=2048, slots=4096, pages=200, block_size=64),
        "many requests": Shape(rows=(1,) * 200, columns=2048, slots=4096, pages=100, block_size=64),
        "6144 slots": Shape(rows=(1,) * 4, columns=2048, slots=6144, pages=300, block_size=64),
        "8192 slots": Shape(rows=(1,) * 4, columns=2048, slots=8192, pages=300, block_size=64),
        "10,240 slots": Shape(rows=(1,) * 4, columns=2048, slots=10_240, pages=300, block_size=64),
        "12,288 slots": Shape(rows=(1,) * 4, columns=2048, slots=12_288, pages=300, block_size=64),
        "verification": Shape(rows=(4, 4, 0, 4), columns=2048, slots=10240, pages=200, block_size=64),
        "verification, 12,000 slots": Shape(rows=(4, 4, 0, 4), columns=2048, slots=12_000, pages=200, block_size=64),
        "verification, half the SMs": Shape(
            rows=(4, 3, 4, 4) * 10, columns=2048, slots=10240, pages=200, block_size=64
        ),
        "verification, all SMs": Shape(rows=(4, 4, 3, 4) * 18, columns=2048, slots=10240, pages=200, block_size=64),
        "parts of several rows": Shape(rows=(9, 12, 0, 7), columns=600, slots=7000, pages=300, block_size=16),
        "uneven verification": Shape(rows=(1, 7, 4, 0), columns=2048, slots=10240, pages=200, block_size=64),
        "any number of slots": Shape(rows=(2, 1), columns=2048, slots=70_000, pages=1500, block_size=64),
        "union in chunks": Shape(rows=(30, 1), columns=700, slots=4096, pages=200, block_size=64, resident=0.1),
        "too few slots": Shape(rows=(9, 2), columns=2048, slots=1500, pages=200, block_size=64, overlap=0.9),
        "no multiples of four": Shape(rows=(1, 2, 1), columns=1022, slots=4094, pages=200, block_size=64),
        "1024 requests": Shape(rows=(1,) * 1024, columns=128, slots=256, pages=20),
        "one wide row": Shape(rows=(1,), columns=40_000, slots=50_000, pages=1500, block_size=64),
    }.items(),
    ids=lambda case: case[0],
)
@pytest.mark.parametrize("leased", [0.95, 1.0])
def test_every_kernel(shape: tuple[str, Shape], leased: float) -> None:
    history = run(shape[1]._replace(leased=leased), steps=5)
    assert (history.cpu[3] > 0).all(), "a history without hits, misses, faults, ... proves little"


@pytest.mark.parametrize("slots", [300, 5000, 20_000])
@pytest.mark.parametrize("spread", [2, 60, 100, 400, 5000, 2**31 - 10])
def test_stamps_far_apart(slots: int, spread: int) -> None:
    """Victims are looked for in windows of stamps; here they need many."""
    shape = Shape(rows=(1, 2), columns=600, slots=slots, pages=600, block_size=64, resident=0, overlap=0)
    history = run(shape, steps=2)
    for _ in range(3):
        history.scatter_stamps(spread)
        history.resolve(history.advance())


@pytest.mark.parametrize(
    "starts", [[0, 3, 1, 4, 6], [4, 2, 5, 9, 99], [-5, 2, 2, -1, 3], [7, 6, 5, 4, 3], [2, 2, 3, 8, 6], [9, 0, 0, 0, 0]]
)
def test_query_start_that_runs_backwards(starts: list[int]) -> None:
    history = History(Shape(rows=(1, 1, 1, 1), columns=40, padding_rows=6), seed=3)
    history.query_start = torch.tensor(starts, dtype=torch.int32)
    for _ in range(4):
        topk, query_start, states = history.advance()
        history.resolve((topk, query_start, states))
        history.resolve((topk, query_start, torch.tensor([2, 2, 5, 99], dtype=torch.int32)))


def test_a_row_cached_twice() -> None:
    """Nobody writes such a state; if somebody does, both devices read it alike."""
    history = run(Shape(rows=(1, 2), columns=100, slots=200), steps=3)
    for state in (history.cpu, history.gpu):
        state[0][:, 100:150] = state[0][:, 20:70]
    for _ in range(3):
        history.resolve(history.advance())


def test_outputs_are_written_whole(poisoned: None) -> None:
    run(Shape(rows=(1, 0, 3, 2), columns=77, padding_rows=9), steps=4)


def test_more_slots_than_any_kernel_serves() -> None:
    slots, block_size = (1 << 30) + 1, 1 << 20
    large = [torch.empty(1, slots, dtype=torch.int32, device="cuda") for _ in range(2)]
    one, clock = (torch.zeros(1, dtype=torch.int32, device="cuda") for _ in range(2))
    table = torch.zeros(1, -(-slots // block_size), dtype=torch.int32, device="cuda")
    counters = torch.zeros(5, dtype=torch.int64, device="cuda")
    starts = torch.tensor([0, 1], dtype=torch.int32, device="cuda")
    with pytest.raises(RuntimeError, match="slots"):
        torch.ops.hisparse.resolve(
            one.view(1, 1), starts, one, table, table, table, *large, clock, counters, block_size, block_size
        )
    assert int(clock) == 0


def test_tables_whose_rows_are_far_apart() -> None:
    lines = torch.zeros(2, (1 << 30) + 1, dtype=torch.int32, device="cuda")[:, :1]
    one, clock = torch.zeros(1, dtype=torch.int32, device="cuda"), torch.zeros(2, dtype=torch.int32, device="cuda")
    table, slots = clock.view(2, 1), clock.view(2, 1).clone()
    counters = torch.zeros(5, dtype=torch.int64, device="cuda")
    starts = torch.tensor([0, 1], dtype=torch.int32, device="cuda")
    with pytest.raises(RuntimeError, match="host_table must have rows less than 4 GiB apart"):
        torch.ops.hisparse.resolve(
            one.view(1, 1), starts, one, lines, table, table, slots, slots.clone(), clock, counters, 1, 1
        )
    assert clock.tolist() == [0, 0]
