"""The command line by itself: quick, helpful where it is wrong, quiet where it is asked to be."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import torch_alm
from tests.command.conftest import FINISHED, HOLDOUT, Command, fits, report, write
from torch_alm import command as command_package
from torch_alm.command import main
from torch_alm.command.arguments import VERBS, parse
from torch_alm.unlearning.errors import Refusal

LIGHT = """
import sys
from contextlib import suppress
from torch_alm.command import main
for words in (["--help"], ["--version"], ["unlearn", "--lerning-rate", "1"],
              *([verb, "--help"] for verb in {verbs})):
    with suppress(SystemExit):
        main(words)
heavy = {{"torch", "transformers", "peft", "numpy", "jinja2", "tqdm", "pandas"}}
print("imported", *sorted(heavy & set(sys.modules)), file=sys.stderr)
"""


@pytest.fixture
def needed(files: dict[str, Path], tmp_path: Path) -> list[str]:
    paths = {name: files[name] for name in ("forget", "retain")}
    named = {"model": "x", "output": tmp_path / "out", **paths}
    return [word for name, value in named.items() for word in (f"--{name}", str(value))]


def told_by(capsys: Any, *words: str) -> str:
    with pytest.raises(SystemExit) as found:
        main(words)
    assert found.value.code == 0
    return capsys.readouterr().out


def test_help_version_and_a_typo_import_nothing_heavy() -> None:
    program = LIGHT.format(verbs=[*VERBS])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr.splitlines()[-1].strip()) == (0, "imported")
    assert done.stdout.count("usage: ") == 1 + len(VERBS)


def test_the_version_is_told(capsys: Any) -> None:
    assert told_by(capsys, "--version") == f"torch-alm {torch_alm.__version__}\n"


@pytest.mark.parametrize("verb", VERBS)
def test_every_default_is_told_in_a_help_of_80_columns(
    verb: str, capsys: Any, needed: list[str]
) -> None:
    told = told_by(capsys, verb, "--help")
    assert max(map(len, told.splitlines())) <= 80
    options = re.split(r"\n  (?=--)", told.partition("\noptions:")[2])
    by_name = {re.split(r"\s", each, maxsplit=1)[0]: " ".join(each.split()) for each in options}
    for name, value in vars(parse([verb, *needed])).items():
        option = f"--{name.replace('_', '-')}"
        if not (value is None or isinstance(value, bool | list | dict) or option in needed):
            assert name == "verb" or f"(default: {value})" in by_name[option]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--retian", "x"), "unlearn has no option --retian. Did you mean --retain?"),
        (("--learning-rate", "1"), "has no option --learning-rate. Did you mean --lr?"),
        (("--fsdp",), "no option --fsdp: every process holds the whole model. Did you mean --lora"),
        (("--relearn", "3"), "unlearn has no option --relearn. Is it of another verb?"),
        (
            ("--max-probe-loss", "95"),
            "--max-probe-loss is 95.0, which is no share from 0 to 1",
        ),
        (("--columns", "qestion=a"), "Did you mean question?"),
        (
            ("--probe", "nowhere.jsonl"),
            "--probe: cannot read nowhere.jsonl. Is the path right?",
        ),
        (("@nowhere.txt",), "No such file or directory: 'nowhere.txt'"),
    ],
)
def test_a_slip_is_a_sentence(words: Any, told: str, needed: list[str], capsys: Any) -> None:
    assert main(["unlearn", *needed, *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert all(map(fits, lines))
    assert told in " ".join(" ".join(lines).split())


@pytest.mark.parametrize(
    "words",
    [("--epochs", "0"), ("--lr", "-1"), ("--lr", "nan"), ("--max-probe-loss", "1.2"),
     ("--alpha", "inf"), ("--steps", "1.5"), ("--seed", str(2**63)),
     ("--max-length", "7"), ("--device", "tpu"), ("--steps", "1", "--epochs", "1")],
)  # fmt: skip
def test_numbers_that_make_no_sense(words: Any, needed: list[str], capsys: Any) -> None:
    assert main(["unlearn", *needed, *words]) == 2
    told = capsys.readouterr().err
    assert words[0] in told and "usage" not in told


def test_options_may_stand_in_a_file_and_what_comes_later_counts(
    tmp_path: Path, needed: list[str]
) -> None:
    path, rows = tmp_path / "run.txt", needed[needed.index("--forget") + 1]
    path.write_text(f"--method saul --mu 0.5\n--lora  # adapters\n--steps 7\n--probe '{rows}'\n")
    given = parse(["unlearn", f"@{path}", *needed, "--steps", "9"])
    assert (given.method, given.mu, given.steps, given.lora) == ("saul", 0.5, 9, True)
    assert [str(each) for each in given.probe] == [rows] and not given.force
    for text, told in {
        "--mehtod saul": "arguments: --mehtod",
        "--system don't": "quotation",
    }.items():
        path.write_text(text)
        with pytest.raises(Refusal, match=told):
            parse(["unlearn", *needed, f"@{path}"])


def test_columns_are_for_every_file_or_for_one(needed: list[str]) -> None:
    words = ("--columns", "question=Q,answer=A", "--columns", "forget:answer=B,probe:text=T")
    found = parse(["evaluate", *needed, *words]).columns
    both = {"question": "Q", "answer": "A"}
    assert found == {"": both, "forget": {"answer": "B"}, "probe": {"text": "T"}}


def test_a_missing_extra_is_named(
    capsys: Any, monkeypatch: pytest.MonkeyPatch, needed: list[str]
) -> None:
    monkeypatch.setattr(command_package, "NEEDED", ("not_there", "torch", "not_here"))
    assert main(["evaluate", *needed]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "not_there, not_here cannot be imported" in told and "torch-alm[hf]" in told


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("verb", ["attack", "evaluate"])
def test_several_processes_ask_nothing_and_the_first_says_so(
    verb: str, rank: int, command: Command, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", str(rank))
    assert command(verb) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert (f"of which each would {verb} the whole model" in told) == (not rank) == bool(told)


@pytest.mark.parametrize("verb", VERBS)
def test_quiet_leaves_the_result_alone(
    command: Command, capsys: Any, tmp_path: Path, verb: str
) -> None:
    more = {"unlearn": ("--steps", 1), "evaluate": (), "attack": ("--relearn", 0)}[verb]
    assert command(verb, "--quiet", *more) in FINISHED
    told = capsys.readouterr()
    assert "Loading weights" in told.err or not told.err.strip(), "no bar of ours"
    assert told.out.rstrip().endswith(("report.json.", "It may be deleted."))
    assert report(tmp_path / "out")["settings"]


def test_an_interruption_is_a_sentence_and_130(
    command: Command, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torch_alm.command.attack.read_files", interrupted)
    assert command("evaluate") == 130
    assert capsys.readouterr().err.strip() == "torch-alm: interrupted; what is written stays."


def test_other_errors_are_not_swallowed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_alm.command.attack.read_files", lambda given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        command("evaluate")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_console_that_lacks_letters_is_told_all_the_same(
    command: Command, tmp_path: Path, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three prompts and a refusal; one line of JSON; the numbers of an evaluation."""
    unknown = write(tmp_path / "\u5317\u4eac.jsonl", HOLDOUT)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding))
    assert command("unlearn", forget=unknown) == 2
    assert command("unlearn", "--json", forget=unknown) == 2
    assert command("evaluate", "--quiet", forget=unknown, output="\u5357") == 0
    told, complained = (
        each.buffer.getvalue().decode(encoding) for each in (sys.stdout, sys.stderr)
    )
    words, refused = (" ".join(text.split()) for text in (told, complained))  # wrapped by width
    assert "\\u5317\\u4eac.jsonl, line 1" in words and "\\u5357: report.html" in words
    assert "asked the forget rows" in refused
    line = next(line for line in told.splitlines() if line.startswith("{"))
    assert json.loads(line)["code"] == 2
