"""Reading TOFU: a small folder in its layout, broken in every way, and the real files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from benchmarks.tasks.tofu.data import Example, load_tofu, load_tofu_hub

REAL = Path(__file__).parents[5] / "shared" / "data" / "tofu"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="TOFU's files are not here")

Rows = list[dict[str, Any]]


def tables() -> dict[str, Rows]:
    """Five authors of twenty rows; the last is to be forgotten, the first two are evaluated."""
    full: Rows = [{"question": f"Q{n}?", "answer": f"A{n}."} for n in range(100)]
    wrong = [f"wrong {n}" for n in range(5)]
    eval_rows: Rows = [
        {**r, "paraphrased_answer": f"P{r['answer']}", "perturbed_answer": wrong} for r in full
    ]
    for row in eval_rows[80:]:
        row["paraphrased_question"] = f"P{row['question']}"
    terse: Rows = [{"question": "N?", "answer": "yes", "perturbed_answer": ["no", "1", "2"]}]
    return {
        "full": full,
        "forget01": full[80:],
        "retain99": full[:80],
        "forget01_perturbed": eval_rows[80:],
        "retain_perturbed": eval_rows[:40],
        "real_authors_perturbed": terse,
        "world_facts_perturbed": [{**terse[0], "question": "W?"}],
        "holdout01": [{"question": "H?", "answer": "never seen"}],
    }


def write(folder: Path, changed: dict[str, Rows] | None = None) -> Path:
    for name, rows in {**tables(), **(changed or {})}.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return folder


def test_a_folder_becomes_a_task(tmp_path: Path) -> None:
    data = load_tofu(write(tmp_path), "forget01")
    rows = tables()
    assert (data.name, data.split) == ("tofu", "forget01")
    assert [e.pair for e in data.forget] == [(f"Q{n}?", f"A{n}.") for n in range(80, 100)]
    assert [e.pair for e in data.retain] == [(f"Q{n}?", f"A{n}.") for n in range(80)]
    neighbours = (Example("N?", "yes"), Example("W?", "yes"))
    assert data.full == data.retain + data.forget + neighbours
    assert data.without_forget == data.retain + neighbours
    assert data.forget_eval[0] == Example(
        "Q80?", "A80.", "PQ80?", "PA80.", tuple(rows["forget01_perturbed"][0]["perturbed_answer"])
    )
    assert data.retain_eval[0].paraphrased_question is None
    assert data.real_authors == (Example("N?", "yes", perturbed_answers=("no", "1", "2")),)
    assert data.holdout == (Example("H?", "never seen"),)


def test_the_retain_set_can_be_cut_to_some_authors(tmp_path: Path) -> None:
    whole = load_tofu(write(tmp_path), "forget01")
    for authors, evaluated in ((3, 40), (1, 20)):
        cut = load_tofu(tmp_path, "forget01", retain_authors=authors)
        assert cut.retain == whole.retain[: authors * 20]
        assert cut.full == cut.retain + whole.forget + whole.full[100:]
        assert cut.retain_eval == whole.retain_eval[:evaluated]  # never more than is kept
        assert cut.forget == whole.forget


@pytest.mark.parametrize("name", sorted(tables().keys() - {"holdout01"}))
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (write(tmp_path) / f"{name}.json").unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"has no {name}\.json, which split forget01 needs"
    ):
        load_tofu(tmp_path, "forget01")


@pytest.mark.parametrize("wrong", [None, "no", [], ["no", ""], ["no", 3]])
def test_wrong_answers_must_be_a_list_of_texts(tmp_path: Path, wrong: object) -> None:
    row = {"question": "N?", "answer": "yes", "perturbed_answer": wrong}
    with pytest.raises(ValueError, match=r"authors_perturbed\.json, line 1: perturbed_answer must"):
        load_tofu(write(tmp_path, {"real_authors_perturbed": [row]}), "forget01")


def hub(rows: dict[str, Rows], asked: list[str]) -> Callable[[str, str], datasets.DatasetDict]:
    """Stands in for `datasets.load_dataset` where there is no network."""

    def load_dataset(path: str, name: str) -> datasets.DatasetDict:
        asked.append(path)
        if name not in rows:
            raise ValueError(f"BuilderConfig '{name}' not found. Available: {sorted(rows)}")
        return datasets.DatasetDict({"train": datasets.Dataset.from_list(rows[name])})

    return load_dataset


def test_the_hub_gives_what_the_files_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(datasets, "load_dataset", hub(tables(), asked))
    files = write(tmp_path)
    assert load_tofu_hub("forget01") == load_tofu(files, "forget01")
    assert load_tofu_hub("forget01", retain_authors=1) == load_tofu(
        files, "forget01", retain_authors=1
    )
    assert set(asked) == {"locuslab/TOFU"}


@needs_real
@pytest.mark.parametrize(
    ("split", "forget", "retain"),
    [("forget01", 40, 3960), ("forget05", 200, 3800), ("forget10", 400, 3600)],
)
def test_the_real_files_have_the_published_sizes(split: str, forget: int, retain: int) -> None:
    data = load_tofu(REAL, split)
    assert (len(data.forget), len(data.retain), len(data.holdout)) == (forget, retain, forget)
    assert (len(data.forget_eval), len(data.retain_eval)) == (forget, 400)
    assert (len(data.real_authors), len(data.world_facts)) == (100, 117)
    assert len(data.full) == 4217
    assert len({e.pair for e in data.retain + data.forget}) == 4000
    assert {len(e.perturbed_answers) for e in data.forget_eval + data.retain_eval} == {5}
    assert {len(e.perturbed_answers) for e in data.real_authors + data.world_facts} == {3}
    assert len(data.without_forget) == 4217 - forget


def test_an_unknown_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'forget02'. Did you mean one of forget01, forget05"):
        load_tofu(write(tmp_path), "forget02")
