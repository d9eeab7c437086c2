"""The rules of the walks and of the explorer are those of the model."""

from __future__ import annotations

import random

import pytest
from protocol.choices import every_action
from protocol.families import FAMILIES
from protocol.play import SETUPS, WEIGHTS, enabled
from protocol.rules import may_end_step
from protocol.world import Action, Setup, World

from spec.model import Model, NotEnabled

ACTIONS = 400


def in_the_model(world: World) -> set[tuple[object, ...]]:
    """What the model lets happen to each request, and what the world adds to it: seals wait for the end of a
    step, an id is free while nothing of it is under way."""
    model, state = world.model, world.state
    by_slot = {player.slot: player for player in world.players.values()}
    allowed: set[tuple[object, ...]] = set()
    for slot in range(world.bounds.requests):
        player = by_slot.get(slot)
        for kind in ("seal", "takeback", "finish", "preempt"):
            if player is None or (kind == "seal" and player.planned in world.open_steps):
                continue
            if kind == "finish" and player.id in world.arrivals:
                continue
            if is_enabled(model, state, (kind, slot)):
                allowed.add((kind, player.id))
        if is_enabled(model, state, ("admit", slot, 0)):
            allowed.add(("admit", slot))
    if is_enabled(model, state, ("step_done",)) and may_end_step(world):
        allowed.add(("step_done",))
    return allowed


def is_enabled(model: Model, state: object, action: Action) -> bool:
    try:
        model.apply(state, action)  # type: ignore[arg-type]
    except NotEnabled:
        return False
    return True


KINDS = ("seal", "takeback", "finish", "preempt", "step_done")


@pytest.mark.parametrize("name", SETUPS)
def test_what_is_drawn_is_what_the_model_allows(name):
    draw, world = random.Random(11), World(SETUPS[name])
    for _ in range(ACTIONS):
        options = enabled(world, draw)
        allowed = in_the_model(world)
        assert {option[:2] for option in options if option[0] in KINDS} == {a for a in allowed if a[0] in KINDS}
        assert {option[2] for option in options if option[0] == "admit"} <= {a[1] for a in allowed if a[0] == "admit"}
        world.act(draw.choices(options, [WEIGHTS[option[0]] for option in options])[0])


@pytest.mark.parametrize("name", FAMILIES)
def test_every_choice_is_one_that_the_model_allows(name):
    """And what a walk would draw is among them, as far as they are of the same kind."""
    setup: Setup = FAMILIES[name].setup
    draw, world = random.Random(12), World(setup)
    for _ in range(ACTIONS):
        actions = list(every_action(world))
        assert len(set(actions)) == len(actions)
        allowed = in_the_model(world)
        assert {action[:2] for action in actions if action[0] in KINDS[:4]} == {a for a in allowed if a[0] in KINDS[:4]}
        assert {action[2] for action in actions if action[0] == "admit"} == {a[1] for a in allowed if a[0] == "admit"}
        drawn = [option for option in enabled(world, draw) if option[0] in ("import_begin", "import_write")]
        assert setup.moods or set(drawn) <= set(actions)
        world.act(draw.choice([action for action in actions if action[0] not in ("reset", "restart")]))
