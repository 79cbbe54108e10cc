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
    "half a character": (r'{"question": "a", "answer": "b \ud83d"}', r"'\\ud83d' alone"),
    "the other half": (r'{"answer": "\udE00 b"}', r"'\\ude00' alone"),
    "half a character below": (r'{"messages": [{"content": "\ud83d"}]}', r"'\\ud83d' alone"),
    "half a character in a name": (r'{"\ud83d": 1}', r"'\\ud83d' alone"),
    "too deep": ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "recursion"),
    "never closed": ('{"a": ' + "[" * 100_000, "recursion"),
    "too long a number": ('{"a": ' + "1" * 5000 + "}", "4300 digits"),
    "a name twice": ('{"answer": "a", "b": 1, "answer": "c"}', "'answer' stands twice"),
    "a name twice below": ('{"messages": [{"role": 1, "role": 2}]}', "'role' stands twice"),
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
    path.write_text('[{"question": "a", "answer": "b"}, ' + row + "]")
    place = ", row 2" if "half" in name else ""
    with pytest.raises(ValueError, match=rf"rows\.jsonl{place} .*{words}"):
        read_records(path)


def test_whole_characters_and_numbers_that_are_none_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"a": "\U0001f600", "b": float("nan"), "c": 10**4000}) + "\n")
    (record,) = read_records(path)
    assert record.text("a") == "\U0001f600" and record.fields["c"] == 10**4000
    with pytest.raises(ValueError, match=r"line 1: no b \(b is nan\)"):
        record.text("b")
