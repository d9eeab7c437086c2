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
        (["--nonsense"], r"No such option.*--nonsense"),
        (["--prefill-chunk", "18"], r"prefill_chunk is 18: expected a multiple of the block size 4"),
        (["--hot-slots", "7"], r"hot_slots must be at least .* 8"),
        (["--device-pool", "1KiB"], r"device_bytes=1024 must hold"),
        (["--device-pool", "100KiB"], r"give device_bytes >= \d+"),
        (["--host-pool", "60KiB"], r"give host_bytes >= \d+"),
        (["--host-pool", "500GiB"], r"host_bytes|host pool"),
        (["--requests", "1", "--context", "300000"], r"max_context is 300010: the model takes 1 to \d+ tokens"),
        (["--trace", "missing.jsonl"], r"trace missing.jsonl cannot be read"),
        (["--json", "no/such/folder/figures.json"], r"--json: folder no/such/folder does not exist"),
        (["--json", "/"], r"--json: / is a folder, expected a file"),
        (["--record", "no/such/folder/trace.jsonl"], r"--record: folder no/such/folder does not exist"),
        (["--record", "/"], r"--record: / is a folder, expected a file"),
    ],
)
def test_bad_input_ends_in_one_sentence(arguments: Sequence[str], sentence: str) -> None:
    result = replay(*arguments)
    assert result.exit_code == EXIT_BAD_INPUT, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    said = re.sub(r"[│╭╮╰╯─\s]+", " ", result.output)
    assert re.search(sentence, said), said
    assert "Traceback" not in said


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
