"""Runs mutants: a copy of the control plane with one patch, walked until something is wrong.

Every mutant gets a process of its own, in which the patched package hides the real one. Nothing but
`control/` is copied: it needs neither torch nor anything else of ours. Short walks go round all worlds
before any world is met again, so that a mutant meets early the world that is made for it. Time is
processor time: what others do on the machine is no merit and no fault of a test.
"""

from __future__ import annotations

import json
import os
import re
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
STEPS = 400  # of a walk; then the next world
SECONDS = 10.0  # for one seed
TESTS_FAILED = 1  # pytest's exit status
PATIENCE = 20  # times as long by the clock as in processor time


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


def run(mutant: Mutant | None, seeds: list[int], seconds: float = SECONDS, only: str = "") -> list[Outcome]:
    """The outcome for each seed; `None` runs the control plane as it is. With `only`, a walk in that world is all."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "hisparse_ops"
        shutil.copytree(CONTROL, package / "control", ignore=shutil.ignore_patterns("__pycache__"))
        (package / "__init__.py").touch()
        if mutant is not None:
            file = package / "control" / mutant.file
            file.write_text(patched(mutant, file.read_text()))
        path = [folder, str(ROOT / "tests"), str(ROOT)]
        walks = f"walk_all({seeds!r}, {seconds}, {only!r})"
        code = f"import sys; sys.path[:0] = {path!r}; from mutants.runner import walk_all; {walks}"
        command = [sys.executable, "-c", code]
        patience = 60 + PATIENCE * seconds * len(seeds)
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=patience)
        noticed = mutant is not None and bool(mutant.directed) and _fails(mutant.directed, folder)
    if done.returncode:
        return [Outcome(seed, f"does not start: {done.stderr.splitlines()[-1]}", "", 0, 0.0) for seed in seeds]
    outcomes = [Outcome(**json.loads(line)) for line in done.stdout.splitlines()]
    for outcome in outcomes:
        if noticed and not outcome.killed_by:
            outcome.killed_by = "a directed test"
    return outcomes


def _fails(test: str, folder: str) -> bool:
    """Whether a test of control fails over the patched package in `folder`."""
    options = ["-q", "--noconftest", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    command = [sys.executable, "-P", "-m", "pytest", *options, str(ROOT / "tests" / test)]
    environment = {**os.environ, "PYTHONPATH": folder}
    return subprocess.run(command, capture_output=True, env=environment, cwd=folder).returncode == TESTS_FAILED


def walk_all(seeds: list[int], seconds: float, only: str) -> None:
    """In the mutant's process: a line of JSON for each seed."""
    for seed in seeds:
        print(json.dumps(asdict(_walk(seed, seconds, only))), flush=True)


def _walk(seed: int, seconds: float, only: str) -> Outcome:
    """Round after round through all worlds, until something is wrong or time is up."""
    from protocol.play import SETUPS, play

    start, steps, attempt = time.process_time(), 0, 0
    while True:
        for name in [only] if only else SETUPS:
            left = seconds - (time.process_time() - start)
            story = play(SETUPS[name], 1000 * seed + attempt, STEPS, seconds=left)
            steps += len(story.actions)
            spent = time.process_time() - start
            if story.wrong or spent >= seconds or only:
                return Outcome(seed, judge_of(story.wrong), name if story.wrong else "", steps, round(spent, 2))
        attempt += 1


def judge_of(wrong: str) -> str:
    """Who saw what is wrong, without the particulars."""
    kind, _, rest = wrong.partition(": ")
    if not wrong or kind == "Broken":
        return f"invariant {rest.split()[0]}" if wrong else ""
    if kind != "AssertionError":
        return f"control raises {kind}"
    if rest.startswith("model"):
        return "the model's books"
    if re.match(r"[SBL]\d+: ", rest):
        return f"bytes and tables: {rest.split(':')[0]}"
    if rest.startswith("a prefix loses"):
        return "the free queue"
    if re.match(r"[a-z]\w*: ", rest):
        return f"check(): {rest.split('_')[0]}"
    return "control raises AssertionError"
