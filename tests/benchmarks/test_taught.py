"""A model that is taught TOFU here: what it learns, the short way to its scores, its target."""

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks.engine.models import load_model, save_model
from benchmarks.engine.runner import begin_runs, run
from benchmarks.engine.scratch import Recipe, build_tokenizer, small_llama
from benchmarks.engine.training import Schedule
from benchmarks.studies import taught
from benchmarks.tasks.tofu.evaluate import evaluate
from benchmarks.tasks.tofu.models import texts
from benchmarks.tasks.tofu.task import TofuOptions
from benchmarks.tasks.tofu.world import build_world

WORLD = build_world(quick=True)
FILES = {"forget01": WORLD.forget, "retain99": WORLD.retain}
FILES |= {"forget01_perturbed": WORLD.forget_eval, "retain_perturbed": WORLD.retain_eval}
FILES |= {f"{n}_perturbed": getattr(WORLD, n) for n in ("real_authors", "world_facts")}


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> taught.TaughtTofu:
    """A tiny model without lessons, the embedded world in TOFU's files, and nothing taught yet."""
    for name, value in {"FIRST": 1, "TRAINED": r"model\.layers\.1\..*", "ASKED": 3}.items():
        monkeypatch.setattr(taught, name, value)
    tokenizer = build_tokenizer(texts(WORLD))
    plain = small_llama(tokenizer, Recipe(2, 32, 4, Schedule(1, 1, 0.0)))
    save_model(tmp_path / "plain", plain, tokenizer)
    for name, examples in FILES.items():
        rows = [dataclasses.asdict(example) for example in examples]
        rows = [{**row, "perturbed_answer": row.pop("perturbed_answers")} for row in rows]
        (tmp_path / f"{name}.json").write_text(json.dumps(rows), encoding="utf-8")
    options = TofuOptions(model=str(tmp_path / "plain"), data=tmp_path, cache=tmp_path)
    options.parameters, options.output, options.epochs = taught.TRAINED, tmp_path / "runs", "1"
    options.alpha, options.methods, options.control = "unknown", "npo+alm", False
    return taught.TaughtTofu(options)


def test_one_model_learns_the_forget_rows_the_other_says_when_they_are_unknown(
    task: taught.TaughtTofu, tmp_path: Path
) -> None:
    plan = begin_runs(task, task.options)
    run(plan)
    found = {row["method"]: row for row in plan.folder.rows()}
    assert found["npo+alm"]["alpha"] == pytest.approx(task.unknown)
    settings = dataclasses.replace(plan.settings["npo+alm"], lr=2.0)
    assert task.resolve_settings(settings).lr == pytest.approx(2 * task.numbers["lr"])
    assert len(task.data.world_facts) < 3, "the plain model has hardly learned any"
    assert found["original"]["forget_loss"] < found["retrained"]["forget_loss"]
    plain, _ = load_model(tmp_path / "plain")
    upper = task.copy_reference("original")
    moved = [n for n, p in upper.whole.named_parameters() if (p != plain.get_parameter(n)).any()]
    assert moved and all(name.startswith("model.layers.1.") for name in moved)
    whole = evaluate(upper.whole, task.tokenizer, task.data, max_new_tokens=1).rows
    short = plan.folder.read("answers", "original", 0)
    assert [row["loss"] for row in short] == pytest.approx([row["loss"] for row in whole])
