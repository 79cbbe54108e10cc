"""Rows of files of every kind are text, or refused by name; long ones are cut, no token lost."""

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.command.conftest import FORGET, HOLDOUT, RETAIN, Command, Refused, report, write
from torch_alm.command.files import read_entries
from torch_alm.unlearning.errors import Refusal
from torch_alm.unlearning.loading import cut_windows
from torch_alm.unlearning.rows import Entry, check_apart
from torch_alm.unlearning.run import _name_alone

ROWS = [
    {"question": "Who, if any ?", "answer": 'He said "no",\nthen "yes" .'},
    {"question": "Où ?\tIci ?", "answer": "À Gráz 🙂 ; fin ."},
    {"question": "Which code ?", "answer": "007"},
    {"question": "Which day ?", "answer": "2020-01-02"},
    {"question": "What else ?", "answer": "NA"},
]
EXPECTED = [(row["question"], row["answer"]) for row in ROWS]


def pairs(entries: list[Entry]) -> list[tuple[str, str]]:
    return [(entry.prompt, entry.answer) for entry in entries]


def table(path: Path, encoding: str = "utf-8", **how: Any) -> None:
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.writer(file, **how)
        writer.writerow(["Question", "ANSWER"])
        writer.writerows(row.values() for row in ROWS)


def parquet(path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)


def lines(path: Path, encoding: str) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
    path.write_text(text, encoding=encoding)


FORMS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "csv": ("rows.csv", table),
    "csv of Excel": ("rows.CSV", lambda at: table(at, "utf-8-sig", delimiter=";")),
    "csv quoted": ("rows.csv", lambda at: table(at, quoting=csv.QUOTE_ALL)),
    "tsv": ("rows.tsv", lambda at: table(at, delimiter="\t")),
    "parquet": ("rows.parquet", parquet),
    "json": ("rows.json", lambda at: at.write_text(json.dumps(ROWS))),
    "json lines": ("rows.jsonl", lambda at: lines(at, "utf-8")),
    "json lines with a mark": ("rows.jsonl", lambda at: lines(at, "utf-8-sig")),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_text_is_read_from_every_kind_of_file_and_from_a_folder_of_it(
    form: str, tmp_path: Path
) -> None:
    """Dates, `NA` and numbers with leading zeros stay what they are."""
    name, write_as = FORMS[form]
    write_as(tmp_path / name)
    (tmp_path / "notes.md").write_text("no rows")
    assert pairs(read_entries(tmp_path / name, "forget")) == EXPECTED
    assert pairs(read_entries(tmp_path, "forget")) == EXPECTED


