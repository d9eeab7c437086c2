"""Asks crosshair about contracts, and says what its answer is worth.

A contract is a function: its first asserts say for which arguments, the later ones what must hold.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import NamedTuple

from crosshair.core_and_libs import analyze_function, run_checkables
from crosshair.options import AnalysisKind, AnalysisOptionSet
from crosshair.statespace import MessageType

PROVEN, SEARCHED, BROKEN = "proven", "searched", "BROKEN"
Contract = Callable[..., None]


class Verdict(NamedTuple):
    contract: str
    word: str
    seconds: float
    message: str


def contracts_of(module: ModuleType) -> Iterator[Contract]:
    """The functions whose arguments crosshair may choose: those that answer with nothing."""
    for _, function in inspect.getmembers(module, inspect.isfunction):
        if function.__module__ == module.__name__ and inspect.signature(function).return_annotation in (None, "None"):
            yield function


def check(contract: Contract, seconds: float) -> Verdict:
    """`proven`: every path through contract and code was taken, for all arguments. `searched`: no
    counterexample within `seconds` of CPU time. Anything else is `BROKEN`. A premise that nothing fulfils
    is not noticed here: crosshair calls it proven. `mistakes` would notice."""
    options = AnalysisOptionSet(analysis_kind=[AnalysisKind.asserts], report_all=True, per_condition_timeout=seconds)
    start = time.monotonic()
    messages = run_checkables(analyze_function(contract, options))
    words = {MessageType.CONFIRMED: PROVEN, MessageType.CANNOT_CONFIRM: SEARCHED}
    found = {words.get(message.state, BROKEN) for message in messages} or {BROKEN}
    word = next(word for word in (BROKEN, SEARCHED, PROVEN) if word in found)
    told = "; ".join(message.message for message in messages) or "crosshair sees no contract"
    return Verdict(f"{contract.__module__}.{contract.__name__}", word, time.monotonic() - start, told)
