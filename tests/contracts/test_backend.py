"""Contracts as hypothesis properties whose integers are chosen by crosshair."""

from __future__ import annotations

from datetime import timedelta

import pytest
from contracts import capacity, ranges, rows, wrong
from hypothesis import given, settings
from hypothesis import strategies as st

LARGE = 1 << 40
counts = st.integers(0, LARGE)
sizes = st.integers(1, 1 << 12)
LONG = timedelta(minutes=1)  # the solver has it as well: else a second, which a busy machine may need
solved = settings(backend="crosshair", deadline=LONG, database=None, max_examples=20)


@solved
@given(counts, sizes)
def test_pages_of_tokens(tokens, size):
    rows.every_token_has_a_page_and_no_page_is_empty(tokens, size)


@solved
@given(counts, sizes)
def test_one_sum_for_planner_and_ledger(tokens, step):
    capacity.planner_and_ledger_ask_for_the_same(tokens, step)


@solved
@given(counts, counts, st.integers(1, 100), counts, counts)
def test_watermarks(blocks, hot, divisor, free, cost):
    capacity.what_comes_back_does_not_cause_pressure(blocks, hot, divisor, free, cost)


@solved
@given(counts, sizes, counts)
def test_seams(start, blocks, further):
    ranges.a_seam_is_a_page_boundary_between_blocks(start, blocks, start + further)


@solved
@given(counts)
def needle(tokens):
    wrong.no_request_has_987654_pages(tokens)


def test_it_finds_what_drawing_at_random_would_not():
    with pytest.raises(AssertionError):
        needle()
