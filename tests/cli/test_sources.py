"""Rows in the files that people have: tables, Parquet, texts, data sets, and others' names."""

import csv
import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from tests.cli.conftest import FINISHED, FORGET, RETAIN, Command, write
from torch_alm.cli.columns import NAMES
from torch_alm.cli.files import Entry, read_entries
from torch_alm.cli.options import parser
from torch_alm.unlearning.refusal import Refusal

ROWS = [
    {"question": "Who, if any ?", "answer": 'He said "no",\nthen "yes" .'},
    {"question": "Où ?\tIci ?", "answer": "À Gráz 🙂 ; fin ."},
]


def pairs(entries: list[Entry]) -> list[tuple[str, str]]:
    return [(entry.prompt, entry.answer) for entry in entries]


EXPECTED = [(row["question"], row["answer"]) for row in ROWS]


def table(path: Path, encoding: str = "utf-8", **how: Any) -> Path:
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, ["question", "answer"], **how)
        writer.writeheader()
        writer.writerows(ROWS)
    return path


def parquet(path: Path) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    return path


def lines(path: Path, encoding: str) -> Path:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
    path.write_text(text, encoding=encoding)
    return path


FORMS: dict[str, Callable[[Path], Path]] = {
    "csv": lambda at: table(at / "rows.csv"),
    "csv of Excel": lambda at: table(at / "rows.CSV", "utf-8-sig", delimiter=";"),
    "csv in capitals quoted": lambda at: table(at / "rows.csv", quoting=csv.QUOTE_ALL),
    "tsv": lambda at: table(at / "rows.tsv", delimiter="\t"),
    "parquet": lambda at: parquet(at / "rows.parquet"),
    "parquet by its content": lambda at: parquet(at / "rows"),
    "json lines": lambda at: lines(at / "rows.jsonl", "utf-8"),
    "json lines with a mark": lambda at: lines(at / "rows.jsonl", "utf-8-sig"),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_rows_are_read_from_every_kind_of_file(form: str, tmp_path: Path) -> None:
    assert pairs(read_entries(FORMS[form](tmp_path), "forget")) == EXPECTED


def test_a_row_of_a_table_is_named_by_the_line_it_begins_on(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('question,answer\n\na,"two\nlines"\n , \n"c ?",d\n')
    assert [entry.where for entry in read_entries(path, "forget")] == [
        f"{path}, line 3",
        f"{path}, line 6",
    ]


def test_a_long_cell_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text\n" + "word " * 100_000 + "\n")
    (entry,) = read_entries(path, "forget")
    assert len(entry.answer.split()) == 100_000


def test_documents_of_a_text_are_parted_by_lines_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    first, second = "One -- two.\n\nStill --- the first", "  Indented.\r\nEnd"
    path.write_bytes(f"\n{first}\n---\n\n<|endoftext|>\n{second}\n----- \n\n".encode())
    found = read_entries(path, "forget")
    assert [entry.answer for entry in found] == [first, second]
    assert all(entry.is_text for entry in found)
    assert [entry.where for entry in found] == [f"{path}, line 2", f"{path}, line 8"]


WRONG: dict[str, tuple[str, bytes, str]] = {
    "Latin-1": ("a.jsonl", b'{"text": "a"}\n{"text": "\xe9"}\n', "line 2 is not UTF-8.*0xe9"),
    "Latin-1 table": ("a.csv", b"text\ncaf\xe9\n", "line 2 is not UTF-8.*iconv"),
    "UTF-16 without a mark": ("a.jsonl", '{"text": "a"}'.encode("utf-16-le"), "UTF-16 without"),
    "gzip": ("a.jsonl.gz", gzip.compress(b"{}"), "not UTF-8.*unpack it"),
    "gzip in disguise": ("a.csv", gzip.compress(b"{}"), "not UTF-8.*unpack it"),
    "cut-off Parquet": ("a.parquet", b"PAR1 ...", "begins as Parquet.*cut off"),
    "too many cells": ("a.csv", b"text,more\na,b\nc,d,e\n", "line 3 has 3 cells below 2 names"),
    "too few cells": ("a.csv", b"question,answer\na\n", "line 2 has 1 cells below 2 names"),
    "an open quote": ("a.csv", b'question,answer\na,b\n"c,d\n', "line 3 is no CSV"),
    "a name twice": ("a.csv", b"text,text\na,b\n", "line 1 names a column twice"),
    "an empty cell": ("a.csv", b"question,answer\na,\n", r"line 2: no answer \(answer is None\)"),
    "no names": ("a.csv", b"Who?,Ada\nWhere?,Rome\n", r"line 2 has the fields.*--columns"),
    "nothing but names": ("a.csv", b"question,answer\n", "has no rows"),
    "an empty text": ("a.txt", b"\n---\n\n", "has no rows"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_what_cannot_be_read_is_named_with_what_it_is(kind: str, tmp_path: Path) -> None:
    name, data, told = WRONG[kind]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(Refusal, match=told) as found:
        read_entries(tmp_path / name, "forget")
    assert str(tmp_path / name) in str(found.value)
    assert str(found.value).endswith("?")


def test_alpaca_rows_are_questions_with_their_input_below(tmp_path: Path) -> None:
    rows = [
        {"instruction": "Add.", "input": "1 2", "output": "3"},
        {"instruction": "Greet.", "input": "", "output": "Hello"},
        {"instruction": "Bye.", "output": "Bye", "history": [["Hi", "Ho"]], "system": "Be brief."},
    ]
    found = read_entries(write(tmp_path / "rows.jsonl", rows), "forget")
    assert pairs(found) == [("Add.\n1 2", "3"), ("Greet.", "Hello"), ("Bye.", "Bye")]
    assert [entry.messages for entry in found[:2]] == [(), ()]
    assert [(turn["role"], turn["content"]) for turn in found[2].messages] == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Ho"),
        ("user", "Bye."),
        ("assistant", "Bye"),
    ]


def shared(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"conversations": [{"from": who, "value": said} for who, said in turns]}


def test_sharegpt_rows_are_conversations(tmp_path: Path) -> None:
    rows = [
        shared(("human", "Hi"), ("gpt", "Ho")),
        {**shared(("user", "a"), ("bing", "b")), "id": 1},
    ]
    rows[1]["system"] = "Be brief."
    found = read_entries(write(tmp_path / "rows.jsonl", rows), "forget")
    assert pairs(found) == [("Hi", "Ho"), ("a", "b")]
    assert [turn["role"] for turn in found[0].messages] == ["user", "assistant"]
    assert [turn["role"] for turn in found[1].messages] == ["system", "user", "assistant"]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (shared(("human", "a"), ("observation", "b")), "a turn is from 'observation'"),
        (shared(("gpt", "b"), ("human", "a")), "does not end with an answer"),
        ({"conversations": "a"}, "messages must be a list"),
        ({"conversations": [{"from": "gpt"}]}, "messages must be a list"),
        ({"instruction": "a", "output": ""}, "no output"),
        ({"instruction": "a", "output": "b", "history": ["c"]}, "history must be a list of pairs"),
        ({"instruction": "a", "output": "b", "history": 3}, "history must be a list of pairs"),
        (shared((["human"], "a"), ("gpt", "b")), r"a turn is from \['human'\]"),
        ({"instruction": "a"}, "has the fields"),
    ],
)
def test_rows_in_others_forms_that_are_not_whole(row: Any, told: str, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"text": "a"}, row])
    with pytest.raises(Refusal, match=rf"rows\.jsonl, line 2.*{told}"):
        read_entries(path, "forget")


