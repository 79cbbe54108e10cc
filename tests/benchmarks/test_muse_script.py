"""`benchmarks/muse.py` as a user starts it."""

import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import datasets
import pytest

from benchmarks import methods, muse
from benchmarks.methods import Settings
from benchmarks.report.results import ResultsFolder
from benchmarks.tasks.muse.layout import NUMBERS
from benchmarks.tasks.muse.passages import build_passages
from tests.benchmarks.tasks.muse.test_data import tables, write_muse
from torch_alm.language import collate
from torch_alm.unlearning.models import load_model

QUICK = ("--quick", "--no-control", "--alpha", "3")
METHODS = ("dual_adamw+alm", "saul")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def finished(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quick run."""
    output = tmp_path_factory.mktemp("run") / "out"
    folders = ["--output", str(output), "--cache", str(cache)]
    with (output.parent / "stdout").open("w") as told, redirect_stdout(told):
        assert muse.main([*QUICK, "--methods", ",".join(METHODS), *folders]) == 0
    return output


@pytest.fixture(scope="module")
def numbers(finished: Path) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in ResultsFolder(finished).rows()}


def test_it_ends_with_the_papers_columns_for_every_method(finished: Path) -> None:
    shown = (finished.parent / "stdout").read_text()
    for name in ("Original model", "Retrained model", "Dual AdamW + ALM", "SAUL"):
        assert name in shown
    for name in ("VerbMem↓", "KnowMem↓", "PrivLeak→0", "KnowMem↑"):
        assert name in shown
    for name in ("training.png", "tradeoff.png", "utility.png", "report.md", "tables.tex"):
        assert (finished / name).stat().st_size > 0
    assert "**Verbatim:**" in (finished / "report.md").read_text()


def test_the_original_knows_and_the_retrained_model_does_not(
    numbers: dict[str, dict[str, Any]],
) -> None:
    original, retrained = numbers["original"], numbers["retrained"]
    assert all(row.keys() >= {column.key for column in NUMBERS} for row in numbers.values())
    assert original["knowmem_f"] > 80 > 40 > retrained["knowmem_f"]
    assert original["knowmem_r"] > 80
    assert retrained["knowmem_r"] > 80
    assert original["verbmem_f"] > retrained["verbmem_f"] + 20
    assert original["privleak"] == -100.0
    assert retrained["privleak"] == 0.0
    assert 0.1 < retrained["retrained_membership_auc"] == retrained["membership_auc"] < 0.9
    assert original["membership_auc"] == 1.0
    assert original["perplexity_f"] < 0.5 * original["perplexity_unseen"]
    assert retrained["perplexity_f"] > 0.5 * retrained["perplexity_unseen"]


def test_text_is_forgotten_and_utility_kept(numbers: dict[str, dict[str, Any]]) -> None:
    original = numbers["original"]
    for key in METHODS:
        found = numbers[key]
        assert found["verbmem_f"] < original["verbmem_f"] - 20, key
        assert found["privleak"] > original["privleak"], key
        assert found["forget_loss"] > original["forget_loss"] + 1.0, key
        assert found["retain_loss"] < found["forget_loss"] - 1.0, key
    assert numbers["saul"]["knowmem_r"] > 0.6 * original["knowmem_r"]


def test_the_gate_closes(numbers: dict[str, dict[str, Any]], finished: Path) -> None:
    for key in ("dual_adamw+alm", "saul"):
        assert 0.0 < numbers[key]["gate_open"] < 1.0
        weights = [row["weight"] for row in ResultsFolder(finished).trace(key, 0)]
        assert weights[0] > 0
        assert min(weights) == 0


@pytest.mark.usefixtures("undrawn")
def test_another_method_only_adds_to_the_folder_and_without_a_gate_goes_on(
    finished: Path, cache: Path
) -> None:
    before = (finished / "results.jsonl").read_bytes()
    arguments = [*QUICK, "--output", str(finished), "--cache", str(cache)]
    assert muse.main([*arguments, "--methods", "dual_adamw"]) == 0
    after = (finished / "results.jsonl").read_bytes()
    assert after.startswith(before)
    assert after.count(b"\n") == before.count(b"\n") + 1
    losses = {row["method"]: row["forget_loss"] for row in ResultsFolder(finished).rows()}
    assert losses["dual_adamw"] > losses["dual_adamw+alm"] + 1.0


@pytest.mark.parametrize("key", methods.names())
def test_every_method_takes_a_step_on_raw_text(key: str, finished: Path, cache: Path) -> None:
    assert finished.exists()
    model, tokenizer = load_model(next(cache.glob("passages-quick-*-original-*")))
    before = [p.clone() for p in model.parameters()]
    data = build_passages(quick=True)
    rows = {
        name: collate([{"input_ids": ids, "labels": ids}], 0)
        for name in ("forget", "retain")
        for ids in [tokenizer(getattr(data, name)[0])["input_ids"]]
    }
    method = methods.build(key, model.train(), Settings(lr=1e-3, alpha=5.0, multiplier=1.0))
    method.step(rows["retain"], rows["forget"])
    after = list(model.parameters())
    assert any(not a.equal(b) for a, b in zip(before, after, strict=True))
    assert all(p.isfinite().all() for p in after)


def test_a_matched_comparison_holds_knowmem(finished: Path, cache: Path, tmp_path: Path) -> None:
    assert finished.exists()
    search = ["--match", "knowmem_f=50", "--trials", "2", "--epochs", "1", "--methods", "saul"]
    folders = ["--output", str(tmp_path), "--cache", str(cache)]
    assert muse.main(["--quick", *search, *folders]) == 0
    assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == 2
    assert "knowmem_f=50" in json.loads((tmp_path / "settings.json").read_text())["matched"]["saul"]


def test_a_named_model_is_measured_with_the_published_constant(
    finished: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert finished.exists()

    def load_dataset(name: str, part: str, split: str) -> list[dict[str, str]]:
        assert name == "muse-bench/MUSE-Books"
        rows = tables()[f"{part}/{split}"]
        return [{"text": row} if isinstance(row, str) else row for row in rows]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    model = str(next(cache.glob("passages-quick-*-original-*")))
    short = ["--epochs", "1", "--lr", "1e-3", "--quick", "--block", "128", "--methods", "saul"]
    short += ["--no-control"]
    where = ["--output", str(tmp_path), "--corpus", "books", "--model", model]
    assert muse.main([*where, *short]) == 0
    rows = ResultsFolder(tmp_path).rows()
    assert [row["method"] for row in rows] == ["original", "saul"]
    assert rows[0]["retrained_membership_auc"] == 1 - 0.5393
    assert rows[0]["privleak"] == -100.0
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert (settings["preset"], settings["split"], settings["block"]) == ("paper", "books", 128)
    assert settings["methods"]["saul"]["alpha"] == 55.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "sual"], "Did you mean 'saul'"),
        (["--data", "no/such/folder"], "no/such/folder"),
        (["--match", "forget_rouge=1"], "'forget_rouge' is nothing to match"),
        (["--corpus", "papers"], "papers"),
        (["--data", "DATA", "--texts", "0"], "Did you mean more texts"),
        (["--block", "1"], "Did you mean at least 2"),
        (["--retain", "none.json"], "--retain none.json would not be read: the embedded world"),
        (["--corpus", "books"], "--corpus books would not be read"),
        (["--texts", "3"], "--texts 3 would not be read"),
        (["--data", "DATA", "--alpha", "much"], "alpha=much"),
    ],
)
def test_bad_input_is_a_sentence_before_any_training(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(write_muse(tmp_path / "data"))
    arguments = [data if a == "DATA" else a for a in arguments]
    with pytest.raises(SystemExit) as end:
        muse.main([*arguments, "--output", str(tmp_path / "out"), "--cache", str(tmp_path / "c")])
    assert end.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_a_small_model_is_trained_on_real_news(tmp_path: Path) -> None:
    real = Path(__file__).parents[3] / "shared" / "data" / "muse" / "news"
    if not real.is_dir():
        pytest.skip("MUSE's files are not beside the repository")
    retain = ["--retain", str(real / "privleak" / "retain.json")]
    arguments = ["--data", str(real), *retain, "--quick", "--methods", "saul", "--epochs", "1"]
    arguments += ["--no-control"]
    folders = ["--output", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]
    assert muse.main([*arguments, *folders]) == 0
    rows = ResultsFolder(tmp_path / "out").rows()
    assert [row["method"] for row in rows] == ["original", "retrained", "saul"]
    assert all(row["privleak"] is not None for row in rows)
