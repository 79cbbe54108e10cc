"""Batches of padded rows, and rows whose telling words alone are labelled."""

from typing import Any

import pytest
import torch

from tests.models import town_tokenizer
from torch_alm.language import collate, encode, pad_id, telling_rows
from torch_alm.language._encoding import check_eos


def test_a_tokenizer_without_eos_is_refused_by_name() -> None:
    made = town_tokenizer()
    made.eos_token, made.pad_token, made.name_or_path = None, None, "my/model"
    for use in (check_eos, pad_id, lambda t: encode(t, "Who ?", "A0")):
        with pytest.raises(ValueError, match=r"'my/model' has no EOS token"):
            use(made)


def test_collate_pads_on_the_right_and_masks_by_length() -> None:
    rows = [
        {"input_ids": [5, 6, 9], "labels": [-100, 6, 9]},
        {"input_ids": [9], "labels": [9]},
    ]
    batch = collate(rows, pad_id=9)  # the pad token is EOS: a real EOS must still count
    assert batch["input_ids"].tolist() == [[5, 6, 9], [9, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 6, 9], [9, -100, -100]]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    with pytest.raises(ValueError, match=r"a row has question, answer.*language\.encode"):
        collate([*rows, {"question": "Who?", "answer": "Ann"}], pad_id=9)
    with pytest.raises(ValueError, match="a row has input_ids, where"):
        collate([{"input_ids": [9]}], pad_id=9)


@pytest.mark.parametrize(("length", "kept"), [(96, 1), (97, 97)])
def test_a_longer_answer_keeps_all_labels(length: int, kept: int) -> None:
    class Words:
        def decode(self, ids: list[int]) -> str:
            return " ".join(["the", "Graz"][i] for i in ids)

    made: Any = Words()
    ids = [0] * (length - 1) + [1]
    row = {"input_ids": [7, *ids], "labels": [-100, *ids]}
    (found,) = telling_rows(made, [("Where?", made.decode(ids))], [row])
    assert sum(label != -100 for label in found["labels"]) == kept
    assert len(found["labels"]) == length + 1 and found["labels"][-1] == 1
