"""A failing walk made short: actions are left out as long as it fails in the same way (ddmin)."""

from __future__ import annotations

import time
from typing import Any

from protocol.play import Story, wrong_with
from protocol.rules import (
    free_ids,
    free_slots,
    is_whole,
    may_compute,
    may_end_step,
    may_finish,
    may_import,
    may_plan,
    may_seal,
    may_take_back,
    may_write,
)
from protocol.world import Action, Setup, World

SECONDS = 60.0  # for making a story short


def possible(world: World, action: Action) -> Action | None:
    """The action, cut down to what still makes sense after others were left out; or None."""
    kind, *arguments = action
    if kind == "admit":
        return action if arguments[0] in free_ids(world) and arguments[1] in free_slots(world) else None
    if kind == "step":
        return _possible_step(world, arguments) if may_plan(world) else None
    if kind in ("deliver", "lose"):
        return (kind, arguments[0] % len(world.facts), *arguments[1:]) if world.facts else None
    if kind == "run":
        return action if world.ranks[arguments[0]].stream else None
    if kind == "arrive":
        return action if world.ranks[arguments[0]].dma else None
    if kind == "step_done":
        return action if may_end_step(world) else None
    if kind in ("import_write", "import_end"):
        return action if arguments[0] in world.arrivals and _import_may(world, kind, arguments) else None
    if kind in ("reset", "restart"):
        return None if world.arrivals else action
    if kind in ("stranger", "query"):
        return action
    return action if arguments[0] in world.players and _request_may(world, kind, arguments) else None


def _possible_step(world: World, arguments: list[Any]) -> Action:
    counts = [c for c in arguments[0] if c[0] in world.players and may_compute(world, world.players[c[0]])]
    return ("step", tuple(counts), *arguments[1:])


def _import_may(world: World, kind: str, arguments: list[Any]) -> bool:
    if kind == "import_write":
        return may_write(world, arguments[0])
    return not arguments[1] or is_whole(world, arguments[0])


def _request_may(world: World, kind: str, arguments: list[Any]) -> bool:
    player = world.players[arguments[0]]
    if kind == "import_begin":
        return may_import(world, player) and player.computed < arguments[1] <= player.prompt
    return {"takeback": may_take_back, "seal": may_seal, "finish": may_finish, "abort": may_finish}.get(
        kind, lambda *_: True
    )(world, player)


def replay(setup: Setup, actions: list[Action]) -> Story:
    """The actions that are still possible, one after the other, up to the first that is wrong."""
    world, story = World(setup), Story(setup, -1)
    for action in actions:
        now = possible(world, action)
        if now is None:
            continue
        story.actions.append(now)
        story.wrong = wrong_with(world, now)
        if story.wrong:
            break
    return story


def kind_of(wrong: str) -> str:
    """The name of what was broken, without the particulars."""
    return " ".join(wrong.split()[:2])


def shrink(story: Story, seconds: float = SECONDS) -> Story:
    """The shortest story found in this time that goes wrong in the same way."""
    best, size = story, max(len(story.actions) // 2, 1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        start, shorter = 0, False
        while start < len(best.actions) and time.monotonic() < end:
            attempt = replay(story.setup, best.actions[:start] + best.actions[start + size :])
            if attempt.wrong and kind_of(attempt.wrong) == kind_of(story.wrong):
                best, shorter = attempt, True
            else:
                start += size
        if size == 1 and not shorter:
            break
        size = max(size // 2, 1)
    return best


def pytest_function(name: str, story: Story, of: str = 'SETUPS["{}"]') -> str:
    """The story as a test, ready to be kept. `of`: how its setup is written, given its name."""
    head = [f'    """{story.wrong.splitlines()[0][:100]}"""', f"    world = World({of.format(name)})"]
    body = "\n".join(["    story = ["] + [f"        {action!r}," for action in story.actions] + ["    ]"])
    return "\n".join(
        ["def test_a_shrunk_story():", *head, body, "    for action in story:", "        world.act(action)"]
    )
