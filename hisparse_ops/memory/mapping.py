"""The memory under a host pool: private to the process, or one file that all ranks of a machine map.

| mapping | made by | taken down by |
|---|---|---|
| private | `private_mapping` | `close` |
| shared | the creator: under a building name, renamed when it is whole | the creator's `close`, or its failure |
| shared | a joiner: waits for the finished name, no longer than its timeout | the creator |

Fresh memory reads as zeros without being written.
"""

from __future__ import annotations

import mmap
import os
import time
from contextlib import suppress
from pathlib import Path

POLL_SECONDS = 0.05


class MappingError(RuntimeError):
    """A shared region cannot be made or joined."""


class Mapping:
    """`size` bytes, page-aligned, given back by `close`.

    `writer` is true for the one process that copies rows into the memory: of a shared region the creator.
    """

    def __init__(self, memory: mmap.mmap, writer: bool, path: Path | None) -> None:
        self._memory = memory
        self._path = path
        self.view = memoryview(memory)
        self.size = len(memory)
        self.writer = writer

    def close(self) -> None:
        """Gives the memory back now. Idempotent.

        Addresses can only go with the last tensor that looks at them, else a late access would hit
        freed memory. Where there still is one, the process gives back the bytes all the same; in private
        memory the stale tensor then reads zeros.
        """
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None
        if self._memory.closed:
            return
        self.view = memoryview(b"")
        try:
            self._memory.close()
        except BufferError:
            self._memory.madvise(mmap.MADV_DONTNEED)


def private_mapping(size: int) -> Mapping:
    """Anonymous memory of this process, in huge pages where the kernel has them: rows are read at random, and
    then address translation binds; a GPU driver also registers it in half the time."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them refuses the advice; the memory is good all the same
        memory.madvise(mmap.MADV_HUGEPAGE)
    return Mapping(memory, writer=True, path=None)


def _building_name(path: Path) -> Path:
    return path.with_name(path.name + ".building")


def create_shared(path: Path, size: int) -> Mapping:
    """Makes a region of `size` bytes that others join by `path`, best on a memory file system.

    Every byte is reserved here, so that no later touch can fail. Raises `MappingError` if the path is
    taken or the file system is too small; nothing is left behind then.
    """
    building = _building_name(path)
    file_system = os.statvfs(path.parent)
    left = file_system.f_bavail * file_system.f_frsize
    if size > left:
        raise MappingError(
            f"a shared region of {size} bytes does not fit into {path.parent}, which has {left} bytes left"
        )
    if path.exists():
        raise MappingError(f"{path} exists: another process uses it, or one that died left it behind; remove it")
    try:
        file = os.open(building, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise MappingError(f"{building} exists: another process builds it, or died doing so; remove it") from None
    try:
        os.posix_fallocate(file, 0, size)
        memory = mmap.mmap(file, size)
        building.rename(path)
    except BaseException as error:
        building.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise MappingError(f"cannot reserve {size} bytes for {path}: {error}") from error
        raise
    finally:
        os.close(file)
    return Mapping(memory, writer=True, path=path)


def join_shared(path: Path, size: int, timeout_seconds: float) -> Mapping:
    """Maps the region that another process makes. Raises `MappingError` if it is not there in time or
    has another size."""
    give_up_at = time.monotonic() + timeout_seconds
    while True:
        with suppress(FileNotFoundError):
            file = os.open(path, os.O_RDWR)
            break
        if time.monotonic() >= give_up_at:
            raise MappingError(f"{path} was not made within {timeout_seconds} s: did its creator fail?")
        time.sleep(POLL_SECONDS)
    try:
        found = os.fstat(file).st_size
        if found != size:
            raise MappingError(f"{path} has {found} bytes, {size} expected: do all ranks use the same layout?")
        return Mapping(mmap.mmap(file, size), writer=False, path=None)
    finally:
        os.close(file)
