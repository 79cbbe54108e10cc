"""Reading TOFU: a small folder in its layout, broken in every way, and the real files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from benchmarks.tasks.tofu import data as tofu
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


def test_a_copy_without_holdout_has_none(tmp_path: Path) -> None:
    (write(tmp_path) / "holdout01.json").unlink()
    assert load_tofu(tmp_path, "forget01").holdout == ()


def test_lists_and_the_other_suffix_read_the_same(tmp_path: Path) -> None:
    expected = load_tofu(write(tmp_path), "forget01")
    (tmp_path / "full.json").write_text(json.dumps(tables()["full"], indent=1))
    (tmp_path / "retain99.json").rename(tmp_path / "retain99.jsonl")
    assert load_tofu(tmp_path, "forget01") == expected


def test_line_separators_inside_a_text_and_blank_lines_are_no_rows(tmp_path: Path) -> None:
    path = write(tmp_path, {"holdout01": [{"question": "a\u2028b\x85?", "answer": "c"}]})
    with (path / "holdout01.json").open("a") as file:
        file.write("\n  \n")
    assert load_tofu(path, "forget01").holdout == (Example("a\u2028b\x85?", "c"),)


def test_the_retain_set_can_be_cut_to_some_authors(tmp_path: Path) -> None:
    whole = load_tofu(write(tmp_path), "forget01")
    for authors, evaluated in ((3, 40), (1, 20)):
        cut = load_tofu(tmp_path, "forget01", retain_authors=authors)
        assert cut.retain == whole.retain[: authors * 20]
        assert cut.full == cut.retain + whole.forget + whole.full[100:]
        assert cut.retain_eval == whole.retain_eval[:evaluated]  # never more than is kept
        assert cut.forget == whole.forget


@pytest.mark.parametrize("authors", [0, -1, 5])
def test_a_wrong_number_of_authors_is_refused(tmp_path: Path, authors: int) -> None:
    with pytest.raises(ValueError, match=rf"retain_authors={authors}, but retain99 has 4 authors"):
        load_tofu(write(tmp_path), "forget01", retain_authors=authors)


def test_an_unknown_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'forget02'. Did you mean one of forget01, forget05"):
        load_tofu(write(tmp_path), "forget02")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere"):
        load_tofu(tmp_path / "nowhere", "forget01")


@pytest.mark.parametrize("name", sorted(tables().keys() - {"holdout01"}))
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (write(tmp_path) / f"{name}.json").unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"has no {name}\.json, which split forget01 needs"
    ):
        load_tofu(tmp_path, "forget01")


@pytest.mark.parametrize("name", ["forget01", "full", "real_authors_perturbed"])
def test_an_empty_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}\.json in .* is empty"):
        load_tofu(write(tmp_path, {name: []}), "forget01")


BROKEN_LINES = {
    "cut off": ('{"question": "Q1?", "ans', r"line 2 is not valid JSON"),
    "no object": ('["Q1?", "A1."]', r"line 2 holds a list"),
    "no answer": ('{"question": "Q1?"}', r"line 2: no answer \(it has only \['question'\]\)"),
    "empty answer": ('{"question": "Q1?", "answer": " "}', r"line 2: no answer \(answer is ' '\)"),
    "null answer": ('{"question": "Q1?", "answer": null}', r"line 2: no answer \(answer is None\)"),
    "number": ('{"question": 1, "answer": "A"}', r"line 2: question is 1, of the type int"),
}


@pytest.mark.parametrize("problem", BROKEN_LINES)
@pytest.mark.parametrize("name", ["full", "forget01", "holdout01"])
def test_a_broken_row_is_named_with_file_and_line(tmp_path: Path, name: str, problem: str) -> None:
    line, message = BROKEN_LINES[problem]
    path = write(tmp_path) / f"{name}.json"
    lines = [path.read_text().splitlines()[0], line]
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match=rf"{name}\.json, {message}"):
        load_tofu(tmp_path, "forget01")


def test_a_broken_list_is_named(tmp_path: Path) -> None:
    path = write(tmp_path) / "full.json"
    path.write_text('[{"question": "Q", "answer": "A"}, 7]')
    with pytest.raises(ValueError, match=r"full\.json, row 2 holds a int"):
        load_tofu(tmp_path, "forget01")
    path.write_text('[{"question": "Q", "answer": "A"},')
    with pytest.raises(ValueError, match=r"full\.json is not valid JSON"):
        load_tofu(tmp_path, "forget01")


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (write(tmp_path) / "full.json").write_bytes(b"\x1f\x8b\x08\xff")
    with pytest.raises(ValueError, match=r"full\.json, line 1 is not UTF-8 text"):
        load_tofu(tmp_path, "forget01")


@pytest.mark.parametrize("wrong", [None, "no", [], ["no", ""], ["no", 3]])
def test_wrong_answers_must_be_a_list_of_texts(tmp_path: Path, wrong: object) -> None:
    row = {"question": "N?", "answer": "yes", "perturbed_answer": wrong}
    with pytest.raises(ValueError, match=r"authors_perturbed\.json, line 1: perturbed_answer must"):
        load_tofu(write(tmp_path, {"real_authors_perturbed": [row]}), "forget01")


def test_an_evaluation_row_needs_a_paraphrased_answer(tmp_path: Path) -> None:
    rows = tables()["retain_perturbed"]
    del rows[4]["paraphrased_answer"]
    with pytest.raises(ValueError, match=r"retain_perturbed\.json, line 5: no paraphrased_answer"):
        load_tofu(write(tmp_path, {"retain_perturbed": rows}), "forget01")


CONTRADICTIONS: dict[str, Callable[[dict[str, Rows]], dict[str, Rows]]] = {
    "retain99 followed by forget01 must be full": lambda t: {"retain99": t["retain99"][:-1]},
    "forget01_perturbed must have the rows": lambda t: {
        "forget01_perturbed": t["forget01_perturbed"][::-1]
    },
    "retain_perturbed must be the first rows": lambda t: {
        "retain_perturbed": t["forget01_perturbed"]
    },
    "holdout set must not occur in full": lambda t: {"holdout01": t["full"][5:6]},
}


@pytest.mark.parametrize("rule", CONTRADICTIONS)
def test_files_of_different_experiments_are_refused(tmp_path: Path, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        load_tofu(write(tmp_path, CONTRADICTIONS[rule](tables())), "forget01")


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


def test_hub_errors_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tables()
    del rows["holdout01"], rows["world_facts_perturbed"]
    monkeypatch.setattr(datasets, "load_dataset", hub(rows, []))
    with pytest.raises(FileNotFoundError, match=r"locuslab/TOFU has no world_facts_perturbed"):
        load_tofu_hub("forget01")
    rows = {**tables(), "full": [{"question": "Q?", "answer": ""}]}
    monkeypatch.setattr(datasets, "load_dataset", hub(rows, []))
    with pytest.raises(ValueError, match=r"locuslab/TOFU, full, row 1: no answer"):
        load_tofu_hub("forget01")

    def offline(path: str, name: str) -> None:
        raise ValueError("something else")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(ValueError, match="something else"):
        load_tofu_hub("forget01")


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


@needs_real
def test_the_real_forget_sets_are_nested_and_the_holdouts_too() -> None:
    small, middle, large = (load_tofu(REAL, split) for split in tofu.SPLITS)
    assert middle.forget[-40:] == small.forget
    assert large.forget[-200:] == middle.forget
    assert large.holdout[:40] == small.holdout  # the first rows here, the last rows there
    assert small.retain_eval == middle.retain_eval == large.retain_eval
    assert {e.pair for e in small.retain_eval} == {e.pair for e in small.full[:400]}


@needs_real
def test_the_real_options_are_the_perturbed_answers() -> None:
    data = load_tofu(REAL, "forget01")
    for name, examples in (("real_authors", data.real_authors), ("world_facts", data.world_facts)):
        lines = (REAL / f"{name}.json").read_text(encoding="utf-8").splitlines()
        for row, example in zip(map(json.loads, lines), examples, strict=True):
            assert (row["question"], row["answer"]) == example.pair
            options = {row[f"option{n}"] for n in range(1, 5)}
            assert options == {example.answer, *example.perturbed_answers}
