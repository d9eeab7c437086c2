"""The real coordinator in worlds of tags: seeded walks, judged after every public call."""

from __future__ import annotations

from collections import Counter

import pytest
from protocol.play import SETUPS, WEIGHTS, Story, play
from protocol.refinement import check_free_queue, read_by_several
from protocol.shrink import pytest_function, replay, shrink
from protocol.world import World

from spec.bounds import Bounds
from spec.state import NEW_REQUEST, Page, initial

SHORT, LONG = 600, 20_000  # actions of a walk


def right(name: str, story: Story) -> None:
    """Fails with the shortest story that can be found, as a test to keep."""
    if story.wrong:
        short = shrink(story)
        pytest.fail(f"seed {story.seed}, {len(story.actions)} actions: {story.wrong}\n{pytest_function(name, short)}")


@pytest.mark.parametrize("name", SETUPS)
def test_walks_go_right(name):
    for seed in range(2):
        right(name, play(SETUPS[name], seed, SHORT))


def test_a_page_that_several_requests_read_may_go_after_its_neighbours():
    head, tail = (Page(block, (block,), (), held=False, clean=True, proven=2) for block in (1, 2))
    first, second = NEW_REQUEST._replace(pages=(head, tail)), NEW_REQUEST._replace(pages=(tail,))
    both = initial(Bounds())._replace(requests=(first, second))
    shared = read_by_several(frozenset(), both)
    state = both._replace(requests=(first, NEW_REQUEST))
    assert shared == read_by_several(shared, state) == {(2,)}
    check_free_queue(([], []), ([], [(1,), (2,)]), ("step",), state, shared)
    with pytest.raises(AssertionError, match="a prefix loses its head first"):
        check_free_queue(([], []), ([], [(1,), (2,)]), ("step",), state, frozenset())


@pytest.mark.slow
@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.parametrize("seed", range(100, 112))
def test_long_walks_go_right(name, seed):
    right(name, play(SETUPS[name], seed, LONG))


def test_every_action_is_drawn_and_deep_situations_are_met():
    counts: Counter[str] = Counter()
    met: Counter[str] = Counter()
    for name, setup in SETUPS.items():
        story = play(setup, 1, SHORT)
        right(name, story)
        counts += story.counts
        met.update(situations(setup, story))
    assert set(counts) == set(WEIGHTS)
    assert {name for name, count in met.items() if count} >= {
        "adopted_pages", "restored_pages", "lost_pages", "spilled_pages", "published_pages", "moved_requests",
        "returned_requests", "overdue",
    }  # fmt: skip


def situations(setup, story: Story) -> dict[str, int]:
    world = World(setup)
    for action in story.actions:
        world.act(action)
    totals = world.c.snapshot().totals
    return {name: value for name in totals.__slots__ if isinstance(value := getattr(totals, name), int)}


def test_a_seed_repeats_its_walk():
    first, second = (play(SETUPS["mirrored"], 3, 200).actions for _ in range(2))
    assert first == second


class Forgetful(World):
    """A world in which nobody is told of pages that were lost."""

    def step(self, counts, failing=0):
        for player in self.players.values():
            for page in player.record.pages.table:
                if page.index == 1:
                    raise AssertionError("S1: page 1 is nowhere")
        super().step(counts, failing)


def test_a_failing_walk_shrinks_to_a_short_story_and_a_test(monkeypatch):
    monkeypatch.setattr("protocol.play.World", Forgetful)
    monkeypatch.setattr("protocol.shrink.World", Forgetful)
    setup = SETUPS["mirrored"]
    story = play(setup, 1, SHORT)
    assert story.wrong.startswith("AssertionError: S1")
    short = shrink(story)
    assert len(short.actions) < 8 < len(story.actions)
    assert replay(setup, short.actions).wrong == short.wrong
    namespace: dict[str, object] = {"World": Forgetful, "SETUPS": SETUPS}
    exec(pytest_function("mirrored", short), namespace)
    with pytest.raises(AssertionError, match="S1: page 1 is nowhere"):
        namespace["test_a_shrunk_story"]()  # type: ignore[operator]
