"""crosshair sees what it must. The contracts themselves are checked by `make spec`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process without torch."""
    return subprocess.run([sys.executable, *arguments], cwd=TESTS, capture_output=True, text=True)


def test_a_wrong_contract_fails_the_run_with_a_counterexample():
    done = python("-m", "contracts", "wrong")
    assert done.returncode == 1
    assert "1 BROKEN" in done.stdout
    assert "when calling no_request_has_987654_pages(" in done.stderr


def test_a_contract_that_is_not_proven_fails_the_run():
    done = python("-m", "contracts", "frontier", "--paths", "3")
    assert done.returncode == 1
    assert "0 proven, 2 searched, 0 BROKEN" in done.stdout


A_SLOW_MACHINE = """
import runpy, sys, time
seconds = time.process_time
time.process_time = lambda: 1000 * seconds()
sys.path.insert(0, "")
sys.argv = ["contracts", "frontier"]
runpy.run_module("contracts", run_name="__main__")
"""


def test_a_slow_machine_proves_as_much():
    done = python("-c", A_SLOW_MACHINE)
    assert done.returncode == 0, done.stderr
    assert "2 proven, 0 searched, 0 BROKEN" in done.stdout


def test_an_unknown_topic_is_refused_in_a_sentence():
    done = python("-m", "contracts", "weather")
    assert done.returncode == 2
    assert "there is no topic 'weather'" in done.stderr


def test_a_mistake_in_the_code_breaks_its_contract():
    done = python("-m", "contracts.mistakes")
    assert done.returncode == 0, done.stderr
