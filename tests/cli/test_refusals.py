"""What a new user does wrong costs a sentence, exit code 2, and nothing else."""

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import FORGET, RETAIN, Command, write
from torch_alm import cli
from torch_alm.cli import command as command_module
from torch_alm.cli.refusal import Refusal
from torch_alm.cli.writing import (
    is_full_disk,
    write_folder,
    write_json,
    write_tensors,
    write_text,
)

BAD_ROWS = {
    "malformed": ('{"question": "a", "answer": "b"}\n{"question": ', "line 2 is not valid JSON"),
    "empty": ("", "has no rows"),
    "blank": ("\n\n", "has no rows"),
    "other": ('{"q": 1}\n', "has the fields ['q']"),
    "list": ("[1, 2]", "holds a int"),
    "no answer": ('{"question": "a", "answer": " "}\n', "no answer (answer is ' ')"),
    "missing answer": ('{"question": "a"}\n', "no answer (it has only ['question'])"),
    "number": ('{"question": "a", "answer": 3}\n', "no answer (answer is 3)"),
    "chat": ('{"messages": [{"role": "user"}]}\n', "objects with role and content"),
    "no turn": (
        '{"messages": [{"role": "user", "content": "a"}]}\n',
        "does not end with an answer of the assistant",
    ),
    "long": ('{"question": "%s", "answer": "b"}\n' % ("Where " * 600), "the prompt takes"),
}


def refused(capsys: Any, tmp_path: Path, found: int, output: str = "out") -> str:
    """The one sentence; nothing was left behind."""
    told = capsys.readouterr()
    assert found == 2
    assert "Traceback" not in told.err
    assert all(len(line) <= 80 for line in told.err.splitlines())
    sentence = " ".join(told.err.split())
    assert sentence.startswith("torch-alm: ")
    assert sentence.count("torch-alm: ") == 1
    assert sentence.endswith("?")
    assert not (tmp_path / output).exists()
    return sentence


@pytest.mark.parametrize("role", ["forget", "retain", "holdout"])
@pytest.mark.parametrize("kind", BAD_ROWS)
def test_bad_files_are_named_with_their_line(
    command: Command, tmp_path: Path, capsys: Any, kind: str, role: str
) -> None:
    text, told = BAD_ROWS[kind]
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    sentence = refused(capsys, tmp_path, command("unlearn", **{role: path}))
    assert told in sentence
    assert "bad.jsonl" in sentence


def test_compressed_and_missing_files_and_folders(
    command: Command, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "rows.gz"
    path.write_bytes(b"\x1f\x8b\x08\xff")
    assert "Is it compressed?" in refused(capsys, tmp_path, command("unlearn", forget=path))
    found = command("unlearn", forget=tmp_path / "none.jsonl")
    assert "No such file" in refused(capsys, tmp_path, found)
    assert "Is a directory" in refused(capsys, tmp_path, command("unlearn", forget=tmp_path))


def test_a_row_to_forget_and_to_keep_at_once(
    command: Command, tmp_path: Path, capsys: Any, files: dict[str, Path]
) -> None:
    spaced = {k: f"  {v.upper()} " for k, v in FORGET[2].items()}
    path = write(tmp_path / "both.jsonl", [*RETAIN, spaced])
    sentence = refused(capsys, tmp_path, command("unlearn", retain=path))
    assert "forget.jsonl, line 3 and" in sentence
    assert "both.jsonl, line 9 are the same row" in sentence
    path = write(tmp_path / "seen.jsonl", RETAIN[:1])
    sentence = refused(capsys, tmp_path, command("unlearn", holdout=path))
    assert "says nothing of what was not" in sentence


def test_model_folders_that_are_not_whole(
    command: Command, tmp_path: Path, capsys: Any, folder: Path
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    for file in bare.glob("tokenizer*"):
        file.unlink()
    sentence = refused(capsys, tmp_path, command("unlearn", model=bare))
    assert "has no tokenizer" in sentence
    (bare / "config.json").unlink()
    assert "has no config.json" in refused(capsys, tmp_path, command("unlearn", model=bare))
    sentence = refused(capsys, tmp_path, command("unlearn", model=tmp_path / "nowhere"))
    assert "is no folder" in sentence
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "model.safetensors").write_bytes(b"cut off")
    sentence = refused(capsys, tmp_path, command("unlearn", model=broken))
    assert "cannot load a causal language model" in sentence


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--certify", 1.2, "a certificate stays below 1"),
        ("--certify", 0.9999999, "cannot be certified"),
        ("--certify", 0, "met from the start"),
        ("--alpha", 0, "asks for nothing"),
        ("--alpha", "inf", "what no model reaches"),
        ("--device", "cuda", "torch finds no GPU"),
    ],
)
def test_levels_and_places_that_cannot_be(
    command: Command, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch,
    option: str, value: object, told: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert told in refused(capsys, tmp_path, command("unlearn", option, value))


@pytest.mark.parametrize(
    "words",
    [("--epochs", "0"), ("--lr", "-1"), ("--lr", "nan"), ("--alpha", "1", "--certify", "0.5")],
)
def test_numbers_that_make_no_sense(command: Command, tmp_path: Path, words: Any) -> None:
    with pytest.raises(SystemExit) as found:
        command("unlearn", *words)
    assert found.value.code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("missing", ["model", "forget", "retain", "output"])
def test_what_no_run_can_do_without(capsys: Any, missing: str) -> None:
    words = [w for name in ("model", "forget", "retain", "output") if name != missing
             for w in (f"--{name}", "x")]  # fmt: skip
    with pytest.raises(SystemExit) as found:
        cli.main(["evaluate", *words])
    assert found.value.code == 2
    assert f"required: --{missing}" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["unlearn", "evaluate", "attack"])
