"""The data plane on a GPU: microseconds, GB/s, floor and ratio of every op, by replays of CUDA graphs.

    python bench/bench_gpu.py --host-gib 32 --out bench/results

Answers are compared with the CPU's, and gathered bytes with what the host rows hold, before anything is timed. A graph
holds as many steps as it takes to leave the L2 cache cold; the hot state is put back before every replay. Cases
take turns, and a figure is the median over the rounds. Floors are the bytes that must move, over rates measured in
the same run, plus one empty graph node.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from gpu_batches import BLOCK, L2_BYTES, ROW_BYTES, WORDS, Sizes, Steps, expected_words, fill_host, make_steps
from torch import Tensor

import hisparse_ops

LAYERS = 4
MODEL_LAYERS = 60
SEGMENT_WORDS = LAYERS * WORDS
GIB = 1 << 30
ROUNDS = 9
HOT_BYTES_AT_MOST = 40 * GIB


@dataclass
class Record:
    op: str
    batch: int
    top_k: int
    hot_slots: int
    query_rows: int
    case: str
    host_gib: float
    layers: int
    us: float
    gb_per_s: float
    floor_us: float


@dataclass
class Bench:
    """One timed graph of `steps` equal pieces of work."""

    op: str
    sizes: Sizes
    host_gib: float
    layers: int
    steps: int
    moved_bytes: int
    floor_us: float
    graph: torch.cuda.CUDAGraph
    prepare: Callable[[], None]
    inputs: tuple[object, ...]  # a graph reads its inputs again at every replay: they must stay
    times: list[float] = field(default_factory=list)

    def time(self, flush: Tensor) -> None:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.prepare()
        flush.zero_()  # out of the L2 cache with what was prepared
        torch.cuda.synchronize()
        begin.record()
        self.graph.replay()
        end.record()
        torch.cuda.synchronize()
        self.times.append(begin.elapsed_time(end) * 1e3 / self.steps)

    def record(self) -> Record:
        us = statistics.median(self.times)
        s = self.sizes
        shape = s.batch, s.top_k, s.hot_slots, s.query_rows, s.case
        rate = self.moved_bytes / us / 1e3
        return Record(self.op, *shape, self.host_gib, self.layers, *(round(x, 3) for x in (us, rate, self.floor_us)))


def captured(steps: int, run: Callable[[int], None]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for step in range(steps):
            run(step)
    return graph


def nothing() -> None:
    pass


@dataclass
class Rates:
    """What this machine does at best: GB/s of the copy engine and of device memory, an empty node."""

    host_to_device: float
    device_to_host: float
    device_memory: float
    node_us: float


def measure_rates(host: Tensor) -> Rates:
    part = host[: GIB // host.shape[1] // 4]
    device = torch.empty_like(part, device="cuda")
    other = torch.empty_like(device)

    def rate(copy: Callable[[], None], moved: int) -> float:
        copy()
        times = []
        for _ in range(5):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            copy()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        return moved / statistics.median(times) / 1e6

    one = torch.zeros(1, dtype=torch.int32, device="cuda")
    slots = torch.zeros(1, 1, dtype=torch.int32, device="cuda")
    empty = captured(500, lambda _: hisparse_ops.invalidate(slots, one, one))
    node = Bench("node", Sizes(1), 0, 0, 500, 0, 0, empty, nothing, (slots, one))
    for _ in range(ROUNDS):
        node.time(other)
    bytes_ = part.nbytes
    return Rates(
        rate(lambda: device.copy_(part, non_blocking=True), bytes_),
        rate(lambda: part.copy_(device, non_blocking=True), bytes_),
        rate(lambda: other.copy_(device), 2 * bytes_),
        statistics.median(node.times),
    )


class Machine:
    """The pools that all benchmarks use."""

    def __init__(self, host_gib: int) -> None:
        self.host_gib = host_gib
        rows = host_gib * GIB // (SEGMENT_WORDS * 4) // BLOCK * BLOCK
        self.host = torch.empty(rows, SEGMENT_WORDS, dtype=torch.int32)
        fill_host(self.host)
        code = torch.cuda.cudart().cudaHostRegister(self.host.data_ptr(), self.host.nbytes, 0)
        if int(code) != 0:
            sys.exit(f"cudaHostRegister of {self.host.nbytes} bytes failed with code {int(code)}")
        self.rates = measure_rates(self.host)
        self.flush = torch.empty(4 * L2_BYTES, dtype=torch.uint8, device="cuda")
        self.pool = torch.empty(HOT_BYTES_AT_MOST // ROW_BYTES, WORDS, dtype=torch.int32, device="cuda")

    def host_layers(self) -> list[Tensor]:
        return [self.host[:, i * WORDS : (i + 1) * WORDS] for i in range(LAYERS)]

    def host_blocks(self, gib: float) -> int:
        return int(gib * GIB) // (SEGMENT_WORDS * 4) // BLOCK

    def device_layers(self) -> list[Tensor]:
        end = self.pool.shape[0] - (LAYERS - 1) * BLOCK
        return [self.pool[i * BLOCK : i * BLOCK + end] for i in range(LAYERS)]

    def resolve_floor(self, sizes: Sizes) -> float:
        return self.rates.node_us + sizes.resolve_bytes / self.rates.device_memory / 1e3

    # Each makes a checked, captured benchmark.

    def resolve(self, sizes: Sizes) -> Bench:
        count = sizes.steps()
        steps = make_steps(sizes, count, self.host_blocks(1), BLOCK * LAYERS)
        check_resolve(steps)
        graph = captured(count, lambda i: torch.ops.hisparse.resolve(*steps.arguments(i)))
        return Bench(
            "resolve",
            sizes,
            0,
            0,
            count,
            sizes.resolve_bytes,
            self.resolve_floor(sizes),
            graph,
            steps.restore,
            (steps,),
        )

    def group(self, sizes: Sizes, gib: float, parts: str = "group_step") -> Bench:
        """`resolve` and the rows of all layers of an index group, or the rows alone."""
        hot_bytes = sizes.batch * -(-sizes.hot_slots // BLOCK) * BLOCK * LAYERS * ROW_BYTES
        loads = sizes.misses * sizes.batch
        moved = loads * LAYERS * ROW_BYTES
        count = max(2, min(sizes.steps(), 256, HOT_BYTES_AT_MOST // hot_bytes - 1))
        steps = make_steps(sizes, count, self.host_blocks(gib), BLOCK * LAYERS)
        host, device = self.host_layers(), self.device_layers()
        floor = moved / self.rates.host_to_device / 1e3 + self.rates.node_us

        def gather(step: int, plan: list[Tensor]) -> None:
            torch.ops.hisparse.gather_compact(host, device, plan[2], plan[3], steps.query_start, plan[4])

        plans = [torch.ops.hisparse.resolve(*steps.arguments(i)) for i in range(count)]
        gather(0, plans[0])
        self.check_rows(plans[0])
        steps.restore()
        if parts == "gather":
            graph = captured(count, lambda i: gather(i, plans[i]))
            return Bench("gather", sizes, gib, LAYERS, count, moved, floor, graph, nothing, (plans, steps))
        graph = captured(count, lambda i: gather(i, torch.ops.hisparse.resolve(*steps.arguments(i))))
        return Bench(
            "group_step",
            sizes,
            gib,
            LAYERS,
            count,
            moved,
            floor + self.resolve_floor(sizes),
            graph,
            steps.restore,
            (steps,),
        )

    def check_rows(self, plan: list[Tensor]) -> None:
        host_rows, device_rows = (plan[i][plan[2] >= 0] for i in (2, 3))
        assert host_rows.numel() == int(plan[4].sum()) > 0
        expected = expected_words(host_rows, SEGMENT_WORDS)
        for i, layer in enumerate(self.device_layers()):
            assert torch.equal(layer[device_rows.long()], expected[:, i * WORDS : (i + 1) * WORDS])

    def mirror(self, requests: int, gib: float) -> Bench:
        """One row of each request in every layer of the model, from a block-major pool to token-major groups."""
        groups = MODEL_LAYERS // LAYERS
        rows = int(gib * GIB) // (SEGMENT_WORDS * 4) // groups
        host = [
            self.host[g * rows : (g + 1) * rows, i * WORDS : (i + 1) * WORDS]
            for g in range(groups)
            for i in range(LAYERS)
        ]
        end = 1 << 16
        device = [self.pool[i * end : (i + 1) * end] for i in range(MODEL_LAYERS)]
        for layer in device:
            layer.random_(generator=torch.Generator("cuda").manual_seed(7))
        count = 32
        sources = [torch.randperm(end, device="cuda")[:requests].int() for _ in range(count)]
        targets = [torch.randperm(rows, device="cuda")[:requests].int() for _ in range(count)]
        torch.ops.hisparse.mirror_rows(device, host, sources[0], targets[0])
        torch.cuda.synchronize()
        for one, other in zip(device, host, strict=True):
            assert torch.equal(one[sources[0].long()].cpu(), other[targets[0].long().cpu()])
        moved = requests * MODEL_LAYERS * ROW_BYTES
        graph = captured(count, lambda i: torch.ops.hisparse.mirror_rows(device, host, sources[i], targets[i]))
        floor = moved / self.rates.device_to_host / 1e3 + self.rates.node_us
        sizes = Sizes(requests, case="resident")
        return Bench("mirror", sizes, gib, MODEL_LAYERS, count, moved, floor, graph, nothing, (sources, targets))

    def invalidate(self, tokens: int) -> Bench:
        states, count = 256, 32
        sizes = Sizes(tokens, case="hit100")
        slots = torch.randint(0, 1 << 20, (count * states, sizes.hot_slots), dtype=torch.int32, device="cuda")
        saved = slots.clone()
        rows = list(slots.view(count, states, -1))
        owners = [torch.randint(0, states, (tokens,), dtype=torch.int32, device="cuda") for _ in range(count)]
        picks = torch.randint(0, sizes.hot_slots, (tokens,), device="cuda")
        stale = [r[o.long(), picks] for r, o in zip(rows, owners, strict=True)]
        found, expected = rows[0].clone(), rows[0].cpu()
        torch.ops.hisparse.invalidate(found, owners[0], stale[0])
        torch.ops.hisparse.invalidate(expected, owners[0].cpu(), stale[0].cpu())
        assert torch.equal(found.cpu(), expected) and bool((expected == -1).any())
        touched = min(tokens, states)
        moved = 8 * tokens + 4 * touched * sizes.hot_slots + 4 * tokens

        def restore() -> None:
            slots.copy_(saved)

        graph = captured(count, lambda i: torch.ops.hisparse.invalidate(rows[i], owners[i], stale[i]))
        floor = moved / self.rates.device_memory / 1e3 + self.rates.node_us
        return Bench("invalidate", sizes, 0, 0, count, moved, floor, graph, restore, (slots, owners, stale))


def check_resolve(steps: Steps) -> None:
    """The first step equals the CPU's, bit for bit."""
    arguments = steps.arguments(0)
    on_cpu = [a.cpu() if isinstance(a, Tensor) else a for a in arguments]
    found = torch.ops.hisparse.resolve(*arguments)
    expected = torch.ops.hisparse.resolve(*on_cpu)
    for one, other in zip([*found, *arguments[6:10]], [*expected, *on_cpu[6:10]], strict=True):
        assert torch.equal(one.cpu(), other)
    loads = int(expected[4].sum())
    assert loads == steps.sizes.misses * steps.sizes.batch, loads
    steps.restore()


