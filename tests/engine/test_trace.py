"""Traces: the shape of the requests survives scaling; a bad file is named in one sentence."""

import json

import pytest

from hisparse_ops.engine.trace import TraceError, TraceRequest, read_trace, scaled_prompts

GOOD = {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]}


def write(tmp_path, *lines):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_reads_the_first_requests(tmp_path):
    path = write(tmp_path, json.dumps(GOOD), json.dumps(GOOD | {"hash_ids": [0, 7]}), "not looked at")
    assert read_trace(path, 2) == [TraceRequest(1000, 5, (0, 1)), TraceRequest(1000, 5, (0, 7))]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "3",
        json.dumps({"input_length": 1}),
        json.dumps(GOOD | {"hash_ids": "ab"}),
        json.dumps(GOOD | {"hash_ids": []}),
        json.dumps(GOOD | {"hash_ids": [-1]}),
        json.dumps(GOOD | {"hash_ids": [True]}),
        json.dumps(GOOD | {"input_length": 0}),
        json.dumps(GOOD | {"input_length": "9"}),
    ],
)
def test_a_bad_line_is_named(tmp_path, line):
    path = write(tmp_path, json.dumps(GOOD), line)
    with pytest.raises(TraceError, match="line 2: expected"):
        read_trace(path, 2)


def test_a_short_trace_says_how_short(tmp_path):
    with pytest.raises(TraceError, match="has 1 requests: expected at least 2"):
        read_trace(write(tmp_path, json.dumps(GOOD)), 2)


def test_an_unreadable_trace_is_named(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "missing.jsonl", 1)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(binary, 1)


def test_scaled_prompts_keep_lengths_in_proportion_and_prefixes_shared():
    trace = [TraceRequest(2000, 1, (0, 1, 2, 3)), TraceRequest(1000, 1, (0, 9)), TraceRequest(1, 1, (5,))]
    long, half, tiny = scaled_prompts(trace, range(1000), context=40)
    assert [len(p) for p in (long, half, tiny)] == [40, 20, 1]
    assert long[:10] == half[:10] and long[10:20] != half[10:20]
