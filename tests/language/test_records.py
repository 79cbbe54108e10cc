"""Rows of JSON files in either form; what is refused is tested where files are named."""

import json
from pathlib import Path

import pytest

from torch_alm.language import read_records


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
