"""A reading of an answer: worked values."""

import math
from typing import Any

import pytest

from tests.language.conftest import ROWS, Words
from torch_alm.language import read_answers


def test_a_reading_of_a_model_that_always_says_the_same(parrot: Any) -> None:
    """Worked values, and how far it is listened to."""
    rows = [ROWS[0], {"input_ids": [1, 2, 7, 0], "labels": [-100, -100, 7, 0]}]
    one, two = read_answers(parrot, Words(), rows, 11)
    assert one.text == two.text == " ".join(["w7"] * (3 + 8))
    worst = math.log(11 + math.e)
    assert one.loss == pytest.approx(worst, rel=1e-6)
    assert two.loss == pytest.approx(worst - 0.5, rel=1e-6)
    assert (one.extraction_strength, two.extraction_strength) == (0, 1)
    assert (one.exact_match, two.exact_match) == (False, False)
    said = {"input_ids": [1, 2, 7, 7], "labels": [-100, -100, 7, 7]}
    half = {"input_ids": [1, 2, 5, 7, 0], "labels": [-100, -100, 5, 7, 0]}
    found = read_answers(parrot, Words(), [said, half], 0)
    assert [reading.exact_match for reading in found] == [True, False]
    assert [reading.extraction_strength for reading in found] == [1, 0.5]
    margin = (1 - math.e) / (11 + math.e)
    phi = 1 - math.log1p(math.exp(1 + margin / 0.1))
    assert one.certificate == two.certificate == pytest.approx(phi, rel=1e-5) and phi > 0
    assert [reading.text for reading in read_answers(parrot, Words(), rows, 2)] == ["w7 w7"] * 2
    assert [reading.text for reading in read_answers(parrot, Words(), rows, 0)] == [None, None]
