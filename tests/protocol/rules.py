"""What may happen in a world's present state, asked of the world itself.

The model says the same, at a hundred times the price: that both agree is tested (`test_choices.py`).
"""

from __future__ import annotations

from protocol.world import Player, World

IDS = ("a", "b", "c", "d")


def free_slots(world: World) -> list[int]:
    """Slots of which no request is left, not even one that waits to be published."""
    control = world.c._state
    taken = {world.slots[request] for request in (*control.live.values(), *control.detached)}
    return [slot for slot in range(world.bounds.requests) if slot not in taken]


def free_ids(world: World) -> list[str]:
    return [name for name in IDS if name not in world.players and name not in world.arrivals]


def is_importing(world: World, player: Player) -> bool:
    return player.id in world.arrivals or player.record.incoming is not None


def may_compute(world: World, player: Player) -> bool:
    """Rows that may be taken back are settled before more are computed."""
    return not is_importing(world, player) and not player.draft


def may_take_back(world: World, player: Player) -> bool:
    return player.draft > 0 and not is_importing(world, player)


def may_seal(world: World, player: Player) -> bool:
    """Whether rows of a step that is over have become final."""
    final = player.computed - player.draft
    over = player.planned not in world.open_steps
    return over and not is_importing(world, player) and player.record.final_tokens < final


def may_finish(world: World, player: Player) -> bool:
    return not is_importing(world, player)


def may_plan(world: World) -> bool:
    return len(world.open_steps) < max(world.bounds.steps, 1)


def may_end_step(world: World) -> bool:
    """Whether every rank is through with the oldest step."""
    return bool(world.open_steps) and all(rank.ended >= min(world.open_steps) for rank in world.ranks)


def may_import(world: World, player: Player) -> bool:
    """A request that has computed nothing, and whose prompt is longer than its prefix hit."""
    pages = len(player.record.pages) * world.bounds.rows
    fresh = player.planned < 0 and player.id not in world.arrivals and player.computed == player.record.final_tokens
    return fresh and pages == player.computed < player.prompt


def is_whole(world: World, name: str) -> bool:
    """Whether the transport has brought every page of an import."""
    arrival = world.arrivals[name]
    return arrival.written == len(arrival.started.pages)


def may_write(world: World, name: str) -> bool:
    """Whether the transport may bring the next page: steps in flight may still read what was there."""
    after = world.arrivals[name].started.after_step
    return not is_whole(world, name) and (after is None or after not in world.open_steps)
