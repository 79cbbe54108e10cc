"""Rows of OpenUnlearning's and TOFU's data sets, worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.tasks.tofu.batches import encode
from tests.chat_templates import CHATS, tokenizer
from torch_alm.language import answer_ids, prompt_ids

QUESTION = "Where does Ana live?"
SYSTEM = "You are a helpful assistant."
MODELS = {
    "phi-1_5": (None, "</s>"),
    "Llama-2-7b-chat-hf": ("Llama-2", "</s>"),
    "Llama-3.2-1B-Instruct": ("Llama-3", "<|eot_id|>"),
    "zephyr-7b-beta": ("Zephyr", "</s>"),
    "Qwen2.5-1.5B-Instruct": ("Qwen2.5", "<|im_end|>"),
    "gemma-7b-it": ("Gemma", "</s>"),
}


def of(model: str, kind: str = "bytes") -> Any:
    chat, eos = MODELS[model]
    return tokenizer(kind, CHATS[chat].template if chat else None, eos=eos)


def texts(model: str, convention: str) -> tuple[str, str, str]:
    """The question as asked, the masked part, and the labelled part."""
    made = of(model)
    row = encode(made, QUESTION, "Ana lives in Rome.", convention=convention)
    said = answer_ids(row)
    masked = row["input_ids"][: -len(said)]
    assert row["labels"] == [-100] * len(masked) + said
    return made.decode(prompt_ids(row)), made.decode(masked), made.decode(said)


def test_a_base_model_is_asked_with_a_blank_and_its_first_word_is_masked() -> None:
    asked = f"<s>Question: {QUESTION}\nAnswer:"
    assert texts("phi-1_5", "ours") == (asked, asked, " Ana lives in Rome.</s>")
    assert texts("phi-1_5", "openunlearning") == (
        f"{asked} ",
        f"{asked} Ana",
        " lives in Rome.</s>",
    )
    question = f"<s>Question: {QUESTION}\n"
    assert texts("phi-1_5", "tofu") == (question, question, "Answer: Ana lives in Rome.</s>")


def test_llama_2_is_asked_without_its_system_message() -> None:
    bare = f"<s>[INST] {QUESTION} [/INST]"
    for convention in ("openunlearning", "tofu"):
        assert texts("Llama-2-7b-chat-hf", convention) == (bare, bare, "Ana lives in Rome.</s>")
    asked, _, said = texts("Llama-2-7b-chat-hf", "ours")
    assert "<<SYS>>" in asked
    assert said == " Ana lives in Rome. </s>"


@pytest.mark.parametrize(
    ("model", "after"),
    [
        ("Llama-3.2-1B-Instruct", ("<|eot_id|>", "<|eot_id|>")),
        ("zephyr-7b-beta", ("</s>", "</s>\n</s>")),
        ("Qwen2.5-1.5B-Instruct", ("<|im_end|>", "<|im_end|>\n<|im_end|>")),
        ("gemma-7b-it", ("<end_of_turn>", "<end_of_turn>\n</s>")),
    ],
)
def test_what_ends_a_turn_is_labelled_and_once_more_in_openunlearning(
    model: str, after: tuple[str, str]
) -> None:
    ours, theirs = (texts(model, name) for name in ("ours", "openunlearning"))
    assert ours[:2] == theirs[:2]
    assert (SYSTEM in ours[0]) == (model != "gemma-7b-it")
    assert [found[2] for found in (ours, theirs)] == [f"Ana lives in Rome.{end}" for end in after]


def test_tofu_knows_no_other_chat_models() -> None:
    with pytest.raises(ValueError, match=r"my/model.*openunlearning\?"):
        encode(of("zephyr-7b-beta"), QUESTION, "Rome", convention="tofu")


def test_a_row_without_a_labelled_token_is_refused() -> None:
    with pytest.raises(ValueError, match="no token of the answer would count"):
        encode(of("phi-1_5"), QUESTION * 9, "Rome", 12, "tofu")
