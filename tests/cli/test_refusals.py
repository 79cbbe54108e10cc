"""A new user's mistake costs a sentence, exit code 2, and nothing else."""

import errno
import io
import json
import os
import re
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.cli.conftest import FINISHED, FORGET, HOLDOUT, RETAIN, Command, fits, write
from torch_alm import cli
from torch_alm.cli import command as command_module
from torch_alm.cli import saying
from torch_alm.cli.files import check_distinct, read_entries
from torch_alm.cli.goal import check_goal
from torch_alm.cli.options import parser
from torch_alm.cli.output import REPORTS, Output
from torch_alm.cli.report import Result
from torch_alm.cli.unfinished import Unfinished
from torch_alm.unlearning.files import (
    why_unwritten,
    write_folder,
    write_json,
    write_tensors,
    write_text,
)
from torch_alm.unlearning.models import load_model
from torch_alm.unlearning.refusal import Refusal


def chat(*roles: str, said: str = "a") -> str:
    return json.dumps({"messages": [{"role": role, "content": said} for role in roles]})


def completion(prompt: str | list[str], answer: str | list[str]) -> str:
    """A row of prompt and completion, each a text or the roles of turns."""
    sides = {"prompt": prompt, "completion": answer}
    return json.dumps({
        name: side if isinstance(side, str) else [{"role": r, "content": "a"} for r in side]
        for name, side in sides.items()
    })  # fmt: skip


BAD_ROWS = {
    "malformed": ('{"question": "a", "answer": "b"}\n{"question": ', "line 2 is not valid JSON"),
    "empty": ("", "has no rows; there would be nothing to {verb}. Is"),
    "blank": ("\n\n", "has no rows"),
    "other": ('{"q": 1}\n', "has the fields ['q']"),
    "list": ("[1, 2]", "holds a int"),
    "no answer": ('{"question": "a", "answer": " "}\n', "no answer (answer is ' ')"),
    "missing answer": ('{"question": "a"}\n', "no answer (it has only ['question'])"),
    "number": ('{"question": "a", "answer": 3}\n', "answer is 3, of the type int"),
    "chat": ('{"messages": [{"role": "user"}]}\n', "objects with role and content"),
    "chat as text": ('{"messages": "a"}\n', "objects with role and content"),
    "chat of texts": ('{"messages": ["a", "b"]}\n', "objects with role and content"),
    "no role": ('{"messages": [{"content": "a"}]}\n', "objects with role and content"),
    "numbers": ('{"messages": [{"role": 1, "content": 2}]}\n', "objects with role and content"),
    "no turn": (chat("user"), "does not end with an answer of the assistant"),
    "one turn": (chat("assistant"), "does not end with an answer of the assistant"),
    "no end": (chat("assistant", "user"), "does not end with an answer of the assistant"),
    "silent": (chat("user", "assistant", said=" "), "does not end with an answer of the assistant"),
    "half a chat": (completion(["user"], "b"), "needs a completion that is a list of one"),
    "no chat": (completion("a", ["assistant"]), "needs a completion that is a list of one"),
    "two answers": (completion(["user"], ["assistant"] * 2), "a list of one, the assistant's"),
    "no answerer": (completion(["user"], ["user"]), "does not end with an answer of the assistant"),
    "no prompt": ('{"prompt": "", "completion": "b"}', "no prompt (prompt is '')"),
    "long": ('{"question": "%s", "answer": "b"}\n' % ("Where " * 600), "the prompt takes"),
}


def refused(capsys: Any, tmp_path: Path, found: int, output: str = "out") -> str:
    """The one sentence; nothing was left behind."""
    told = capsys.readouterr()
    assert found == 2
    assert "Traceback" not in told.err
    assert all(map(fits, told.err.splitlines()))
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
    verbs = {"forget": "forget", "retain": "retain", "holdout": "compare with"}
    assert told.replace("{verb}", verbs[role]) in sentence
    assert "bad.jsonl" in sentence


