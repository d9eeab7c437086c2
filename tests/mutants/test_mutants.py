"""The list of mutants is in step with the code, large enough, and a few of each family die at once."""

from __future__ import annotations

import pytest
from mutants.of_control import MUTANTS
from mutants.runner import CONTROL, DoesNotFit, patched, run

QUICK = [
    "free on plan",
    "adopt without pinning",
    "publish with a gap",
    "fence off",
    "a capacity query has a side effect",
]


def test_every_patch_fits_its_file():
    assert len(MUTANTS) >= 40
    assert sum(mutant.like is not None for mutant in MUTANTS) >= 10
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert patched(mutant, (CONTROL / mutant.file).read_text())


def test_a_patch_that_fits_nowhere_is_named():
    with pytest.raises(DoesNotFit, match="free on plan: its text occurs 0 times"):
        patched(next(mutant for mutant in MUTANTS if mutant.name == "free on plan"), "")


@pytest.mark.parametrize("name", QUICK)
def test_a_mutant_dies(name):
    [outcome] = run(next(mutant for mutant in MUTANTS if mutant.name == name), [1], seconds=30)
    assert outcome.killed_by, f"{name} survived {outcome.steps} steps"
