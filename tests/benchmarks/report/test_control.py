"""The control: what the retain side alone costs, in every table and in words."""

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from benchmarks import methods
from benchmarks.engine.runner import begin, run
from benchmarks.methods import CONTROL, Settings
from benchmarks.report import control
from benchmarks.report.layout import Axis
from benchmarks.report.page import publish
from benchmarks.report.results import ResultsFolder, Row
from benchmarks.tasks.tofu.layout import LAYOUT
from tests.benchmarks.toy import batch, ce, flat, memorised
from tests.benchmarks.toy_benchmark import ToyBenchmark, options

UTILITY = Axis("model_utility", "model utility")


def by_hand(model: nn.Module, settings: Settings) -> None:
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
    )
    for step in range(6):
        optimizer.zero_grad()
        loss = settings.retain_weight * ce(model, batch(step))
        loss.backward()
        if settings.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.step()


@pytest.mark.parametrize("clipped", [None, 0.1])
def test_it_is_adamw_on_the_retain_loss_and_never_looks_at_the_forget_rows(
    clipped: float | None,
) -> None:
    settings = Settings(lr=0.05, retain_weight=2.0, weight_decay=0.1, max_grad_norm=clipped)
    mine, expected = memorised(), memorised()
    method = methods.build(CONTROL, mine, settings)
    for step in range(6):
        method.step(batch(step), {})  # an empty batch: nothing of it is read
    by_hand(expected, settings)
    assert_close(flat(mine), flat(expected))
    assert method.metrics()["gate_open"] == 0.0 and method.metrics()["weight"] == 0.0


def test_it_is_run_for_every_seed_beside_the_methods_unless_it_is_left_out(tmp_path: Path) -> None:
    chosen = options(tmp_path / "with", "--methods", "saul", "--seeds", "2", control=True)
    run(begin(ToyBenchmark(), chosen))
    folder = ResultsFolder(tmp_path / "with")
    assert [(row["method"], row["seed"]) for row in folder.rows()][2:] == [
        *((CONTROL, 0), ("saul", 0), (CONTROL, 1), ("saul", 1))
    ]
    assert len(folder.trace(CONTROL, 0)) == 6
    run(begin(ToyBenchmark(), options(tmp_path / "without", "--methods", "saul")))
    assert CONTROL not in {row["method"] for row in ResultsFolder(tmp_path / "without").rows()}


def test_it_is_no_method_that_could_be_chosen_or_win() -> None:
    assert CONTROL not in methods.names("any")
    with pytest.raises(ValueError, match="unknown method 'retain_only'"):
        methods.check(CONTROL)
    assert not methods.is_controlled(CONTROL)


def rows(original: float, *alone: float | None) -> list[Row]:
    found: list[Row] = [{"method": "original", "seed": 0, "model_utility": original}]
    return found + [
        {"method": CONTROL, "seed": seed, "model_utility": value}
        for seed, value in enumerate(alone)
    ]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (rows(0.94, 0.935, 0.941), "The control holds: .* from 0.940 to 0.938."),
        (rows(0.94, 0.88, 0.90), "does not hold.* from 0.940 to 0.890, .*do not use this table"),
        (rows(0.94, 0.94, None), r"does not hold\*\*: model utility could not be measured"),
        (rows(0.94), "No control"),
    ],
)
def test_the_page_says_what_the_table_could_show(found: list[Row], said: str) -> None:
    assert re.search(said, control.note(found, UTILITY))


def test_report_and_terminal_warn_of_a_rate_that_is_too_high(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = options(tmp_path, "--methods", "saul", "--lr", "3", control=True)
    run(begin(ToyBenchmark(), chosen))
    publish([tmp_path], LAYOUT)
    assert "The control does not hold" in (tmp_path / "report.md").read_text()
    printed = capsys.readouterr().out
    assert "The control does not hold" in printed and "Retain side alone" in printed
    assert json.loads((tmp_path / "settings.json").read_text())["methods"][CONTROL]["lr"] == 3.0