BATCHES = (1, 8, 64, 128, 256)


def resolve_sizes() -> list[Sizes]:
    sizes = [Sizes(b, case=case) for case in ("miss5", "resident", "hit100", "miss50", "cold") for b in BATCHES]
    sizes += [Sizes(64, hot_slots=slots) for slots in (6144, 10240)]
    sizes += [Sizes(64, top_k=k, hot_slots=2 * k) for k in (512, 1024)]
    sizes += [Sizes(b, hot_slots=10240, query_rows=4, case=case) for b in (8, 64) for case in ("hit100", "miss5")]
    return sizes


def table(records: list[Record]) -> str:
    lines = [
        "| op | B | top-k | slots | rows | case | host GiB | layers | us | GB/s | floor us | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in records:
        cells = r.op, r.batch, r.top_k, r.hot_slots, r.query_rows, r.case, r.host_gib, r.layers
        figures = f"{r.us:.2f}", f"{r.gb_per_s:.1f}", f"{r.floor_us:.2f}", f"{r.us / r.floor_us:.2f}"
        lines.append("| " + " | ".join(map(str, (*cells, *figures))) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host-gib", type=int, default=32, help="size of the pinned host pool")
    parser.add_argument("--out", type=Path, help="folder for h200.json and h200.md")
    parser.add_argument("--only", default="resolve,group,gather,mirror,invalidate", help="what to run")
    options = parser.parse_args()
    chosen = options.only.split(",")

    machine = Machine(options.host_gib)
    records: list[Record] = []

    def run(name: str, makers: list[Callable[[], Bench]], together: int = 5) -> None:
        """Benchmarks of one kind take turns, a few at a time."""
        if name not in chosen:
            return
        for first in range(0, len(makers), together):
            benches = [make() for make in makers[first : first + together]]
            for number in range(ROUNDS + 2):
                for bench in benches:
                    bench.time(machine.flush)
                    if number < 2:
                        bench.times.clear()  # warm-up
            records.extend(bench.record() for bench in benches)
            del benches
            torch.cuda.empty_cache()

    run("resolve", [lambda s=s: machine.resolve(s) for s in resolve_sizes()])
    pools = sorted({1, options.host_gib})
    group = [Sizes(b) for b in BATCHES] + [Sizes(b, case=c) for c in ("miss50", "cold") for b in (8, 64)]
    run("group", [lambda s=s, g=g: machine.group(s, g) for g in pools for s in group], 3)
    run("gather", [lambda s=s, g=g: machine.group(s, g, "gather") for g in pools for s in group[:5]], 3)
    run("mirror", [lambda g=g: machine.mirror(64, g) for g in pools])
    run("invalidate", [lambda n=n: machine.invalidate(n) for n in (1, 2048, 8192)])

    r = machine.rates
    about = (
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}; copy engine "
        f"{r.host_to_device:.1f} / {r.device_to_host:.1f} GB/s to / from the device, device memory "
        f"{r.device_memory:.0f} GB/s read + write, smallest node {r.node_us:.2f} us"
    )
    text = f"# Measured figures\n\n{about}\n\n{table(records)}\n"
    print(text)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "h200.md").write_text(text)
        (options.out / "h200.json").write_text(json.dumps([asdict(record) for record in records], indent=1) + "\n")


if __name__ == "__main__":
    main()
