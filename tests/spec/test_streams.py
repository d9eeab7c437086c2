"""The checker of streams: right on random programs, and no wait of the protocol's design can be left out."""

from __future__ import annotations

import itertools
import random

import pytest

from spec.cli import main
from spec.steps import CASES
from spec.streams import Item, Op, Program, Record, Seen, Wait, find_race, op, orders

STREAMS = ("compute", "copy", "dma")


def random_program(draw: random.Random) -> list[Item]:
    program: list[Item] = []
    events: list[str] = ["never recorded"]
    for number in range(draw.randint(3, 12)):
        stream, kind = draw.choice(STREAMS), draw.random()
        if kind < 0.5:
            reads, writes = (draw.sample("abc", draw.randint(0, 1)) for _ in range(2))
            program.append(op(stream, f"op {number}", reads, writes))
        elif kind < 0.7:
            events.append(f"event {number}")
            program.append(Record(stream, events[-1]))
        elif kind < 0.93:
            program.append(Wait(stream, draw.choice(events)))
        else:
            program.append(Seen(draw.choice(events)))
    return program


def races(program: Program) -> bool:
    """Whether two operations in conflict are ordered neither way: by closure, pace does not come into it."""
    behind: dict[int, set[int]] = {}  # item -> items that end before it begins
    last: dict[str, set[int]] = {}  # stream -> items that what comes next is behind
    marks: dict[str, set[int]] = {}
    seen: set[int] = set()
    for i, item in enumerate(program):
        if isinstance(item, Seen):
            seen = seen | marks.get(item.event, set())
            continue
        before = last.setdefault(item.stream, set())
        if isinstance(item, Record):
            marks[item.event] = set(before)
        elif isinstance(item, Wait):
            before |= marks.get(item.event, set())
        else:
            before |= seen
            behind[i] = set(before)
            before.add(i)
    ops = [(i, item) for i, item in enumerate(program) if isinstance(item, Op)]
    for (i, one), (j, other) in itertools.combinations(ops, 2):
        conflict = one.writes & (other.reads | other.writes) or one.reads & other.writes
        if conflict and i not in behind[j]:
            return True
    return False


def test_a_race_is_found_exactly_where_nothing_orders_a_conflict():
    draw, found = random.Random(1), 0
    for _ in range(3000):
        program = random_program(draw)
        assert (find_race(program) is not None) == races(program), program
        found += races(program)
    assert 500 < found < 2500


def test_the_interleaving_of_a_race_is_the_shortest():
    """Both blocks race; that of `b` needs nothing to have run before."""
    first = [op("compute", "one", writes="a"), Record("compute", "e"), op("compute", "two", writes="b")]
    race = find_race([op("copy", "three", reads="b"), *first])
    assert race is not None and race.place == "b" and race.before == ("compute: one",)
    assert str(race) == "race on b: copy reads it (three) while compute writes it (two)\n    after compute: one"


@pytest.mark.parametrize("name", CASES)
def test_the_design_has_no_race_and_nothing_in_it_is_idle(name):
    program = CASES[name]()
    assert find_race(program) is None
    for item, rest in orders(program):
        assert find_race(rest) is not None, f"nobody misses {item}"


def test_the_command_prints_a_story_for_every_wait(capsys):
    assert main(["streams"]) == 0
    out = capsys.readouterr().out
    waits = [item for case in CASES.values() for item, _ in orders(case()) if not isinstance(item, Record)]
    assert out.count("race on") == len(waits)
    assert "spills: without compute waiting for 'spilled 1'" in out


def test_a_design_with_a_race_fails_the_command(monkeypatch, capsys):
    monkeypatch.setitem(CASES, "restores", lambda: [op("copy", "restore", writes="g"), op("compute", "read", "g")])
    assert main(["streams"]) == 1
    assert "restores: race on g" in capsys.readouterr().out


def test_a_wait_that_nobody_needs_fails_the_command(monkeypatch, capsys):
    idle = [op("copy", "restore", writes="g"), Record("copy", "e"), Wait("compute", "e")]
    monkeypatch.setitem(CASES, "restores", lambda: idle)
    assert main(["streams"]) == 1
    assert "without compute waiting for 'e': nobody misses it" in capsys.readouterr().out
