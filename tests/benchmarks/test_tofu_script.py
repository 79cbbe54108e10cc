"""`benchmarks/tofu.py` as a user starts it."""

import json
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tofu
from benchmarks.engine.scratch import build_tokenizer, small_llama
from benchmarks.report.results import ResultsFolder
from benchmarks.tasks.tofu import task as tofu_task
from benchmarks.tasks.tofu.models import questions_and_answers
from benchmarks.tasks.tofu.task import asked
from benchmarks.tasks.tofu.world import build_world


@pytest.fixture(scope="module")
def cache(shared_models: Path) -> Path:
    return shared_models


@pytest.fixture(scope="module")
def finished(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quick run of the four default methods, at a rate at which so few steps forget."""
    output = tmp_path_factory.mktemp("run") / "out"
    arguments = ["--quick", "--lr", "1e-3", "--output", str(output), "--cache", str(cache)]
    with ExitStack() as stack:
        for name, redirect in (("stdout", redirect_stdout), ("stderr", redirect_stderr)):
            stack.enter_context(redirect(stack.enter_context((output.parent / name).open("w"))))
        assert tofu.main(arguments) == 0
    return output


def test_it_ends_with_a_table_of_every_method(finished: Path) -> None:
    shown = (finished.parent / "stdout").read_text()
    for name in ("Original model", "Retrained model", "Retain side alone", "Single AdamW", "SAUL"):
        assert name in shown
    assert "The control" in shown
    assert "runs: 100%" in (finished.parent / "stderr").read_text()


def test_results_have_every_number_of_the_table(finished: Path) -> None:
    from benchmarks.tasks.tofu.layout import NUMBERS

    rows = ResultsFolder(finished).rows()
    assert [row["method"] for row in rows] == [
        "original", "retrained", "retain_only",
        "single_adamw", "dual_adamw", "dual_adamw+alm", "saul",
    ]  # fmt: skip
    for row in rows:
        assert row["seed"] == 0
        assert row.keys() >= {column.key for column in NUMBERS} - {"prose_perplexity"}  # none named
    numbers = {row["method"]: row for row in rows}
    assert numbers["original"]["forget_exact_match"] > 0.9
    assert numbers["retrained"]["forget_exact_match"] < 0.5
    assert numbers["retrained"]["retain_exact_match"] > 0.9
    assert numbers["retrained"]["forget_quality"] == 1.0
    for key in ("single_adamw", "dual_adamw"):  # which nothing stops
        assert numbers[key]["forget_probability"] < numbers["retrained"]["forget_probability"]
    assert numbers["saul"]["forget_probability"] < 0.5 < numbers["original"]["forget_probability"]


def test_files_a_reader_expects(finished: Path) -> None:
    settings = json.loads((finished / "settings.json").read_text())
    assert settings["preset"] == "recommended"
    assert settings["methods"]["saul"]["multiplier"] == 0.0
    for name in ("training.png", "tradeoff.png", "utility.png", "report.md", "tables.tex"):
        assert (finished / name).stat().st_size > 0
    trace = ResultsFolder(finished).trace("saul", 0)
    assert len(trace) == 10 * -(-16 // 8)


@pytest.mark.usefixtures("undrawn")
def test_another_seed_in_the_same_folder_only_adds(finished: Path, cache: Path) -> None:
    before = (finished / "results.jsonl").read_bytes()
    arguments = ["--quick", "--lr", "1e-3", "--output", str(finished), "--cache", str(cache)]
    assert tofu.main([*arguments, "--methods", "dual_adamw", "--seed", "1", "--no-control"]) == 0
    after = (finished / "results.jsonl").read_bytes()
    assert after.startswith(before)
    assert after.count(b"\n") == before.count(b"\n") + 1


def test_a_run_that_is_stopped_says_how_it_goes_on(
    finished: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("benchmarks.engine.script.run", stop)
    arguments = ["--quick", "--lr", "1e-3", "--output", str(finished), "--cache", str(cache)]
    assert tofu.main([*arguments, "--methods", "dual_adamw", "--no-control"]) == 130
    told = f"Stopped; {finished} has what is finished, and the same command goes on from there."
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "sual"], "Did you mean 'saul'"),
        (["--preset", "fast"], "unknown preset"),
        (["--data", "no/such/folder"], "no/such/folder"),
        (["--model", "no/such/model", "--data", "DATA"], "is no folder, and"),
        (["--model", "./absent"], "the model ./absent is no folder"),
        (["--model", "DATA"], "has no config.json"),
        (["--retrained", "/no/such"], "the model /no/such is no folder"),
        (["--output", "DATA/forget01.json"], "forget01.json is no folder. Did"),
        (["--cache", "DATA/forget01.json/c"], "forget01.json is no folder. Did"),
        (["--split", "forget02"], "forget02"),
        (["--split", "forget05"], "--split forget05 would not be read: the embedded world"),
        (["--retain-authors", "3"], "--retain-authors 3 would not be read"),
    ],
)
def test_bad_input_is_a_sentence_before_any_training(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tofu(tmp_path / "data")
    where = ["--output", str(tmp_path / "out"), "--cache", str(tmp_path / "c")]
    arguments = [a.replace("DATA", str(tmp_path / "data")) for a in arguments]
    with pytest.raises(SystemExit) as end:
        tofu.main([*where, *arguments])
    assert end.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_a_matched_comparison_searches_then_reports(
    finished: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert finished.exists()
    folders = ["--output", str(tmp_path), "--cache", str(cache)]
    search = ["--match", "forget_probability=0.5", "--trials", "2", "--epochs", "3"]
    assert tofu.main(["--quick", "--methods", "dual_adamw", *search, *folders]) == 0
    assert "2 trials of 2" in capsys.readouterr().out
    assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == 2
    assert ResultsFolder(tmp_path).rows()[-1]["method"] == "dual_adamw"


def test_a_local_model_unlearns_from_data_files(
    finished: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert finished.exists()
    write_tofu(tmp_path / "data")
    model = next(cache.glob("world-quick-*original*"))
    arguments = ["--data", str(tmp_path / "data"), "--model", str(model), "--retain-authors", "1"]
    short = ["--methods", "saul", "--epochs", "1", "--batch-size", "4", "--quick", "--lr", "1e-3"]
    short += ["--no-control"]
    assert tofu.main([*arguments, *short, "--output", str(tmp_path / "out")]) == 0
    rows = ResultsFolder(tmp_path / "out").rows()
    assert [row["method"] for row in rows] == ["original", "saul"]
    assert rows[0]["forget_exact_match"] > 0.9
    assert rows[1]["forget_quality"] is None
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert (settings["preset"], settings["split"]) == ("paper", "forget01")
    assert "SAUL" in capsys.readouterr().out


def test_a_small_model_is_trained_on_real_data(tmp_path: Path) -> None:
    real = Path(__file__).parents[3] / "shared" / "data" / "tofu"
    if not real.is_dir():
        pytest.skip("TOFU's files are not beside the repository")
    arguments = ["--data", str(real), "--quick", "--methods", "dual_adamw+alm", "--epochs", "1"]
    arguments += ["--no-control"]
    folders = ["--output", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]
    assert tofu.main([*arguments, *folders]) == 0
    rows = ResultsFolder(tmp_path / "out").rows()
    assert [row["method"] for row in rows] == ["original", "retrained", "dual_adamw+alm"]


def write_tofu(folder: Path) -> None:
    """A data folder in TOFU's format: forty facts to keep, eight to forget."""
    from benchmarks.tasks.tofu.world import build_world

    world = build_world(quick=True)
    tables = {
        "full": world.retain[:40] + world.forget[:8], "forget01": world.forget[:8],
        "retain99": world.retain[:40], "holdout01": world.holdout,
    }  # fmt: skip
    evaluated = {
        "forget01_perturbed": world.forget_eval[:8],
        "retain_perturbed": world.retain_eval[:20],
        "real_authors_perturbed": world.real_authors,
        "world_facts_perturbed": world.world_facts,
    }
    folder.mkdir()
    for name, rows in (tables | evaluated).items():
        lines = []
        for e in rows:
            fields = {"question": e.question, "answer": e.answer}
            if name in evaluated:
                fields["perturbed_answer"] = list(e.perturbed_answers)
                fields["paraphrased_answer"] = e.paraphrased_answer
            lines.append(json.dumps({k: v for k, v in fields.items() if v is not None}))
        (folder / f"{name}.json").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--width", "100"], "Did you mean 128?"),
        (["--width", "32"], "Did you mean 64?"),
        (["--width", "128", "--model", "elsewhere"], "has a width of its own"),
        (["--base", "read", "--width", "128"], "one of them"),
        (["--replay", "read.jsonl"], "mean --base as well"),
        (["--questions", "0"], "nothing would be asked"),
        (["--retain-authors", "0"], "nothing would be retained"),
        (["--prose", "none.jsonl"], "nothing is there"),
    ],
)
def test_sizes_that_nothing_can_be_made_of_are_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        tofu.main(["--quick", *arguments])
    assert said in " ".join(capsys.readouterr().err.split())


