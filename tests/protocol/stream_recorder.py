"""What a worker really issues, as a program for the checker of streams: every op that torch dispatches, on
the stream that was current, with the places it reads and writes; every event that is recorded, waited for
or seen.

Places are blocks of the two pools, and whole tensors for all else. A tensor that nobody knows is a
temporary, with a place of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hisparse_ops.worker import Streams, Worker
from spec.streams import Item, Op, Record, Seen, Wait

Touched = tuple[set[str], set[str]]  # places read, places written


class RecordedEvent:
    """Done when the test says so, or when the CPU has asked for it `patience` times before."""

    def __init__(self, program: list[Item], name: str, patience: int | None) -> None:
        self._program = program
        self._patience = patience
        self._asked = 0
        self._seen = False
        self.name = name
        self.is_done = False

    def query(self) -> bool:
        self._asked += 1
        self.is_done |= self._patience is not None and self._asked > self._patience
        if self.is_done and not self._seen:
            self._program.append(Seen(self.name))
            self._seen = True
        return self.is_done


class RecordedStream:
    """A stream that only keeps the books; the CPU does the work at once."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder = recorder
        self._name = name

    @contextmanager
    def current(self) -> Iterator[None]:
        before, self._recorder.current = self._recorder.current, self._name
        yield
        self._recorder.current = before

    def record(self) -> RecordedEvent:
        name = f"event {len(self._recorder.events)}"
        event = RecordedEvent(self._recorder.program, name, self._recorder.patience)
        self._recorder.events.append(event)
        self._recorder.program.append(Record(self._name, event.name))
        return event

    def wait(self, event: RecordedEvent) -> None:
        self._recorder.program.append(Wait(self._name, event.name))


class Recorder(TorchDispatchMode):
    """Records what is dispatched while it is entered."""

    def __init__(self, patience: int | None = None) -> None:
        super().__init__()
        self.patience = patience
        self.program: list[Item] = []
        self.events: list[RecordedEvent] = []
        self.current = "compute"
        self.streams = Streams(RecordedStream(self, "compute"), RecordedStream(self, "copy"))  # type: ignore[arg-type]
        self._names: dict[int, str] = {}  # storage -> place
        self._kept: list[torch.Tensor] = []  # so that no two temporaries share their storage

    def watch(self, worker: Worker) -> None:
        """Learn the tensors of a worker."""
        store, layout = worker._store, worker._store.layout
        assert store.host is not None
        self._block_size, self._block_stride = layout.block_size, layout.block_stride
        known = {"gpu": store.kv_pool.storage, "staging": store.staging._area}
        known |= {f"host unit {unit}": store.host.unit_tensor(unit) for unit in range(len(layout.units))}
        known |= {f"table {name}": getattr(worker.tables, name) for name in ("host", "resident", "hot", "indexer")}
        for unit, state in enumerate(worker.hot_states):
            known |= {f"hot state {unit}.{number}": buffer for number, buffer in enumerate(state.buffers())}
        self._names = {_storage(tensor): name for name, tensor in known.items()}
        self._pools = {name for name in known if name == "gpu" or name.startswith("host unit")}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        self._kept += [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
        if not func.is_view:
            reads, writes = self._touched(func, args, result)
            name = str(func).removesuffix(".default")
            self.program.append(Op(self.current, name, frozenset(reads), frozenset(writes)))
        return result

    def _touched(self, func, args, result) -> Touched:  # type: ignore[no-untyped-def]
        blocks = BLOCKS.get(str(func))
        reads, writes = blocks(self, args) if blocks else (set(), set())
        for argument, value in zip(func._schema.arguments, args, strict=False):
            for name in self._names_in(value):
                if name not in self._pools:
                    (writes if argument.is_write else reads).add(name)
                else:
                    assert blocks, f"{func} touches {name}, and nobody knows which blocks of it"
        return reads, writes | (self._names_in(result) - self._pools)

    def _names_in(self, value: object) -> set[str]:
        return {self._name(leaf) for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor) and leaf.nbytes}

    def _name(self, tensor: torch.Tensor) -> str:
        return self._names.setdefault(_storage(tensor), f"temporary {len(self._names)}")

    def blocks(self, tensors: Sequence[torch.Tensor], blocks: torch.Tensor) -> set[str]:
        """These blocks of the pools that the tensors are views of."""
        pools = {self._name(tensor) for tensor in tensors} & self._pools
        return {f"{pool} block {block}" for pool in pools for block in blocks.unique().tolist()}

    def rows(self, tensors: Sequence[torch.Tensor], rows: torch.Tensor) -> set[str]:
        """The blocks of these rows."""
        on_device = any(self._name(tensor) == "gpu" for tensor in tensors)
        return self.blocks(tensors, rows // (self._block_stride if on_device else self._block_size))


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _copy_blocks(recorder: Recorder, args: Sequence[Any]) -> Touched:
    source, target, source_blocks, target_blocks = args[:4]
    real = (source_blocks > 0) & (target_blocks > 0)
    return recorder.blocks(source, source_blocks[real]), recorder.blocks(target, target_blocks[real])


def _copy_rows(recorder: Recorder, args: Sequence[Any]) -> Touched:
    source, target, source_rows, target_rows = args[:4]
    real = (source_rows >= 0) & (target_rows >= 0)
    return recorder.rows(source, source_rows[real]), recorder.rows(target, target_rows[real])


def _index_put(recorder: Recorder, args: Sequence[Any]) -> Touched:
    return set(), recorder.blocks([args[0]], args[1][0])


def _index_select(recorder: Recorder, args: Sequence[Any]) -> Touched:
    return recorder.blocks([args[0]], args[2]), set()


BLOCKS: dict[str, Callable[[Recorder, Sequence[Any]], Touched]] = {
    "hisparse.copy_blocks.default": _copy_blocks,
    "hisparse.gather_compact.default": _copy_rows,
    "hisparse.gather_plan.default": _copy_rows,
    "hisparse.mirror_rows.default": _copy_rows,
    "aten.index_put_.default": _index_put,
    "aten.index_select.default": _index_select,
}
