"""Recorded runs pass `python -m spec check`; no corruption of one does."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter, deque
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from engine.toy_model import VOCAB, ToyModel
from protocol.corruptions import (
    BLOCK,
    OF_A_WALK,
    OF_THE_ENGINE,
    Corruption,
    Lines,
    where,
)
from protocol.corruptions_of_messages import a_recycled_block_is_not_named
from protocol.play import SETUPS, Story, play
from protocol.world import World
from typer.testing import CliRunner

from hisparse_ops.cli import app
from hisparse_ops.control import Coordinator, CoordinatorConfig
from hisparse_ops.control.recording import CALLS, Trace, record
from hisparse_ops.control.types import Limits, RankReport, Scheduled
from hisparse_ops.engine import Engine, EngineConfig, Request
from hisparse_ops.memory.layout import plan_layout
from spec.cli import main
from spec.trace import Refused, check_trace
from spec.trace.calls import Calls
from spec.trace.holdings import SENTENCES

CHUNK, PROMPT, NEW = 16, 72, 20
WALK = 500  # actions


def record_engine(path: Path) -> Engine:
    """Six requests with a common prefix, half of which find room on the device: some are moved to the host."""
    toy = ToyModel(top_k=8, block_size=BLOCK, dtype=torch.float32, hot_slots=16)
    sizes = plan_layout(toy.spec, 1 << 24, 1 << 24)
    blocks = 3 * sizes.reserve_blocks(PROMPT + 2 * NEW, CHUNK) + 1
    layout = plan_layout(toy.spec, blocks * sizes.block_bytes, 6 * sizes.pages(100) * sizes.host_block_bytes)
    draw = random.Random(0)
    prefix = [draw.randrange(VOCAB) for _ in range(48)]
    config = EngineConfig(max_requests=8, max_context=128, prefill_chunk=CHUNK)
    with Trace(path) as trace, Engine(toy, layout, config) as engine:
        engine.record(trace)
        for number in range(6):
            prompt = (*prefix, *(draw.randrange(VOCAB) for _ in range(PROMPT - len(prefix))))
            engine.add(Request(f"r{number}", prompt, NEW))
        engine.run()
    return engine


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    path = tmp_path_factory.mktemp("recording") / "trace.jsonl"
    record_engine(path)
    assert main(["check", str(path)]) == 0
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, lines: Lines) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


# Good traces.


def test_the_recorded_run_has_met_what_the_corruptions_are_about(good: Lines) -> None:
    met = Counter(event[3] if event[0] == "move" else event[0] for line in good for event in line.get("events", ()))
    assert {"hot", "publish", "spilling", "clean-pinned", "clean-unpinned", "host-only", "restoring"} <= met.keys()
    assert {line["call"] for line in good if "worker" in line} == {"made", "begin_step", "kv", "end_step", "poll"}
    assert good[0]["versions"].keys() == {"python", "torch", "device"}


def record_walk(path: Path, name: str, seed: int, actions: int = WALK) -> Story:
    """Several ranks, imports, copies, resets, restarts, reports late and lost: what the engine never does."""
    with Trace(path) as trace, pytest.MonkeyPatch.context() as patch:

        class Recorded(World):
            def __init__(self, setup: Any) -> None:
                super().__init__(setup)
                record(self.c, trace)

        patch.setattr("protocol.play.World", Recorded)
        return play(SETUPS[name], seed, actions)


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> list[Lines]:
    """One of every kind."""
    found = []
    for name in SETUPS:
        path = tmp_path_factory.mktemp("walk") / "trace.jsonl"
        record_walk(path, name, 3)
        assert check_trace(path) > 300
        found.append([json.loads(line) for line in path.read_text().splitlines()])
    return found


def test_walks_of_every_kind_pass(walks: list[Lines]) -> None:
    calls = {line["call"] for walk in walks for line in walk if "call" in line}
    assert calls | {"reset"} == set(CALLS), "a call that no walk makes is not checked"


def test_a_reset_and_a_restart_begin_new_books(tmp_path: Path) -> None:
    """Pools are whole again, step numbers and transfer ids go on, and the rows left are told as cleared."""
    with Trace(tmp_path / "trace.jsonl") as trace:
        coordinator = Coordinator(SETUPS["mirrored"], SETUPS["mirrored"].config())
        record(coordinator, trace)
        for again in (coordinator.reset, lambda: coordinator.restart_rank(0), lambda: None):
            coordinator.admit("r", [], 4, Limits(8, 4))
            coordinator.extend("r", 4)
            coordinator.step_done(coordinator.plan_step([Scheduled("r", 0, 4)]).sequence)
            coordinator.seal("r", 4, [1, 2])
            coordinator.plan_step([])
            again()
    assert check_trace(tmp_path / "trace.jsonl") == 2 + 3 * 6 + 2
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    sent = [transfer[0] for _, line in where(lines, "plan_step") for transfer in line["answer"]["transfers"]]
    assert len(sent) == 6 and sent == sorted(set(sent))
    assert [line["answer"]["cleared_rows"] for _, line in where(lines, "plan_step")] == [[], [], [0], [], [0], []]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_main_job_is_recorded(device: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    small = "--model compact --requests 4 --context 96 --new-tokens 5 --top-k 8 --block-size 4 --prefill-chunk 16"
    result = CliRunner().invoke(app, ["replay", *small.split(), "--device", device, "--record", str(path)])
    assert result.exit_code == 0, result.output
    assert main(["check", str(path)]) == 0
    assert '"clean-unpinned"' in path.read_text(), "nothing was given up under pressure"


@pytest.mark.slow
@pytest.mark.parametrize("name", SETUPS)
def test_long_walks_pass(name: str, tmp_path: Path) -> None:
    record_walk(tmp_path / "trace.jsonl", name, 200, 10_000)
    assert check_trace(tmp_path / "trace.jsonl") > 100


def test_what_is_over_is_not_remembered(good: Lines) -> None:
    """Memory is bounded by what is live: at the end of a run that is nothing but blocks and hashes."""
    calls = Calls(good[0])
    for line in good[1:-1]:
        calls.line(line)
    books, plans = calls.books, calls._plans
    assert not any((books.requests, books.live, books.transfers, books.orphans, plans.steps, plans._unproven))
    [rank] = calls._recorded.values()
    assert not any(rank.said.values()) and not rank.mirrored
    assert all(not lease.readers and not lease.refs for lease in books.lease_of.values())
    assert all(not host.pages for host in books.hosts.values()) and books.prefix


def test_being_recorded_changes_nothing(tmp_path: Path) -> None:
    recorded = record_walk(tmp_path / "trace.jsonl", "restless", 3)
    assert recorded.actions == play(SETUPS["restless"], 3, WALK).actions


def test_what_is_not_recorded_is_not_touched() -> None:
    coordinator = Coordinator(SETUPS["mirrored"], SETUPS["mirrored"].config())
    parts = (coordinator, *vars(coordinator).values(), *vars(coordinator._state).values())
    functions = [name for part in parts for name, value in getattr(part, "__dict__", {}).items() if callable(value)]
    assert set(functions) <= {"_on_evict"}
    assert set(CALLS) <= {name for name in dir(Coordinator) if not name.startswith("_")}


def test_full_residency_can_be_recorded(tmp_path: Path) -> None:
    toy = ToyModel(top_k=8, block_size=BLOCK, dtype=torch.float32)
    with (
        Trace(tmp_path / "trace.jsonl") as trace,
        Engine(toy, plan_layout(toy.spec, 1 << 20, 0), EngineConfig(2, 64, CHUNK)) as engine,
    ):
        engine.record(trace)
        engine.add(Request("r", tuple(range(20)), 3))
        engine.run()
    assert check_trace(tmp_path / "trace.jsonl") > 20


def test_arguments_of_any_kind_of_sequence_and_integer_are_recorded(tmp_path: Path) -> None:
    with Trace(tmp_path / "trace.jsonl") as trace:
        coordinator = Coordinator(SETUPS["mirrored"], SETUPS["mirrored"].config())
        record(coordinator, trace)
        coordinator.admit("r", range(7, 9), torch.tensor(4), Limits(8, 4))
        coordinator.extend("r", 4)
        plan = coordinator.plan_step(deque([Scheduled("r", 0, 4)]))
        coordinator.apply(RankReport(0, 0, mirrored=MappingProxyType({plan.sequence: (4,)})))
    assert check_trace(tmp_path / "trace.jsonl") == 6


def test_a_call_that_raises_is_recorded_and_changes_nothing(tmp_path: Path) -> None:
    setup = SETUPS["mirrored"]
    with Trace(tmp_path / "trace.jsonl") as trace:
        coordinator = Coordinator(setup, CoordinatorConfig(max_requests=2, max_pages=4))
        record(coordinator, trace)
        with pytest.raises(ValueError, match="not live"):
            coordinator.extend("nobody", 3)
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert lines[1]["raised"] == "ValueError" and lines[1]["events"] == []
    assert check_trace(tmp_path / "trace.jsonl") == 3


# Corrupted ones.


@pytest.mark.parametrize("corrupt", OF_THE_ENGINE, ids=lambda change: change.__name__)
def test_a_corrupted_trace_is_refused(corrupt: Corruption, good: Lines, tmp_path: Path) -> None:
    lines = copy.deepcopy(good)
    invariant, line = corrupt(lines)
    is_refused(tmp_path, lines, invariant, line)


@pytest.mark.parametrize("corrupt", OF_A_WALK, ids=lambda change: change.__name__)
def test_a_corrupted_walk_is_refused(corrupt: Corruption, walks: list[Lines], tmp_path: Path) -> None:
    for walk in walks:
        lines = copy.deepcopy(walk)
        try:
            invariant, line = corrupt(lines)
        except StopIteration:  # this walk has no example
            continue
        is_refused(tmp_path, lines, invariant, line)
        return
    pytest.fail("no walk has an example")


def is_refused(folder: Path, lines: Lines, invariant: str, line: int) -> None:
    with pytest.raises(Refused) as refused:
        check_trace(write(folder / "trace.jsonl", lines))
    assert (refused.value.invariant, refused.value.line) == (invariant, line), str(refused.value)
    assert str(refused.value).startswith(f"line {line}: {invariant} broken: {SENTENCES[invariant]} Here: ")


# Not even a trace.


def test_a_refusal_and_an_unreadable_file_are_told_in_one_line(good: Lines, tmp_path: Path, capsys) -> None:
    lines = copy.deepcopy(good)
    invariant, line = a_recycled_block_is_not_named(lines)
    path = write(tmp_path / "refused.jsonl", lines)
    assert main(["check", str(path)]) == 1
    out, err = capsys.readouterr()
    assert err.startswith(f"{path}, line {line}: {invariant} broken") and err.count("\n") == 1 and not out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: "),
        (b"", "is no trace: its first line is not the header of one"),
        (b"\x7fELF\xff\xfe", "cannot be read: "),
        (b'{"timestamp":0,"input_length":3}\n', "is no trace: "),
        (b"[1]\n", "line 1: expected a JSON object"),
    ],
)
def test_what_is_no_trace_is_refused(content: bytes | None, said: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / "trace.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert main(["check", str(path)]) == 2
    out, err = capsys.readouterr()
    assert said in err and str(path) in err and err.count("\n") == 1 and not out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[: len(text) // 2], "truncated: the line is cut off"),
        (lambda text: text[: text.rindex("{")], "is truncated: it has no end line"),
        (lambda text: "".join(text.splitlines(keepends=True)[:40]), "is truncated: it has no end line"),
        (lambda text: text + text, "the trace goes on behind its end"),
        (lambda text: text.replace('"format":1', '"format":9'), "is of format 9, and this reads format 1"),
        (lambda text: text.replace('"counts"', '"count"'), "not a line of the format (KeyError: 'counts')"),
        (lambda text: text.replace('"gpu lease"', '"gpu leash"'), "not a line of the format (KeyError: 'gpu leash')"),
        (lambda text: text.replace('"call":"seal"', "junk", 1), "not JSON"),
    ],
)
def test_a_damaged_trace_is_refused(change, said: str, good: Lines, tmp_path: Path, capsys) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(change("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in good)))
    assert main(["check", str(path)]) == 2
    out, err = capsys.readouterr()
    assert said in err and err.count("\n") == 1 and "Traceback" not in err and not out
