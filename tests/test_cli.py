"""`hisparse replay` as a user calls it: figures, verdict, exit codes; bad input ends in one sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from hisparse_ops import _library, ops
from hisparse_ops.cli import EXIT_BAD_INPUT, EXIT_DIFFERENT, app
from hisparse_ops.engine import Engine

SMALL_JOB = (
    *("--model", "glm-tiny", "--requests", "5", "--context", "160", "--new-tokens", "10"),
    *("--top-k", "8", "--block-size", "4", "--prefill-chunk", "16"),
)
TRACE_LINE = {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1, 2, 3]}


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["replay", *arguments])


def replay(*arguments: str) -> Result:
    return call(*SMALL_JOB, *arguments)


@pytest.mark.parametrize("model", ["glm-tiny", "compact"])
def test_table_verdict_and_figures(tmp_path: Path, model: str) -> None:
    path = tmp_path / "figures.json"
    result = replay("--model", model, "--json", str(path))
    assert result.exit_code == 0, result.output
    assert "tokens of hisparse are bit-identical to full residency" in result.output
    assert "logits of hisparse are bit-identical to full residency" in result.output
    record = json.loads(path.read_text())
    assert record["tokens_identical"] is True and record["logits_identical"] is True
    resident, small, tiered = (record["figures"][arm] for arm in ("resident", "small pool", "hisparse"))
    assert tiered["peak_requests"] > small["peak_requests"]
    assert min(tiered[name] for name in ("spilled_pages", "hot_hits", "misses", "host_bytes_read")) > 0
    assert tiered["faults"] == 0
    assert resident["misses"] == small["misses"] == 0
    references = [a["resident_references"] + a["hot_hits"] + a["misses"] for a in (resident, small, tiered)]
    assert len(set(references)) == 1, "the same top-k rows are read, wherever they lie"
    assert tiered["device_peak_bytes"] < resident["device_peak_bytes"]
    assert tiered["host_peak_bytes"] > 0 == resident["host_peak_bytes"]
    assert [len(tokens) for tokens in record["outputs"]] == [10] * 5
    assert record["settings"]["device_pool_bytes"] < record["settings"]["full_residency_bytes"] / 3


def test_requests_of_a_trace_reuse_their_shared_prefix(tmp_path: Path) -> None:
    trace, path = tmp_path / "trace.jsonl", tmp_path / "figures.json"
    other = TRACE_LINE | {"hash_ids": [0, 1, 2, 9]}
    trace.write_text("".join(json.dumps(line) + "\n" for line in [TRACE_LINE, other] * 3))
    result = replay("--requests", "6", "--trace", str(trace), "--json", str(path))
    assert result.exit_code == 0, result.output
    assert json.loads(path.read_text())["figures"]["hisparse"]["reused_tokens"] > 0


def test_a_wrong_row_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Misses that are not loaded leave other rows in the hot slots: the verdict must say so."""
    monkeypatch.setattr(ops, "gather_compact", lambda *_: None)
    result = replay()
    assert result.exit_code == EXIT_DIFFERENT, result.output
    assert "logits of hisparse are DIFFERENT from full residency" in result.output


