"""`python -m contracts` (from tests/): integer functions of the package, proven or searched by crosshair.

Each contract calls the real code with symbolic arguments.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.util import find_spec

from contracts.checker import BROKEN, PROVEN, SEARCHED, check, contracts_of
from contracts.without_torch import bare_package

TOPICS = ("rows", "capacity", "ranges", "frontier", "order")
SECONDS = 10.0  # of CPU time, for each contract


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m contracts", description=__doc__)
    parser.add_argument("topics", nargs="*", default=TOPICS, help=f"modules of contracts (default: {' '.join(TOPICS)})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"CPU time for each (default {SECONDS:.0f})")
    options = parser.parse_args()
    for topic in options.topics:
        if find_spec(f"contracts.{topic}") is None:
            parser.error(f"there is no topic {topic!r}, only {', '.join(TOPICS)}")
    bare_package()
    verdicts = []
    for topic in options.topics:
        for contract in contracts_of(import_module(f"contracts.{topic}")):
            verdict = check(contract, options.seconds)
            verdicts.append(verdict)
            print(f"{verdict.word:8} {verdict.seconds:5.1f} s  {verdict.contract}", flush=True)
            if verdict.word == BROKEN:
                print(f"  {verdict.message}", file=sys.stderr)
    counts = {word: sum(v.word == word for v in verdicts) for word in (PROVEN, SEARCHED, BROKEN)}
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    return 1 if counts[BROKEN] or not verdicts else 0


if __name__ == "__main__":
    raise SystemExit(main())
