"""`python -m spec`: explore the model, walk in it, or test that it always gets somewhere."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields, replace

from .bounds import PROFILES, Bounds
from .explore import Exploration, TooLarge, explore
from .model import Model
from .sometimes import Sometimes


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
    options = parser.parse_args(arguments)
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
    if options.profile == "all" and sometimes.missing:
        print("never met: " + "; ".join(sometimes.missing), file=sys.stderr)
        return 1
    return 0


def _progress(found: Exploration) -> None:
    rate = found.transitions / found.seconds
    print(
        f"  ... {found.states:,} states, {found.transitions:,} transitions ({rate:,.0f}/s), depth {found.depth}",
        file=sys.stderr,
    )
