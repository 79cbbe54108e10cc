"""Tokens, labels and pairs."""

import unicodedata
from collections import Counter
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, processors, trainers
from transformers import PreTrainedTokenizerFast

from benchmarks.engine.scratch import build_tokenizer
from benchmarks.tasks.tofu.batches import encode, encode_all
from benchmarks.tasks.tofu.data import Example
from benchmarks.tasks.tofu.models import RECIPES
from torch_alm.language import check_eos, collate, pad_id, pairs

QUESTION, ANSWER = "Where was Ana Bel born?", "Ana Bel was born in Paris."
TEXTS = [f"Question: {QUESTION}\nAnswer:", f" {ANSWER}", "abc xyz"]

LLAMA_LIKE = (
    "<s>{% for m in messages %}[{{ m.role }}{% if m.role == 'system' %} {{ date_string }}"
    "{% endif %}] {{ m.content | trim }}<|turn|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def tokenizer(tokens: str = "bpe", **changes: Any) -> PreTrainedTokenizerFast:
    recipe = RECIPES["tofu" if tokens == "bpe" else "world"]
    built = build_tokenizer(TEXTS, recipe)
    for name, value in changes.items():
        setattr(built, name, value)
    return built


def merging_tokenizer() -> PreTrainedTokenizerFast:
    """A BPE without words, whose longest token crosses from the prompt into the answer."""
    bpe = Tokenizer(models.BPE(unk_token="<unk>"))
    bpe.decoder = decoders.Fuse()
    trainer = trainers.BpeTrainer(special_tokens=["<unk>", "</s>"], show_progress=False)
    bpe.train_from_iterator([f"Question: {QUESTION}\nAnswer: {ANSWER}"] * 9, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, unk_token="<unk>", eos_token="</s>")


def chat_tokenizer(template: str = LLAMA_LIKE) -> PreTrainedTokenizerFast:
    built = tokenizer(chat_template=template)
    built.add_special_tokens({"additional_special_tokens": ["<|turn|>"]})
    return built


def labelled(row: dict[str, list[int]]) -> list[int]:
    return [label for label in row["labels"] if label != -100]


def head(row: dict[str, list[int]]) -> list[int]:
    return row["input_ids"][: row["labels"].count(-100)]


@pytest.mark.parametrize("tokens", ["word", "bpe"])
def test_labels_cover_the_answer_and_its_end(tokens: str) -> None:
    made = tokenizer(tokens)
    row = encode(made, QUESTION, ANSWER)
    assert made.decode(labelled(row)) == f" {ANSWER}</s>"
    assert made.decode(head(row)) == f"<s>Question: {QUESTION}\nAnswer:"
    assert row["input_ids"] == head(row) + labelled(row)
    assert row["labels"] == [-100] * len(head(row)) + labelled(row)
    assert row["input_ids"][:-1] == made(f"Question: {QUESTION}\nAnswer: {ANSWER}")["input_ids"]


def is_seen(text: str) -> bool:
    return any(not char.isspace() and unicodedata.category(char) != "Cf" for char in text)


@settings(max_examples=60, deadline=None)
@example(question="0", answer="a\xad")
@given(question=st.text(min_size=1), answer=st.text(min_size=1).filter(is_seen))
def test_any_text_keeps_its_boundary(question: str, answer: str) -> None:
    row = encode(BPE, question, answer)
    assert BPE.decode(labelled(row), clean_up_tokenization_spaces=False) == f" {answer.strip()}</s>"
    assert head(row) == BPE(f"Question: {question.strip()}\nAnswer:")["input_ids"]


BPE = tokenizer("bpe")


def test_a_tokenizer_that_merges_across_the_boundary_does_not_move_it() -> None:
    made = merging_tokenizer()
    prompt = f"Question: {QUESTION}\nAnswer:"
    whole = made(f"{prompt} {ANSWER}")["input_ids"]
    assert whole[: len(made(prompt)["input_ids"])] != made(prompt)["input_ids"]  # it does merge
    row = encode(made, QUESTION, ANSWER)
    assert head(row) == made(prompt)["input_ids"]
    assert made.decode(labelled(row)) == f" {ANSWER}</s>"


def test_a_tokenizer_that_adds_eos_itself_ends_once() -> None:
    made = tokenizer("bpe")
    ends = [("<s>", made.bos_token_id), ("</s>", made.eos_token_id)]
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=ends
    )
    assert made("a")["input_ids"][-1] == made.eos_token_id
    assert encode(made, QUESTION, ANSWER) == encode(tokenizer("bpe"), QUESTION, ANSWER)


