"""Every state of a small real world: the coordinator itself, with ranks that hold bytes, explored breadth first.

From each state every action of `choices` is done on a copy of the world and judged by all judges of
`World.act`. Worlds with equal fingerprints are one. In every state all that must change nothing is tried
as well (`noise`). What the calls were in the model is counted: a family that never did what it is there
for has failed, and `Choices` says how much of what the model leaves open control's policy makes use of.
"""

from __future__ import annotations

import io
import pickle
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from protocol.choices import every_action
from protocol.families import ALWAYS, Family
from protocol.fingerprint import fingerprint
from protocol.rules import may_seal
from protocol.world import Action, World

from spec.model import NotEnabled
from spec.state import State

PROGRESS_SECONDS = 5.0
CONTROL = ("spill", "unpin", "repin", "hot", "cool", "reuse", "evict", "restore")  # what a policy chooses among
OF_RANKS = {"enqueued": "enqueue", "completed": "complete", "copied": "complete", "failed": "fail"}
OF_TRANSPORTS = ("import_begin", "import_write", "import_end")
Story = list[Action]


class TooLarge(Exception):
    """The bound has more states than were asked for."""


@dataclass(slots=True)
class Choices:
    """Of one kind of decision: how many the model allowed in the states explored, how many control took there."""

    allowed: int = 0
    taken: int = 0


@dataclass(slots=True)
class Exploration:
    family: str
    states: int = 0
    edge: int = 0  # of these, states at the bound: judged, not gone on from
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)  # of the coordinator, by action
    kinds: Counter[str] = field(default_factory=Counter)  # what they were in the model
    beyond: Counter[str] = field(default_factory=Counter)  # legal, and not in the model
    choices: dict[str, Choices] = field(default_factory=dict)
    wrong: str = ""
    story: Story = field(default_factory=list)


class Saver:
    """Copies worlds, again and again. What never changes is shared by all copies."""

    def __init__(self, world: World) -> None:
        state = world.c._state
        self._shared = [world.setup, world.bounds, world.model, world.names, world.c._config, state.orders]
        self._place = {id(thing): place for place, thing in enumerate(self._shared)}

    def save(self, world: World) -> Saved:
        judged, world.state = world.state, None  # type: ignore[assignment]
        file = io.BytesIO()
        pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
        pickler.persistent_id = lambda thing: self._place.get(id(thing))  # type: ignore[method-assign]
        pickler.dump(world)
        world.state = judged
        return Saved(file.getvalue(), judged)

    def load(self, saved: Saved) -> World:
        unpickler = pickle.Unpickler(io.BytesIO(saved.world))
        unpickler.persistent_load = self._shared.__getitem__  # type: ignore[method-assign]
        world: World = unpickler.load()
        world.state = saved.state
        return world


class Saved(NamedTuple):
    world: bytes
    state: State


