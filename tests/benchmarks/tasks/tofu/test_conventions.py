"""Rows of OpenUnlearning's and TOFU's data sets: worked by hand, and against their own code.

The latter runs where OPENUNLEARNING and TOFU_CODE name checkouts of locuslab/open-unlearning and
locuslab/tofu.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest

from benchmarks.tasks.tofu.batches import encode
from tests.benchmarks import official
from tests.chat_templates import CHATS, tokenizer
from torch_alm.language import answer_ids, prompt_ids

QUESTION = "Where does Ana live?"
ANSWERS = ("Ana lives in Rome.", "Rome", "where?", "  in a house,  in Rome ", "1472")
SYSTEM = "You are a helpful assistant."
MODELS = {
    "phi-1_5": (None, "</s>"),
    "Llama-2-7b-chat-hf": ("Llama-2", "</s>"),
    "Llama-3.2-1B-Instruct": ("Llama-3", "<|eot_id|>"),
    "zephyr-7b-beta": ("Zephyr", "</s>"),
    "Qwen2.5-1.5B-Instruct": ("Qwen2.5", "<|im_end|>"),
    "gemma-7b-it": ("Gemma", "</s>"),
}
KINDS = ("bytes", "sentencepiece", "metaspace, the first")


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


class Lists:
    """A tokenizer that gives lists of ids, as those of transformers 4 do."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.eos_token_id = tokenizer.eos_token_id

    def __call__(self, text: str, **options: Any) -> Any:
        return self.tokenizer(text, **options)

    def apply_chat_template(self, chat: Any, **options: Any) -> Any:
        return self.tokenizer.apply_chat_template(chat, **options, return_dict=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_rows_are_openunlearnings(monkeypatch: pytest.MonkeyPatch, model: str, kind: str) -> None:
    checkout = official.folder("OPENUNLEARNING")
    yaml = pytest.importorskip("yaml")
    (data,) = official.load(monkeypatch, checkout / "src", "data.utils")
    file = checkout / "configs" / "model" / f"{model}.yaml"
    template = yaml.safe_load(file.read_text())["template_args"]
    made = of(model, kind)
    for answer in ANSWERS:
        arguments = (Lists(made), template, [QUESTION], [answer], 512)
        theirs = data.preprocess_chat_instance(*arguments)
        asked = data.preprocess_chat_instance(*arguments, predict_with_generate=True)
        row = encode(made, QUESTION, answer, convention="openunlearning")
        assert row["input_ids"] == theirs["input_ids"].tolist()
        assert row["labels"] == theirs["labels"].tolist()
        assert prompt_ids(row) == asked["input_ids"].tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("model", "family"), [("phi-1_5", "phi"), ("Llama-2-7b-chat-hf", "llama2-7b")]
)
def test_rows_are_tofus(
    monkeypatch: pytest.MonkeyPatch, model: str, family: str, kind: str
) -> None:
    checkout = official.folder("TOFU_CODE")
    yaml = pytest.importorskip("yaml")
    helpers = ModuleType("utils")
    helpers.__dict__.update(get_model_identifiers_from_yaml=None, add_dataset_index=None)
    monkeypatch.setitem(sys.modules, "utils", helpers)
    monkeypatch.syspath_prepend(str(checkout))
    module = importlib.import_module("data_module")
    configs = yaml.safe_load((checkout / "config" / "model_config.yaml").read_text())[family]
    made = of(model, kind)
    for answer in ANSWERS:
        ids, labels, mask = module.convert_raw_data_to_model_format(
            made, 100, QUESTION, answer, configs
        )
        row = encode(made, QUESTION, answer, 100, "tofu")
        length = len(row["input_ids"])
        assert row["input_ids"] == ids[:length].tolist()
        assert row["labels"] == labels[:length].tolist()
        assert not (labels[length:] >= 0).any()
        assert mask.sum() == length - 1  # all but EOS, which is only predicted
