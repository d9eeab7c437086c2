"""What importing hisparse_ops adds to importing torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

RUNS = 5
PROGRAM = """
import time, torch
begin = time.process_time()
import hisparse_ops
print(1000 * (time.process_time() - begin))
"""


def bench_import(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True) for _ in range(RUNS)]
    milliseconds = sorted(float(run.stdout) for run in runs)
    with capsys.disabled():
        print(f"\nimport hisparse_ops after torch: {milliseconds[0]:.0f} ms at best, {milliseconds[-1]:.0f} at worst")
