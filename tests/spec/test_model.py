"""The model keeps its invariants within small bounds, and mistakes in it do not go unseen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mutants.of_the_model import MUTATIONS, Mutation

from spec.bounds import PROFILES, ReleaseAt
from spec.explore import TooLarge, explore
from spec.invariants import STATE_INVARIANTS, STEP_INVARIANTS
from spec.model import Model

ENOUGH = 60_000  # states within which every mutation shows


def test_no_invariant_breaks(explored):
    for found in explored.profiles.values():
        assert not found.broken, found.message
        assert found.states > 1000


@pytest.mark.parametrize("release_at", ReleaseAt)
def test_both_moments_of_release_are_safe(release_at):
    found = explore(Model(replace(PROFILES["pairs"].bounds, transfers=1, release_at=release_at)))
    assert not found.broken, found.message


def all_broken(mutation: Mutation, story) -> set[str]:
    """The names of all invariants that the last action of a story breaks."""
    model, broken = mutation.model(mutation.bounds), set()
    before = after = model.initial()
    for action in story:
        before, after = after, model.apply(after, action)
    for name, _, wrong in STATE_INVARIANTS:
        if wrong(mutation.bounds, after):
            broken.add(name)
    for name, _, wrong, kinds in STEP_INVARIANTS:
        if (not kinds or story[-1][0] in kinds) and wrong(mutation.bounds, before, story[-1], after):
            broken.add(name)
    return broken


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.model.__name__)
def test_a_mistake_in_the_model_breaks_the_invariant_that_forbids_it(mutation):
    found = explore(mutation.model(mutation.bounds), max_states=ENOUGH)
    assert found.broken, "no invariant noticed"
    assert mutation.invariant in all_broken(mutation, found.story), found.message


def test_every_invariant_has_a_mistake_that_breaks_it():
    assert {name for name, *_ in STATE_INVARIANTS + STEP_INVARIANTS} == {m.invariant for m in MUTATIONS}


def test_the_protocol_is_stated_completely():
    names = {name for name, *_ in STATE_INVARIANTS + STEP_INVARIANTS}
    assert names == {f"S{i}" for i in range(1, 20)} | {f"B{i}" for i in range(1, 15)}


def test_a_bound_too_large_for_memory_is_refused_before_it_starts():
    with pytest.raises(TooLarge, match=r"more than [\d,]+ states, and memory holds about"):
        explore(Model(replace(PROFILES["core"].bounds, requests=8, pages=8, gpu=64, host=64)))


def test_a_bound_that_outgrows_memory_stops_in_a_sentence():
    with pytest.raises(TooLarge, match="more than 50 states at depth"):
        explore(Model(PROFILES["pairs"].bounds), max_states=50)
