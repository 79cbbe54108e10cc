"""A tiny Llama that knows a dozen sentences by heart, its files, and the command."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tests.models import FORGET, HOLDOUT, RETAIN, learn, llama
from torch_alm.command import main
from torch_alm.language import encode
from torch_alm.unlearning.measurement import Answer, Numbers

FINISHED = {0, 3, 4}  # a run that came to its end, whatever its verdict is

ANSWER = Answer("", "", "", "", 3.0, 4.5, 0.0, False, 0.0, False, False, 0.0)
NUMBERS = Numbers(*[0.0] * 11)
Command = Callable[..., int]
Refused = Callable[..., str]


def words() -> list[str]:
    rows = [*FORGET, *RETAIN, *HOLDOUT]
    texts = [text for row in rows for text in row.values()] + ["Question : Answer : user assistant"]
    return sorted({word for text in texts for word in text.split()} | set(":?."))


def make_model(vocabulary: int) -> LlamaForCausalLM:
    """With dropout, so that a resumed run depends on the random state."""
    ends = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 2}
    sizes = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
    return llama(vocabulary, attention_dropout=0.1, **sizes, **ends)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<unk>", "</s>", *words()])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>", eos_token="</s>"
    )


@pytest.fixture(scope="session")
def model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Knows FORGET and RETAIN, and has never seen HOLDOUT. Do not change it."""
    found = make_model(len(tokenizer))
    return learn(found, [encode(tokenizer, **row) for row in [*FORGET, *RETAIN]])


@pytest.fixture(scope="session")
def folder(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, tmp_path_factory: Any
) -> Path:
    """The model as a user has it."""
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def lay(place: Path) -> dict[str, Path]:
    """The files of a user."""
    sets = {"forget": FORGET, "retain": RETAIN, "holdout": HOLDOUT}
    return {name: write(place / f"{name}.jsonl", rows) for name, rows in sets.items()}


def command_in(place: Path, model: Path, files: Mapping[str, Path]) -> Command:
    """`command("unlearn", "--epochs", 2, output="out", model=..., forget=...)`; None leaves out."""

    def run(verb: str, *more: object, output: str = "out", **paths: Path | None) -> int:
        given = {"model": model, "output": place / output, **files, **paths}
        given |= {"holdout": paths.get("holdout")}
        named = [str(x) for k, v in given.items() if v is not None for x in (f"--{k}", v)]
        return main([verb, *named, "--device", "cpu", *map(str, more)])

    return run


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return lay(tmp_path)


@pytest.fixture
def command(
    folder: Path, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Without the figure, which takes longer to draw than these runs; `unlearned` has one."""
    monkeypatch.setattr("torch_alm.unlearning.report.plot_losses", lambda *_: None)
    return command_in(tmp_path, folder, files)


@pytest.fixture
def refused(command: Command, capsys: pytest.CaptureFixture[str]) -> Refused:
    """The sentence with which the command refuses, in one line."""

    def run(*words: Any, **paths: Any) -> str:
        assert command(*words, **paths) == 2
        return " ".join(capsys.readouterr().err.split())

    return run


@pytest.fixture(scope="session")
def unlearned(folder: Path, tmp_path_factory: Any) -> Path:
    """The folder of a run with a holdout, its files beside it. Do not change it."""
    place = tmp_path_factory.mktemp("unlearned")
    files = lay(place)
    steps = ("--alpha", 2, "--epochs", 6, "--lr", "5e-3", "--batch-size", 3)
    run = command_in(place, folder, files)
    assert run("unlearn", *steps, holdout=files["holdout"]) in FINISHED
    return place / "out"


def fits(line: str) -> bool:
    """True if a line has at most 80 columns, or is a single word: a path stays whole."""
    return len(line) <= 80 or " " not in line


def report(path: Path) -> dict[str, Any]:
    return json.loads((path / "report.json").read_text())
