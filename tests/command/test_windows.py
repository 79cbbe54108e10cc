"""Rows of a long answer: every token of it once, each with as much before it as fits."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torch_alm.unlearning.loading import windows

SIZES = st.tuples(st.integers(8, 40), st.integers(1, 39), st.integers(1, 200))


def row_of(prompt: int, answer: int) -> dict[str, list[int]]:
    ids = list(range(1000, 1000 + prompt + answer))
    return {"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]}


@settings(max_examples=100, deadline=None, derandomize=True)
@example((8, 7, 1))
@example((8, 7, 2))
@example((14, 9, 6))
@given(SIZES)
def test_every_answer_token_is_labelled_once_below_the_tokens_before_it(
    sizes: tuple[int, int, int],
) -> None:
    length, prompt, answer = sizes
    prompt = min(prompt, length - 1)
    whole = row_of(prompt, answer)
    rows = windows(whole, length)
    assert [label for row in rows for label in row["labels"] if label >= 0] == whole["labels"][
        prompt:
    ]
    for i, row in enumerate(rows):
        ids, labels = row["input_ids"], row["labels"]
        assert len(ids) == len(labels) <= length
        start = whole["input_ids"].index(ids[0])
        assert ids == whole["input_ids"][start : start + len(ids)], "as they stand in the answer"
        first = next(j for j, label in enumerate(labels) if label >= 0)
        assert labels[first:] == ids[first:]
        if i == 0:
            assert (start, first) == (0, prompt)
        if start > 0:
            assert len(ids) == length, "as much before it as fits"
            assert first >= length // 2


@pytest.mark.parametrize(("prompt", "answer"), [(1, 200), (5, 36), (8, 25), (4, 13)])
def test_no_row_is_left_with_a_token_or_two(prompt: int, answer: int) -> None:
    """They could be guessed, and would seem to be remembered."""
    counts = [
        sum(label >= 0 for label in row["labels"]) for row in windows(row_of(prompt, answer), 16)
    ]
    assert len(counts) > 1
    assert max(counts) - min(counts) <= 1


def test_a_row_that_fits_stays_and_a_prompt_that_does_not_is_told() -> None:
    row = row_of(5, 11)
    assert windows(row, 16) == [row]
    with pytest.raises(ValueError, match=r"the prompt takes 16 of 16 tokens.* too small\?"):
        windows(row_of(16, 1), 16)
