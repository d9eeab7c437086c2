"""Walks for volume: a thousand times as many actions as can be judged one by one.

| always                                              | every n-th action, and the last                    |
|-----------------------------------------------------|----------------------------------------------------|
| the bytes that a step reads, through worker tables  | the invariants of the model, before and after      |
| the tables that the worker was told (B13)           | control's books against the model's after the call |
| calls that raise                                    | the free queue, `check()`                          |

Judging the books costs a hundred times what the call costs, and what is wrong with them stays wrong for
long: a count, a lease or a hash that is off is found at the next judged action, if its bytes have not
told before. A walk that goes wrong is done again with every action judged, so that it ends where it
began to go wrong, and is then made short.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from protocol.abstraction import abstract
from protocol.play import Story, drawn, weights_of, wrong_with
from protocol.shrink import replay, shrink
from protocol.world import Setup, World

EPISODE = 4000  # actions of one world; then a new one, so that a story that goes wrong is not too long to replay
JUDGED_EVERY = 64


@dataclass
class Volume:
    """What was walked in one kind of world, with seeds `seed`, `seed + 1`, ..."""

    world: str
    seed: int
    episodes: int = 0
    actions: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    story: Story | None = None  # the short story of what went wrong


def walk(name: str, setup: Setup, seed: int, actions: int, every: int = JUDGED_EVERY) -> Volume:
    """`actions` seeded actions, in episodes with a seed each; stops at the first that goes wrong."""
    done = Volume(name, seed)
    while done.actions < actions and done.story is None:
        story = episode(setup, seed, min(EPISODE, actions - done.actions), every)
        done.episodes += 1
        done.actions += len(story.actions)
        done.counts += story.counts
        if story.wrong:
            judged = replay(setup, story.actions)
            done.story = shrink(judged) if judged.wrong else story
            done.story.seed = seed
        seed += 1
    return done


def episode(setup: Setup, seed: int, actions: int, every: int = JUDGED_EVERY) -> Story:
    """One world from its beginning."""
    draw, world, story, weights = random.Random(seed), World(setup), Story(setup, seed), weights_of(setup)
    for number in range(1, actions + 1):
        action = drawn(world, draw, weights)
        story.actions.append(action)
        story.counts[action[0]] += 1
        if number % every == 0 or number == actions:
            catch_up(world)
            story.wrong = wrong_with(world, action)
        else:
            story.wrong = wrong_with(world, action, judged=False)
        if story.wrong:
            break
    return story


def catch_up(world: World) -> None:
    """What the judges know of the world before an action, after others that they have not seen. They have not
    seen what was leased, nor which pages were read by several requests: those may be reused in any order."""
    world.wipe_blank()
    world.state = abstract(world)
    world.leased.clear()
    world.shared = frozenset([page.gpu for request in world.state.requests for page in request.pages])