def test_compressed_and_missing_files_and_folders(
    command: Command, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "rows.gz"
    path.write_bytes(b"\x1f\x8b\x08\xff")
    assert "not UTF-8 text" in refused(capsys, tmp_path, command("unlearn", forget=path))
    found = command("unlearn", forget=tmp_path / "none.jsonl")
    assert "No such file" in refused(capsys, tmp_path, found)
    folder = tmp_path / "folder"
    folder.mkdir()
    sentence = refused(capsys, tmp_path, command("unlearn", forget=folder))
    assert "cannot be loaded as a data set" in sentence


def test_a_row_to_forget_and_to_keep_at_once(
    command: Command, tmp_path: Path, capsys: Any, files: dict[str, Path]
) -> None:
    spaced = {k: f"  {v.upper()} " for k, v in FORGET[2].items()}
    path = write(tmp_path / "both.jsonl", [*RETAIN, spaced])
    sentence = refused(capsys, tmp_path, command("unlearn", retain=path))
    assert "forget.jsonl, line 3 and" in sentence
    assert "both.jsonl, line 9 are the same row; it would be forgotten and kept at" in sentence
    question, answer = FORGET[1].values()
    for form in (
        {"prompt": f"Question: {question}\nAnswer:", "completion": f" {answer}"},
        {
            "messages": [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
        },
        {"text": f"Question: {question}\nAnswer: {answer}"},
    ):
        path = write(tmp_path / "otherwise.jsonl", [*RETAIN, form])
        sentence = refused(capsys, tmp_path, command("unlearn", retain=path))
        assert "forget.jsonl, line 2 and" in sentence and "line 9 are the same row" in sentence
    for seen, more in (
        (RETAIN[:3], " (and 2 more)"),
        (FORGET[:2], " (and 1 more)"),
        (FORGET[:1], ""),
    ):
        path = write(tmp_path / "seen.jsonl", [HOLDOUT[0], *seen])
        sentence = refused(capsys, tmp_path, command("unlearn", holdout=path))
        assert "line 1 and" in sentence
        assert f"seen.jsonl, line 2 are the same row{more}; what was trained on" in sentence
    path = write(tmp_path / "new.jsonl", [{**FORGET[0], "answer": "elsewhere"}])
    check_distinct(read_entries(files["forget"], ""), read_entries(path, ""), "nothing")


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
    sentence = refused(capsys, tmp_path, command("unlearn", model="x" * 300))
    assert "no folder, and no name of a model" in sentence
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "model.safetensors").write_bytes(b"cut off")
    sentence = refused(capsys, tmp_path, command("unlearn", model=broken))
    assert "cannot load a causal language model" in sentence


def fails_saying(told: Exception) -> Callable[..., None]:
    def found(*_: object, **__: object) -> None:
        raise told

    return staticmethod(found)


@pytest.mark.parametrize("tokenizer", ["tokenizer.json", "tokenizer_config.json",
                                       "tokenizer.model", "vocab.json"])  # fmt: skip
@pytest.mark.parametrize("model", ["config.json", "adapter_config.json"])
def test_a_folder_with_a_model_and_a_tokenizer_of_any_kind_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, tokenizer: str
) -> None:
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", fails_saying(KeyError()))
    for name in (model, tokenizer):
        with pytest.raises(Refusal, match=r"has no (config.json and no adapter_|tokenizer beside)"):
            load_model(tmp_path)
        (tmp_path / name).touch()
    with pytest.raises(Refusal, match=r"cannot load a tokenizer from '.*' \(KeyError\)"):
        load_model(tmp_path)


def test_what_is_no_path_may_be_a_model_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = OSError("not in the cache\nand more advice")
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", fails_saying(told))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_file").touch()
    for name in ("./nowhere", str(tmp_path / "nowhere"), "a_file"):
        with pytest.raises(Refusal, match="is no folder"):
            load_model(name)
    asked: list[str] = []
    monkeypatch.setattr("torch_alm.unlearning.models.check_model", asked.append)
    with pytest.raises(Refusal, match=r"from 'someone/a-model' \(not in the cache\)"):
        load_model("someone/a-model")
    assert asked == ["someone/a-model"]


def test_a_tokenizer_whose_answers_would_never_end(
    command: Command, tmp_path: Path, capsys: Any, folder: Path
) -> None:
    endless = tmp_path / "endless"
    shutil.copytree(folder, endless)
    path = endless / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token": None}))
    sentence = refused(capsys, tmp_path, command("evaluate", model=endless))
    assert "has no EOS token" in sentence


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--certify", 1.2, "a certificate stays below 1"),
        ("--certify", 0.9999999, "cannot be certified"),
        ("--certify", 0, "met from the start"),
        ("--alpha", 0, "asks for nothing"),
        ("--alpha", "inf", "what no model reaches"),
        ("--device", "cuda", "torch finds no GPU"),
        ("--device", "mps", "torch finds no Metal GPU"),
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