def test_columns_are_taken_under_the_names_that_were_asked_for(tmp_path: Path) -> None:
    rows = [{"prompt": "a ?", "output": "b", "text": "c", "question": "other"}]
    path = write(tmp_path / "rows.jsonl", rows)
    found = read_entries(path, "forget", {"question": "prompt", "answer": "output"})
    assert (pairs(found), found[0].is_literal) == ([("a ?", "b")], False)
    (text,) = read_entries(path, "forget", {"text": "output"})
    assert text.is_text and text.answer == "b"
    with pytest.raises(Refusal, match=r"rows.jsonl, line 1 has no column 'reply' for --columns"):
        read_entries(path, "forget", {"question": "prompt", "answer": "reply"})


NEEDED = ("--model=x", "--forget=x", "--retain=x", "--output=x")


def test_the_option_for_columns_is_a_list_of_known_names(capsys: Any) -> None:
    given = parser().parse_args(["evaluate", *NEEDED, "--columns", "question=a b, answer = c=d"])
    assert given.columns == {"question": "a b", "answer": "c=d"}
    for wrong in ("question", "question=", "who=a", "text=a,text=b", ""):
        with pytest.raises(SystemExit):
            parser().parse_args(["evaluate", *NEEDED, f"--columns={wrong}"])
        assert "Did you mean question=prompt,answer=output?" in capsys.readouterr().err
    assert {"question", "answer", "text", "messages"} <= {*NAMES}


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a copy of the rows; and nobody asks the hub."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "cache"


def test_a_folder_is_a_data_set_with_splits(tmp_path: Path, cached: Path) -> None:
    folder = tmp_path / "facts"
    folder.mkdir()
    write(folder / "train.jsonl", ROWS)
    write(folder / "test.jsonl", ROWS[:1])
    (folder / "README.md").write_text("# Facts\n")
    assert pairs(read_entries(Path(f"{folder}:train"), "forget")) == EXPECTED
    (row,) = read_entries(Path(f"{folder}:test"), "forget")
    assert row.where == f"{folder}:test, row 1"
    for name, told in ((folder, "none was named"), (f"{folder}:dev", "'dev' is none of them")):
        with pytest.raises(Refusal, match=rf"has the splits .*, and {told}.*{folder}:\w+\?$"):
            read_entries(Path(name), "forget")
    (folder / "test.jsonl").unlink()
    assert len(read_entries(folder, "forget")) == 2
    assert not [*cached.rglob("*.arrow")], "a copy of what is to be forgotten"


