"""Long walks in larger worlds: invariants hold, everything comes to an end, and every situation is met."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from mutants.of_the_model import UnpinDirty

from spec import cli
from spec.bounds import PROFILES
from spec.liveness import Fair, Stuck, check_liveness
from spec.model import Model, NotEnabled, kinds
from spec.walk import WORLD, WORLDS, walk


def test_every_situation_is_met_and_every_kind_of_action_taken(explored):
    sometimes, taken = explored.sometimes, set(explored.taken)
    for seed, bounds in product(range(4), WORLDS.values()):
        walked = walk(Model(bounds), seed, 1000, sometimes)
        assert not walked.broken, f"seed {seed}: {walked.message}"
        taken |= set(walked.actions)
        if not sometimes.missing:
            break
    assert not sometimes.missing
    assert len(sometimes.met) >= 20
    assert taken == kinds()


def test_a_seed_repeats_its_walk():
    first, second = (walk(Model(WORLD), 7, 300) for _ in range(2))
    assert first.story == second.story
    assert first.story != walk(Model(WORLD), 8, 300).story


def test_a_walk_stops_at_a_broken_invariant_and_tells_how_it_came_there():
    bounds = replace(PROFILES["core"].bounds, gpu=6)
    walked = next(w for w in (walk(UnpinDirty(bounds), seed, 3000) for seed in range(20)) if w.broken)
    assert walked.broken == "S5"
    assert walked.story[-1][0] == "unpin"


@pytest.mark.parametrize("bounds", WORLDS.values(), ids=WORLDS)
def test_from_anywhere_everything_comes_to_its_end(bounds):
    model = Model(bounds)
    story = walk(model, 11, 600).story
    state = model.initial()
    for count, action in enumerate(story):
        state = model.apply(state, action)
        if count % 10 == 0:
            check_liveness(model, state)


class NeverCompletes(Model):
    def complete(self, state, edit, i, rank):
        raise NotEnabled("a DMA engine")


class WaitsForGaps(Model):
    """A finished request waits for a page that will never be durable."""

    def end_detached(self, edit, r):
        if edit.requests[r].published == len(edit.requests[r].pages):
            super().end_detached(edit, r)


class StepsNeverEnd(Model):
    def step_done(self, state, edit):
        raise NotEnabled("a completion event")


class NobodyGivesWay(Model):
    def preempt(self, state, edit, r):
        raise NotEnabled("mercy")


class ForgetsOnPreemption(Model):
    def preempt(self, state, edit, r):
        super().preempt(state, edit, r)
        edit.prefix.clear()
        edit.copies.clear()


@pytest.mark.parametrize(
    ("model", "profile", "name"),
    [
        (NeverCompletes, "core", "L1"),
        (WaitsForGaps, "faults", "L2"),
        (StepsNeverEnd, "fence", "L[37]"),
        (NobodyGivesWay, "core", "L3"),
        (ForgetsOnPreemption, "core", "L6"),
    ],
)
def test_a_model_that_gets_stuck_is_noticed(model, profile, name):
    mutant = model(PROFILES[profile].bounds)
    with pytest.raises(Stuck, match=name):
        for seed in range(40):
            state = mutant.initial()
            for action in walk(mutant, seed, 60).story:
                state = mutant.apply(state, action)
                check_liveness(mutant, state)


def test_a_budget_of_one_page_starves_no_page():
    model = Model(replace(PROFILES["core"].bounds, pages=4, gpu=4, requests=1))
    state = model.apply(model.initial(), ("admit", 0, 0))
    for p in range(1, 5):
        state = model.apply(state, ("grow", 0, p, (p,)))
    state = Fair(model).drain(state)
    assert all(page.clean for page in state.requests[0].pages)


def test_a_search_that_leaves_something_out_fails(monkeypatch, capsys):
    monkeypatch.setitem(cli.SETS, "all", ["pairs"])
    monkeypatch.setattr(cli, "WALKS_FOR_SITUATIONS", 0)
    assert cli.main(["explore", "--profile", "all", "--requests", "1", "--pages", "1"]) == 1
    printed = capsys.readouterr().err
    assert "never taken: import_begin" in printed
    assert "never met: one block is unpinned under two readers" in printed
