"""`python -m spec`: explore the model, walk in it, order streams, or check the trace of a real run."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

from .bounds import DEEP, PROFILES, Bounds
from .explore import Exploration, TooLarge, explore
from .liveness import check_liveness
from .model import Action, Model, kinds
from .sometimes import Sometimes
from .steps import check_streams
from .trace import Refused, Unreadable, check_trace
from .walk import WORLDS, walk

WALK_STEPS = 2500
WALKS_FOR_SITUATIONS = 10  # seeds at most, until every situation has been met
SETS = {"all": list(PROFILES), "deep": list(DEEP)}  # of profiles
LIVENESS_EVERY = 20  # states of a walk


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m spec", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    explorer = commands.add_parser("explore", help="visit every state within bounds")
    explorer.add_argument("--profile", choices=[*PROFILES, *DEEP, *SETS], default="core", help="which world")
    explorer.add_argument("--json", action="store_true", help="print one JSON object per profile")
    explorer.add_argument("--max-states", type=int, help="stop beyond this many (default: what memory holds)")
    for bound in fields(Bounds):
        if bound.type == "int":
            explorer.add_argument(f"--{bound.name}", type=int, help=f"default {bound.default}, or the profile's")
    walker = commands.add_parser("walk", help="seeded walks in a larger world, liveness checked on the way")
    walker.add_argument("--seed", type=int, default=0, help="first seed (default 0)")
    walker.add_argument("--seeds", type=int, default=6, help="how many (default 6)")
    walker.add_argument("--steps", type=int, default=WALK_STEPS, help=f"actions of each walk (default {WALK_STEPS})")
    commands.add_parser("streams", help="every interleaving of overlapping steps, with and without each wait")
    checker = commands.add_parser("check", help="replay a recorded trace through books that know only the protocol")
    checker.add_argument("trace", type=Path, help="a file written by `hisparse replay --record`, or by a recorder")
    options = parser.parse_args(arguments)
    if options.command == "check":
        return _check(options.trace)
    if options.command == "streams":
        return check_streams()
    if options.command == "walk":
        seeds = range(options.seed, options.seed + options.seeds)
        return _walk(Sometimes(), Counter(), seeds, options.steps, liveness=True)
    return _explore(options)


def _check(path: Path) -> int:
    try:
        lines = check_trace(path)
    except Refused as refused:
        print(f"{path}, {refused}", file=sys.stderr)
        return 1
    except Unreadable as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{path}: {lines:,} lines, nothing wrong")
    return 0


def _explore(options: argparse.Namespace) -> int:
    profiles, sometimes, taken = PROFILES | DEEP, Sometimes(), Counter[str]()
    for name in SETS.get(options.profile, [options.profile]):
        given = {b.name: getattr(options, b.name, None) for b in fields(Bounds)}
        bounds = replace(profiles[name].bounds, **{k: v for k, v in given.items() if v is not None})
        try:
            found = explore(Model(bounds), sometimes, _progress, options.max_states)
        except TooLarge as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
        taken.update(found.actions)
        if options.json:
            print(json.dumps({"profile": name, **found.as_json()}))
        else:
            print(
                f"{name:14} {found.states:>9,} states {found.transitions:>11,} transitions  depth {found.depth:>3} "
                f"{found.seconds:7.1f} s  {profiles[name].sentence}",
                flush=True,
            )
        if found.broken:
            print("\n".join([found.message, *map(str, found.story)]), file=sys.stderr)
            return 1
    if options.profile != "all":
        return 0
    seeds = range(WALKS_FOR_SITUATIONS)
    return _walk(sometimes, taken, seeds, WALK_STEPS, liveness=False) or _uncovered(sometimes, taken)


def _uncovered(sometimes: Sometimes, taken: Counter[str]) -> int:
    """A search that has not taken every kind of action and met every situation has looked in the wrong places."""
    missing = [f"never taken: {kind}" for kind in sorted(kinds() - set(taken))]
    missing += [f"never met: {sentence}" for sentence in sometimes.missing]
    if missing:
        print("\n".join(missing), file=sys.stderr)
        return 1
    print(f"all {len(taken)} kinds of action taken, all {len(sometimes.met)} situations met", file=sys.stderr)
    return 0


def _walk(sometimes: Sometimes, taken: Counter[str], seeds: range, steps: int, liveness: bool) -> int:
    """Walks with all families of actions at once, in each of the larger worlds."""
    for seed in seeds:
        for bounds in WORLDS.values():
            model = Model(bounds)
            walked = walk(model, seed, steps, sometimes)
            taken.update(walked.actions)
            if walked.broken:
                print("\n".join([walked.message, *map(str, walked.story)]), file=sys.stderr)
                return 1
            if liveness:
                _check_along(model, walked.story)
        if liveness:
            print(
                f"seed {seed}: {len(WORLDS)} walks of {steps:,} actions, liveness from every {LIVENESS_EVERY}th state",
                flush=True,
            )
        elif not sometimes.missing:
            break
    return 0


def _check_along(model: Model, story: list[Action]) -> None:
    state = model.initial()
    for count, action in enumerate(story):
        state = model.apply(state, action)
        if count % LIVENESS_EVERY == 0:
            check_liveness(model, state)


def _progress(found: Exploration) -> None:
    rate = found.transitions / found.seconds
    print(
        f"  ... {found.states:,} states, {found.transitions:,} transitions ({rate:,.0f}/s), depth {found.depth}",
        file=sys.stderr,
    )
