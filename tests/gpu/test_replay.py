"""`hisparse replay --device cuda`, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hisparse_ops.cli import app

pytestmark = pytest.mark.gpu

JOB = (
    *("replay", "--device", "cuda", "--requests", "6", "--context", "384", "--new-tokens", "24"),
    *("--top-k", "16", "--block-size", "16", "--prefill-chunk", "64"),
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["compact", "glm-tiny"])
def test_hisparse_on_a_gpu_is_bit_identical_to_full_residency(tmp_path: Path, model: str, dtype: str) -> None:
    if model == "glm-tiny":
        pytest.importorskip("transformers", minversion="5.24")
    path = tmp_path / "figures.json"
    result = CliRunner().invoke(app, [*JOB, "--model", model, "--dtype", dtype, "--json", str(path)])
    assert result.exit_code == 0, result.output
    record = json.loads(path.read_text())
    assert record["tokens_identical"] is True and record["logits_identical"] is True
    resident, small, tiered = (record["figures"][arm] for arm in ("resident", "small pool", "hisparse"))
    assert min(tiered[name] for name in ("spilled_pages", "hot_hits", "misses", "host_bytes_read")) > 0
    assert tiered["faults"] == 0 == resident["misses"]
    assert tiered["peak_requests"] > small["peak_requests"]
