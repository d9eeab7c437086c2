"""How much memory the machine and the container have left, asked before anything is taken.

A pool that is larger than what is left is not refused by the kernel: pages are handed out at the first
touch, and the process is killed then. So the question is asked here, of everyone who may say no:
the machine and every memory cgroup, of version 1 or 2, that the process is in.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

HEADROOM = 0.95  # share of what is left that a pool may take
PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


class HostMemoryError(MemoryError):
    """The host pool would take more than the machine or the container has left."""


def _cgroup_left(directory: Path, limit_file: str, usage_file: str, inactive_key: str) -> int | None:
    """What one cgroup has left; None if it has no limit. Its inactive file cache can be dropped."""
    limit_path = directory / limit_file
    if not limit_path.is_file() or (limit := limit_path.read_text().strip()) == "max":
        return None
    stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
    usage = int((directory / usage_file).read_text()) - int(stat[inactive_key])
    return max(0, int(limit) - usage)


def _with_parents(mount: Path, group: str) -> Iterator[Path]:
    """The cgroup and all above it: each limits what is below. In a container the named group may not
    be mounted; the mount itself then stands for it and is the last of the parents."""
    directory = mount / group.lstrip("/")
    while directory != mount:
        yield directory
        directory = directory.parent
    yield mount


def _cgroups_left(proc: Path, cgroup: Path) -> Iterator[int]:
    memberships = proc / "self" / "cgroup"
    if not memberships.is_file():
        return
    for line in memberships.read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":  # version 2
            mount, names = cgroup, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = cgroup / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        for directory in _with_parents(mount, group):
            left = _cgroup_left(directory, *names)
            if left is not None:
                yield left


def available_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Bytes that this process can still take: the least of what machine and containers have left."""
    import psutil  # here, because it would be half of what importing hisparse_ops costs

    machine: int = psutil.virtual_memory().available
    return min([machine, *_cgroups_left(proc, cgroup)])


def require(needed: int) -> None:
    """Raises `HostMemoryError` if `needed` bytes are more than 95 % of what is left."""
    available = available_bytes()
    if needed > HEADROOM * available:
        raise HostMemoryError(
            f"a host pool of {needed} bytes is more than {HEADROOM:.0%} of the {available} bytes that the machine "
            f"or the container has left: lower host_bytes"
        )
