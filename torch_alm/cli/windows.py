"""Answers that are longer than a row: nothing of them is left out of training or measuring."""

from collections.abc import Iterator
from itertools import pairwise

from torch_alm.language import IGNORE, Row, answer_ids

UNCUT = 2**31  # for `encode`: a row of any length


def windows(row: Row, max_length: int) -> list[Row]:
    """The row, or several that label each of its answer tokens once, below what comes before it.

    The first holds the prompt. The others begin with as many of the tokens before theirs as fit,
    half a row or more, and go on where the last one ended; the labels are shared out evenly, so
    that none is left with a token or two, which any model would guess.

    Raises:
        ValueError: the prompt alone takes as much.
    """
    whole = len(row["input_ids"])
    if whole <= max_length:
        return [row]
    given = whole - len(answer_ids(row))
    if given >= max_length:
        raise ValueError(
            f"the prompt takes {given} of {max_length} tokens, so that no token of the answer is "
            "left to learn. Is --max-length too small?"
        )
    return [
        {
            **(row if start == given else {}),
            "input_ids": row["input_ids"][max(0, end - max_length) : end],
            "labels": ([IGNORE] * start + row["labels"][start:end])[max(0, end - max_length) :],
        }
        for start, end in _spans(given, whole, max_length)
    ]


def _spans(given: int, whole: int, max_length: int) -> Iterator[tuple[int, int]]:
    """Begin and end of the labels of each row: even shares of half a row at most."""
    room, half = max_length - given, max_length // 2
    count = max(2, -(-(whole - given) // half))
    if (whole - given) / count > room:  # the prompt leaves less than a share
        yield given, max_length
        given = max_length
        count = -(-(whole - given) // half)
    bounds = [given + (whole - given) * i // count for i in range(count + 1)]
    yield from pairwise(bounds)
