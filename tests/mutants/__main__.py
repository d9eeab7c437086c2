"""`python -m mutants` (from tests/): the measure of the protocol's tests.

For each fault: killed by what, after how many steps and seconds, on how many fresh seeds.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter

from mutants.of_control import MUTANTS
from mutants.runner import SECONDS, DoesNotFit, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only mutants whose name contains one of these")
    parser.add_argument("--seeds", type=int, default=3, help="fresh seeds for each mutant (default 3)")
    parser.add_argument("--seed", type=int, help="first seed, to repeat a run (default: a fresh one)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"for one seed (default {SECONDS:.0f})")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if not options.names or any(name in m.name for name in options.names)]
    if not chosen:
        print(f"no mutant's name contains {' or '.join(options.names)}", file=sys.stderr)
        return 2
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    seeds = list(range(first, first + options.seeds))
    print(f"seeds {seeds[0]} .. {seeds[-1]}; {len(chosen)} mutants")
    for outcome in run(None, seeds, options.seconds):
        if outcome.killed_by:
            print(
                f"the code itself goes wrong on seed {outcome.seed}: {outcome.killed_by} Mend that first.",
                file=sys.stderr,
            )
            return 2
    survived, families = [], Counter[str]()
    for mutant in chosen:
        try:
            outcomes = run(mutant, seeds, options.seconds)
        except DoesNotFit as error:
            print(error, file=sys.stderr)
            return 2
        killed = [o for o in outcomes if o.killed_by]
        families[mutant.family] += len(killed) == len(outcomes)
        if len(killed) < len(outcomes):
            survived.append(mutant.name)
        by = Counter(o.killed_by for o in killed).most_common(1)
        slowest = max((o.seconds for o in killed), default=0.0)
        steps = sorted(o.steps for o in killed)
        print(
            f"{len(killed):>2}/{len(outcomes)}  {mutant.family:15} {mutant.name:52} "
            f"{by[0][0] if by else 'SURVIVED':28} {steps[len(steps) // 2] if steps else 0:>6} steps  {slowest:5.1f} s",
            flush=True,
        )
    for family, count in families.items():
        print(f"{family}: {count} of {sum(m.family == family for m in chosen)} killed on every seed")
    if survived:
        print("survived on some seed: " + "; ".join(survived), file=sys.stderr)
    return 1 if survived else 0


if __name__ == "__main__":
    raise SystemExit(main())
