"""`benchmarks/wmdp.py` as a user starts it."""

import json
from pathlib import Path

import pytest

from benchmarks import wmdp
from benchmarks.report.results import ResultsFolder
from benchmarks.tasks.wmdp.lore import build_lore

# The tiny model has shorter hidden states than the other: again c is three times their length, mu a
# tenth of d/c^2, and alpha a level that 48 steps reach.
QUICK = [
    *("--quick", "--epochs", "24", "--set", "coefficient=80", "--set", "retain_weight=30"),
    *("--mu", "7.5e-4", "--alpha", "relative:0.3", "--no-control"),
]
CONTROLLED = ("rmu+alm", "saul")
METHODS = ("rmu", *CONTROLLED)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def finished(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quick run of three methods."""
    output = tmp_path_factory.mktemp("run") / "out"
    arguments = [*QUICK, "--output", str(output), "--cache", str(cache)]
    assert wmdp.main([*arguments, "--methods", ",".join(METHODS)]) == 0
    return output


def test_it_forgets_keeps_and_closes_the_gate(finished: Path) -> None:
    rows = {row["method"]: row for row in ResultsFolder(finished).rows()}
    assert list(rows) == ["original", *METHODS]
    original = rows["original"]
    assert original["forget_accuracy"] > 0.9, "the model has to know what it is to forget"
    assert original["utility_accuracy"] > 0.9
    for key in METHODS:
        assert rows[key]["forget_accuracy"] < 0.5
        assert rows[key]["utility_accuracy"] > original["utility_accuracy"] - 0.15
        trace = ResultsFolder(finished).trace(key, 0)
        assert trace[-1]["forget_loss"] < 0.5 * trace[0]["forget_loss"]
        assert {step["topic"] for step in trace} == {0, 1}
    for key in CONTROLLED:
        gates = [step["gate_open"] for step in ResultsFolder(finished).trace(key, 0)]
        assert gates[0] == 1.0
        assert 0.0 in gates


def test_alpha_is_a_share_of_what_the_distance_starts_near(finished: Path) -> None:
    settings = json.loads((finished / "settings.json").read_text())["methods"]["saul"]
    assert settings["alpha"].startswith("relative:")
    share = float(settings["alpha"].partition(":")[2])
    step = ResultsFolder(finished).trace("saul", 0)[0]
    assert step["alpha"] == pytest.approx(share * settings["coefficient"] ** 2 / 48, rel=1e-12)


def test_files_a_reader_expects(finished: Path) -> None:
    report = (finished / "report.md").read_text()
    assert "Doom salts" in report
    assert "Bio" not in report
    assert "MMLU" not in report
    for name in ("training.png", "tradeoff.png", "utility.png", "tables.tex"):
        assert (finished / name).stat().st_size > 0
    answers = ResultsFolder(finished).answers_of("rmu", 0)
    lore = build_lore(quick=True)
    asked = sum(len(t.questions) for t in lore.topics) + sum(map(len, lore.utility.values()))
    assert len(answers) == asked
    numbers = next(r for r in ResultsFolder(finished).rows() if r["method"] == "rmu")
    doom = [a["right"] for a in answers if a["set"] == "doom"]
    assert numbers["doom_accuracy"] == pytest.approx(sum(doom) / len(doom))


@pytest.mark.usefixtures("undrawn")
def test_another_seed_in_the_same_folder_only_adds(finished: Path, cache: Path) -> None:
    before = (finished / "results.jsonl").read_bytes()
    arguments = [*QUICK, "--output", str(finished), "--cache", str(cache)]
    assert wmdp.main([*arguments, "--methods", "rmu", "--seed", "1"]) == 0
    after = (finished / "results.jsonl").read_bytes()
    assert after.startswith(before)
    assert after.count(b"\n") == before.count(b"\n") + 1


def write_wmdp(folder: Path) -> list[str]:
    """Files in WMDP's, MMLU's and the corpora's formats, and the options that name them."""
    lore = build_lore(quick=True)
    (folder / "mmlu" / "test").mkdir(parents=True)
    for key, topic in zip(("bio", "cyber"), lore.topics, strict=True):
        rows = [
            {"question": q.question, "choices": q.choices, "answer": q.answer}
            for q in topic.questions
        ]
        (folder / f"{key}_questions.json").write_text(json.dumps(rows))
        texts = "".join(json.dumps({"text": text}) + "\n" for text in topic.texts)
        (folder / f"{key}.jsonl").write_text(texts)
    lines = ["question,choice0,choice1,choice2,choice3,answer"]
    lines += [",".join((q.question, *q.choices, str(q.answer))) for q in lore.utility["retain"]]
    (folder / "mmlu" / "test" / "kite_making_test.csv").write_text("\n".join(lines) + "\n")
    (folder / "retain.txt").write_text("\n".join(t.replace("\n", " ") for t in lore.retain))
    corpora = [f"--forget={key}={folder / f'{key}.jsonl'}" for key in ("bio", "cyber")]
    files = ["--data", str(folder), "--mmlu", str(folder / "mmlu")]
    return [*files, *corpora, "--retain", str(folder / "retain.txt")]


def test_a_local_model_unlearns_from_data_files(
    finished: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert finished.exists()
    model = next(cache.glob("lore-quick-original*"))
    arguments = ["--model", str(model), *write_wmdp(tmp_path / "data"), "--scorer", "own"]
    low = [
        "--no-control",
        "--dtype",
        "bfloat16",
        "--checkpointing",
        "--batches",
        "1",
        "--questions",
        "4",
    ]
    run = ["--methods", "rmu,saul", "--output", str(tmp_path / "out")]
    assert wmdp.main([*arguments, *low, *run]) == 0
    rows = ResultsFolder(tmp_path / "out").rows()
    assert [row["method"] for row in rows] == ["original", "rmu", "saul"]
    assert set(rows[0]) >= {"bio_accuracy", "cyber_accuracy", "mmlu_accuracy"}
    assert len(ResultsFolder(tmp_path / "out").trace("rmu", 0)) == 1
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert settings["preset"] == "paper"
    assert settings["methods"]["saul"]["alpha"] == 1.5e-3
    assert "1.5e-3" in settings["notes"]["saul"]
    shown = capsys.readouterr().out
    assert "Memory, counted for" in shown
    assert "SAUL: 0.0 GB at most" in shown
    assert "MMLU" in (tmp_path / "out" / "report.md").read_text()


def test_what_does_not_fit_is_refused_before_anything_is_loaded(
    finished: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert finished.exists()
    model = next(cache.glob("lore-quick-original*"))
    arguments = ["--model", str(model), *write_wmdp(tmp_path / "data"), "--memory-limit", "0.0001"]
    with pytest.raises(SystemExit):
        wmdp.main([*arguments, "--methods", "rmu", "--output", str(tmp_path / "out")])
    assert "would run out of memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "npo"], "unknown method 'npo'"),
        (["--data", "no/such/folder"], "--data and --model belong together"),
        (["--model", "m", "--data", "DATA"], "not shipped"),
        (["--model", "m", "--data", "DATA", "--forget", "bio"], "Did you mean TOPIC=PATH"),
        (["--lora", "-1"], "--lora -1 is no rank"),
        (["--mmlu", "none"], "none would not be read"),
        (["--forget", "bio=none"], "bio=none would not be read"),
        (["--set", "losses=mse"], "no method has such losses"),
        (["--alpha", "relative:x"], "relative:SHARE"),
    ],
)
def test_bad_input_is_a_sentence_before_any_training(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_wmdp(tmp_path / "data")
    arguments = [str(tmp_path / "data") if a == "DATA" else a for a in arguments]
    with pytest.raises(SystemExit) as end:
        wmdp.main([*arguments, "--output", str(tmp_path / "out"), "--cache", str(tmp_path / "c")])
    assert end.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "c").exists()
