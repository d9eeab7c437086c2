"""The coordinator's plans carried out by the real worker on the CPU: walks whose every row is compared."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from protocol.play import Story, enabled, weights_of, wrong_with
from protocol.real_world import RealWorld, sizes
from protocol.shrink import pytest_function, shrink
from protocol.world import Setup

from spec.bounds import Bounds

ACTIONS = 1500
SEEDS = range(3)
# Two requests of 14 pages: full residency is 42 blocks each, a hot region 8.
BOUNDS = Bounds(
    requests=6, pages=14, gpu=72, host=34, shared=4, transfers=10_000, one_action_pages=False, steps=2, drafts=True,
    imports=True,
)  # fmt: skip
SETTINGS = {"live": 2, "step_rows": 4, "spill_budget": 4}
WORLDS = {
    "mirrored": Setup(replace(sizes(BOUNDS), mirror=True), **SETTINGS),
    "copied": Setup(sizes(BOUNDS), **SETTINGS),
}


def walk(setup: Setup, seed: int, counters: Counter[str]) -> Story:
    draw, world, story, weights = random.Random(seed), RealWorld(setup), Story(setup, seed), weights_of(setup)
    for _ in range(ACTIONS):
        options = enabled(world, draw)
        action = draw.choices(options, [weights[option[0]] for option in options])[0]
        story.actions.append(action)
        story.wrong = wrong_with(world, action)
        if story.wrong:
            break
    counters.update(world.memory.worker.counters())
    return story


@pytest.mark.parametrize("name", WORLDS)
def test_every_row_that_the_worker_reads_is_the_right_one(name, monkeypatch):
    counters: Counter[str] = Counter()
    for seed in SEEDS:
        story = walk(WORLDS[name], seed, counters)
        if story.wrong:
            monkeypatch.setattr("protocol.shrink.World", RealWorld)
            short = pytest_function(name, shrink(story), of='WORLDS["{}"]').replace(" World(", " RealWorld(")
            pytest.fail(f"seed {seed}, {len(story.actions)} actions: {story.wrong}\n{short}")
    met = {
        "resident",
        "miss",
        "stage_host_bytes",
        "restore_bytes",
        "mirror_bytes" if name == "mirrored" else "spill_bytes",
    }
    assert {kind for kind in met if not counters[kind]} == set()
    assert not counters["fault"]


def test_rows_that_are_counted_but_not_mirrored_are_seen(monkeypatch):
    monkeypatch.setattr("hisparse_ops.ops.mirror_rows", lambda *_: None)
    assert "S1" in walk(WORLDS["mirrored"], 0, Counter()).wrong


def test_a_page_that_is_not_brought_back_is_seen(monkeypatch):
    monkeypatch.setattr("hisparse_ops.worker.page_copies.PageCopies.restore", lambda self, restores: True)
    assert "S1" in walk(WORLDS["copied"], 0, Counter()).wrong
