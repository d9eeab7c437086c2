"""Runs mutants of the data plane: a copy of the sources with one patch, its CPU half built anew, against the op tests.

The copy lies in the build folder and is kept: what a mutant does not touch is not compiled again. Kernels are
built without much optimisation, because what counts is whether a test notices.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from mutants.of_data_plane import OpsMutant
from mutants.runner import TESTS_FAILED

ROOT = Path(__file__).parents[2]
SCRATCH = ROOT / "build" / "mutants"
COPIED = ("csrc", "hisparse_ops", "CMakeLists.txt")
CONFIGURE = ("-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1", f"-DPython_EXECUTABLE={sys.executable}")
TOO_LONG = 900  # seconds; then it counts as noticed: something runs for ever


@dataclass
class Outcome:
    killed_by: str  # "" = survived
    seconds: float


class Unfit(Exception):
    """A mutant cannot be tried: it does not fit the sources, or does not compile."""


class Copy:
    """The sources, and one mutant at a time in them."""

    def __init__(self) -> None:
        for name in COPIED:
            self._bring(ROOT / name, SCRATCH / name)
        self._command("cmake", "-G", "Ninja", "-S", str(SCRATCH), "-B", str(SCRATCH / "build"), *CONFIGURE)

    def run(self, mutant: OpsMutant | None, tests: tuple[str, ...]) -> Outcome:
        """Whether `tests` notice the mutant; `None` tries the sources as they are."""
        start = time.monotonic()
        file = SCRATCH / mutant.file if mutant is not None else None
        before = file.read_text() if file is not None else ""
        try:
            if file is not None and mutant is not None:
                file.write_text(patched(mutant, before))
            self._build()
            killed_by = self._test(tests)
        finally:
            if file is not None:
                file.write_text(before)
        return Outcome(killed_by, round(time.monotonic() - start, 1))

    @staticmethod
    def _bring(source: Path, target: Path) -> None:
        """Only what has changed, so that only that is compiled."""
        files = [path for path in source.rglob("*") if path.is_file()] if source.is_dir() else [source]
        for file in files:
            copy = target / file.relative_to(source) if source.is_dir() else target
            if file.suffix not in (".pyc", ".so") and (not copy.exists() or copy.read_bytes() != file.read_bytes()):
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)

    def _build(self) -> None:
        self._command("ninja", "-C", str(SCRATCH / "build"), "_C")
        shutil.copyfile(SCRATCH / "build" / "_C.so", SCRATCH / "hisparse_ops" / "_C.so")

    def _test(self, tests: tuple[str, ...]) -> str:
        files = [str(ROOT / "tests" / name) for name in tests]
        options = ["-x", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
        command = [sys.executable, "-P", "-m", "pytest", *options, *files]
        environment = {**os.environ, "PYTHONPATH": str(SCRATCH), "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, cwd=SCRATCH, timeout=TOO_LONG
            )
        except subprocess.TimeoutExpired:
            return f"no end after {TOO_LONG} s"
        if done.returncode == 0:
            return ""
        failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        if failed:
            return failed[0].rpartition("tests/")[2]
        if done.returncode > TESTS_FAILED:
            raise Unfit(f"pytest could not run: {(done.stdout + done.stderr)[-400:]}")
        return f"a crash (status {done.returncode})"

    @staticmethod
    def _command(*command: str) -> None:
        """Tools may lie beside the interpreter."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path})
        if done.returncode:
            raise Unfit(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-800:]}")


def patched(mutant: OpsMutant, source: str) -> str:
    if source.count(mutant.old) != 1:
        raise Unfit(f"{mutant.name}: its text occurs {source.count(mutant.old)} times in {mutant.file}")
    return source.replace(mutant.old, mutant.new)
