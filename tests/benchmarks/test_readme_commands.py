"""Every command that `benchmarks/README.md` shows is run: as it stands, then made short.

The last of two options counts, so what is appended shortens a run without touching what it reads.
Scripts that the README names without a command have tests of their own.
"""

import dataclasses
import re
import shlex
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import datasets
import pytest

from benchmarks.engine import language, scratch
from benchmarks.engine.training import Schedule
from benchmarks.report.results import ResultsFolder
from benchmarks.tasks.muse import metrics as muse_metrics
from tests.benchmarks.tasks.muse.test_data import tables, write_muse
from tests.benchmarks.tasks.tofu.test_data import tables as tofu_tables
from tests.benchmarks.tasks.tofu.test_data import write
from tests.benchmarks.test_wmdp_script import write_wmdp

README = Path(__file__).parents[2] / "benchmarks" / "README.md"
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHORT = ["--quick", "--no-control", "--seeds", "1", "--epochs", "1", "--methods", "saul"]
SHORTER = {
    "tofu.py": [*SHORT, "--questions", "4"],
    "muse.py": [*SHORT, "--block", "64"],
    "wmdp.py": [*SHORT, "--batches", "1", "--questions", "4", "--scorer", "own"],
}
IF_GIVEN = {"--match": ["--trials", "1"], "--retain-authors": ["--retain-authors", "1"]}


def commands() -> list[str]:
    """The lines of all blocks that start a script, continued ones joined, without remarks."""
    text = "".join(BLOCK.findall(README.read_text())).replace("\\\n", " ")
    lines = (shlex.join(shlex.split(line, comments=True)) for line in text.splitlines())
    found = [line.split("benchmarks/", 1)[1] for line in lines if "benchmarks/" in line]
    return list(dict.fromkeys(found))


@pytest.fixture(autouse=True)
def short(undrawn: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass over what a model is to know, four words of it, no memory counted, no pictures.

    Tests of the scripts look at all of them.
    """
    train = scratch.train_to_memorisation

    def once(model: Any, rows: Any, pad: int, schedule: Schedule, **options: Any) -> Any:
        return train(model, rows, pad, dataclasses.replace(schedule, epochs=1), **options)

    monkeypatch.setattr(scratch, "train_to_memorisation", once)
    for name in ("VERBATIM_TOKENS", "ANSWER_TOKENS"):
        monkeypatch.setattr(muse_metrics, name, 4)
    monkeypatch.setattr(language, "announce", lambda *_: None)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder per benchmark, in the formats of the published files."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("tofu", "news")}
    rows = tofu_tables()
    again = {"forget05": rows["forget01"], "retain95": rows["retain99"]}
    again["forget05_perturbed"] = rows["forget01_perturbed"]
    write(folders["tofu"], {**again, "holdout05": rows["holdout01"]})
    write_muse(folders["news"])
    (folders["news"] / "more.json").write_text((folders["news"] / "raw/retain1.json").read_text())
    wmdp = tmp_path_factory.mktemp("wmdp") / "files"
    write_wmdp(wmdp)
    return {**folders, "wmdp": wmdp}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the hub."""

    def load_dataset(name: str, part: str, split: str | None = None) -> Any:
        if name.startswith("muse-bench/"):
            rows = tables()[f"{part}/{split}"]
            return [{"text": row} if isinstance(row, str) else row for row in rows]
        return datasets.DatasetDict({"train": datasets.Dataset.from_list(tofu_tables()[part])})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)


def filled(script: str, words: Sequence[str], files: dict[str, Path], model: str) -> list[str]:
    """The words in capitals replaced by what they stand for."""
    folder = files[{"tofu.py": "tofu", "muse.py": "news", "wmdp.py": "wmdp"}[script]]
    meant: dict[str, Path | str] = {
        "DIR": folder,
        "QUESTIONS": folder,
        "MMLU": folder / "mmlu",
        "FILE": folder / "more.json",
        "bio=CORPUS": f"bio={folder / 'bio.jsonl'}",
        "cyber=CORPUS": f"cyber={folder / 'cyber.jsonl'}",
        "CORPUS": folder / "retain.txt",
        "NAME_OR_PATH": model,
    }
    return [str(meant.get(word, word)) for word in words]


def test_commands_are_found() -> None:
    assert len(commands()) >= 15
    assert {line.split()[0] for line in commands()} == set(SHORTER)


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("line", commands())
def test_a_command_of_the_readme_runs(
    line: str, cache: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    script, *words = shlex.split(line)
    main: Callable[[list[str]], int] = import_module(f"benchmarks.{Path(script).stem}").main
    kind = {"tofu.py": "world", "muse.py": "passages", "wmdp.py": "lore"}[script]
    model = str(next(cache.glob(f"{kind}-quick-*original*"), "no model was trained before"))
    arguments = [*filled(script, words, files, model), *SHORTER[script]]
    arguments += [word for name in IF_GIVEN if name in words for word in IF_GIVEN[name]]
    # Short runs on the embedded world are all the same: the first is made, the others find it.
    same = not {"--data", "--model", "--hub", "--match"} & {*words}
    output = cache / script if same else tmp_path
    assert main([*arguments, "--output", str(output), "--cache", str(cache)]) == 0
    rows = ResultsFolder(output).rows()
    assert rows[0]["method"] == "original"
    assert rows[-1]["method"] == "saul"
