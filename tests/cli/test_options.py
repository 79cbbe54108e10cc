"""The command line by itself: quick, its defaults told, quiet where it is asked to be."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import torch_alm
from tests.cli.conftest import FINISHED, Command
from torch_alm.cli import main
from torch_alm.cli.methods import METHODS
from torch_alm.cli.options import METHODS as NAMED
from torch_alm.cli.options import VERBS, parser

NEEDED = ("--model=x", "--forget=x", "--retain=x", "--output=x")
LIGHT = """
import sys
from contextlib import suppress
from torch_alm.cli import main
for words in (["--help"], ["--version"], *([verb, "--help"] for verb in {verbs})):
    with suppress(SystemExit):
        main(words)
heavy = {{"torch", "transformers", "peft", "numpy", "jinja2", "tqdm", "datasets"}}
print(*sorted(heavy & set(sys.modules)), file=sys.stderr)
"""


def test_help_and_version_import_nothing_heavy() -> None:
    program = LIGHT.format(verbs=[*VERBS])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "")
    assert done.stdout.count("usage: ") == 1 + len(VERBS)


def test_the_version_is_told(capsys: Any) -> None:
    with pytest.raises(SystemExit) as found:
        main(["--version"])
    assert found.value.code == 0
    assert capsys.readouterr().out == f"torch-alm {torch_alm.__version__}\n"


def test_the_methods_of_the_help_are_those_there_are() -> None:
    assert list(NAMED) == list(METHODS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_default_is_told_in_the_help(verb: str, capsys: Any) -> None:
    given = vars(parser().parse_args([verb, *NEEDED]))
    with pytest.raises(SystemExit):
        parser().parse_args([verb, "--help"])
    options = re.split(r"\n  (?=--)", capsys.readouterr().out.partition("\noptions:")[2])
    told = {re.split(r"\s", each, maxsplit=1)[0]: " ".join(each.split()) for each in options}
    for name, value in given.items():
        if value is None or isinstance(value, bool) or f"--{name}=x" in NEEDED or name == "verb":
            continue
        assert f"(default: {value})" in told[f"--{name.replace('_', '-')}"]


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 10**40])
def test_a_seed_is_one_that_torch_takes(seed: int, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["unlearn", *NEEDED, f"--seed={seed}"])
    assert "64 bits" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63)])
def test_the_largest_seeds_are_taken(command: Command, seed: int) -> None:
    assert command("unlearn", "--seed", seed, "--epochs", 1, "--rows", 1) in FINISHED


def test_quiet_leaves_the_result_alone(
    command: Command, tmp_path: Path, capsys: Any, files: dict[str, Path]
) -> None:
    words = ("--epochs", 1, "--alpha", 90, "--rows", 2)
    assert command("unlearn", *words, "--quiet") in FINISHED
    told = capsys.readouterr()
    assert told.err == ""
    assert told.out.split()[0] == "before", "the table comes first"
    assert "report.html" in " ".join(told.out.split("\n")[-8:]), "the files come last"
    assert command("unlearn", *words, "--quiet", "--json", output="two") in FINISHED
    told = capsys.readouterr()
    assert (told.err, len(told.out.splitlines())) == ("", 1)
    assert command("evaluate", "--quiet", "--forget", tmp_path / "none", output="three") == 2
    assert "cannot read the forget file" in capsys.readouterr().err
    assert command("unlearn", *words, output="four") in FINISHED
    told = capsys.readouterr()
    assert "Forgetting until" in told.out and "100%" in told.err, "the next run is heard again"


def test_a_template_file_has_no_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "template.txt"
    path.write_bytes("\ufeffQ: {question}\nA: {answer}\n".encode())
    given = parser().parse_args(["evaluate", *NEEDED, "--template", str(path)])
    assert given.template == "Q: {question}\nA: {answer}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--template", "{latin}"), "is not UTF-8"),
        (("--rows", "abc"), "invalid whole number value: 'abc'"),
        (("--seed", "abc"), "invalid whole number value: 'abc'"),
    ],
)
def test_a_value_that_cannot_be_read_is_told_in_words(
    arguments: tuple[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes("{question} \u00e9 {answer}".encode("latin-1"))
    with pytest.raises(SystemExit):
        parser().parse_args(["evaluate", *NEEDED, arguments[0], arguments[1].format(latin=latin)])
    assert said in " ".join(capsys.readouterr().err.split())
