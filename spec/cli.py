"""`python -m spec`: explore the model, walk in it, or ask whether streams are ordered as they must be."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields, replace

from .bounds import PROFILES, Bounds
from .explore import Exploration, TooLarge, explore
from .liveness import check_liveness
from .model import Action, Model
from .sometimes import Sometimes
from .steps import check_streams
from .walk import WORLD, walk

WALKS_FOR_SITUATIONS = 10  # seeds at most, until every situation has been met
LIVENESS_EVERY = 20  # states of a walk


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m spec", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    explorer = commands.add_parser("explore", help="visit every state within bounds")
    explorer.add_argument("--profile", choices=[*PROFILES, "all"], default="core", help="which family of actions")
    explorer.add_argument("--json", action="store_true", help="print one JSON object per profile")
    explorer.add_argument("--max-states", type=int, help="stop beyond this many (default: what memory holds)")
    for bound in fields(Bounds):
        if bound.type == "int":
            explorer.add_argument(f"--{bound.name}", type=int, help=f"default {bound.default}, or the profile's")
    walker = commands.add_parser("walk", help="seeded walks in a larger world, liveness checked on the way")
    walker.add_argument("--seed", type=int, default=0, help="first seed (default 0)")
    walker.add_argument("--seeds", type=int, default=10, help="how many (default 10)")
    walker.add_argument("--steps", type=int, default=3000, help="actions of each walk (default 3000)")
    commands.add_parser("streams", help="every interleaving of overlapping steps, with and without each wait")
    options = parser.parse_args(arguments)
    if options.command == "streams":
        return check_streams()
    if options.command == "walk":
        return _walk(Sometimes(), range(options.seed, options.seed + options.seeds), options.steps, liveness=True)
    return _explore(options)


def _explore(options: argparse.Namespace) -> int:
    names = list(PROFILES) if options.profile == "all" else [options.profile]
    sometimes = Sometimes()
    for name in names:
        given = {b.name: getattr(options, b.name, None) for b in fields(Bounds)}
        bounds = replace(PROFILES[name].bounds, **{k: v for k, v in given.items() if v is not None})
        try:
            found = explore(Model(bounds), sometimes, _progress, options.max_states)
        except TooLarge as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
        if options.json:
            print(json.dumps({"profile": name, **found.as_json()}))
        else:
            print(
                f"{name:8} {found.states:>9,} states {found.transitions:>11,} transitions  depth {found.depth:>3} "
                f"{found.seconds:7.1f} s  {PROFILES[name].sentence}",
                flush=True,
            )
        if found.broken:
            print("\n".join([found.message, *map(str, found.story)]), file=sys.stderr)
            return 1
    if options.profile != "all":
        return 0
    wrong = _walk(sometimes, range(WALKS_FOR_SITUATIONS), 2500, liveness=False)
    if sometimes.missing:
        print("never met: " + "; ".join(sometimes.missing), file=sys.stderr)
        return 1
    print(f"all {len(sometimes.met)} situations met", file=sys.stderr)
    return wrong


def _walk(sometimes: Sometimes, seeds: range, steps: int, liveness: bool) -> int:
    """Walks with all families of actions at once, with and without the eager mirror."""
    for seed in seeds:
        for bounds in (WORLD, replace(WORLD, mirror=True)):
            model = Model(bounds)
            walked = walk(model, seed, steps, sometimes)
            if walked.broken:
                print("\n".join([walked.message, *map(str, walked.story)]), file=sys.stderr)
                return 1
            if liveness:
                _check_along(model, walked.story)
        if liveness:
            print(
                f"seed {seed}: 2 walks of {steps:,} actions, liveness from every {LIVENESS_EVERY}th state", flush=True
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
