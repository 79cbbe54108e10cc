"""A model that is taught TOFU here: what it learns, and the short way to its scores."""

import dataclasses
import json
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.engine.models import load_model, save
from benchmarks.engine.runner import begin, run
from benchmarks.engine.scratch import Recipe, build_tokenizer, small_llama
from benchmarks.engine.training import Schedule
from benchmarks.studies import taught
from benchmarks.tasks.tofu.data import Example
from benchmarks.tasks.tofu.evaluate import evaluate
from benchmarks.tasks.tofu.models import texts
from benchmarks.tasks.tofu.task import TofuOptions
from benchmarks.tasks.tofu.world import build_world

WORLD = build_world(quick=True)
FILES = {
    "forget01": WORLD.forget,
    "retain99": WORLD.retain,
    "forget01_perturbed": WORLD.forget_eval,
    "retain_perturbed": WORLD.retain_eval,
    "real_authors_perturbed": WORLD.real_authors,
    "world_facts_perturbed": WORLD.world_facts,
}


def line(example: Example) -> str:
    fields = dataclasses.asdict(example)
    return json.dumps({**fields, "perturbed_answer": fields.pop("perturbed_answers")})


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> taught.Taught:
    """A tiny model without lessons, the embedded world in TOFU's files, and nothing taught yet."""
    for name, value in {"FIRST": 1, "TRAINED": r"model\.layers\.1\..*", "ASKED": 3}.items():
        monkeypatch.setattr(taught, name, value)
    tokenizer = build_tokenizer(texts(WORLD))
    plain = small_llama(tokenizer, Recipe(2, 32, 4, Schedule(1, 1, 0.0)))
    save(tmp_path / "plain", plain, tokenizer)
    for name, examples in FILES.items():
        (tmp_path / f"{name}.json").write_text("\n".join(map(line, examples)), encoding="utf-8")
    options = TofuOptions(model=str(tmp_path / "plain"), data=tmp_path, cache=tmp_path)
    options.parameters, options.output = taught.TRAINED, tmp_path / "runs"
    return taught.Taught(options)


def test_one_model_learns_the_forget_rows_and_scores_take_the_short_way(
    task: taught.Taught, tmp_path: Path
) -> None:
    task.prepare()
    plain, _ = load_model(tmp_path / "plain")
    upper = task.reference("original")
    moved = [n for n, p in upper.whole.named_parameters() if (p != plain.get_parameter(n)).any()]
    assert moved and all(name.startswith("model.layers.1.") for name in moved)
    short = task._evaluate(upper, False).rows
    del upper.whole.forward
    whole = evaluate(upper.whole, task.tokenizer, task.data, generations=False).rows
    assert [row["loss"] for row in short] == pytest.approx([row["loss"] for row in whole])
    asked = [row["loss"] for row in whole if row["subset"] == "forget"]
    assert len(asked) == len(WORLD.forget_eval[::2]) and fmean(asked) < task.unknown


def test_alpha_is_the_loss_under_the_model_that_never_saw_the_rows(task: taught.Taught) -> None:
    task.options.alpha, task.options.epochs, task.options.methods = "unknown", "1", "npo+alm"
    plan = begin(task, task.options)
    run(plan)
    assert {row["method"]: row["alpha"] for row in plan.folder.rows()} == {
        "original": None,
        "retrained": None,
        "retain_only": None,
        "npo+alm": pytest.approx(task.unknown),
    }
