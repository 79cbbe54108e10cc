"""From rows to batches: who is paired with whom, and what the labels are on."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from tests.chat_templates import tokenizer
from tests.integrations import toy
from tests.models import llama
from torch_alm.integrations.transformers import PairedCollator, PairedDataset, SAULTrainer
from torch_alm.measures import token_nll


def drawn(pairs: PairedDataset) -> list[int]:
    return [pairs.retain.index(pairs[i]["retain"]) for i in range(len(pairs))]


def test_an_epoch_has_every_forget_row_and_is_told_by_seed_and_epoch_alone() -> None:
    first, again = toy.pairs(), toy.pairs()
    assert [first[i]["forget"] for i in range(len(first))] == toy.rows(10, 1)
    assert [again[i] for i in reversed(range(10))] == [first[i] for i in reversed(range(10))]
    one = drawn(first)
    first.set_epoch(1)
    assert drawn(first) != one
    first.set_epoch(0)
    assert drawn(first) == one
    other = PairedDataset(toy.rows(10, 1), toy.rows(23, 2), seed=6)
    assert drawn(other) != one


def test_workers_that_live_on_draw_the_rows_of_every_epoch() -> None:
    pairs = toy.pairs(4)
    loader = DataLoader(pairs, None, num_workers=1, persistent_workers=True)
    for epoch in range(3):
        pairs.set_epoch(epoch)
        found = [pair["retain"]["input_ids"] for pair in loader]
        assert found == [pairs[i]["retain"]["input_ids"] for i in range(4)]


def test_retain_rows_are_drawn_uniformly() -> None:
    pairs = PairedDataset(toy.rows(10, 1), toy.rows(4, 2))
    counts: Counter[int] = Counter()
    for epoch in range(200):
        pairs.set_epoch(epoch)
        counts.update(drawn(pairs))
    assert all(abs(count - 500) < 4 * (2000 * 0.25 * 0.75) ** 0.5 for count in counts.values())
    assert len(counts) == 4


def test_sides_that_cannot_be_paired_are_refused_by_name() -> None:
    both = toy.rows(2, 1)
    for forget, retain, error, told in (
        ([], both, ValueError, "nothing to forget;"),
        (both, [], ValueError, "nothing to retain;"),
        (both, iter(both), TypeError, "`retain` is a list_iterator, .* Did you mean `list"),
        ("a.jsonl", both, TypeError, "`forget` is a str, .* rows of `language.encode`"),
        ({"a": both}, both, TypeError, "`forget` is a dict, .* rows of `language.encode`"),
        (both, [("Who?", "Ann")], TypeError, "a row of `retain` is a tuple, .* `language.encode"),
    ):
        with pytest.raises(error, match=told):
            PairedDataset(forget, retain)


def test_a_collator_of_ones_own_makes_each_side_and_the_index_is_beside_them() -> None:
    pairs = toy.pairs()
    some = [pairs[i] for i in (7, 2)]
    own, usual = PairedCollator(len)(some), PairedCollator(toy.Tokens())(some)
    assert (own["forget"], own["retain"], own["index"].tolist()) == (2, 2, [7, 2])
    assert usual["index"].tolist() == [7, 2] and usual.keys() == {"forget", "retain", "index"}


def test_batches_are_padded_on_the_right_and_the_mask_follows_the_lengths() -> None:
    rows = [
        {"input_ids": [5, 1, 1], "labels": [-100, 1, 1]},
        {"input_ids": [7, 8], "labels": [-100, 8]},
    ]
    pairs = [{"forget": row, "retain": rows[0]} for row in rows]
    tokens = toy.Tokens()
    tokens.pad_token_id = None  # then EOS pads, and the EOS of an answer still counts
    found = PairedCollator(tokens)(pairs)
    assert {side: {n: t.tolist() for n, t in batch.items()} for side, batch in found.items()} == {
        "forget": {
            "input_ids": [[5, 1, 1], [7, 8, 1]],
            "attention_mask": [[1, 1, 1], [1, 1, 0]],
            "labels": [[-100, 1, 1], [-100, 8, -100]],
        },
        "retain": {
            "input_ids": [[5, 1, 1]] * 2,
            "attention_mask": [[1, 1, 1]] * 2,
            "labels": [[-100, 1, 1]] * 2,
        },
    }
    single = PairedCollator(tokens)(rows)
    assert all(torch.equal(single[name], t) for name, t in found["forget"].items())


def test_a_trainer_with_a_tokenizer_needs_no_collator(tmp_path: Path) -> None:
    given = {"data_collator": None, "processing_class": tokenizer()}
    trainer = toy.trainer(SAULTrainer, tmp_path, constraint=toy.constraint(), **given)
    some = [trainer.train_dataset[i] for i in range(4)]
    found, expected = trainer.data_collator(some), PairedCollator(tokenizer())(some)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_data_that_make_no_pairs_are_refused_before_a_step(tmp_path: Path) -> None:
    rows = toy.rows(4, 1)
    masks = [[1] * (len(row["labels"]) - 1) + [0] for row in rows]
    padded = [{**row, "attention_mask": mask} for row, mask in zip(rows, masks, strict=True)]
    for told, given in {
        r"of pairs .*\(a list\).* `PairedDataset": {"train_dataset": rows},
        r"of pairs .*\(a dict\)": {"train_dataset": {"forget": rows, "retain": rows}},
        "of pairs .* `processing_class=tokenizer`": {"processing_class": None},
        "2 labels of a forget .* -100": {"train_dataset": PairedDataset(padded, toy.rows(4, 2))},
    }.items():
        given = {"data_collator": None, "processing_class": tokenizer(), **given}
        with pytest.raises(ValueError, match=f"^SAULTrainer: .*{told}"):
            toy.trainer(SAULTrainer, tmp_path, constraint=toy.constraint(), **given).train()


def test_no_column_is_lost_and_what_cannot_be_stacked_is_named() -> None:
    row = {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "asked": [5]}
    rows = [
        {**row, "token_type_ids": [1, 1, 2], "weight": 0.5, "attention_mask": [1, 0, 1]},
        {"input_ids": [8, 9], "labels": [8, 9], "token_type_ids": [3, 4], "weight": 2.0}
        | {"attention_mask": [1, 1]},
    ]
    found = PairedCollator(toy.Tokens())(rows)
    assert found["token_type_ids"].tolist() == [[1, 1, 2], [3, 4, 0]]
    assert found["weight"].tolist() == [0.5, 2.0]
    assert found["attention_mask"].tolist() == [[1, 0, 1], [1, 1, 0]]
    assert "asked" not in found, "it is for generation"
    for name, value in (("text", "abc"), ("span", [1, 2]), ("index", None)):
        with pytest.raises(ValueError, match=f"the column '{name}' is not one number, nor one per"):
            PairedCollator(toy.Tokens())([{**row, name: value}])
    with pytest.raises(ValueError, match="the column 'weight' is not one number"):
        PairedCollator(toy.Tokens())([{**row, "weight": 0.5}, row])


def test_packed_rows_measure_what_their_sequences_do_on_their_own() -> None:
    """The first label of a packed sequence is masked, as whoever packs them has to."""
    model = llama(toy.VOCABULARY, num_hidden_layers=2, initializer_range=1.0).double()
    collate = PairedCollator(toy.Tokens())
    rows = [{**row, "labels": [-100, *row["input_ids"][1:]]} for row in toy.rows(5, 3)]
    packed = []
    for some in (rows[:3], rows[3:]):
        joined = {key: [x for row in some for x in row[key]] for key in ("input_ids", "labels")}
        positions = [i for row in some for i in range(len(row["input_ids"]))]
        packed.append({**joined, "position_ids": positions})
    with torch.no_grad():
        found = token_nll(model, collate(packed), reduction="token")
        expected = token_nll(model, collate(rows), reduction="token")
        wrong = [{k: v for k, v in row.items() if k != "position_ids"} for row in packed]
        mixed = token_nll(model, collate(wrong), reduction="token")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert abs(mixed - expected) > 1e-2, "sequences that see each other"