class Explorer:
    def __init__(self, name: str, family: Family, max_states: int | None = None) -> None:
        self.family, self.max_states = family, max_states
        self.found = Exploration(name)
        self.origin: dict[bytes, tuple[bytes, Story]] = {}

    def run(self, progress: Callable[[Exploration], None] = lambda _: None) -> Exploration:
        """Every state within the family's bounds; stops at the first thing that is wrong. Raises `TooLarge`."""
        found, start = self.found, time.monotonic()
        shown = start
        world = World(self.family.setup)
        for action in self.family.before:
            world.act(action)
        self.saver = Saver(world)
        first = fingerprint(world)
        self.origin[first] = (b"", list(self.family.before))
        layer = [(first, self.saver.save(world))]
        while layer and not found.wrong and found.depth < self.family.depth:
            found.depth += 1
            below: list[tuple[bytes, Saved]] = []
            for key, saved in layer:
                below += self.expand(key, saved)
                found.states, found.seconds = len(self.origin), time.monotonic() - start
                if found.wrong:
                    break
                if self.max_states is not None and found.states > self.max_states:
                    raise TooLarge(f"more than {self.max_states:,} states at depth {found.depth}")
                if time.monotonic() - shown > PROGRESS_SECONDS:
                    shown = time.monotonic()
                    progress(found)
            layer = below
        found.edge += len(layer)
        return found

    def expand(self, key: bytes, saved: Saved) -> list[tuple[bytes, Saved]]:
        """The new states that one action leads to."""
        new: list[tuple[bytes, Saved]] = []
        here = self.saver.load(saved)
        taken: set[Action] = set()
        actions = [action for action in every_action(here) if action[0] in self.family.actions]
        if not self.tried(key, [], lambda: noise(here, key)):
            return new
        for action in actions:
            world, done = self.saver.load(saved), [action]
            if not self.tried(key, done, lambda: self.follow(world, done, taken)):  # noqa: B023
                return new
            after = fingerprint(world)
            if after in self.origin:
                continue
            self.origin[after] = (key, done)
            if self.family.within(world):
                new.append((after, self.saver.save(world)))
            else:
                self.found.edge += 1
        self.found.kinds["query"] += 1
        self.count_choices(here, taken)
        return new

    def tried(self, key: bytes, done: Story, call: Callable[[], None]) -> bool:
        try:
            call()
        except Exception as error:  # whatever goes wrong is what the search is for
            self.found.wrong = f"{type(error).__name__}: {error}"
            self.found.story = [*self.story(key), *done]
            return False
        return True

    def follow(self, world: World, done: Story, taken: set[Action]) -> None:
        """Do an action, and what belongs to it where the family leaves no time in between."""
        self.act(world, done[0])
        taken.update(map(_choice, filter(_of_control, world.taken)))
        if self.family.setup.bounds.steps or done[0][0] != "step":
            return
        done.append(("end_step",))
        self.act(world, done[-1])
        for name, player in world.players.items() if self.family.setup.bounds.one_action_pages else ():
            if may_seal(world, player):
                done.append(("seal", name))
                self.act(world, done[-1])

    def act(self, world: World, action: Action) -> None:
        found = self.found
        found.transitions += 1
        found.calls[action[0]] += 1
        world.act(action)
        found.kinds.update([taken[0] for taken in world.taken])
        if world.beyond:
            found.beyond[world.beyond] += 1
        if action[0] == "hear" and action[2] in OF_RANKS:
            found.kinds[OF_RANKS[action[2]]] += 1
        if action[0] in OF_TRANSPORTS:
            found.kinds[action[0]] += 1
            found.kinds["cow"] += action[0] == "import_begin" and bool(world.c._state.transfers.copies)

    def count_choices(self, world: World, taken: set[Action]) -> None:
        model, state = world.model, world.state
        for action in filter(_of_control, model.candidates(state)):
            try:
                model.apply(state, action)
            except NotEnabled:
                continue
            choices = self.found.choices.setdefault(action[0], Choices())
            choices.allowed += 1
            choices.taken += _choice(action) in taken

    def story(self, key: bytes) -> Story:
        parts: list[Story] = []
        while key:
            key, actions = self.origin[key]
            parts.append(actions)
        return [action for part in reversed(parts) for action in part]


def missing(family: Family, found: Exploration) -> list[str]:
    """The kinds of actions of the model that the family exists for and that were never done."""
    return [kind for kind in (*ALWAYS, *family.kinds) if not found.kinds[kind]]


def noise(world: World, key: bytes) -> None:
    """What must change nothing: questions, reports told before, of transfers that are over, of strangers, and of
    a worker's earlier life."""
    world.query()
    for number in (*world.c._state.transfers.active, world.c._state.transfers.last_id + 1):
        world.stranger(number)
    for fact in (*world.told, *world.facts):
        if not world.waits_for(fact):
            world.c.apply(fact.report())
    assert fingerprint(world) == key, "B8: a question, or a report of nothing new, changed something"


def _of_control(action: Action) -> bool:
    return action[0] in CONTROL


def _choice(action: Action) -> Action:
    """A decision without the blocks it takes: blank ones are alike."""
    return action[:2] if action[0] in ("hot", "cool", "reuse", "evict") else action[:3]
