"""Runs mutants: a copy of the control plane with one patch, walked until something is wrong.

Every mutant gets a process of its own, in which the patched package hides the real one. Nothing but
`control/` is copied: it needs neither torch nor anything else of ours.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from mutants.of_control import Mutant

ROOT = Path(__file__).parents[2]
CONTROL = ROOT / "hisparse_ops" / "control"
STEPS = 1200  # of a walk; then the next world
SECONDS = 10.0  # for one seed


@dataclass
class Outcome:
    seed: int
    killed_by: str  # "" = survived
    world: str
    steps: int
    seconds: float


class DoesNotFit(Exception):
    """The patch of a mutant no longer fits the code it is meant to break."""


def patched(mutant: Mutant, source: str) -> str:
    if source.count(mutant.old) != 1:
        raise DoesNotFit(f"{mutant.name}: its text occurs {source.count(mutant.old)} times in control/{mutant.file}")
    return source.replace(mutant.old, mutant.new)


def run(mutant: Mutant | None, seeds: list[int], seconds: float = SECONDS) -> list[Outcome]:
    """The outcome for each seed; `None` runs the control plane as it is."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "hisparse_ops"
        shutil.copytree(CONTROL, package / "control", ignore=shutil.ignore_patterns("__pycache__"))
        (package / "__init__.py").touch()
        if mutant is not None:
            file = package / "control" / mutant.file
            file.write_text(patched(mutant, file.read_text()))
        path = [folder, str(ROOT / "tests"), str(ROOT)]
        code = (
            f"import sys; sys.path[:0] = {path!r}; from mutants.runner import walk_all; walk_all({seeds!r}, {seconds})"
        )
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=folder, timeout=60 + 2 * seconds * len(seeds)
        )
    if done.returncode:
        return [Outcome(seed, f"does not start: {done.stderr.splitlines()[-1]}", "", 0, 0.0) for seed in seeds]
    return [Outcome(**json.loads(line)) for line in done.stdout.splitlines()]


def walk_all(seeds: list[int], seconds: float) -> None:
    """In the mutant's process: a line of JSON for each seed."""
    from protocol.play import SETUPS, play
    from protocol.shrink import kind_of

    for seed in seeds:
        start, steps, outcome, attempt = time.monotonic(), 0, None, 0
        while outcome is None:
            for name, setup in SETUPS.items():
                left = seconds - (time.monotonic() - start)
                story = play(setup, 1000 * seed + attempt, STEPS, seconds=left)
                steps += len(story.actions)
                spent = time.monotonic() - start
                if story.wrong:
                    outcome = Outcome(seed, kind_of(story.wrong), name, steps, round(spent, 2))
                    break
                if spent >= seconds:
                    outcome = Outcome(seed, "", "", steps, round(spent, 2))
                    break
            attempt += 1
        print(json.dumps(asdict(outcome)), flush=True)
