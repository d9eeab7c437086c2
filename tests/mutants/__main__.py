"""`python -m mutants` (from tests/): the measure of the tests.

For each fault of the control plane: killed by what, after how many steps and seconds, on how many
fresh seeds. For each fault of the data plane: by which test. Then both by family. A fault that
nothing notices makes it fail.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

from mutants import data_plane, runner
from mutants.data_plane import Copy
from mutants.of_control import MUTANTS, Mutant
from mutants.of_data_plane import OPS_MUTANTS, OpsMutant


class Tally:
    """Killed and not, by family."""

    def __init__(self) -> None:
        self._all: Counter[str] = Counter()
        self._killed: Counter[str] = Counter()
        self._by: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.survived: list[str] = []

    def add(self, family: str, name: str, killed: bool, by: list[str]) -> None:
        self._all[family] += 1
        self._killed[family] += killed
        self._by[family].update(by)
        if not killed:
            self.survived.append(name)

    def show(self) -> None:
        for family, count in self._all.items():
            judges = ", ".join(f"{judge} {times}" for judge, times in self._by[family].most_common(4))
            print(f"{family}: {self._killed[family]} of {count} killed; most by: {judges}")


def of_control(chosen: list[Mutant], options: argparse.Namespace, tally: Tally) -> str:
    """Prints a line for each; the answer says why they cannot be tried."""
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    seeds = list(range(first, first + options.seeds))
    print(f"control plane: {len(chosen)} faults, seeds {seeds[0]} .. {seeds[-1]}, {options.seconds:.0f} s each")
    with ThreadPoolExecutor(options.jobs) as pool:
        whole = [pool.submit(runner.run, None, [seed], options.seconds) for seed in seeds]
        runs = [pool.submit(runner.run, mutant, seeds, options.seconds) for mutant in chosen]
        for outcome in (outcome for future in whole for outcome in future.result()):
            if outcome.killed_by:
                pool.shutdown(cancel_futures=True)
                return f"the code itself goes wrong, seed {outcome.seed}, world {outcome.world}: {outcome.killed_by}"
        for mutant, future in zip(chosen, runs, strict=True):
            outcomes = future.result()
            killed = [outcome for outcome in outcomes if outcome.killed_by]
            by = [outcome.killed_by for outcome in killed]
            tally.add(mutant.family, mutant.name, len(killed) == len(outcomes), by)
            judge = Counter(by).most_common(1)[0][0] if by else "SURVIVED"
            steps = sorted(outcome.steps for outcome in killed)[len(killed) // 2] if killed else 0
            slowest = max((outcome.seconds for outcome in killed), default=0.0)
            print(
                f"{len(killed):>2}/{len(outcomes)}  {mutant.family:15} {mutant.name:52} {judge:32} "
                f"{steps:>6} steps  {slowest:5.1f} s",
                flush=True,
            )
    return ""


def of_data_plane(chosen: list[OpsMutant], tally: Tally) -> str:
    print(f"data plane: {len(chosen)} faults")
    copy = Copy()
    tests = tuple(dict.fromkeys(name for mutant in chosen for name in mutant.tests))
    if outcome := copy.run(None, tests).killed_by:
        return f"the code itself fails {outcome}"
    for mutant in chosen:
        outcome = copy.run(mutant, mutant.tests)
        tally.add(mutant.family, mutant.name, bool(outcome.killed_by), [outcome.killed_by.partition("::")[0]])
        killed_by = outcome.killed_by or "SURVIVED"
        print(f"{mutant.family:13} {mutant.name:64} {outcome.seconds:6.1f} s  {killed_by}", flush=True)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only faults whose plane, family or name contains one of these")
    parser.add_argument("--seeds", type=int, default=3, help="fresh seeds for each fault of control (default 3)")
    parser.add_argument("--seed", type=int, help="first seed, to repeat a run (default: a fresh one)")
    parser.add_argument("--seconds", type=float, default=runner.SECONDS, help="processor time of a seed (default 10)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    options = parser.parse_args()

    def wanted(plane: str, mutant: Mutant | OpsMutant) -> bool:
        text = f"{plane} plane, {mutant.family}: {mutant.name}"
        return not options.names or any(name in text for name in options.names)

    control = [mutant for mutant in MUTANTS if wanted("control", mutant)]
    ops = [mutant for mutant in OPS_MUTANTS if wanted("data", mutant)]
    if not control and not ops:
        print(f"no fault's name contains {' or '.join(options.names)}", file=sys.stderr)
        return 2
    tally = Tally()
    try:
        wrong = (control and of_control(control, options, tally)) or (ops and of_data_plane(ops, tally))
    except (runner.DoesNotFit, data_plane.Unfit) as error:
        wrong = str(error)
    tally.show()
    if wrong:
        print(f"{wrong}. Mend that first.", file=sys.stderr)
        return 2
    if tally.survived:
        print("not noticed every time: " + "; ".join(tally.survived), file=sys.stderr)
    return 1 if tally.survived else 0


if __name__ == "__main__":
    raise SystemExit(main())
