"""The model lives beside the package, not in it. The root goes last: the installed package wins."""

import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from spec.bounds import PROFILES
from spec.explore import Exploration, explore
from spec.model import Model
from spec.sometimes import Sometimes


class Explored(NamedTuple):
    profiles: dict[str, Exploration]
    sometimes: Sometimes
    taken: Counter[str]


@pytest.fixture(scope="session")
def explored() -> Explored:
    """The small profiles, explored once for all tests that ask."""
    sometimes, taken = Sometimes(), Counter()
    profiles = {name: explore(Model(PROFILES[name].bounds), sometimes) for name in ("pairs", "drafts", "copies")}
    for found in profiles.values():
        taken.update(found.actions)
    return Explored(profiles, sometimes, taken)
