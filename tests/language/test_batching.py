"""Batches of padded rows."""

import pytest
import torch

from tests.models import town_tokenizer
from torch_alm.language import collate, encode, pad_id
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
