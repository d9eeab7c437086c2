"""The list of mutants is in step with the code, large enough, and a few of each family die at once."""

from __future__ import annotations

import pytest
from mutants import data_plane
from mutants.data_plane import ROOT, Unfit
from mutants.of_control import MUTANTS
from mutants.of_data_plane import OPS_MUTANTS
from mutants.runner import CONTROL, DoesNotFit, judge_of, patched, run

QUICK = [
    "free on plan",
    "adopt without pinning",
    "publish with a gap",
    "fence off",
    "a capacity query has a side effect",
]

# Faults that need a rare situation, and the world that is made for it.
RARE = {
    "an import that lands on the host is not told": "imports",
    "a short mirror taints the first page only": "short mirrors",
}


def test_every_patch_fits_its_file():
    assert len(MUTANTS) >= 40
    assert sum(mutant.like is not None for mutant in MUTANTS) >= 10
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert patched(mutant, (CONTROL / mutant.file).read_text())


def test_every_patch_of_the_data_plane_fits_its_file():
    assert len(OPS_MUTANTS) >= 15
    assert len({mutant.name for mutant in OPS_MUTANTS}) == len(OPS_MUTANTS)
    for mutant in OPS_MUTANTS:
        assert data_plane.patched(mutant, (ROOT / mutant.file).read_text())
        assert all((ROOT / "tests" / test).is_file() for test in mutant.tests)
    with pytest.raises(Unfit, match=f"{OPS_MUTANTS[0].name}: its text occurs 0 times"):
        data_plane.patched(OPS_MUTANTS[0], "")


@pytest.mark.parametrize(
    ("wrong", "judge"),
    [
        ("", ""),
        ("Broken: S7 broken: The last two ...", "invariant S7"),
        ("AssertionError: model: prefix after deliver ...", "the model's books"),
        ("AssertionError: S1: page 3 of state row 0 is nowhere", "bytes and tables: S1"),
        ("AssertionError: a prefix loses its head first: ...", "the free queue"),
        ("AssertionError: s5_unpinned_pages_are_durable_and_idle: ...", "check(): s5"),
        ("AssertionError: ", "control raises AssertionError"),
        ("KeyError: 17", "control raises KeyError"),
    ],
)
def test_who_saw_it(wrong, judge):
    assert judge_of(wrong) == judge


def test_a_patch_that_fits_nowhere_is_named():
    with pytest.raises(DoesNotFit, match="free on plan: its text occurs 0 times"):
        patched(next(mutant for mutant in MUTANTS if mutant.name == "free on plan"), "")


@pytest.mark.parametrize("name", QUICK)
def test_a_mutant_dies(name):
    [outcome] = run(next(mutant for mutant in MUTANTS if mutant.name == name), [1], seconds=30)
    assert outcome.killed_by, f"{name} survived {outcome.steps} steps"


@pytest.mark.parametrize(("name", "world"), RARE.items())
def test_a_world_meets_what_it_is_made_for(name, world):
    """Else ten seconds of walks, in all worlds, miss it on some seeds."""
    outcomes = run(next(mutant for mutant in MUTANTS if mutant.name == name), list(range(20)), seconds=30, only=world)
    assert sum(bool(outcome.killed_by) for outcome in outcomes) >= 10
