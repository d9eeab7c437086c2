"""Corruptions of a recorded run. Each changes the lines of a good trace, and says which invariant must be found
broken in which line. Here: of what control decides; what control and workers tell each other is
`corruptions_of_messages`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

Lines = list[dict[str, Any]]
BLOCK = 4  # of the recorded engine
Expected = tuple[str, int]
Corruption = Callable[[Lines], Expected]
OF_THE_ENGINE: list[Corruption] = []
OF_A_WALK: list[Corruption] = []  # what the engine's trace has no example of


def corruption(change: Corruption) -> Corruption:
    OF_THE_ENGINE.append(change)
    return change


def corruption_of_a_walk(change: Corruption) -> Corruption:
    OF_A_WALK.append(change)
    return change


def number(index: int) -> int:
    return index + 1


def where(lines: Lines, call: str, *, worker: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    return ((i, line) for i, line in enumerate(lines) if line.get("call") == call and ("worker" in line) == worker)


def with_event(lines: Lines, *event: Any) -> Iterator[tuple[int, list[list[Any]], int]]:
    """Lines with an event that begins like this; None stands for anything."""
    for i, line in enumerate(lines):
        for n, found in enumerate(line.get("events", ())):
            if all(want is None or want == got for want, got in zip(event, found, strict=False)):
                yield i, line["events"], n


UNPIN = ("move", None, None, "clean-unpinned")
LOSE = ("move", None, None, "host-only")


def a_spill(lines: Lines) -> tuple[int, int]:
    """The line in which control hears that some spill is completed, and its id."""
    spills = {
        event[1]
        for line in lines
        for event in line.get("events", ())
        if event[:1] == ["transfer"] and event[2] == "SPILL"
    }
    return next(
        (i, id) for i, line in where(lines, "apply") for id in line["args"]["report"]["completed"] if id in spills
    )


@corruption
def a_completion_is_dropped(lines: Lines) -> Expected:
    i, spill = a_spill(lines)
    lines[i]["args"]["report"]["completed"].remove(spill)
    return "S2", number(i)


@corruption
def a_page_is_published_before_its_spill_is_completed(lines: Lines) -> Expected:
    i, events, n = next(with_event(lines, "publish"))
    early = max(j for j, _ in where(lines[:i], "apply"))
    lines[early]["events"].append(events.pop(n))
    return "S2", number(early)


@corruption
def pages_are_published_with_a_gap(lines: Lines) -> Expected:
    """The first page of a request never becomes durable."""
    i, events, n = next(with_event(lines, "move", None, 0, "clean-pinned"))
    ended = [event for event in events if event[0] == "publish"]
    assert len(ended) > 1 and events[n + 1] == ended[0]
    del events[n : n + 2]
    return "S3", number(i)


@corruption
def a_transfer_is_over_before_it_was_reported(lines: Lines) -> Expected:
    i, _ = a_spill(lines)
    lines[i]["args"]["report"]["completed"].clear()
    lines[i]["events"] = [event for event in lines[i]["events"] if event[0] != "move" and event[0] != "publish"]
    return "S8", number(i)


@corruption
def a_block_is_leased_twice(lines: Lines) -> Expected:
    i, _, n = next(with_event(lines, "gpu lease"))
    first = lines[i]["events"][n][1]
    i, events, n = next(item for item in with_event(lines, "gpu lease") if item[0] > i)
    events[n][1] = first
    return "B3", number(i)


@corruption
def a_leased_id_is_another_than_the_page_has(lines: Lines) -> Expected:
    i, events, n = next(with_event(lines, "page", None, None, "fresh"))
    free = lines[0]["gpu_blocks"][0][1]
    lease = next(event for event in events if event == ["gpu lease", events[n][6]])
    lease[1] = [*lease[1][:-1], free]
    return "B5", number(i)


@corruption
def the_null_block_is_leased(lines: Lines) -> Expected:
    i, events, n = next(with_event(lines, "gpu lease"))
    events[n][1] = [0, *events[n][1][1:]]
    return "B4", number(i)


@corruption
def a_host_block_has_two_owners(lines: Lines) -> Expected:
    pages = list(with_event(lines, "page", None, None, "fresh"))
    _, events, n = pages[0]
    first = events[n][4]
    i, events, n = pages[1]
    events[n][4] = first
    return "B2", number(i)


@corruption
def a_watcher_is_forgotten(lines: Lines) -> Expected:
    i, events, n = next(with_event(lines, *LOSE))
    del events[n]
    return "B5", number(i)


@corruption
def a_page_is_lost_for_nothing(lines: Lines) -> Expected:
    i, events, n = next(with_event(lines, *LOSE))
    later = next(j for j, _ in where(lines, "step_done") if j > i)
    before = next(j for j in range(i - 1, 0, -1) if "events" in lines[j])
    lines[before]["events"].append(events.pop(n))
    assert later > i
    return "B5", number(before)


@corruption
def the_tail_is_unpinned(lines: Lines) -> Expected:
    i, events, n = next(with_event(lines, *UNPIN))
    owner = events[n][1]
    pages = [event for line in lines[: i + 1] for event in line.get("events", ()) if event[:2] == ["page", owner]]
    clean = {
        e[2]
        for line in lines[: i + 1]
        for e in line.get("events", ())
        if e[0] == "move" and e[1] == owner and e[3] == "clean-pinned"
    }
    events[n][2] = pages[-1][2]
    assert clean
    return "B7" if pages[-1][2] not in clean else "S7", number(i)


@corruption
def a_dirty_page_is_unpinned(lines: Lines) -> Expected:
    i, events, n = next(with_event(lines, "move", None, None, "spilling"))
    events[n][3] = "clean-unpinned"
    return "B7", number(i)


@corruption
def a_page_is_unpinned_without_a_hot_region(lines: Lines) -> Expected:
    i, events, n = next(with_event(lines, "hot"))
    j, others, m = next(
        item for item in with_event(lines, *UNPIN) if item[0] == i and item[1][item[2]][1] == events[n][1]
    )
    assert m > n
    others.append(others.pop(n))
    return "S6", number(j)


@corruption
def a_spill_frees_its_blocks_when_it_is_planned(lines: Lines) -> Expected:
    i, events, n = next(with_event(lines, "transfer", None, "SPILL"))
    events.insert(n + 1, ["gpu release", events[n][6]])
    return "S8", number(i)


@corruption
def a_transfer_id_is_used_again(lines: Lines) -> Expected:
    i, events, n = list(with_event(lines, "transfer"))[5]
    old = events[n][1]
    events[n][1] = 1
    for transfer in lines[i]["answer"]["transfers"]:
        transfer[0] = 1 if transfer[0] == old else transfer[0]
    return "B8", number(i)


@corruption
def a_stale_copy_is_adopted(lines: Lines) -> Expected:
    """A page of a hit is read from the blocks of another page."""
    adoptions = [
        item for item in with_event(lines, "move", None, None, "clean-pinned") if lines[item[0]]["call"] == "admit"
    ]
    i, events, n = adoptions[0]
    _, others, m = adoptions[1]
    assert others is events
    events[n][4], others[m][4] = others[m][4], events[n][4]
    return "B12", number(i)


@corruption
def more_is_a_hit_than_is_published(lines: Lines) -> Expected:
    i, line = next(where(lines, "cached_tokens"))
    line["answer"] += BLOCK
    return "S2", number(i)


@corruption
def a_hit_names_another_block(lines: Lines) -> Expected:
    i, events, n = next(item for item in with_event(lines, "page", None, 1, "host-only"))
    first = next(event for event in events if event[0] == "page" and event[2] == 0)
    events[n][4], first[4] = first[4], events[n][4]
    return "B7", number(i)


@corruption
def two_requests_hold_one_state_row(lines: Lines) -> Expected:
    _, events, n = next(with_event(lines, "enter", 1))
    row = events[n][3]
    i, events, n = next(with_event(lines, "enter", 2))
    events[n][3] = row
    return "B14", number(i)


@corruption
def rows_are_sealed_that_nobody_computed(lines: Lines) -> Expected:
    i, line = next(where(lines, "seal"))
    line["args"]["final_tokens"] += 1
    return "S4", number(i)


@corruption
def a_page_spills_before_it_is_sealed(lines: Lines) -> Expected:
    i, _line = next(where(lines, "seal"))
    j, _, _ = next(with_event(lines, "transfer", None, "SPILL"))
    del lines[i]
    return "S4", number(j - 1)


@corruption
def a_page_leaves_from_the_middle(lines: Lines) -> Expected:
    i, events, n = next(with_event(lines, "pop"))
    events[n][2] -= 1
    return "B14", number(i)


@corruption
def pages_of_a_request_that_left_stay(lines: Lines) -> Expected:
    i, line = next(
        (i, line) for i, line in where(lines, "finish") if any(event[0] == "pop" for event in line["events"])
    )
    line["events"] = [event for event in line["events"] if event[0] != "pop"]
    return "S14", number(i)


@corruption
def a_call_that_raised_has_events(lines: Lines) -> Expected:
    i, line = next((i, line) for i, line in where(lines, "extend") if line["events"])
    line["raised"] = "ValueError"
    return "T1", number(i)


@corruption
def a_call_breaks_down(lines: Lines) -> Expected:
    i, line = next((i, line) for i, line in where(lines, "extend") if not line["events"])
    line["raised"] = "CountError"
    return "T3", number(i)


@corruption
def a_count_is_wrong(lines: Lines) -> Expected:
    lines[40]["counts" if "counts" in lines[40] else "-"]["gpu_free"] += 1
    return "B3", number(40)


@corruption
def a_hash_is_not_counted(lines: Lines) -> Expected:
    i, _, _ = next(with_event(lines, "publish"))
    lines[i]["counts"]["published"] -= 1
    return "B6", number(i)


@corruption
def a_whole_report_is_missing(lines: Lines) -> Expected:
    i, _ = a_spill(lines)
    following = next(j for j in range(i + 1, len(lines)) if "counts" in lines[j])
    del lines[i]
    return "B6", number(following - 1)


@corruption
def a_finished_request_goes_on(lines: Lines) -> Expected:
    i, line = next(where(lines, "finish"))
    lines.insert(i + 1, copy.deepcopy(line))
    return "T2", number(i + 1)


@corruption_of_a_walk
def a_reference_is_not_given_back(lines: Lines) -> Expected:
    i, events, n = next(item for item in with_event(lines, "gpu release") if lines[item[0]]["call"] == "step_done")
    del events[n]
    return "B1", number(i)


@corruption_of_a_walk
def a_block_returns_while_a_step_in_flight_reads_it(lines: Lines) -> Expected:
    """What rests behind the fence is released before the step is done."""
    i, line = next((i, line) for i, line in where(lines, "step_done") if line["events"])
    before = next(j for j in range(i - 1, 0, -1) if "raised" not in lines[j])
    lines[before]["events"] += line["events"]
    line["events"] = []
    return "S19", number(before)


@corruption_of_a_walk
def only_one_of_two_ranks_has_completed(lines: Lines) -> Expected:
    i, _, _ = next(item for item in with_event(lines, "move", None, None, "clean-pinned") if is_report(lines, item[0]))
    lines[i]["args"]["report"]["rank"] ^= 1
    return "S2", number(i)


@corruption_of_a_walk
def a_report_is_of_another_epoch(lines: Lines) -> Expected:
    i, _, _ = next(item for item in with_event(lines, "move", None, None, "clean-pinned") if is_report(lines, item[0]))
    lines[i]["args"]["report"]["epoch"] += 1
    return "S2", number(i)


@corruption_of_a_walk
def a_failed_copy_is_believed(lines: Lines) -> Expected:
    i, _, _ = next(item for item in with_event(lines, "move", None, None, "clean-pinned") if is_report(lines, item[0]))
    report = lines[i]["args"]["report"]
    report["failed"], report["completed"] = report["completed"], []
    return "S2", number(i)


def is_report(lines: Lines, i: int) -> bool:
    """Whether control hears there that a spill is completed."""
    ended = {event[1] for event in lines[i]["events"] if event[0] == "retire"}
    spills = {event[1] for _, events, n in with_event(lines, "transfer", None, "SPILL") for event in [events[n]]}
    return lines[i]["call"] == "apply" and bool(ended & spills & set(lines[i]["args"]["report"]["completed"]))


@corruption_of_a_walk
def a_failed_import_is_valid(lines: Lines) -> Expected:
    i, line = next((i, line) for i, line in where(lines, "end_import") if any(e[0] == "move" for e in line["events"]))
    line["args"]["ok"] = False
    return "S12", number(i)


@corruption_of_a_walk
def a_transport_may_write_at_once(lines: Lines) -> Expected:
    i, line = next(
        (i, line) for i, line in where(lines, "begin_import") if (line["answer"].get("after_step") is not None)
    )
    line["answer"]["after_step"] = None
    return "S19", number(i)


@corruption_of_a_walk
def an_import_lands_elsewhere(lines: Lines) -> Expected:
    pages = ((i, line["answer"].get("pages", ())) for i, line in where(lines, "begin_import"))
    i, page = next((i, page) for i, found in pages for page in found if page[1])
    page[1] += 1
    return "B7", number(i)


@corruption_of_a_walk
def a_transfer_is_set_aside_too_early(lines: Lines) -> Expected:
    lines[0]["config"]["overdue_after"] += 1
    i, _, _ = next(with_event(lines, "aside"))
    return "S8", number(i)
