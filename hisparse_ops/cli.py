"""The `hisparse` command."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from hisparse_ops.control.recording import Trace
    from hisparse_ops.engine import ModelRunner
    from hisparse_ops.engine.replay import Outcome

EXIT_DIFFERENT = 1
EXIT_BAD_INPUT = 2

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_MIB = 1 << 20
_MOST = 1 << 16  # requests, and rows in a block: far more than anyone replays
_MOST_SEED = (1 << 32) - 1
_TRACE_CORPUS_TOKENS = 15_000  # the longest help topic: windows of it stand for a trace's hash ids

_ARGUMENTS = {  # options by the names that the library's errors use
    "device_bytes": "--device-pool",
    "host_bytes": "--host-pool",
    "hot_slots": "--hot-slots",
    "top_k": "--top-k",
    "prefill_chunk": "--prefill-chunk",
    "count": "--requests",
}
_ARGUMENT = re.compile(rf"(?<![\w./-])({'|'.join(_ARGUMENTS)})(?![\w/-]|\.\w)")  # and no part of a path

Sampler = Callable[[int, int], list[list[int]]]  # so many prompts of so many tokens

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def main() -> None:
    """HiSparse: KV caches of sparse-attention models in host memory, with only what is needed on the GPU.

    Exit codes: 0 all is well, 1 HiSparse and full residency differ, 2 bad input.
    """


class ModelName(StrEnum):
    SMOLLM2 = "smollm2"
    GLM_TINY = "glm-tiny"
    COMPACT = "compact"


class DeviceName(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


class DtypeName(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def _size(text: str | int) -> int:
    """`96MiB`, `1.5 GB`, `4096`: a number of bytes."""
    match = _SIZE.fullmatch(str(text).strip())
    if match is None or match[2].lower() not in _UNITS:
        raise typer.BadParameter(f"{text!r} is not a size: expected a number with B, KiB, MiB, GiB, KB, MB or GB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Bad input, missing packages and memory that is not there end in one sentence, not in a traceback."""
    try:
        yield
    except (ValueError, OSError, MemoryError, ImportError) as error:
        sentence = _ARGUMENT.sub(lambda name: _ARGUMENTS[name[0]], str(error))
        Console(stderr=True).print(f"hisparse: {sentence}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_BAD_INPUT) from None


@app.command()
def replay(
    model: Annotated[ModelName, typer.Option(help="Model to decode with.")] = ModelName.SMOLLM2,
    device: Annotated[
        DeviceName, typer.Option(help="Where the model computes and the device pool lies.")
    ] = DeviceName.CPU,
    requests: Annotated[int, typer.Option(min=1, max=_MOST, help="Requests to decode.")] = 8,
    context: Annotated[int, typer.Option(min=1, help="Prompt tokens of each request.")] = 2048,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to decode for each request.")] = 24,
    device_pool: Annotated[
        int | None,
        typer.Option(
            parser=_size, metavar="SIZE", help="Small device pool.", show_default="a quarter of full residency"
        ),
    ] = None,
    host_pool: Annotated[
        int | None, typer.Option(parser=_size, metavar="SIZE", help="Host pool.", show_default="room for every request")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Rows each token attends to.", show_default="the model's")
    ] = None,
    hot_slots: Annotated[
        int | None, typer.Option(min=1, help="Rows of a request's hot buffer.", show_default="2 x top-k")
    ] = None,
    block_size: Annotated[int, typer.Option(min=1, max=_MOST, help="Rows in a block.")] = 64,
    prefill_chunk: Annotated[int, typer.Option(min=1, help="Prompt tokens computed at once.")] = 128,
    dtype: Annotated[DtypeName, typer.Option(help="Type of weights and KV rows.")] = DtypeName.FLOAT32,
    seed: Annotated[
        int, typer.Option(min=0, max=_MOST_SEED, help="Seed of random weights and of the choice of prompts.")
    ] = 0,
    trace: Annotated[
        Path | None, typer.Option(help="Take lengths and shared prefixes from a Mooncake trace, scaled to --context.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    record: Annotated[
        Path | None, typer.Option(help="Record the HiSparse arm to this file, for `python -m spec check`.")
    ] = None,
) -> None:
    """Decode the same requests fully resident, fully resident in a small pool, and with HiSparse in that pool.

    Ends with a table and with whether tokens and logits of HiSparse are bit-identical to full residency.
    """
    with _plain_errors(), ExitStack() as files:
        for flag, path in (("--json", json_file), ("--record", record)):
            _check_writable(flag, path)
        # Here, not above: `hisparse --help` needs neither torch nor a model.
        import torch

        from hisparse_ops.engine import replay as engine_replay

        _check_device(device)
        runner, sample = _load(
            model,
            seed,
            dtype=getattr(torch, dtype.value),
            top_k=top_k,
            block_size=block_size,
            hot_slots=hot_slots,
            device=device.value,
        )
        if context + new_tokens > runner.max_positions:
            raise ValueError(
                f"--context {context} and --new-tokens {new_tokens}: together more than the {runner.max_positions} "
                f"tokens that {model.value} takes"
            )
        job = engine_replay.plan_job(
            runner,
            _prompts(sample, requests, context, trace),
            new_tokens,
            prefill_chunk=prefill_chunk,
            device_bytes=device_pool,
            host_bytes=host_pool,
        )
        recording = files.enter_context(_recording(record))
        settings = {
            "model": model.value,
            "device": device.value,
            "dtype": dtype.value,
            "requests": requests,
            "context": context,
            "new_tokens": new_tokens,
            "top_k": runner.spec.top_k,
            "hot_slots": runner.spec.slots,
            "block_size": block_size,
            "prefill_chunk": prefill_chunk,
            "seed": seed,
            "trace": None if trace is None else str(trace),
            "full_residency_bytes": job.full_residency_bytes,
            "device_pool_bytes": job.device_bytes,
            "host_pool_bytes": job.host_bytes,
        }
        with _progress_bars() as progress:
            outcome = engine_replay.replay(runner, job, progress, recording)
        if json_file is not None:
            json_file.write_text(json.dumps({"settings": settings, **asdict(outcome)}, indent=2) + "\n")
    _show(outcome, settings)
    if not outcome.identical:
        raise typer.Exit(EXIT_DIFFERENT)


def _check_device(device: DeviceName) -> None:
    """ValueError if a GPU is asked for where there is none, or where the package has no kernels for it."""
    import torch

    from hisparse_ops._library import has_cuda_kernels

    if device is DeviceName.CUDA and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device on this machine")
    if device is DeviceName.CUDA and not has_cuda_kernels():
        raise ValueError(
            "--device cuda: this installation has no CUDA kernels, because no nvcc was found when it was built"
        )


def _load(name: ModelName, seed: int, **settings: Any) -> tuple[ModelRunner, Sampler]:
    """The model, and its prompts: real text, or random tokens for a model without a tokenizer."""
    if name is ModelName.COMPACT:
        from hisparse_ops import models

        compact = models.load(seed=seed, **settings)
        return compact, lambda count, tokens: models.random_prompts(compact.vocab_size, count, tokens, seed=seed)
    from hisparse_ops.integrations import transformers

    model = transformers.load(name.value, seed=seed, **settings)
    return model, lambda count, tokens: [
        prompt for _, prompt in transformers.sample_prompts(model, count, tokens, seed=seed)
    ]


def _prompts(sample: Sampler, requests: int, context: int, trace: Path | None) -> list[Sequence[int]]:
    """Prompts in one piece each, or cut and shared as a trace says."""
    from hisparse_ops.engine.trace import read_trace, scaled_prompts

    if trace is None:
        return list(sample(requests, context))
    records = read_trace(trace, requests)
    [corpus] = sample(1, _TRACE_CORPUS_TOKENS)
    return list(scaled_prompts(records, corpus, context))


def _check_writable(flag: str, path: Path | None) -> None:
    """Before anything is computed: ValueError if no file can be written there. Leaves what is there as it is."""
    if path is None:
        return
    is_new = not path.exists()
    try:
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise ValueError(f"{flag}: {path} cannot be written: {error.strerror}") from error


@contextmanager
def _recording(path: Path | None) -> Iterator[Trace | None]:
    """The trace to write. Opened when all input is known to be good: what the file holds is gone then."""
    if path is None:
        yield None
        return
    from hisparse_ops.control.recording import Trace

    with Trace(path) as trace:
        yield trace


@contextmanager
def _progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """One bar per arm, on standard error."""
    columns = (TextColumn("{task.description:>10}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def update(arm: str, done: int, total: int) -> None:
            if arm not in tasks:
                tasks[arm] = bars.add_task(arm, total=total)
            bars.update(tasks[arm], completed=done)

        yield update


def _show(outcome: Outcome, settings: dict[str, Any]) -> None:
    """The table: a line for each figure, a column for each arm; then the verdict."""
    console = Console()
    share = settings["device_pool_bytes"] / settings["full_residency_bytes"]
    table = Table(
        title=f"{settings['model']}, {settings['requests']} requests of {settings['context']} tokens, "
        f"device pool {settings['device_pool_bytes'] / _MIB:.0f} MiB = {share:.0%} of full residency"
    )
    table.add_column("")
    for arm in outcome.figures:
        table.add_column(arm, justify="right")
    for name, label, show in _LINES:
        table.add_row(label, *(show(getattr(figures, name)) for figures in outcome.figures.values()))
    console.print(table)
    for arm, why in outcome.unfit.items():
        console.print(f"{arm}: cannot run these requests: {why}")
    for what, same in (("tokens", outcome.tokens_identical), ("logits", outcome.logits_identical)):
        verdict = "bit-identical to" if same else "DIFFERENT from"
        console.print(f"{what} of hisparse are {verdict} full residency")


def _count(value: float) -> str:
    return f"{value:,}"


def _mib(value: float) -> str:
    return f"{value / _MIB:,.1f} MiB"


def _rate(value: float) -> str:
    return f"{value:.1f}"


_LINES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("peak_requests", "peak concurrent requests", _count),
    ("preemptions", "preemptions", _count),
    ("steps", "steps", _count),
    ("computed_tokens", "token positions computed", _count),
    ("tokens_per_second", "new tokens / s", _rate),
    ("resident_references", "resident references", _count),
    ("hot_hits", "hot hits", _count),
    ("misses", "misses", _count),
    ("faults", "faults", _count),
    ("host_bytes_read", "host bytes read", _mib),
    ("spilled_pages", "spilled pages", _count),
    ("reused_tokens", "tokens reused from the prefix cache", _count),
    ("device_peak_bytes", "device peak", _mib),
    ("host_peak_bytes", "host peak", _mib),
)
