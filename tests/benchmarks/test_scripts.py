"""The scripts as a user starts them: on embedded worlds, and on files like the published."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import muse, tofu, wmdp
from benchmarks.report.results import ResultsFolder
from benchmarks.studies.overhead import KINDS, Kind, operations
from benchmarks.tasks.wmdp.lore import build_lore
from tests.benchmarks.tasks.muse.test_data import write_muse
from tests.benchmarks.tasks.tofu.test_data import write

SCRIPTS: dict[str, Callable[[list[str]], int]] = {
    "tofu": tofu.main,
    "muse": muse.main,
    "wmdp": wmdp.main,
}
FORGOTTEN = {"tofu": "forget_rouge", "muse": "knowmem_f", "wmdp": "forget_accuracy"}
MODELS = {"tofu": "world-quick", "muse": "passages-quick-forget", "wmdp": "lore-quick"}
EPOCHS = {"tofu": "6", "muse": "6", "wmdp": "17"}
KEPT = {"tofu": "model_utility", "muse": "knowmem_r", "wmdp": "utility_accuracy"}


@pytest.fixture(scope="module", params=SCRIPTS)
def finished(
    request: pytest.FixtureRequest, shared_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, ResultsFolder]:
    """A quick run on the embedded world."""
    output = tmp_path_factory.mktemp(request.param)
    words = ["--quick", "--methods", "dual_adamw+alm", "--lr", "3e-3"]
    words += ["--output", str(output), "--cache", str(shared_models)]
    words += ["--epochs", EPOCHS[request.param]]
    assert SCRIPTS[request.param](words) == 0
    return request.param, ResultsFolder(output)


def test_a_run_ends_with_a_report(finished: tuple[str, ResultsFolder]) -> None:
    _, folder = finished
    text = (folder.path / "report.md").read_text()
    for name in ("Original model", "Retain side alone", "Dual AdamW + ALM"):
        assert name in text


def test_what_was_known_is_forgotten_and_kept(finished: tuple[str, ResultsFolder]) -> None:
    name, folder = finished
    rows = {row["method"]: row for row in folder.rows()}
    before = rows["original"]
    assert before[KEPT[name]] > 0.7 * (100 if name == "muse" else 1)
    run = rows["dual_adamw+alm"]
    assert run[FORGOTTEN[name]] < 0.9 * before[FORGOTTEN[name]]
    assert run.keys() >= {"gate_open", "lambda", "alpha", "status", "seconds"}
    if name != "wmdp":
        assert rows["retrained"][FORGOTTEN[name]] < 0.8 * before[FORGOTTEN[name]]


def files_of(name: str, folder: Path) -> list[str]:
    """Files in the formats of the published ones, and the options that name them."""
    folder.mkdir()
    if name == "tofu":
        return ["--data", str(write(folder)), "--questions", "4", "--split", "forget01"]
    if name == "muse":
        return ["--data", str(write_muse(folder)), "--corpus", "news", "--block", "64"]
    return [*write_wmdp(folder), "--batches", "2", "--parameters", "below"]


def write_corpus(file: Path, texts: tuple[str, ...]) -> None:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def write_wmdp(folder: Path) -> list[str]:
    """WMDP's questions, MMLU's and corpora."""
    lore = build_lore(quick=True)
    (folder / "mmlu" / "test").mkdir(parents=True)
    for key, topic in zip(("bio", "cyber"), lore.topics, strict=True):
        rows = [
            {"question": q.question, "choices": q.choices, "answer": q.answer}
            for q in topic.questions
        ]
        (folder / f"{key}_questions.json").write_text(json.dumps(rows))
        write_corpus(folder / f"{key}.jsonl", topic.texts)
    lines = ["question,choice0,choice1,choice2,choice3,answer"]
    lines += [",".join((q.question, *q.choices, str(q.answer))) for q in lore.utility["retain"]]
    (folder / "mmlu" / "test" / "kite_making_test.csv").write_text("\n".join(lines) + "\n")
    write_corpus(folder / "retain.jsonl", lore.retain)
    corpora = [f"--forget={key}={folder / f'{key}.jsonl'}" for key in ("bio", "cyber")]
    files = ["--data", str(folder), "--mmlu", str(folder / "mmlu")]
    return [*files, *corpora, "--retain", str(folder / "retain.jsonl")]


def test_published_files_are_asked_of_a_model_from_elsewhere(
    tmp_path: Path, finished: tuple[str, ResultsFolder], shared_models: Path
) -> None:
    name, _ = finished
    (model,) = shared_models.glob(f"{MODELS[name]}-original-*")
    words = [*files_of(name, tmp_path / "files"), "--model", str(model), "--epochs", "1"]
    words += ["--methods", "saul", "--no-control", "--output", str(tmp_path / "out")]
    assert SCRIPTS[name](words) == 0
    before, after = ResultsFolder(tmp_path / "out").rows()
    assert (before["method"], after["method"]) == ("original", "saul")
    assert KEPT[name] in before.keys() & after.keys()


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("tofu", ["--data", "nowhere", "--model", "x"], "nowhere has no forget01.json"),
        ("tofu", ["--data", "nowhere"], "--data without --model"),
        ("muse", ["--quick", "--model", "x"], "--quick with --model"),
        ("tofu", ["--reworded", "nowhere"], "no --judge could write it"),
        ("tofu", ["--questions", "0"], "nothing is left"),
        ("muse", ["--block", "1"], "too few tokens"),
        ("wmdp", ["--model", "x"], "--model without --data"),
        ("wmdp", ["--set", "losses"], "sets nothing"),
    ],
)
def test_nonsense_ends_with_one_sentence(
    name: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        SCRIPTS[name](words)
    assert error.value.code == 2
    said: list[Any] = capsys.readouterr().err.splitlines()
    assert message in said[0] and len(said) == 2


PASSES = {  # a forward pass is 1 and a backward pass 2, for each side; Dual AdamW has 6
    "Dual AdamW": 6,
    "Dual AdamW + ALM, gate closed, last=True": 3 + 1,
    "SAUL, gate open": 12,
    "SAUL, gate closed, last=True": 6 + 4,
    "SAUL, released, probe_every=8": 6 + 4 / 8,
    "SAUL, gate open, SAM(every=3)": 2 * (6 + 3 + 3) / 3,
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_step_costs_its_passes(kind: Kind) -> None:
    rhythm = kind.every * kind.probe_every
    if kind.name in PASSES:
        relative = operations(kind, rhythm) / operations(KINDS[0], 1)
        assert relative == pytest.approx(PASSES[kind.name] / 6, rel=1e-2)
    elif kind.opened:
        assert operations(kind) / operations(KINDS[0], 1) <= 1.35