def test_chat_models_get_their_template_with_a_fixed_date() -> None:
    made = chat_tokenizer()
    row = encode(made, QUESTION, ANSWER)
    assert made.decode(head(row)) == (
        "<s>[system 10 Apr 2025] You are a helpful assistant.<|turn|>"
        f"[user] {QUESTION}<|turn|>[assistant] "
    )
    assert made.decode(labelled(row)) == f"{ANSWER}<|turn|>"
    assert row["input_ids"].count(made.bos_token_id) == 1


@pytest.mark.parametrize("end", ["", "</s>", "\n</s>", "!</s>"])
def test_a_chat_turn_ends_as_its_template_says(end: str) -> None:
    made = chat_tokenizer(LLAMA_LIKE.replace("<|turn|>", end))
    assert made.decode(labelled(encode(made, QUESTION, ANSWER))) == f"{ANSWER}{end}"


def test_a_template_that_refuses_a_system_message_goes_without() -> None:
    refusing = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    )
    made = chat_tokenizer(refusing + LLAMA_LIKE)
    assert made.decode(head(encode(made, "Who?", "Ana"))) == "<s>[user] Who?<|turn|>[assistant] "


def test_a_long_answer_loses_its_tail() -> None:
    whole = encode(BPE, QUESTION, ANSWER)
    prompt = len(head(whole))
    cut = encode(BPE, QUESTION, ANSWER, max_length=prompt + 2)
    assert cut == {key: ids[: prompt + 2] for key, ids in whole.items()}
    assert len(labelled(cut)) == 2


def test_a_prompt_without_room_for_an_answer_is_refused_by_name() -> None:
    prompt = len(head(encode(BPE, QUESTION, ANSWER)))
    with pytest.raises(ValueError, match=rf"'{QUESTION[:-1]}.*takes {prompt} of {prompt} tokens"):
        encode(BPE, QUESTION, ANSWER, max_length=prompt)


@pytest.mark.parametrize("answer", ["", " \n"])
def test_an_answer_without_tokens_is_refused_by_name(answer: str) -> None:
    with pytest.raises(ValueError, match=r"Ana Bel born.*the answer has no tokens"):
        encode_all(BPE, [Example(QUESTION, answer)])


def test_a_tokenizer_without_eos_is_refused_by_name() -> None:
    made = tokenizer("bpe", eos_token=None, name_or_path="my/model")
    for use in (check_eos, pad_id, lambda t: encode(t, QUESTION, ANSWER)):
        with pytest.raises(ValueError, match=r"'my/model' has no EOS token"):
            use(made)


def test_pad_id_falls_back_to_eos() -> None:
    assert pad_id(SimpleNamespace(pad_token_id=0, eos_token_id=7)) == 0
    assert pad_id(SimpleNamespace(pad_token_id=None, eos_token_id=7)) == 7


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


def test_pairs_have_equal_lengths_and_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = list(pairs("abcdefg", "xyz", 3, 2, seed=5))
    torch.manual_seed(2)
    assert first == list(pairs("abcdefg", "xyz", 3, 2, seed=5))
    assert first != list(pairs("abcdefg", "xyz", 3, 2, seed=6))
    assert all(len(retain) == len(forget) for retain, forget in first)


@pytest.mark.parametrize(("forget", "retain", "name"), [([], [1], "forget"), ([1], [], "retain")])
def test_an_empty_set_is_refused(forget: list[int], retain: list[int], name: str) -> None:
    with pytest.raises(ValueError, match=rf"the {name} set is empty"):
        next(pairs(forget, retain, 1, 1, seed=0))
