"""What is left of machine and container, with file trees as the kernel shows them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from hisparse_ops.memory import host_budget
from hisparse_ops.memory.host_budget import HostMemoryError, available_bytes

GIB = 2**30


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=100 * GIB))


def membership(root: Path, text: str) -> Path:
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_text(text)
    return root / "proc"


def version_2(directory: Path, limit: int | str, usage: int, inactive: int = 0) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.max").write_text(f"{limit}\n")
    (directory / "memory.current").write_text(f"{usage}\n")
    (directory / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n")


def version_1(directory: Path, limit: int, usage: int, inactive: int = 0) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (directory / "memory.usage_in_bytes").write_text(f"{usage}\n")
    (directory / "memory.stat").write_text(f"cache 1\ninactive_file 7\ntotal_inactive_file {inactive}\n")


def test_without_a_container_the_machine_decides(tmp_path: Path) -> None:
    assert available_bytes(tmp_path / "proc", tmp_path / "cgroup") == 100 * GIB


def test_version_2_counts_the_dropped_cache_as_left(tmp_path: Path) -> None:
    version_2(tmp_path / "cgroup" / "pod", 10 * GIB, 6 * GIB, inactive=1 * GIB)
    assert available_bytes(membership(tmp_path, "0::/pod\n"), tmp_path / "cgroup") == 5 * GIB


def test_a_parent_limits_too(tmp_path: Path) -> None:
    version_2(tmp_path / "cgroup" / "pod" / "inner", "max", 1 * GIB)
    version_2(tmp_path / "cgroup" / "pod", 10 * GIB, 9 * GIB)
    assert available_bytes(membership(tmp_path, "0::/pod/inner\n"), tmp_path / "cgroup") == 1 * GIB


def test_version_1(tmp_path: Path) -> None:
    version_1(tmp_path / "cgroup" / "memory" / "box", 8 * GIB, 2 * GIB, inactive=GIB)
    version_1(tmp_path / "cgroup" / "memory", 2**63 - 4096, 50 * GIB)
    proc = membership(tmp_path, "5:cpu,cpuacct:/\n4:memory:/box\n0::/\n")
    assert available_bytes(proc, tmp_path / "cgroup") == 7 * GIB


def test_a_group_that_is_not_mounted_is_read_at_the_mount(tmp_path: Path) -> None:
    version_2(tmp_path / "cgroup", 4 * GIB, 1 * GIB)
    assert available_bytes(membership(tmp_path, "0::/outside/pod\n"), tmp_path / "cgroup") == 3 * GIB


def test_a_container_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    version_2(tmp_path / "cgroup", 4 * GIB, 5 * GIB)
    assert available_bytes(membership(tmp_path, "0::/\n"), tmp_path / "cgroup") == 0


def test_95_percent_is_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_budget, "available_bytes", lambda: 1000)
    host_budget.require(950)
    with pytest.raises(HostMemoryError, match=r"951 bytes is more than 95% of the 1000 bytes"):
        host_budget.require(951)


def test_this_machine_answers() -> None:
    assert 0 < available_bytes() <= 100 * GIB