NEEDED = ("model", "forget", "retain", "output")


@pytest.mark.parametrize("missing", NEEDED)
def test_what_no_run_can_do_without(capsys: Any, missing: str) -> None:
    words = [w for name in NEEDED if name != missing for w in (f"--{name}", "x")]
    with pytest.raises(SystemExit) as found:
        cli.main(["evaluate", *words])
    assert found.value.code == 2
    assert f"required: --{missing}" in capsys.readouterr().err


def parsed(verb: str, option: str, value: object) -> Any:
    """The value that the verb is given for the option."""
    words = [w for name in NEEDED for w in (f"--{name}", "x")]
    given = parser().parse_args([verb, *words, f"--{option}={value}"])
    return vars(given)[option.replace("-", "_")]


@pytest.mark.parametrize(
    ("verb", "option", "least"),
    [
        *((verb, *each) for verb in ("unlearn", "evaluate", "attack")
          for each in (("max-length", 8), ("rows", 1), ("batch-size", 1))),
        ("unlearn", "epochs", 1),
        ("attack", "relearn", 0),
        ("attack", "relearn-steps", 1),
    ],
)  # fmt: skip
def test_a_count_is_a_whole_number_from_its_least_on(
    capsys: Any, verb: str, option: str, least: int
) -> None:
    assert parsed(verb, option, least) == least
    for value, told in (
        (least - 1, f"{least - 1} is too small. Did you mean {least} or more?"),
        (least + 0.5, "invalid whole number value"),
    ):
        with pytest.raises(SystemExit):
            parsed(verb, option, value)
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verb", "option", "no"),
    [
        *(("unlearn", name, (0, -0.5, "inf", "nan")) for name in ("lr", "rho", "mu", "beta")),
        ("attack", "relearn-lr", (0, -0.5, "inf", "nan")),
        ("attack", "prefix", (0, -0.5, 1, 1.5, "nan")),
        ("unlearn", "alpha", ("much",)),
        ("unlearn", "certify", ("much",)),
    ],
)
def test_a_number_is_one_that_makes_sense(verb: str, option: str, no: tuple[object, ...]) -> None:
    assert parsed(verb, option, "5e-1") == 0.5
    for value in no:
        with pytest.raises(SystemExit):
            parsed(verb, option, value)


@pytest.mark.parametrize(
    ("verb", "option", "expected"),
    [
        *(("evaluate", name, Path("x y")) for name in ("forget", "retain", "holdout", "output")),
        *(("evaluate", name, "x y") for name in ("model", "original")),
        ("attack", "compare", "x y"),
        ("attack", "paraphrases", Path("x y")),
        ("evaluate", "seed", -3),
    ],
)
def test_a_file_is_a_path_and_a_model_a_name(verb: str, option: str, expected: object) -> None:
    assert parsed(verb, option, expected) == expected


def told_by(capsys: Any, *words: str) -> str:
    """The command's output before it ends by itself."""
    with pytest.raises(SystemExit) as found:
        cli.main(words)
    assert found.value.code == (2 if not words else 0)
    told = capsys.readouterr()
    return told.out + told.err


def test_the_help_shows_every_kind_of_row_and_commands_that_work(capsys: Any) -> None:
    told = told_by(capsys, "--help")
    assert told.startswith("usage: torch-alm ")
    assert max(map(len, told.splitlines())) <= 80
    kinds = {"question", "answer", "prompt", "completion", "messages", "text"}
    assert set(re.findall(r'"(\w+)"', told)) == kinds
    _, _, examples = told.partition("examples:")
    shown = [shlex.split(line)[1:] for line in examples.replace("\\\n", "").splitlines() if line]
    assert [parser().parse_args(words).verb for words in shown] == ["unlearn", "evaluate", "attack"]


def test_a_command_without_a_verb_asks_for_one(capsys: Any) -> None:
    assert "the following arguments are required: VERB" in told_by(capsys)


