"""`python -m contracts` (from tests/): integer functions of the package, proven by crosshair.

Each contract calls the real code with symbolic arguments. One that is not proven fails the run.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.util import find_spec

from contracts.checker import BROKEN, PROVEN, SEARCHED, check, contracts_of
from contracts.without_torch import bare_package

TOPICS = ("rows", "capacity", "ranges", "frontier", "order")
PATHS = 2_000  # through a contract and its code; the largest has 470


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m contracts", description=__doc__)
    parser.add_argument("topics", nargs="*", default=TOPICS, help=f"modules of contracts (default: {' '.join(TOPICS)})")
    parser.add_argument("--paths", type=int, default=PATHS, help=f"give up a proof beyond so many (default {PATHS})")
    options = parser.parse_args()
    for topic in options.topics:
        if find_spec(f"contracts.{topic}") is None:
            parser.error(f"there is no topic {topic!r}, only {', '.join(TOPICS)}")
    bare_package()
    verdicts = []
    for topic in options.topics:
        for contract in contracts_of(import_module(f"contracts.{topic}")):
            verdict = check(contract, options.paths)
            verdicts.append(verdict)
            print(f"{verdict.word:8} {verdict.seconds:5.1f} s  {verdict.contract}", flush=True)
            if verdict.word != PROVEN:
                print(f"  {verdict.message}", file=sys.stderr)
    counts = {word: sum(v.word == word for v in verdicts) for word in (PROVEN, SEARCHED, BROKEN)}
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    return 0 if verdicts and counts[PROVEN] == len(verdicts) else 1


if __name__ == "__main__":
    raise SystemExit(main())
