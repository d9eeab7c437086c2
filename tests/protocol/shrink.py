"""A failing walk made short: actions are left out as long as it fails in the same way (ddmin)."""

from __future__ import annotations

from protocol.play import Story, wrong_with
from protocol.world import Action, Setup, World


def possible(world: World, action: Action) -> Action | None:
    """The action, cut down to what still makes sense after others were left out; or None."""
    kind, *arguments = action
    if kind == "admit":
        taken = {player.slot for player in world.players.values()} | set(world.slots.values())
        busy = {slot for slot in taken if world.state.requests[slot].status}
        name, slot = arguments[0], arguments[1]
        return None if name in world.players or name in world.arrivals or slot in busy else action
    if kind == "step":
        if len(world.open_steps) >= max(world.bounds.steps, 1):
            return None
        counts = tuple([c for c in arguments[0] if c[0] in world.players and _may_compute(world, c[0])])
        return ("step", counts, arguments[1])
    if kind in ("deliver", "lose"):
        return (kind, arguments[0] % len(world.facts), *arguments[1:]) if world.facts else None
    if kind == "run":
        return action if world.ranks[arguments[0]].stream else None
    if kind == "arrive":
        return action if world.ranks[arguments[0]].dma else None
    if kind == "step_done":
        ended = world.open_steps and all(rank.ended >= min(world.open_steps) for rank in world.ranks)
        return action if ended else None
    if kind in ("import_write", "import_end"):
        return action if arguments[0] in world.arrivals and _import_may(world, action) else None
    if kind in ("reset", "restart"):
        return None if world.arrivals else action
    if kind in ("stranger", "query"):
        return action
    return action if arguments[0] in world.players and _request_may(world, kind, arguments) else None


def _may_compute(world: World, name: str) -> bool:
    player = world.players[name]
    return name not in world.arrivals and player.record.incoming is None and not player.draft


def _import_may(world: World, action: Action) -> bool:
    arrival = world.arrivals[action[1]]
    whole = arrival.written == len(arrival.started.pages)
    after = arrival.started.after_step
    if action[0] == "import_write":
        return not whole and (after is None or after not in world.open_steps)
    return whole or not action[2]


def _request_may(world: World, kind: str, arguments: list[object]) -> bool:
    player = world.players[str(arguments[0])]
    if kind == "takeback":
        return player.draft > 0
    if kind == "preempt":
        return True
    if player.id in world.arrivals or player.record.incoming is not None:
        return False
    if kind == "seal":
        return player.planned not in world.open_steps and player.computed - player.draft > player.record.final_tokens
    if kind == "import_begin":
        rows = world.bounds.rows
        fresh = player.planned < 0 and player.computed == player.record.final_tokens
        return fresh and len(player.record.pages) * rows == player.computed < min(player.prompt, int(str(arguments[1])))
    return True


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


def shrink(story: Story, tries: int = 400) -> Story:
    """The shortest story found that goes wrong in the same way."""
    best, size = story, max(len(story.actions) // 2, 1)
    while tries > 0:
        start, shorter = 0, False
        while start < len(best.actions) and tries > 0:
            tries -= 1
            attempt = replay(story.setup, best.actions[:start] + best.actions[start + size :])
            if attempt.wrong and kind_of(attempt.wrong) == kind_of(story.wrong):
                best, shorter = attempt, True
            else:
                start += size
        if size == 1 and not shorter:
            break
        size = max(size // 2, 1)
    return best


def pytest_function(setup_name: str, story: Story) -> str:
    """The story as a test, ready to be kept."""
    head = [f'    """{story.wrong.splitlines()[0][:100]}"""', f'    world = World(SETUPS["{setup_name}"])']
    body = "\n".join(["    story = ["] + [f"        {action!r}," for action in story.actions] + ["    ]"])
    return "\n".join(
        ["def test_a_shrunk_story():", *head, body, "    for action in story:", "        world.act(action)"]
    )