@pytest.mark.parametrize("verb", ["unlearn", "evaluate", "attack"])
def test_the_help_of_a_verb_says_first_what_the_list_of_verbs_says(capsys: Any, verb: str) -> None:
    listed = dict(re.findall(r"^    (\w+) +(\w.*)$", told_by(capsys, "--help"), re.MULTILINE))
    told = told_by(capsys, verb, "--help")
    assert max(map(len, told.splitlines())) <= 80
    assert told.split("\n\n")[1] == listed[verb]


@pytest.mark.parametrize("columns", ["60", "200"])
def test_the_help_is_the_same_in_a_window_of_any_width(
    capsys: Any, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    usual = told_by(capsys, "unlearn", "--help")
    monkeypatch.setenv("COLUMNS", columns)
    assert told_by(capsys, "unlearn", "--help") == usual


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
    steps = ("--epochs", 1) if verb == "unlearn" else ()
    assert command(verb, "--force", *steps) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "report.json was not written by torch-alm, or has changed since" in told
    assert (out / "report.json").read_text() == "{}"
    (out / "report.json").unlink()
    for _ in range(2):
        assert command(verb, "--force", *steps) in FINISHED
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
        patch.setattr("os.replace", fails)
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
    assert {p.name for p in (tmp_path / "out" / "unfinished").iterdir()} == {"run.json", "state.pt"}


@pytest.mark.parametrize(
    ("words", "states", "whole"),
    [((), 5, True), (("--method", "npo"), 3, True), (("--lora",), 5, False)],
)
def test_too_little_space_is_found_out_before_the_work(
    command: Command, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, model: Any,
    words: Any, states: int, whole: bool,
) -> None:  # fmt: skip
    """A run needs its result, and a state of weights and two moments of each per optimizer."""
    linear = [m for m in model.modules() if isinstance(m, nn.Linear) and m is not model.lm_head]
    adapters = sum(16 * sum(layer.weight.shape) for layer in linear)
    moved = 4 * (sum(p.numel() for p in model.parameters()) if whole else adapters)
    needed = (states + 1) * moved
    left, asked = [needed - 1, needed], []

    def usage(path: Path) -> Any:
        asked.append(path)
        return type("Usage", (), {"free": left.pop(0)})

    monkeypatch.setattr("shutil.disk_usage", usage)
    sentence = refused(capsys, tmp_path, command("unlearn", *words, output="a/b"), "a")
    assert f"has {(needed - 1) / 1e6:,.1f} MB free, and the run needs {needed / 1e6:,.1f} MB: " in (
        sentence
    )
    assert (
        f"{moved / 1e6:,.1f} MB for the model, and {states * moved / 1e6:,.1f} MB for" in sentence
    )
    monkeypatch.setattr("torch_alm.cli.loading.measure", fails)
    assert command("unlearn", *words, output="a/b") == 2
    assert "No space left on device" in capsys.readouterr().err
    assert asked == [tmp_path, tmp_path]


def caused(cause: BaseException) -> RuntimeError:
    error = RuntimeError("something else")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "as another system says it"), "no space"),
        (OSError(errno.EDQUOT, "as another system says it"), "no space"),
        (OSError(errno.EFBIG, "File too large"), "no space"),
        (OSError(errno.EACCES, "as another system says it"), "cannot write (Permission denied)"),
        (OSError(errno.EIO, ""), "cannot write (Input/output error)"),
        (OSError(errno.ENOENT, "No such file or directory"), None),
        (RuntimeError("No space left on device"), "no space"),
        (RuntimeError("I/O error: (os error 28)"), "no space"),
        (RuntimeError("I/O error: (os error 30)"), "cannot write (Read-only file system)"),
        (RuntimeError("I/O error: code: 28"), "no space"),
        (RuntimeError("[enforce fail] PytorchStreamWriter failed writing file"), "no space"),
        (ValueError("PytorchStreamWriter"), None),
        (RuntimeError("(os error 2)"), None),
        (caused(OSError(errno.ENOSPC, "")), "no space"),
        (caused(OSError(errno.ENOENT, "")), None),
    ],
)
def test_a_disk_that_takes_nothing_is_known_by_its_number_and_by_its_names(
    error: BaseException, expected: str | None
) -> None:
    found = why_unwritten(error)
    assert found is None if expected is None else expected in (found or "")


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

    with pytest.raises(Refusal, match=re.escape(f"no space left for {path};")):
        write_folder(path, fill)
    assert (path / "weights").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    write_folder(path, lambda draft: (draft / "weights").write_text("new"))
    assert (path / "weights").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_an_empty_folder_may_be_written_to_and_a_file_not(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("three years")
    Output(tmp_path / "new", REPORTS).check([], force=False)
    tmp_path.joinpath("empty").mkdir()
    Output(tmp_path / "empty", REPORTS).check([], force=False)
    with pytest.raises(Refusal, match="taken is not empty"):
        Output(taken, REPORTS).check([], force=False)


def test_a_state_that_would_run_code_is_not_loaded(tmp_path: Path) -> None:
    unfinished = Unfinished(tmp_path)
    unfinished.save({"weights": Refusal})
    with pytest.raises(Refusal, match=r"cannot be read \(UnpicklingError\)"):
        unfinished.load()


@pytest.mark.parametrize("role", ["forget", "retain", "holdout", "paraphrases"])
def test_a_file_is_named_by_what_it_is_for(
    command: Command, tmp_path: Path, capsys: Any, role: str
) -> None:
    missing: dict[str, Any] = {role: tmp_path / "none.jsonl"}
    verb = "attack" if role == "paraphrases" else "unlearn"
    assert f"cannot read the {role} file" in refused(capsys, tmp_path, command(verb, **missing))


@pytest.mark.parametrize(
    "messages",
    [
        [("system", "be brief"), ("user", "A0 ?"), ("assistant", "Rome .")],
        [("user", "A0 ?"), ("assistant", " "), ("user", "A0 ?"), ("assistant", "Rome .")],
        [("assistant", "Yes ?"), ("user", " "), ("assistant", "Rome .")],
    ],
)
def test_what_counts_in_a_conversation_is_its_end(tmp_path: Path, messages: Any) -> None:
    turns = [{"role": role, "content": said} for role, said in messages]
    (entry,) = read_entries(write(tmp_path / "chat.jsonl", [{"messages": turns}]), "forget")
    assert (entry.prompt, entry.answer) == (messages[-2][1], "Rome .")
    assert not entry.is_text
    turns[-1]["content"] = " "
    silent = write(tmp_path / "silent.jsonl", [{"messages": turns}])
    with pytest.raises(Refusal, match=r"silent.jsonl, line 1: .* does not end with an answer"):
        read_entries(silent, "forget")


def test_a_text_that_is_too_short_is_named(command: Command, tmp_path: Path, capsys: Any) -> None:
    path = write(tmp_path / "short.jsonl", [{"text": "A0 lives in Rome ."}, {"text": "Rome"}])
    assert "short.jsonl, line 2" in refused(capsys, tmp_path, command("unlearn", forget=path))


@pytest.mark.parametrize("rest", ["missing.jsonl", "with spaces in it/missing.jsonl"])
def test_a_path_longer_than_a_line_is_told_whole(
    command: Command, tmp_path: Path, capsys: Any, rest: str
) -> None:
    """So that it can be copied; a folder for temporary files may be as deep as it likes."""
    path = tmp_path / ("deep" * 25) / rest
    assert command("unlearn", forget=path) == 2
    assert str(path) in " ".join(capsys.readouterr().err.split())


def test_json_is_written_to_be_read(tmp_path: Path) -> None:
    write_json(tmp_path / "a" / "b.json", {"λ": ("1", 2.5), 3: None})
    told = '{\n  "λ": [\n    "1",\n    2.5\n  ],\n  "3": null\n}\n'
    assert (tmp_path / "a" / "b.json").read_bytes() == told.encode("utf-8")


def test_a_folder_is_written_where_none_is_yet(tmp_path: Path) -> None:
    write_folder(tmp_path / "a" / "b", lambda draft: (draft / "weights").write_text("new"))
    assert (tmp_path / "a" / "b" / "weights").read_text() == "new"


def test_numbers_json_has_no_word_for(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": [float("nan"), 1.5, (float("inf"),)]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": [None, 1.5, [None]]}


Patch = pytest.MonkeyPatch


def instead(patch: Patch, found: Callable[..., Any]) -> None:
    patch.setitem(command_module.VERBS, "evaluate", found)  # pyright: ignore


def raising(error: BaseException) -> Callable[..., int]:
    def found(*_: object) -> int:
        raise error

    return found


@pytest.mark.parametrize("error", [ZeroDivisionError(), OSError(errno.EIO, "Input/output error")])
def test_other_errors_are_not_swallowed(
    command: Command, monkeypatch: Patch, error: Exception
) -> None:
    instead(monkeypatch, raising(error))
    with pytest.raises(type(error)):
        command("evaluate")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "Permission denied: /x"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/x"), "Not a directory: /x"),
        (OSError(errno.ENOSPC, "No space left"), "No space left: {}"),
        (OSError(errno.EROFS, "Read-only file system", "/x"), "Read-only file system: /x"),
    ],
)
def test_an_output_that_cannot_be_written_is_named(
    command: Command, tmp_path: Path, capsys: Any, monkeypatch: Patch, error: OSError, told: str
) -> None:
    instead(monkeypatch, raising(error))
    sentence = refused(capsys, tmp_path, command("evaluate"))
    expected = f"torch-alm: {told.format(tmp_path / 'out')}. Is --output writable?"
    assert sentence.replace(" ", "") == expected.replace(" ", "")


