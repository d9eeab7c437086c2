"""Every action that a world allows, with every argument: what an exhaustive search tries.

What leaves a world as it is (repeated, late and foreign reports, questions) is not among them, see
`explore.noise`. Ranks go on just as far as a report that is heard needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from protocol.moods import ROOMY
from protocol.ranks import Fact
from protocol.rules import (
    free_ids,
    free_slots,
    is_whole,
    may_compute,
    may_finish,
    may_import,
    may_plan,
    may_seal,
    may_take_back,
    may_write,
)
from protocol.world import Action, World

FAILING = 1  # spills that go wrong in a step with failures


def every_action(world: World) -> Iterator[Action]:
    yield from _admissions(world)
    for name, player in world.players.items():
        if may_take_back(world, player):
            yield ("takeback", name)
        if may_seal(world, player):
            yield ("seal", name)
        if may_finish(world, player):
            yield ("finish", name)
            yield ("abort", name)
        yield ("preempt", name)
    yield from _steps(world)
    yield from _imports(world)
    yield from _news(world)
    if world.open_steps:
        yield ("end_step",)
    if not world.arrivals:
        yield ("reset",)
        yield from [("restart", rank.number) for rank in world.ranks]


def _admissions(world: World) -> Iterator[Action]:
    """Each prompt length, each part of the prefix hit that the engine may want to use."""
    rows = world.bounds.rows
    for slot in free_slots(world):
        for prompt in range(1, world.bounds.pages * rows + 1):
            hashes = [world.hash_of(slot, page) for page in range(prompt // rows)]
            hit = min(world.c.cached_tokens(hashes), prompt - 1) // rows
            for reuse in (None, *range(0, hit * rows, rows)):
                for mood in landing_moods(world):
                    yield ("admit", free_ids(world)[0], slot, prompt, reuse, *mood)


def landing_moods(world: World) -> list[tuple[Any, ...]]:
    """A request that comes asks the policy about pressure alone."""
    return [mood for mood in world.moods() if not mood or mood[0] != ROOMY]


def _steps(world: World) -> Iterator[Action]:
    """Every request computes as much as it may, less, or nothing; with drafts, failures and skipped rows."""
    bounds = world.bounds
    if not may_plan(world):
        return
    options = []
    for name, player in world.players.items():
        if may_compute(world, player) and world.c.is_readable(name):
            most = min(world.setup.step_rows, bounds.pages * bounds.rows - player.computed)
            drafts = range(2 if bounds.drafts else 1)
            parts = [(name, rows, d, 0) for rows in range(most + 1) for d in drafts if 1 <= rows + d <= most]
            if bounds.faults and bounds.mirror:
                parts += [(*part[:3], 1) for part in parts]
            options.append([None, *parts])
    spills = any(request.owns(page) for request, page in world.c._state.spill_queue)
    failures = [0, FAILING] if bounds.faults and spills else [0]
    for chosen in product(*options):
        for failing in failures:
            for mood in world.moods():
                yield ("step", tuple([part for part in chosen if part is not None]), failing, *mood)


def _news(world: World) -> Iterator[Action]:
    """Everything that control waits to hear and that the ranks have done, or will do without its help."""
    for rank in world.ranks:
        facts = [fact for fact in world.facts if fact.rank == rank.number and fact.epoch == world.epoch]
        jobs = [job for work in rank.stream for job in work.jobs] + list(rank.dma)
        facts += [Fact(rank.number, world.epoch, job.kind, job.id) for job in jobs if job.kind != "ended"]
        for work in rank.stream:
            facts += [Fact(rank.number, world.epoch, "enqueued", number) for number in work.enqueued]
            facts += [Fact(rank.number, world.epoch, "failed", number) for number in work.failed]
        yield from [("hear", fact.rank, fact.kind, fact.id) for fact in facts if world.waits_for(fact)]


def _imports(world: World) -> Iterator[Action]:
    if not world.bounds.imports:
        return
    for name, player in world.players.items():
        if may_import(world, player):
            for tokens in range(player.computed + 1, player.prompt + 1):
                for mood in landing_moods(world):
                    yield ("import_begin", name, tokens, *mood)
    for name in world.arrivals:
        if may_write(world, name):
            yield ("import_write", name)
        yield ("import_end", name, False)
        if is_whole(world, name):
            yield ("import_end", name, True)
