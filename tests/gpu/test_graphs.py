"""One captured step of one index group, mirror, resolve and gather, replayed with other batches: no Python, no wrong
byte, also beside another stream that does the same."""

from __future__ import annotations

import copy

import pytest
import torch
from comparison import assert_equal
from torch import Tensor

from .histories import History, Shape, to

pytestmark = pytest.mark.gpu

LAYERS, WIDTH = 4, 656


class Step:
    """Static inputs, pools and state of one index group on the GPU, and a second, equal set for eager calls."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.history = history = History(shape, seed)
        tables = history.tables
        host_rows = int(tables.host.max() + 1) * tables.block_size
        self.host = torch.randint(0, 256, (host_rows, LAYERS * WIDTH), dtype=torch.uint8).pin_memory()
        device_rows = int(tables.hot.max() + 1) * tables.block_stride
        self.device = torch.zeros(device_rows, WIDTH, dtype=torch.uint8, device="cuda")
        self.tables, self.state = to("cuda", tables), history.gpu
        self.asked = to("cuda", history.advance())
        self.outputs: list[Tensor] = []

    def layers(self) -> tuple[list[Tensor], list[Tensor]]:
        end = self.device.shape[0] - self.tables.block_stride + self.tables.block_size
        host = list(self.host.unflatten(1, (LAYERS, WIDTH)).unbind(1))
        return host, [self.device[layer * self.tables.block_size :][:end] for layer in range(LAYERS)]

    def run(self) -> None:
        host, device = self.layers()
        *tables, block_size, block_stride = self.tables
        self.outputs = torch.ops.hisparse.resolve(*self.asked, *tables, *self.state, block_size, block_stride)
        _, _, host_rows, device_rows, counts = self.outputs
        torch.ops.hisparse.gather_compact(host, device, host_rows, device_rows, self.asked[1], counts)

    def next(self) -> None:
        for static, value in zip(self.asked, self.history.advance(), strict=True):
            static.copy_(value)

    def capture(self) -> torch.cuda.CUDAGraph:
        saved = copy.deepcopy(self.state)
        self.run()
        torch.cuda.synchronize()
        for tensor, old in zip(self.state, saved, strict=True):
            tensor.copy_(old)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run()
        return graph

    def check(self, expected: list[Tensor]) -> None:
        """Outputs and state are the CPU's, and every row that is read holds its host row's bytes."""
        assert_equal(self.outputs, expected)
        assert_equal(self.state, self.history.cpu)
        topk, query_start, states = (t.cpu() for t in self.asked)
        tables = self.history.tables
        host, device = self.layers()
        for request, state in enumerate(states.tolist()):
            for row in range(*query_start[request : request + 2].tolist()):
                rows = self.outputs[0][row].cpu()
                pages = (topk[row] // tables.block_size).clamp(0, tables.host.shape[1] - 1)
                read = (rows >= 0) & (tables.resident[state, pages] == 0)
                host_rows = (tables.host[state, pages] * tables.block_size + topk[row] % tables.block_size)[read].long()
                for layer in range(LAYERS):
                    found = device[layer][rows[read].long().cuda()]
                    assert torch.equal(found.cpu(), host[layer][host_rows])


SHAPE = Shape(rows=(1, 2, 1, 0, 3), columns=200, slots=900, pages=40, block_size=16, overlap=0.8)


def test_replays_equal_the_cpu() -> None:
    step = Step(SHAPE, seed=1)
    graph = step.capture()
    for number in range(60):
        step.next()
        graph.replay()
        expected = step.history.on_cpu(to("cpu", tuple(step.asked)))
        if number % 10 == 0:
            step.check(expected)
    step.check(expected)


def test_two_streams() -> None:
    steps = [Step(SHAPE, seed) for seed in (1, 2)]
    graphs = [step.capture() for step in steps]
    streams = [torch.cuda.Stream() for _ in steps]
    for number in range(40):
        for step, graph, stream in zip(steps, graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                step.next()
                graph.replay()
        torch.cuda.synchronize()
        for step in steps:
            expected = step.history.on_cpu(to("cpu", tuple(step.asked)))
            if number % 8 == 7:
                step.check(expected)


def test_ten_thousand_replays() -> None:
    """Every replay is compared on the GPU with an eager call on a second set of state."""
    step = Step(SHAPE._replace(rows=(1,) * 6), seed=3)
    graph = step.capture()
    *tables, block_size, block_stride = step.tables
    twin = copy.deepcopy(step.state)
    batches = [to("cuda", step.history.advance()) for _ in range(50)]
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for number in range(10_000):
        batch = batches[number * 7 % len(batches)]
        for static, value in zip(step.asked, batch, strict=True):
            static.copy_(value)
        graph.replay()
        expected = torch.ops.hisparse.resolve(*batch, *tables, *twin, block_size, block_stride)
        for found, other in zip(step.outputs, expected, strict=True):
            wrong += (found != other).sum()
        for found, other in zip(step.state, twin, strict=True):
            wrong += (found != other).sum()
    assert int(wrong) == 0
    step.history.cpu = to("cpu", twin)
    step.check(expected)