def test_a_warning_is_a_note_on_standard_error(
    command: Command, capsys: Any, monkeypatch: Patch
) -> None:
    def warned(*_: object) -> Result:
        warnings.simplefilter("always")
        warnings.warn("mind the gap", UserWarning, stacklevel=1)
        return Result(0, None, "done")

    before = warnings.showwarning
    instead(monkeypatch, warned)
    assert command("evaluate") == 0
    assert capsys.readouterr() == ("done\n", "torch-alm: note: mind the gap\n")
    assert warnings.showwarning is before


def test_an_interruption_is_a_sentence_and_130(
    command: Command, capsys: Any, monkeypatch: Patch
) -> None:
    instead(monkeypatch, raising(KeyboardInterrupt()))
    assert command("evaluate") == 130
    assert capsys.readouterr() == ("", "torch-alm: interrupted; nothing was changed.\n")
    assert command("evaluate", "--json") == 130
    found = json.loads(capsys.readouterr().out)
    assert (found["outcome"], found["code"]) == ("stopped", 130)


def test_tokenizers_are_told_of_no_threads_unless_the_user_has_said_something(
    command: Command, monkeypatch: Patch
) -> None:
    seen: list[str] = []
    name = "TOKENIZERS_PARALLELISM"

    def noted(*_: object) -> Result:
        seen.append(os.environ[name])
        return Result(0, None, "done")

    instead(monkeypatch, noted)
    monkeypatch.setenv(name, "true")
    command("evaluate")
    monkeypatch.delenv(name)
    command("evaluate")
    assert seen == ["true", "false"]


