"""The study of accelerators runs on a CPU as far as it goes, and tells what failed."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.studies.accelerator import __main__ as script
from benchmarks.studies.accelerator import apart, exact, replay, sections
from benchmarks.studies.accelerator.checks import Absent, Check, Place, outcome
from benchmarks.studies.accelerator.sections import SECTIONS, lines
from torch_alm import SAM

HOST = Place(torch.device("cpu"), quick=True)
ALONE = [name for name in SECTIONS if name != "ranks"]  # which tests/distributed runs
NEED_CUDA = {"bases": 4, "graphs": 2, "waits": 1, "seven": 1}


def test_all_of_it_holds_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--device", "cpu", "--quick", "--output", str(tmp_path), "--sections", *ALONE]
    assert script.main(arguments) == 0
    content = json.loads((tmp_path / "accelerator.json").read_text())
    assert {*content} == {*ALONE}
    for name, section in content.items():
        statuses = [line["status"] for line in section["lines"]]
        assert statuses.count("not run") == NEED_CUDA.get(name, 0)
        assert statuses.count("ok") == len(statuses) - NEED_CUDA.get(name, 0) > 0
        assert section["machine"]["torch"] and section["machine"]["device"] == "cpu"
    said, page = capsys.readouterr().out, (tmp_path / "accelerator.md").read_text()
    for line in (line for section in content.values() for line in section["lines"]):
        assert line["name"] in said and line["name"] in page
    assert page.endswith("Not run: ranks.\n") and "0 failed" in page


@pytest.mark.parametrize("name", [*SECTIONS])
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")
def test_all_of_it_holds_on_a_card(name: str) -> None:
    found = list(apart.lines_apart(name, Place(torch.device("cuda"), quick=True)))
    assert found and [line for line in found if line["status"] == "failed"] == []


def test_without_a_card_it_says_so_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert script.main(["--output", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert "no CUDA device" in err and "--device cpu" in err and not out
    assert not (tmp_path / "out").exists()


@contextmanager
def subtracting(params: list[Any], rho: float, **_: Any) -> Iterator[None]:
    """A perturbation that is taken back by subtraction, as most projects do."""
    steps = [rho * p.grad / p.grad.norm() for p in params]
    try:
        with torch.no_grad():
            for p, step in zip(params, steps, strict=True):
                p.add_(step)
        yield
    finally:
        with torch.no_grad():
            for p, step in zip(params, steps, strict=True):
                p.sub_(step)


def test_weights_that_do_not_return_fail_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "perturbed", subtracting)
    arguments = ["--device", "cpu", "--quick", "--output", str(tmp_path)]
    assert script.main([*arguments, "--sections", "exact", "random"]) == 1
    content = json.loads((tmp_path / "accelerator.json").read_text())
    found = {line["name"]: line for line in content["exact"]["lines"]}
    broken = found["theta returns, float32 nearest"]
    assert broken["status"] == "failed" and "theta after the block" in broken["why"]
    assert "check_equal" in broken["traceback"]
    assert found["SAUL is Algorithm 1, float64"]["status"] == "ok"
    assert all(line["status"] == "ok" for line in content["random"]["lines"])
    page = (tmp_path / "accelerator.md").read_text()
    assert "- exact: **theta returns, float32 nearest**: AssertionError" in page


def test_masks_that_are_not_replayed_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "SAM", lambda base, rho, **_: SAM(base, rho, replay_rng=False))
    statuses = {line["name"]: line["status"] for line in lines("random", HOST)}
    assert statuses["weights on the host"] == statuses["weights on the device"] == "failed"


def missing(_: Place) -> Any:
    raise Absent("it needs a card")


def full(_: Place) -> Any:
    raise torch.OutOfMemoryError("80 GB are not enough")


def raising(_: Place) -> Any:
    raise KeyError("name\nof a thing")


@pytest.mark.parametrize(
    ("run", "status", "why"),
    [
        (missing, "not run", "it needs a card"),
        (full, "not run", "OutOfMemoryError: 80 GB are not enough"),
        (raising, "failed", "KeyError: 'name\\nof a thing'"),
    ],
)
def test_a_check_ends_in_one_line_of_words(run: Callable, status: str, why: str) -> None:
    found = outcome(Check("a check", run), HOST)
    assert (found["status"], found["why"]) == (status, why)


def test_a_section_that_cannot_be_loaded_is_a_failed_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sections.MODULES, "exact", "nowhere")
    (found,) = lines("exact", HOST)
    assert found["status"] == "failed" and "nowhere" in found["why"]


@pytest.mark.usefixtures("forks")
def test_a_section_apart_gives_the_same_lines() -> None:
    near, far = list(lines("random", HOST)), list(apart.lines_apart("random", HOST))
    keys = ("name", "status", "seen")
    assert [[line[key] for key in keys] for line in far] == [
        [line[key] for key in keys] for line in near
    ]


class DeadlyPlace(Place):
    """Somewhere a process cannot come back from."""

    def __reduce__(self) -> Any:
        return os._exit, (7,)


@pytest.mark.usefixtures("forks")
def test_a_process_that_dies_is_a_failed_line() -> None:
    (found,) = apart.lines_apart("random", DeadlyPlace(torch.device("cpu")))
    assert found["status"] == "failed" and "exit code 7" in found["why"]
