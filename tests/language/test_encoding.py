"""Rows of files, conversations and plain text as tokens."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from tests.models import town_tokenizer
from torch_alm.language import (
    Format,
    answer_ids,
    collate,
    encode,
    encode_messages,
    encode_text,
    pad_id,
    read_records,
)
from torch_alm.language._encoding import check_eos, prompt_ids

CHAT = (
    "{% for m in messages %}{{ m.role + ' : ' + m.content + ' </s>' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant :{% endif %}"
)


@pytest.fixture
def tokenizer() -> Any:
    return town_tokenizer()


def turns(*contents: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]


def test_a_conversation_labels_its_last_turn_alone(tokenizer: Any) -> None:
    tokenizer.chat_template = CHAT
    row = encode_messages(tokenizer, turns("Where does A0 live ?", "Rome", "B0 ?", "Oslo ."))
    told = tokenizer.decode(prompt_ids(row))
    assert (
        told
        == "user : Where does A0 live ? </s> assistant : Rome </s> user : B0 ? </s> assistant :"
    )
    assert tokenizer.decode(answer_ids(row)) == "Oslo . </s>"


def test_without_a_template_one_question_is_written_as_usual(tokenizer: Any) -> None:
    asked = turns("Where does A0 live ?", "Rome .")
    row = encode_messages(tokenizer, asked)
    assert row == encode(tokenizer, "Where does A0 live ?", "Rome .")
    system = {"role": "system", "content": "user"}
    more = ([system, *asked], turns("a", "b", "c", "d"), [system, asked[-1]], asked[-1:] * 2)
    for each in (*more, [*turns("a"), *turns("b", "c")]):
        with pytest.raises(ValueError, match="without a chat template"):
            encode_messages(tokenizer, each)
    with pytest.raises(ValueError, match=r"turns \(system, user, assistant\)"):
        encode_messages(tokenizer, more[0], form=Format(template="{question}\n{answer}"))


class Letters:
    """Letters after a 1."""

    chat_template: str | None = None
    eos_token_id, eos_token = 0, "\0"
    unk_token_id, name_or_path = None, "letters"
    added_tokens_decoder: ClassVar[dict[int, Any]] = {}

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        ids = [ord(letter) for letter in text]
        return {"input_ids": [1, *ids] if add_special_tokens else ids}

    def decode(self, ids: Sequence[int], **_: bool) -> str:
        return "".join(map(chr, ids))


def test_a_text_begins_as_the_tokenizer_begins_one_and_ends_with_its_end() -> None:
    (row,) = encode_text(Letters(), "ab")
    assert row["input_ids"] == [1, ord("a"), ord("b"), 0]
    assert encode_text(Letters(), "a")[0]["labels"] == [-100, ord("a"), 0]
    chat = Letters()
    chat.chat_template = "a text is no turn, it begins as it would without one"
    assert encode_text(chat, "ab") == [row]


@pytest.mark.parametrize(("room", "fits"), [(20, False), (21, True)])
def test_a_prompt_may_take_all_room_but_that_of_one_token(room: int, fits: bool) -> None:
    assert len(prompt_ids(encode(Letters(), "q", "r"))) == 1 + len("Question: q\nAnswer:") == 20
    if fits:
        assert answer_ids(encode(Letters(), "q", "r", room)) == [ord(" ")]
        return
    with pytest.raises(ValueError, match="takes 20 of 20 tokens"):
        encode(Letters(), "q", "r", room)


@pytest.mark.parametrize("contents", [("a",), ("a", "b", "c")])
def test_a_conversation_without_an_answer(tokenizer: Any, contents: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="no answer to score"):
        encode_messages(tokenizer, turns(*contents))


@pytest.mark.parametrize("length", [1000, 5, 4, 3, 2])
def test_a_text_is_cut_into_rows_and_nothing_is_lost(tokenizer: Any, length: int) -> None:
    text = "A0 lives in Rome . B0 lives in Oslo ."
    whole = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
    rows = encode_text(tokenizer, text, length)
    assert all(2 <= len(row["input_ids"]) <= length for row in rows)
    found = [token for row in rows for token in row["input_ids"]]
    lone = len(whole) % length == 1  # a last token on its own is predicted by nothing
    assert found == (whole[:-1] if lone else whole)
    assert all(row["labels"] == [-100, *row["input_ids"][1:]] for row in rows)


@pytest.mark.parametrize("template", [None, CHAT], ids=["plain", "chat"])
@pytest.mark.parametrize(
    "write",
    [encode, lambda tokenizer, *said, **given: encode_messages(tokenizer, turns(*said), **given)],
    ids=["a question", "a conversation"],
)
def test_a_row_that_has_no_room_for_its_answer_is_named(
    tokenizer: Any, write: Any, template: str | None
) -> None:
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match=r"'Where does A0 live \?'.* of 4 tokens"):
        write(tokenizer, "Where does A0 live ?", "Rome", max_length=4)


@pytest.mark.parametrize("text", ["", "  ", "Rome"])
def test_a_text_without_two_tokens(tokenizer: Any, text: str) -> None:
    with pytest.raises(ValueError, match="no two tokens"):
        encode_text(tokenizer, text)


@pytest.mark.parametrize("answer", ["", " \n", "\u200b", "\ufeff \u200d"])
def test_an_answer_that_nobody_could_see_is_none(tokenizer: Any, answer: str) -> None:
    with pytest.raises(ValueError, match="the answer has no tokens that anybody could see"):
        encode(tokenizer, "Where does A0 live ?", answer)


def test_a_tokenizer_without_eos_is_refused_by_name() -> None:
    made = town_tokenizer()
    made.eos_token, made.pad_token, made.name_or_path = None, None, "my/model"
    for use in (check_eos, pad_id, lambda t: encode(t, "Who ?", "A0")):
        with pytest.raises(ValueError, match=r"'my/model' has no EOS token"):
            use(made)


def test_collate_pads_on_the_right_and_masks_by_length() -> None:
    rows = [{"input_ids": [5, 6, 9], "labels": [-100, 6, 9]}, {"input_ids": [9], "labels": [9]}]
    batch = collate(rows, pad_id=9)  # the pad token is EOS: a real EOS must still count
    assert batch["input_ids"].tolist() == [[5, 6, 9], [9, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 6, 9], [9, -100, -100]]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    with pytest.raises(ValueError, match=r"a row has question, answer.*language\.encode"):
        collate([*rows, {"question": "Who?", "answer": "Ann"}], pad_id=9)
    with pytest.raises(ValueError, match="a row has input_ids, where"):
        collate([{"input_ids": [9]}], pad_id=9)


def test_a_list_is_one_wherever_it_begins_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('\n\n  [{"a": 1},\n{"a": 2}]  \n')
    found = read_records(path)
    assert [record.fields for record in found] == [{"a": 1}, {"a": 2}]
    assert [record.where for record in found] == [f"{path}, row 1", f"{path}, row 2"]


UNREADABLE = {
    "too deep": ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "recursion"),
    "too long a number": ('{"a": ' + "1" * 5000 + "}", "4300 digits"),
    "cut off": ('{"a": ', "Expecting value"),
    "half an emoji": ('{"a": [{"b": "cut \\ud83d"}]}', r"encode character '.ud83d'"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_an_error_that_names_file_and_line(
    name: str, tmp_path: Path
) -> None:
    row, words = UNREADABLE[name]
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "a", "answer": "b"}\n' + row + "\n")
    with pytest.raises(ValueError, match=rf"rows\.jsonl, line 2 .*{words}"):
        read_records(path)


def test_a_value_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"a": "\U0001f600", "b": 3, "c": " "}) + "\n")
    (record,) = read_records(path)
    assert record.text("a") == "\U0001f600"
    for key, words in (("b", r"b is 3\)"), ("c", r"c is ' '\)"), ("d", "it has only")):
        with pytest.raises(ValueError, match=rf"line 1: no {key} \({words}"):
            record.text(key)