def test_questions_are_spread_over_the_whole_set() -> None:
    data = build_world(quick=True)
    few = asked(data, 3)
    many = len(data.retain_eval)
    assert few.retain_eval == tuple(data.retain_eval[i * many // 3] for i in range(3))
    assert len(few.forget_eval) == len(few.world_facts) == 3
    assert few.full == data.full, "what is learnt stays"
    assert asked(data, 10_000).retain_eval == tuple(data.retain_eval)
    assert asked(data, None).holdout == tuple(data.holdout)


def test_a_model_is_as_wide_as_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths: list[tuple[int, int]] = []

    def untrained(data: Any, *_: Any, recipe: Any, **__: Any) -> Any:
        widths.append((recipe.width, recipe.heads))
        tokenizer = build_tokenizer(questions_and_answers(data, recipe).texts, recipe)
        return small_llama(tokenizer, recipe, 0).eval(), tokenizer

    monkeypatch.setattr(tofu_task, "load_or_train", untrained)
    run = ["--quick", "--output", str(tmp_path / "out"), "--methods", "saul", "--epochs", "1"]
    assert tofu.main([*run, "--width", "128", "--questions", "2"]) == 0
    assert set(widths) == {(128, 2)}
    folder = ResultsFolder(tmp_path / "out")
    asked_of = [row["subset"] for row in folder.answers_of("saul", 0)]
    assert all(asked_of.count(name) == 2 for name in ("forget", "retain", "world_facts"))
    with pytest.raises(SystemExit):  # another width is another table
        tofu.main([*run, "--questions", "2"])
