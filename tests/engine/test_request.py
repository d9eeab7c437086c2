"""Pieces, hashes and resume points: pure arithmetic on a request's tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_ops.engine.request import Request

BLOCK = 4


def request(prompt_length: int, outputs: int = 0, first_token: int = 0) -> Request:
    made = Request("r", tuple(range(first_token, first_token + prompt_length)), max_new_tokens=outputs + 1)
    made.output = [1000 + i for i in range(outputs)]
    return made


def pieces(made: Request, chunk: int, start: int = 0) -> list[tuple[int, int]]:
    """The pieces computed from `start` until every known token has its row."""
    made.computed = start
    found = []
    while made.computed < made.num_tokens:
        end = made.next_end(chunk)
        found.append((made.computed, end))
        made.computed = end
    return found


def test_prompt_goes_in_chunks_and_output_one_by_one():
    assert pieces(request(10, 3), chunk=4) == [(0, 4), (4, 8), (8, 10), (10, 11), (11, 12), (12, 13)]


@given(st.integers(1, 60), st.integers(0, 20), st.integers(1, 4), st.integers(0, 90))
def test_resuming_repeats_the_same_pieces(prompt, outputs, chunk_pages, cached):
    """Wherever a prefix hit ends, what is computed from there on is a suffix of the pieces of a fresh run."""
    chunk = chunk_pages * BLOCK
    fresh = pieces(request(prompt, outputs), chunk)
    point = request(prompt, outputs).resume_point(cached, chunk, BLOCK)
    assert point <= cached and point % BLOCK == 0
    resumed = pieces(request(prompt, outputs), chunk, start=point)
    assert resumed and resumed == fresh[len(fresh) - len(resumed) :]


def test_tokens_span_prompt_and_output():
    assert request(3, 2).tokens(1, 5) == [1, 2, 1000, 1001]


def test_equal_tokens_have_equal_hashes_and_a_difference_changes_all_later_ones():
    one, same = request(12).hash_full_pages(4, BLOCK), request(12).hash_full_pages(4, BLOCK)
    assert one == same and len(set(one)) == 3
    changed = Request("c", (*range(5), 99, *range(6, 12)), 1).hash_full_pages(4, BLOCK)
    assert changed[0] == one[0] and changed[1] != one[1] and changed[2] != one[2]


def test_prompts_that_part_inside_a_chunk_share_none_of_its_pages():
    """Rows before the parting have equal tokens, but met other tokens in the same matrix products."""
    one, other = Request("1", tuple(range(16)), 1), Request("2", (*range(14), 98, 99), 1)
    mine, theirs = one.hash_full_pages(8, BLOCK), other.hash_full_pages(8, BLOCK)
    assert mine[:2] == theirs[:2] and mine[2] != theirs[2] and mine[3] != theirs[3]


def test_pages_behind_the_last_whole_chunk_depend_on_where_the_prompt_ended():
    short, long = request(12).hash_full_pages(8, BLOCK), request(16).hash_full_pages(8, BLOCK)
    assert short[:2] == long[:2], "one whole chunk: the same rows"
    assert short[2] != long[2], "a short last chunk: other last bits"


def test_hashes_grow_with_the_output():
    grown = request(6)
    assert len(grown.hash_full_pages(4, BLOCK)) == 1
    grown.output += [7, 8]
    assert len(grown.hash_full_pages(4, BLOCK)) == 2
    assert grown.page_hashes == Request("g", grown.prompt, 3, output=[7, 8]).hash_full_pages(4, BLOCK)


@pytest.mark.parametrize("prompt, new, named", [((), 1, "prompt"), ((1,), 0, "max_new_tokens")])
def test_bad_requests_name_the_argument(prompt, new, named):
    with pytest.raises(ValueError, match=named):
        Request("bad", prompt, new)
