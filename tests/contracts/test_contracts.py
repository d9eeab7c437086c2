"""crosshair sees what it must. The contracts themselves are checked by `make spec`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process without torch."""
    return subprocess.run([sys.executable, "-m", *arguments], cwd=TESTS, capture_output=True, text=True, timeout=300)


def test_a_wrong_contract_fails_the_run_with_a_counterexample():
    done = python("contracts", "wrong")
    assert done.returncode == 1
    assert "1 BROKEN" in done.stdout
    assert "when calling no_request_has_987654_pages(" in done.stderr


def test_an_unknown_topic_is_refused_in_a_sentence():
    done = python("contracts", "weather")
    assert done.returncode == 2
    assert "there is no topic 'weather'" in done.stderr


def test_a_mistake_in_the_code_breaks_its_contract():
    done = python("contracts.mistakes")
    assert done.returncode == 0, done.stderr
