"""From rows to batches: who is paired with whom, and what the labels are on."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.integrations import toy
from torch_alm.integrations.transformers import PairedCollator, PairedDataset, SAULTrainer
from torch_alm.language import encode, encode_messages

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|> {{ m.content }} <|end|> {% endfor %}"
    "{% if add_generation_prompt %}<|assistant|> {% endif %}"
)
WORDS = "<pad> <eos> <|user|> <|assistant|> <|system|> <|end|> Capital of France ? Paris Oslo"


def test_chats_become_batches_with_labels_on_the_answer_alone() -> None:
    bare = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS.split())}, "<pad>"))
    bare.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bare, pad_token="<pad>", eos_token="<eos>", chat_template=CHATML
    )
    turns = [("user", "Capital of France ?"), ("assistant", "Paris")]
    chat = [{"role": role, "content": content} for role, content in turns]
    pairs = PairedDataset(
        forget=[encode_messages(tokenizer, chat)],
        retain=[encode(tokenizer, "Capital of ?", "Oslo Oslo")],
    )
    for side, batch in PairedCollator(tokenizer)([pairs[0]]).items():
        labels = batch["labels"][0]
        answer = tokenizer.decode(batch["input_ids"][0][labels != -100])
        assert answer == {"forget": "Paris <|end|>", "retain": "Oslo Oslo <|end|>"}[side]
        assert torch.equal(labels[labels != -100], batch["input_ids"][0][labels != -100])


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
    assert drawn(PairedDataset(toy.rows(10, 1), toy.rows(23, 2))) == drawn(
        PairedDataset(toy.rows(10, 1), toy.rows(23, 2), seed=0)
    )


def test_retain_rows_are_drawn_uniformly() -> None:
    pairs = PairedDataset(toy.rows(10, 1), toy.rows(4, 2))
    counts: Counter[int] = Counter()
    for epoch in range(200):
        pairs.set_epoch(epoch)
        counts.update(drawn(pairs))
    assert all(abs(count - 500) < 4 * (2000 * 0.25 * 0.75) ** 0.5 for count in counts.values())
    assert len(counts) == 4


def test_the_trainer_announces_epochs(tmp_path: Path) -> None:
    trainer = toy.trainer(
        toy.recording(SAULTrainer), tmp_path, constraint=toy.constraint(), rho=0.0
    )
    trainer.train()
    seen: dict[tuple, list] = {}
    for inputs in (micro for step in trainer.steps for micro in step):
        for forget, retain in zip(
            inputs["forget"]["input_ids"], inputs["retain"]["input_ids"], strict=True
        ):
            key = tuple(token for token in forget.tolist() if token != toy.PAD)
            seen.setdefault(key, []).append(
                tuple(token for token in retain.tolist() if token != toy.PAD)
            )
    for index, row in enumerate(toy.rows(10, 1)):
        expected = []
        for epoch in range(4):
            trainer.train_dataset.set_epoch(epoch)
            expected.append(tuple(trainer.train_dataset[index]["retain"]["input_ids"]))
        assert seen[tuple(row["input_ids"])] == expected


@pytest.mark.parametrize("side", ["forget", "retain"])
def test_a_side_without_rows_is_refused(side: str) -> None:
    rows = {"forget": toy.rows(2, 1), "retain": toy.rows(2, 2), side: []}
    with pytest.raises(ValueError, match=f"nothing to {side};"):
        PairedDataset(**rows)


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
