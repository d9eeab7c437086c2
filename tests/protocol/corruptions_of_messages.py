"""Corruptions of a recorded run: of what control and workers tell each other, in plans and in reports."""

from __future__ import annotations

from typing import Any

from protocol.corruptions import BLOCK, Expected, Lines, a_spill, corruption, number, where, with_event


def a_plan_with(lines: Lines, part: str) -> tuple[int, dict[str, Any]]:
    """The first step whose plan has any `part`."""
    return next((i, line) for i, line in where(lines, "plan_step") if line["answer"][part])


@corruption
def a_line_of_the_tables_is_not_told(lines: Lines) -> Expected:
    i, line = a_plan_with(lines, "residency")
    line["answer"]["residency"].pop()
    return "B13", number(i)


@corruption
def a_line_of_the_tables_is_told_wrongly(lines: Lines) -> Expected:
    i, line = a_plan_with(lines, "residency")
    line["answer"]["residency"][0][3][0] += 1
    return "B13", number(i)


@corruption
def a_step_is_planned_twice(lines: Lines) -> Expected:
    first, second = [i for i, _ in where(lines, "plan_step")][:2]
    lines[second]["answer"]["sequence"] = lines[first]["answer"]["sequence"]
    return "B13", number(second)


@corruption
def a_recycled_block_is_not_named(lines: Lines) -> Expected:
    i, line = a_plan_with(lines, "recycled")
    line["answer"]["recycled"].pop()
    return "S18", number(i)


@corruption
def a_hot_region_is_not_told(lines: Lines) -> Expected:
    i, line = a_plan_with(lines, "hot")
    line["answer"]["hot"].clear()
    return "S6", number(i)


@corruption
def a_transfer_is_not_sent(lines: Lines) -> Expected:
    i, line = a_plan_with(lines, "transfers")
    line["answer"]["transfers"].pop()
    return "B7", number(i)


@corruption
def an_envelope_is_too_short(lines: Lines) -> Expected:
    i, line = a_plan_with(lines, "envelopes")
    line["answer"]["envelopes"][0][2] -= 1
    return "S15", number(i)


@corruption
def a_row_is_not_mirrored(lines: Lines) -> Expected:
    """The worker says so, and control takes the page for durable all the same."""
    i, line = next(
        (i, line) for i, line in where(lines, "poll", worker=True) if any(r["mirrored"] for r in line["answer"])
    )
    for report in line["answer"]:
        for counts in report["mirrored"].values():
            counts[0] -= 1
    _j, line = next((j, line) for j, line in where(lines, "apply") if j > i and line["args"]["report"]["mirrored"])
    for counts in line["args"]["report"]["mirrored"].values():
        counts[0] -= 1
    k, _, _ = next(with_event(lines, "move", None, None, "spilling"))
    return "S15", number(k)


@corruption
def rows_are_computed_that_cannot_be_read(lines: Lines) -> Expected:
    i, line = next((i, line) for i, line in where(lines, "plan_step") if line["args"]["scheduled"])
    line["args"]["scheduled"][0][2] += BLOCK
    return "S4", number(i)


@corruption
def control_hears_what_nobody_said(lines: Lines) -> Expected:
    _i, spill = a_spill(lines)
    j, line = next((j, line) for j, line in where(lines, "apply") if spill in line["args"]["report"]["enqueued"])
    line["args"]["report"]["failed"].append(spill)
    return "W3", number(j)


@corruption
def a_rank_says_a_thing_twice(lines: Lines) -> Expected:
    i, line = next(
        (i, line)
        for i, line in where(lines, "poll", worker=True)
        if any(report["completed"] for report in line["answer"])
    )
    line["answer"].append(line["answer"][-1])
    return "W2", number(i)


@corruption
def a_worker_computes_what_no_step_schedules(lines: Lines) -> Expected:
    i, line = next(where(lines, "kv", worker=True))
    line["args"]["start"] += 1
    return "W1", number(i)


@corruption
def a_step_is_begun_before_it_is_planned(lines: Lines) -> Expected:
    i, _line = next(where(lines, "plan_step"))
    lines[i], lines[i + 1] = lines[i + 1], lines[i]
    return "W1", number(i)


@corruption
def a_step_is_done_before_it_has_ended(lines: Lines) -> Expected:
    i, _line = next(where(lines, "step_done"))
    j, _ = next(where(lines, "end_step", worker=True))
    assert j < i
    lines.insert(j, lines.pop(i))
    return "W1", number(j)
