"""Batches: padded rows, and the pairs of a run."""

from collections import Counter
from itertools import chain

import pytest
import torch

from tests.models import town_tokenizer
from torch_alm.language import check_eos, collate, encode, pad_id, pairs


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


def test_each_epoch_visits_every_forget_item_once_in_a_new_order() -> None:
    drawn = [forget for _, forget in pairs(range(10), range(100), 4, 3, seed=0)]
    assert [len(batch) for batch in drawn] == [4, 4, 2] * 3
    epochs = [[*chain(*drawn[start : start + 3])] for start in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_retain_items_are_drawn_uniformly_with_replacement() -> None:
    counts = Counter(
        item for retain, _ in pairs(range(50), range(5), 8, 200, seed=0) for item in retain
    )
    assert counts.keys() == set(range(5))
    expected, deviation = 2000, (10_000 * 0.2 * 0.8) ** 0.5
    assert all(abs(count - expected) < 4 * deviation for count in counts.values())
    assert max(counts.values()) - min(counts.values()) > 0  # not a cycle through the set


@pytest.mark.parametrize(("forget", "retain", "name"), [([], [1], "forget"), ([1], [], "retain")])
def test_an_empty_set_is_refused(forget: list[int], retain: list[int], name: str) -> None:
    with pytest.raises(ValueError, match=rf"the {name} set is empty"):
        next(pairs(forget, retain, 1, 1, seed=0))


def test_pairs_have_equal_lengths_and_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = list(pairs("abcdefg", "xyz", 3, 2, seed=5))
    torch.manual_seed(2)
    assert first == list(pairs("abcdefg", "xyz", 3, 2, seed=5))
    assert first != list(pairs("abcdefg", "xyz", 3, 2, seed=6))
    assert all(len(retain) == len(forget) for retain, forget in first)