def test_what_is_said_is_there_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of hours is followed through a pipe, which Python buffers."""
    for name, tell in (("stdout", saying.say), ("stderr", saying.complain)):
        stream = io.TextIOWrapper(io.BytesIO(), write_through=False)
        monkeypatch.setattr(sys, name, stream)
        for text in ("a line", "more than a line " * 9):
            tell(text)
            assert text.split()[-1] in stream.buffer.getvalue().decode()  # pyright: ignore
            stream.buffer.seek(0)
            stream.buffer.truncate()


def test_prose_is_wrapped_between_words_and_a_short_line_stays(capsys: Any) -> None:
    long = "one-hyphen two " * 12
    saying.say(f"  a   table\n{long}\n\n{'x' * 80}")
    told = capsys.readouterr().out.splitlines()
    assert (told[0], *told[-2:]) == ("  a   table", "", "x" * 80)
    assert max(map(len, told)) <= 80
    assert " ".join(told[1:-2]).split() == long.split()
    assert len(told) == 1 + 3 + 2
    saying.say("to " * 60)
    assert len(capsys.readouterr().out.splitlines()[0]) == 80, "as long as a line may be"


def test_a_missing_extra_is_named(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "NEEDED", ("not_there", "torch", "not_here"))
    words = [w for name in NEEDED for w in (f"--{name}", "x")]
    assert cli.main(["evaluate", *words]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("torch-alm: not_there, not_here cannot be imported")
    assert "torch-alm[hf]" in told.err


def test_every_loss_above_zero_may_be_asked_for() -> None:
    for alpha in (1e-6, 0.5, 1.0, 50.0):
        check_goal(alpha, None)
    for alpha in (0.0, -1e-6):
        with pytest.raises(Refusal, match="asks for nothing"):
            check_goal(alpha, None)
