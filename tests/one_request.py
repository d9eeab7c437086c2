"""The smallest world for `resolve`: one request on the host, an empty hot region, and words for what comes of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from worlds import FIRST_HOST_BLOCK, FIRST_HOT_BLOCK, World, ints

import hisparse_ops
from hisparse_ops import Batch, HotState, MissPlan, Tables

BLOCK = 4
STRIDE = 12


def one_request(pages: int, slots: int, device: str = "cpu") -> World:
    """A request on the host only, with an empty hot region of `slots` slots. Positions are set by the test."""
    hot_blocks = -(-slots // BLOCK)
    return World(
        topk=ints([[]], device),
        batch=Batch(ints([0, 1], device), ints([0], device)),
        tables=Tables(
            ints([range(FIRST_HOST_BLOCK, FIRST_HOST_BLOCK + pages)], device),
            ints([[0] * pages], device),
            ints([range(FIRST_HOT_BLOCK, FIRST_HOT_BLOCK + hot_blocks)], device),
            BLOCK,
            STRIDE,
        ),
        hot=HotState.allocate(1, slots, device),
    )


def ask(world: World, positions: Sequence[Sequence[int]]) -> MissPlan:
    """Resolves these query rows of the request."""
    topk = ints(positions, world.hot.clock.device)
    batch = Batch(ints([0, len(positions)], topk.device), world.batch.state_rows)
    plan = hisparse_ops.resolve(topk, batch, world.tables, world.hot)
    world.hot.check()
    return plan


def host_row(position: int) -> int:
    return FIRST_HOST_BLOCK * BLOCK + position


def hot_row(slot: int) -> int:
    return (FIRST_HOT_BLOCK + slot // BLOCK) * STRIDE + slot % BLOCK


def counted(world: World) -> dict[str, int]:
    return {name: count for name, count in world.hot.counts().items() if count}


def loads(plan: MissPlan, request: int = 0) -> list[tuple[int, int]]:
    """The request's part of the plan, as (host row, device row)."""
    count = int(plan.miss_counts[request])
    first = int(plan.query_start[request])
    rows = (plan.miss_host_rows[first:].flatten(), plan.miss_device_rows[first:].flatten())
    return list(zip(*(r[:count].tolist() for r in rows), strict=True))


def same_state(one: HotState, other: HotState) -> bool:
    pairs = zip(one.buffers(), other.buffers(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)
