"""Teacher-forced values: those of a row on its own, at no more cost than they need."""

from typing import Any

import pytest
import torch

from tests.language.conftest import ROWS, asked
from torch_alm.language import answer_scores, losses


def test_a_loss_is_that_of_a_row_on_its_own(model: Any) -> None:
    rows = [{"input_ids": [1, 2, 0], "labels": [-100, 2, 0]}, *ROWS[:2]]
    found = losses(model, rows, 0)
    assert found == pytest.approx([asked(model, row)[0] for row in rows], abs=1e-5)


def test_a_model_that_cannot_leave_logits_out_says_the_same(model: Any) -> None:
    wanted, forward = losses(model, ROWS, 0), model.forward

    def whole(input_ids: torch.Tensor, attention_mask: torch.Tensor, use_cache: bool) -> Any:
        assert use_cache is False, "nothing comes after what is only scored"
        return forward(input_ids, attention_mask=attention_mask, use_cache=use_cache)

    model.forward = whole
    assert losses(model, ROWS, 0) == pytest.approx(wanted, rel=1e-6)


def test_a_batch_has_as_many_rows_as_its_logits_have_room(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []
    kept: list[object] = []

    def watch(_: Any, __: Any, given: Any, found: Any) -> None:
        seen.append(tuple(given["input_ids"].shape))
        kept.append(found.past_key_values)

    monkeypatch.setattr("torch_alm.language._scoring.LOGITS_PER_BATCH", 12 * 5 * 2)
    model.register_forward_hook(watch, with_kwargs=True)
    short = {"input_ids": [1, 2, 0], "labels": [-100, 2, 0]}
    answer_scores(model, [short, *ROWS], 0, 0.1)
    assert seen == [(2, 5), (2, 5), (1, 3)], "12 words, and the longest rows first"
    assert kept == [None] * 3, "nothing comes after what is only scored"
    monkeypatch.setattr("torch_alm.language._scoring.LOGITS_PER_BATCH", 1)
    answer_scores(model, [short, *ROWS], 0, 0.1)
    assert seen[3:] == [(1, 5)] * 4 + [(1, 3)], "one row at least"


def test_logits_are_asked_for_from_the_first_answer_of_a_batch_on(model: Any) -> None:
    """A word is said by the position before it, so the last of the longest prompt counts."""
    rows = [
        {"input_ids": [1, 2, 3, 4, 0], "labels": [-100, -100, -100, -100, 0]},
        {"input_ids": [1, 2, 3, 4, 0], "labels": [-100, -100, -100, 4, 0]},
    ]
    seen: list[tuple[int, ...]] = []
    model.register_forward_hook(lambda _, __, found: seen.append(tuple(found.logits.shape)))
    losses(model, rows, 0)
    losses(model, [{"input_ids": [1, 2, 0], "labels": [1, 2, 0]}], 0)
    assert seen == [(2, 3, 12), (1, 3, 12)]


@pytest.mark.parametrize("at", [0, 1])
def test_a_row_with_nothing_to_score_is_refused(model: Any, at: int) -> None:
    rows = [*ROWS[:2]]
    rows.insert(at, {"input_ids": [1, 2, 3], "labels": [-100] * 3})
    with pytest.raises(ValueError, match=f"row {at} of 3 has no labelled token"):
        losses(model, rows, 0)