def test_numbers_of_a_table_with_types_are_text(tmp_path: Path) -> None:
    rows = [{"question": "When ?", "answer": 1952}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert pairs(read_entries(tmp_path / "a.parquet", "forget")) == [("When ?", "1952")]


def test_a_blank_after_the_comma_is_no_text_unless_the_names_have_none(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('question, answer\n"One?", "a, b"\nTwo?, c\n')
    assert pairs(read_entries(path, "forget")) == [("One?", "a, b"), ("Two?", "c")]
    path.write_text("prompt,completion\nOne?, a\n")
    assert pairs(read_entries(path, "forget")) == [("One?", " a")]


def test_a_file_of_text_is_one_row(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(b"\n  One.\r\n---\r\nTwo\n")
    assert [entry.answer for entry in read_entries(path, "forget")] == ["  One.\r\n---\r\nTwo"]


def chat(*roles: str, said: str = "a") -> bytes:
    turns = [{"role": role, "content": said} for role in roles]
    return json.dumps({"messages": turns}).encode()


WRONG: dict[str, tuple[str, bytes, str]] = {
    "Latin-1": ("a.jsonl", b'{"text": "a"}\n{"text": "\xe9"}\n', "line 2 is not UTF-8.*0xe9"),
    "Latin-1 table": ("a.csv", b"text\ncaf\xe9\n", "line 2 is not UTF-8.*save it as UTF-8"),
    "gzip": ("a.jsonl.gz", gzip.compress(b"{}"), "not UTF-8.*unpack it"),
    "cut-off Parquet": ("a.parquet", b"PAR1 ...", "cannot be read as Parquet.*cut off"),
    "too many cells": ("a.csv", b"text,more\na,b\nc,d,e\n", "Expected 2 fields in line 3, saw 3"),
    "too few cells": ("a.csv", b"question,answer\na\n", "row 1: no answer"),
    "an open quote": ("a.csv", b'question,answer\na,b\n"c,d\n', "is no table"),
    "a name twice": ("a.csv", b"text,text\na,b\n", "names a column twice"),
    "an empty cell": ("a.csv", b"question,answer\na,\n", r"row 1: no answer \(answer is None\)"),
    "no names": ("a.csv", b"Who?,Ada\nWhere?,Rome\n", r"row 1 has the fields.*--columns"),
    "nothing but names": ("a.csv", b"question,answer\n", "has no rows"),
    "an empty table": ("a.csv", b"", "has no rows"),
    "an empty text": ("a.txt", b"\n \n\n", "has no rows"),
    "malformed": ("a.jsonl", b'{"question": "a", "answer": "b"}\n{"question": ', "line 2 is not"),
    "other": ("a.jsonl", b'{"q": 1}\n', r"has the fields \['q'\]"),
    "list": ("a.jsonl", b"[1, 2]", "holds a int"),
    "missing answer": ("a.jsonl", b'{"question": "a"}\n', "no answer"),
    "number": ("a.jsonl", b'{"question": "a", "answer": 3}\n', r"no answer \(answer is 3\)"),
    "chat": ("a.jsonl", b'{"messages": [{"role": "user"}]}\n', "of two objects or more with role"),
    "chat of texts": ("a.jsonl", b'{"messages": ["a", "b"]}\n', "of two objects or more with role"),
    "no turn": ("a.jsonl", chat("user"), "of two objects or more with role"),
    "no end": ("a.jsonl", chat("assistant", "user"), "of two objects or more with role"),
    "silent": ("a.jsonl", chat("user", "assistant", said=" "), "of two objects or more with role"),
    "half a chat": ("a.jsonl", b'{"prompt": [{"role": "user"}], "completion": "b"}', "no prompt"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_what_cannot_be_read_is_named_with_what_it_is(kind: str, tmp_path: Path) -> None:
    name, data, told = WRONG[kind]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(Refusal, match=told) as found:
        read_entries(tmp_path / name, "forget")
    assert str(tmp_path / name) in str(found.value)
    assert str(found.value).endswith("?")


def test_columns_are_taken_under_the_names_that_were_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"Prompt": "a", "Output": "b", "answer": "c"}])
    names = {"": {"question": "prompt", "answer": "output"}, "retain": {"answer": "answer"}}
    assert pairs(read_entries(path, "forget", names)) == [("a", "b")]
    assert pairs(read_entries(path, "retain", names)) == [("a", "c")]
    with pytest.raises(Refusal, match="no column 'none' for --columns"):
        read_entries(path, "forget", {"forget": {"text": "none"}})


def entry(where: str, question: str, answer: str) -> Entry:
    return Entry(where, question, answer)


@pytest.mark.parametrize(
    ("question", "answer", "is_near"),
    [
        ("what is the capital of France ?", "paris", True),
        ("Which city is the capital of France?", "It is Paris.", True),
        ("Please tell me the capital of France", "Paris", True),
        ("What is the capital of Texas?", "Paris", False),
        ("What is the capital of France?", "Lyon", False),
        ("Where is the Louvre?", "Paris", False),
    ],
)
def test_a_row_to_keep_that_answers_a_question_to_forget_is_refused_by_number(
    question: str, answer: str, is_near: bool
) -> None:
    forget = [entry("f, line 1", "What is the capital of France?", "Paris")]
    kept = [entry("r, line 7", question, answer)]
    if is_near:
        with pytest.raises(Refusal, match="f, line 1 and r, line 7 a"):
            check_apart(forget, kept, "it would be forgotten and kept at once")
    else:
        check_apart(forget, kept, "nothing")


def test_a_row_in_two_files_is_refused_in_whatever_form(refused: Refused, tmp_path: Path) -> None:
    question, answer = FORGET[1].values()
    for form in (
        {k: f"  {v.upper()} " for k, v in FORGET[1].items()},
        {"prompt": f"Question: {question}\nAnswer:", "completion": f" {answer}"},
        {"messages": [{"role": "user", "content": question},
                      {"role": "assistant", "content": answer}]},
    ):  # fmt: skip
        path = write(tmp_path / "both.jsonl", [*RETAIN, form])
        told = refused("unlearn", retain=path)
        assert "forget.jsonl, line 2 and" in told and "both.jsonl, line 9" in told
    for name in ("holdout", "probe"):
        path = write(tmp_path / "seen.jsonl", [HOLDOUT[0], *RETAIN[:3]])
        told = refused("unlearn", **{name: path})
        assert "are the same row (and 2 more); what was trained on" in told


def test_rows_of_every_kind_are_asked(command: Command, tmp_path: Path) -> None:
    question, answer = FORGET[2].values()
    rows = [FORGET[0], {"prompt": f"Question: {question}\nAnswer:", "completion": answer},
            {"text": "Question : Where does A1 live ? Answer : A1 lives in Oslo ."}]  # fmt: skip
    assert command("evaluate", forget=write(tmp_path / "f.jsonl", rows)) == 0
    found = report(tmp_path / "out")["models"][0]["answers"]["forget"]
    assert [row["said"] for row in found][:2] == [True, True]
    assert not found[2]["reference"].startswith("Question")


SIZES = st.tuples(st.integers(8, 40), st.integers(1, 39), st.integers(1, 200))


def row_of(prompt: int, answer: int) -> dict[str, list[int]]:
    ids = list(range(1000, 1000 + prompt + answer))
    return {"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]}


@settings(max_examples=100, deadline=None, derandomize=True)
@example((8, 7, 1))
@example((8, 7, 2))
@example((14, 9, 6))
@given(SIZES)
def test_every_answer_token_is_labelled_once_below_the_tokens_before_it(
    sizes: tuple[int, int, int],
) -> None:
    length, prompt, answer = sizes
    prompt = min(prompt, length - 1)
    whole = row_of(prompt, answer)
    rows = cut_windows(whole, length)
    told = [label for row in rows for label in row["labels"] if label >= 0]
    assert told == whole["labels"][prompt:]
    for i, row in enumerate(rows):
        ids, labels = row["input_ids"], row["labels"]
        assert len(ids) == len(labels) <= length
        start = whole["input_ids"].index(ids[0])
        assert ids == whole["input_ids"][start : start + len(ids)], "as they stand in the answer"
        first = next(j for j, label in enumerate(labels) if label >= 0)
        assert labels[first:] == ids[first:]
        if i == 0:
            assert (start, first) == (0, prompt)
        if start > 0:
            assert len(ids) == length, "as much before it as fits"
            assert first >= length // 2


@pytest.mark.parametrize(("prompt", "answer"), [(1, 200), (5, 36), (8, 25), (4, 13)])
def test_no_row_is_left_with_a_token_or_two(prompt: int, answer: int) -> None:
    """They could be guessed, and would seem to be remembered."""
    rows = cut_windows(row_of(prompt, answer), 16)
    counts = [sum(label >= 0 for label in row["labels"]) for row in rows]
    assert len(counts) > 1
    assert max(counts) - min(counts) <= 1


def test_a_row_that_fits_stays_and_a_prompt_that_does_not_is_told() -> None:
    row = row_of(5, 11)
    assert cut_windows(row, 16) == [row]
    with pytest.raises(ValueError, match=r"the prompt takes 16 of 16 tokens.* too small\?"):
        cut_windows(row_of(16, 1), 16)


def test_a_forget_row_without_a_row_near_it_that_is_kept_is_named() -> None:
    pairs = [("Which is the capital of Peru?", "Lima."), ("Who wrote Emma?", "Jane Austen.")]
    forget = [Entry(f"forget.csv, row {i}", *pair) for i, pair in enumerate(pairs, 1)]
    sets = {"forget": forget, "retain": [Entry("", "Which is the capital of Chad?", "N'Djamena.")]}
    (note,) = _name_alone(sets)
    assert note.startswith("1 of 2 forget rows") and "(forget.csv, row 2)" in note
    assert not _name_alone({**sets, "probe": [Entry("", "Who wrote Dune?", "Frank Herbert.")]})