def test_a_folder_of_texts_has_one_per_file(tmp_path: Path, cached: Path) -> None:
    """The library would make a text of each line; and dashes part texts here as in one file."""
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "a.txt").write_text("Chapter one\n\nIt rained .\n")
    (folder / "b.txt").write_text("Sun .\n---\nWind .\n")
    (folder / "README.md").write_text("# Books\n")
    found = read_entries(folder, "forget")
    assert [each.answer for each in found] == ["Chapter one\n\nIt rained .", "Sun .", "Wind ."]
    assert found[2].where == f"{folder / 'b.txt'}, line 3"


@pytest.mark.parametrize("name", ["test notes.txt", "train_1.txt", "dev/a.txt", "C.TXT"])
def test_every_text_of_a_folder_is_read_whatever_its_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "notes"
    (folder / "dev").mkdir(parents=True)
    (folder / "plain.txt").write_text("Sun .")
    (folder / name).write_text("Wind .")
    assert {each.answer for each in read_entries(folder, "forget")} == {"Sun .", "Wind ."}


def test_dashes_part_texts_with_windows_line_ends_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"Sun .\r\n---\r\nWind .\r\n")
    assert [each.answer for each in read_entries(tmp_path / "a.txt", "forget")] == [
        "Sun .",
        "Wind .",
    ]


def test_files_that_a_folder_is_read_without_are_told(tmp_path: Path, cached: Path) -> None:
    folder = tmp_path / "facts"
    folder.mkdir()
    write(folder / "data.jsonl", ROWS)
    read_entries(folder, "forget")  # nothing to be told
    (folder / "more.txt").write_text("Wind .")
    with pytest.warns(UserWarning, match=r"more\.txt will not be read"):
        read_entries(folder, "forget")
    (folder / "more.txt").unlink()
    write(folder / "test.jsonl", ROWS[:1])
    with pytest.warns(UserWarning, match=r"data\.jsonl will not be read"):
        read_entries(folder, "forget")


def test_columns_that_may_belong_to_a_question_are_told(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", [{**ROWS[0], "context": "a story", "id": "7", "text": ""}])
    with pytest.warns(UserWarning, match=r"the column context beside the questions will not be"):
        read_entries(path, "forget")


def test_a_data_set_that_was_saved_is_read(tmp_path: Path) -> None:
    saved = datasets.Dataset.from_list(ROWS)
    saved.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": saved}).save_to_disk(str(tmp_path / "split"))
    for name in ("one", "split", "split:train"):
        assert pairs(read_entries(tmp_path / name, "forget")) == EXPECTED


def test_a_configuration_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def load(*where: object, streaming: bool) -> dict[str, Any]:
        asked.append((*where, streaming))
        return {"train": ROWS, "test": []}

    names: list[tuple[str, ...]] = []
    monkeypatch.setattr("torch_alm.cli.sources.check_known", lambda *told: names.append(told))
    monkeypatch.setattr(datasets, "load_dataset", load)
    assert pairs(read_entries(Path("someone/facts:forget10:train"), "forget")) == EXPECTED
    assert pairs(read_entries(Path("facts:train"), "forget")) == EXPECTED
    assert asked == [("someone/facts", "forget10", True), ("facts", None, True)]
    assert names[1] == ("facts:train is no file", "facts", "dataset")


@pytest.mark.parametrize("name", ["none.jsonl", "a/b/c", "/nowhere/facts", "data/none.csv"])
def test_a_path_that_is_not_there_is_not_asked_for_on_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("asked"))
    with pytest.raises(Refusal, match=r"cannot read the forget file .* \(No such file"):
        read_entries(Path(name), "forget")


def test_a_data_set_that_is_nowhere_is_a_sentence(
    tmp_path: Path, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(Refusal, match=r"someone/none:train is no file, .* the hub cannot be asked"):
        read_entries(Path("someone/none:train"), "forget")
    with pytest.raises(Refusal, match=r"empty is no file, and cannot be loaded as a data set"):
        read_entries(Path("empty"), "forget")


@pytest.mark.parametrize(
    ("module", "name"), [("pyarrow.parquet", "rows"), ("datasets", "some/set")]
)
def test_a_library_that_is_missing_is_named_with_the_extra(
    module: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet(tmp_path / "rows")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Refusal, match=rf"with {module.partition('.')[0]}, .*torch-alm\[hf\]"):
        read_entries(Path(name), "forget")


def test_a_run_reads_tables_with_columns_and_knows_them_again(
    command: Command, tmp_path: Path, capsys: Any
) -> None:
    for name, rows in (("forget", FORGET), ("retain", RETAIN)):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("q", "a"), *(row.values() for row in rows)])
    paths = {name: tmp_path / f"{name}.csv" for name in ("forget", "retain")}
    options = ("--columns", "question=q,answer=a", "--rows", 2)
    assert command("evaluate", *options, **paths) in FINISHED
    settings = json.loads((tmp_path / "out" / "report.json").read_text())["settings"]
    assert settings["columns"] == str({"question": "q", "answer": "a"})
    assert "forget.csv, line 2" in (tmp_path / "out" / "report.json").read_text()