def test_a_request_that_fits_only_with_hisparse_is_said_so() -> None:
    result = replay("--requests", "1", "--context", "400", "--device-pool", "600KB")
    assert result.exit_code == 0, result.output
    assert re.search(r"small pool: cannot run these requests: .* needs \d+ GPU blocks", result.output)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--model", "gpt"], r"'gpt' is not one of 'smollm2', 'glm-tiny'"),
        (["--device-pool", "lots"], r"'lots' is not a size: expected a number with B, KiB"),
        (["--requests", "0"], r"'--requests': .* greater than or equal to 1"),
        (["--requests", "two"], r"'--requests': .* valid integer"),
        (["--requests", "1000000000000"], r"'--requests': .* less than or equal to 65536"),
        (["--seed", "1" + 30 * "0"], r"'--seed': .* less than or equal to \d+"),
        (["--block-size", "1000000"], r"'--block-size': .* less than or equal to 65536"),
        (["--nonsense"], r"No such option.*--nonsense"),
        (["--prefill-chunk", "18"], r"--prefill-chunk is 18: expected a multiple of the block size 4"),
        (["--hot-slots", "7"], r"--hot-slots must be at least .* 8"),
        (["--hot-slots", "3000000000"], r"--hot-slots, .* must stay below 2147483648, got 3000000000"),
        (["--top-k", "1" + 30 * "0"], r"\(max_query_len \+ 1\) \* --top-k, must stay below 2147483648"),
        (["--device-pool", "0"], r"--device-pool=0 must hold"),
        (["--device-pool", "1KiB"], r"--device-pool=1024 must hold"),
        (["--device-pool", "100KiB"], r"give --device-pool >= \d+"),
        (["--host-pool", "60KiB"], r"give --host-pool >= \d+"),
        (["--host-pool", "500GiB"], r"host pool of .* lower --host-pool|--host-pool=.* row numbers must stay below"),
        (
            ["--context", "300000"],
            r"--context 300000 and --new-tokens 10: together more than the \d+ tokens that glm-tiny",
        ),
        (["--new-tokens", "1" + 30 * "0"], r"--context 160 and --new-tokens 10+: together more than"),
        pytest.param(
            ["--model", "smollm2", "--requests", "1000"],
            r"--requests must be at most \d+ for prompts of 160 tokens",
            marks=pytest.mark.slow,
        ),
        (["--trace", "missing.jsonl"], r"trace missing.jsonl cannot be read"),
        (
            ["--json", "no/such/folder/figures.json"],
            r"--json: no/such/folder/figures.json cannot be written: No such file",
        ),
        (["--json", "/"], r"--json: / cannot be written: Is a directory"),
        (
            ["--record", "no/such/folder/trace.jsonl"],
            r"--record: no/such/folder/trace.jsonl cannot be written: No such file",
        ),
        (["--record", "/"], r"--record: / cannot be written: Is a directory"),
    ],
)
def test_bad_input_ends_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], sentence: str
) -> None:
    """Before anything is computed."""
    steps: list[Engine] = []
    monkeypatch.setattr(Engine, "step", steps.append)
    result = replay(*arguments)
    assert result.exit_code == EXIT_BAD_INPUT, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    said = re.sub(r"[│╭╮╰╯─\s]+", " ", result.output)
    assert re.search(sentence, said), said
    assert "Traceback" not in said and not steps


def test_a_path_is_told_as_it_was_given() -> None:
    for path in ("count.jsonl", "top_k/trace", "at/host_bytes", "hot_slots-1"):
        assert f"trace {path} cannot be read" in re.sub(r"\s+", " ", replay("--trace", path).output)


def test_bad_input_leaves_no_file_and_no_file_changed(tmp_path: Path) -> None:
    new, old = tmp_path / "new.json", tmp_path / "old.jsonl"
    old.write_text("precious")
    result = replay("--json", str(new), "--record", str(old), "--device-pool", "1KiB")
    assert result.exit_code == EXIT_BAD_INPUT, result.output
    assert not new.exists() and old.read_text() == "precious"


def test_help_says_what_it_is_for_and_what_the_exit_codes_mean() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "KV caches of sparse-attention models" in result.output and "Exit codes: 0" in result.output


@pytest.mark.parametrize(
    "cuda, sentence",
    [
        (False, "--device cuda: torch finds no CUDA device on this machine"),
        (True, "--device cuda: this installation has no CUDA kernels"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_said_so(monkeypatch: pytest.MonkeyPatch, cuda: bool, sentence: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(_library, "has_cuda_kernels", lambda: False)
    result = replay("--device", "cuda")
    assert result.exit_code == EXIT_BAD_INPUT
    assert sentence in result.output and "Traceback" not in result.output


def test_a_corrupt_trace_names_the_line(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps(TRACE_LINE) + "\n{half a li")
    result = replay("--trace", str(trace))
    assert result.exit_code == EXIT_BAD_INPUT
    assert "line 2: expected a JSON object with input_length, output_length, hash_ids" in result.output
