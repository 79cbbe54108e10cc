"""The script that attacks unlearned models: every run once, tables that say what was measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine.scratch import build_tokenizer, small_llama
from benchmarks.studies import attacks
from benchmarks.tasks.tofu import task as tofu_task
from benchmarks.tasks.tofu.models import RECIPES, questions_and_answers

NAMES = [
    "relearn forget, 0.0001",
    "relearn retain, 0.0001",
    "int8",
    "int4",
    "paraphrase",
    "answer prefix",
    "relearn forget, 0.001",
    "relearn retain, 0.001",
]


def untrained(data: Any, *_: Any, without_forget: bool, **__: Any) -> Any:
    """A model that knows nothing, at once."""
    recipe = RECIPES["world-quick"]
    tokenizer = build_tokenizer(questions_and_answers(data, recipe).texts, recipe)
    return small_llama(tokenizer, recipe, int(without_forget)).eval(), tokenizer


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_every_model_is_attacked_once_and_in_every_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(tofu_task, "load_or_train", untrained)
    monkeypatch.setattr(tofu_task.Tofu, "encoded", lambda *given: original(*given)[:6])
    words = [
        "--quick",
        "--methods",
        "saul",
        "--epochs",
        "1",
        "--relearn-steps",
        "2",
        "--width",
        "64",
    ]
    arguments = [*words, "--output", str(tmp_path), "--seeds"]
    assert attacks.main([*arguments, "1"]) == 0
    first = rows(tmp_path)
    assert [(row["method"], row["seed"]) for row in first] == [
        ("original", 0),
        ("retrained", 0),
        ("saul", 0),
    ]
    for row in first:
        assert [name for name in row["attacks"] if name != "retain"] == NAMES
        # the model as it was stands before every attack that asks the same rows
        before = [row["attacks"][name]["before"] for name in ("int8", "int4", NAMES[1], NAMES[7])]
        assert before.count(before[0]) == 4
        assert row["attacks"][NAMES[0]]["after"] != row["attacks"][NAMES[6]]["after"]
    assert attacks.main([*arguments, "2"]) == 0
    assert rows(tmp_path)[:3] == first
    assert len(rows(tmp_path)) == 4
    table = (tmp_path / "attacks.md").read_text()
    assert "Written by `python -m benchmarks.studies.attacks --width 64 --set epochs=1`" in table
    losses = [row["attacks"]["int4"]["after"]["loss"] for row in rows(tmp_path)[2:]]
    assert f"{sum(losses) / 2:.2f} ± " in table
    assert table in capsys.readouterr().out


original = tofu_task.Tofu.encoded


def test_every_rate_relearns_and_the_other_attacks_run_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def attack(
        model: Any, tokenizer: Any, forget: Any, retain: Any, settings: Any, **_: Any
    ) -> Any:
        seen.append((settings.relearn_lr, settings.bits))
        yield from (attacks.Attacked(n, [], [], [], [], {}) for n in ("relearn forget", "int8"))

    monkeypatch.setattr(attacks, "attack", attack)
    attacker = attacks.Attacker(attacks.Attacks(), (1e-4, 1e-3, 1e-2))
    found = [name for name, _ in attacker.attack(None, None, [], [], paraphrased=[1])]
    assert found == [
        "relearn forget, 0.0001",
        "int8",
        "relearn forget, 0.001",
        "relearn forget, 0.01",
    ]
    assert seen == [(1e-4, (8, 4)), (1e-3, ()), (1e-2, ())]
