"""The commands of `python -m protocol`."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from dataclasses import asdict, replace
from functools import partial

from protocol.explore import CONTROL, Exploration, Explorer, TooLarge, missing
from protocol.families import FAMILIES, LARGER, Family
from protocol.play import SETUPS, Story
from protocol.shrink import pytest_function
from protocol.volume import JUDGED_EVERY, Volume, walk

BYTES_PER_STATE = 5_000  # a fingerprint and its story, and a share of the worlds saved to go on from; measured
BOUNDS = ("requests", "pages", "gpu", "host", "rows", "ranks", "steps")  # flags that change a family's world
EDGES = ("under_way", "unproven", "depth")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m protocol", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    explorer = commands.add_parser("explore", help="every call of the coordinator in every state within bounds")
    explorer.add_argument("family", nargs="*", help=f"of {', '.join(FAMILIES)}; default: all")
    explorer.add_argument("--larger", action="store_true", help="the next larger bound of each family")
    explorer.add_argument("--jobs", type=int, default=os.cpu_count(), help="families explored at once (default: cores)")
    explorer.add_argument("--max-states", type=int, help="give up beyond this many (default: what memory holds)")
    explorer.add_argument("--json", action="store_true", help="print one JSON object per family")
    for name in (*BOUNDS, *EDGES):
        explorer.add_argument(f"--{name.replace('_', '-')}", type=int, help="default: the family's")
    walker = commands.add_parser("walk", help="seeded walks, for volume")
    walker.add_argument("--actions", type=int, default=1_000_000, help="in all worlds together (default 1,000,000)")
    walker.add_argument("--seed", type=int, default=0, help="first seed (default 0)")
    walker.add_argument("--judged-every", type=int, default=JUDGED_EVERY, help=f"default {JUDGED_EVERY}; 1 = all")
    walker.add_argument("--jobs", type=int, default=os.cpu_count(), help="worlds walked at once (default: cores)")
    options = parser.parse_args(arguments)
    return _walk(options) if options.command == "walk" else _explore(options)


def _walk(options: argparse.Namespace) -> int:
    each = -(-options.actions // len(SETUPS))
    start, wrong = time.monotonic(), 0
    with multiprocessing.Pool(min(options.jobs, len(SETUPS))) as pool:
        walked = pool.imap(partial(_walk_one, seed=options.seed, actions=each, every=options.judged_every), SETUPS)
        for done in walked:
            wrong |= done.story is not None
            seeds = f"seeds {done.seed} to {done.seed + done.episodes - 1}"
            print(f"{done.world:12} {done.actions:>10,} actions, {seeds}: {_counts(done.counts)}", flush=True)
            if done.story is not None:
                print(f"{done.world}, seed {done.story.seed}: {done.story.wrong}", file=sys.stderr)
                print(pytest_function(done.world, done.story), file=sys.stderr)
    print(f"{time.monotonic() - start:.0f} s", file=sys.stderr)
    return int(wrong)


def _walk_one(name: str, seed: int, actions: int, every: int) -> Volume:
    return walk(name, SETUPS[name], seed, actions, every)


def _explore(options: argparse.Namespace) -> int:
    known = LARGER if options.larger else FAMILIES
    names = options.family or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no family {unknown[0]!r}: expected one of {', '.join(known)}", file=sys.stderr)
        return 2
    families = {name: _changed(known[name], options) for name in names}
    jobs = min(options.jobs, len(names))
    most = options.max_states or states_that_fit() // jobs
    with multiprocessing.Pool(jobs) as pool:
        explored = pool.imap(partial(_run, max_states=most), families.items())
        failures = [_told(families[found.family], found, options.json) for found in explored]
    return max(failures)


def states_that_fit() -> int:
    """How many states half of the free memory can hold."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return free // 2 // BYTES_PER_STATE


def _changed(family: Family, options: argparse.Namespace) -> Family:
    """The family in a world of the sizes that were asked for."""
    given = {name: value for name in BOUNDS if (value := getattr(options, name)) is not None}
    edges = {name: value for name in EDGES if (value := getattr(options, name)) is not None}
    return replace(family, setup=replace(family.setup, bounds=replace(family.setup.bounds, **given)), **edges)


def _run(named: tuple[str, Family], max_states: int | None) -> Exploration:
    name, family = named
    explorer = Explorer(name, family, max_states)
    try:
        return explorer.run(_progress)
    except TooLarge as error:
        explorer.found.wrong = f"too large: {error}"
        return explorer.found


def _progress(found: Exploration) -> None:
    print(f"  ... {found.family}: {_sizes(found)}", file=sys.stderr, flush=True)


def _sizes(found: Exploration) -> str:
    return f"{found.states:,} states, {found.transitions:,} calls, depth {found.depth}, {found.seconds:.0f} s"


def _told(family: Family, found: Exploration, as_json: bool) -> int:
    """Print what came out; 1 if something is wrong."""
    absent = [] if found.wrong else missing(family, found)
    if as_json:
        print(json.dumps(asdict(found)), flush=True)
    else:
        print(f"{found.family:8} {_sizes(found)} ({found.edge:,} at the edge)  {family.sentence}")
        print(f"         in the model: {_counts(found.kinds)}")
        shares = [f"{kind} {c.taken}/{c.allowed}" for kind in CONTROL if (c := found.choices.get(kind)) is not None]
        print(f"         decisions that control takes, of those the model allows: {', '.join(shares) or 'none'}")
        if found.beyond:
            print(f"         legal, and not in the model: {_counts(found.beyond)}")
    if found.wrong:
        print(f"{found.family}: {found.wrong}", file=sys.stderr)
    if found.story:
        story = Story(family.setup, -1, found.story, found.wrong)
        print(pytest_function(found.family, story, of='FAMILIES["{}"].setup'), file=sys.stderr)
    if absent:
        print(f"{found.family}: never done: {', '.join(absent)}", file=sys.stderr)
    sys.stdout.flush()
    return int(bool(found.wrong or absent))


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))