def test_nothing_is_overwritten_without_force(
    command: Command, tmp_path: Path, capsys: Any, verb: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("three years")
    (out / "report.json").write_text("{}")
    assert command(verb) == 2
    assert "is not empty" in " ".join(capsys.readouterr().err.split())
    assert (out / "report.json").read_text() == "{}"
    steps = ("--epochs", 1) if verb == "unlearn" else ()
    assert command(verb, "--force", *steps) == 0
    assert (out / "thesis.txt").read_text() == "three years"
    assert json.loads((out / "report.json").read_text())["settings"]


FULL = OSError(errno.ENOSPC, "No space left on device")


def fails(*_: object, **__: object) -> None:
    raise FULL


def test_a_full_disk_at_the_end_leaves_what_was_there(
    command: Command, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("evaluate") == 0
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", fails)
        assert command("evaluate", "--force") == 2
    assert "no space left" in capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before


def test_a_full_disk_while_the_model_is_saved(
    command: Command, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.LlamaForCausalLM.save_pretrained", fails)
    assert command("unlearn", "--epochs", 1) == 2
    assert "no space left" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["unfinished"]


def test_too_little_space_is_found_out_before_the_work(
    command: Command, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert "MB free" in refused(capsys, tmp_path, command("unlearn"))


def caused(cause: BaseException) -> RuntimeError:
    error = RuntimeError("something else")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "as another system says it"), True),
        (OSError(errno.EDQUOT, "as another system says it"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (RuntimeError("I/O error: (os error 28)"), True),
        (RuntimeError("I/O error: code: 28"), True),
        (RuntimeError("[enforce fail] PytorchStreamWriter failed writing file"), True),
        (ValueError("PytorchStreamWriter"), False),
        (RuntimeError("(os error 13)"), False),
        (caused(OSError(errno.ENOSPC, "")), True),
        (caused(OSError(errno.EACCES, "")), False),
    ],
)
def test_a_full_disk_is_known_by_its_number_and_by_its_names(
    error: BaseException, expected: bool
) -> None:
    assert is_full_disk(error) == expected


WRITERS: dict[str, Callable[[Path], None]] = {
    "text": lambda path: write_text(path, "new"),
    "json": lambda path: write_json(path, {"new": 1}),
    "tensors": lambda path: write_tensors(path, {"new": 1}),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_that_cannot_be_written_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(Refusal, match="no space left"):
        WRITERS[kind](path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.mkdir()
    (path / "weights").write_text("old")

    def fill(draft: Path) -> None:
        (draft / "weights").write_text("ne")
        raise RuntimeError("Error while serializing: I/O error: No space left (os error 28)")

    with pytest.raises(Refusal, match="no space left"):
        write_folder(path, fill)
    assert (path / "weights").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    write_folder(path, lambda draft: (draft / "weights").write_text("new"))
    assert (path / "weights").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_numbers_json_has_no_word_for(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": [float("nan"), 1.5, (float("inf"),)]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": [None, 1.5, [None]]}


def test_other_errors_are_not_swallowed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setitem(command_module.VERBS, "evaluate", broken)  # pyright: ignore
    with pytest.raises(ZeroDivisionError):
        command("evaluate")


def test_a_missing_extra_is_named(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "NEEDED", ("a_package_that_is_not_there",))
    assert cli.main([]) == 2
    assert "torch-alm[hf]" in capsys.readouterr().err
