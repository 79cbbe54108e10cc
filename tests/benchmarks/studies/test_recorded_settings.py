"""Recorded tables are what their commands would run today: no preset moves under one."""

import argparse
import dataclasses
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine.options import add_arguments, checked
from benchmarks.methods import CONTROL
from benchmarks.report.results import RECORDED
from benchmarks.studies.attacks import add_attack_arguments
from benchmarks.studies.evidence.plan import PLAN
from benchmarks.studies.operating_point import preset, radii, report
from benchmarks.studies.operating_point.plan import KINDS, WORLD
from benchmarks.tasks.tofu.presets import TOFU
from benchmarks.tasks.tofu.task import Tofu, add_data_arguments

DIR, OUTPUT = Path("DIR"), Path("OUTPUT")
KEPT = RECORDED / "operating_point"
CHEAPER = {"probe_every"}  # some runs were recorded with a measurement on every step


def commands() -> Iterator[tuple[Path, list[str]]]:
    """Yield every folder that a plan fills, with the words that fill it."""
    for stage in PLAN:
        yield RECORDED / "tofu" / stage.name, stage.arguments(DIR, OUTPUT)
    for place in report.PLACES:
        data = None if place.split == WORLD else DIR
        for rate in place.rates:
            for kind in KINDS:
                yield KEPT / place.folder(rate, kind), place.arguments(rate, kind, data, OUTPUT)
    for candidate in preset.candidates(preset.chosen_rate(KEPT)):
        yield KEPT / candidate.folder, candidate.arguments()
    for split in (WORLD, "forget01"):
        for run in radii.runs(split):
            data = None if split == WORLD else DIR
            yield KEPT / run.folder, run.arguments(data, 3, OUTPUT)


@cache
def parser() -> argparse.ArgumentParser:
    """Make the parser of the scripts, once."""
    made = argparse.ArgumentParser()
    for add in (add_arguments, add_data_arguments, add_attack_arguments):
        add(made)
    return made


def resolved(words: list[str]) -> dict[str, dict[str, Any]]:
    """Read the words as the scripts do: the settings of every method."""
    given = parser().parse_args(words)
    chosen = checked(given, name="x", preset="recommended", levels=Tofu.layout.levels)
    split = WORLD if given.data is None else given.split
    keys = chosen.methods or (CONTROL,)
    of = {key: TOFU.preset(chosen.preset, split, key, chosen.overrides) for key in keys}
    return {key: dataclasses.asdict(found.settings) for key, found in of.items()}


@pytest.mark.parametrize(
    ("folder", "words"),
    [pytest.param(f, words, id=f.name) for f, words in commands() if f.is_dir()],
)
def test_a_recorded_table_is_what_its_command_runs(folder: Path, words: list[str]) -> None:
    recorded = json.loads((folder / "settings.json").read_text())["methods"]
    found = resolved(words)
    assert found.keys() & recorded.keys()
    for key in found.keys() & recorded.keys():
        known = (found[key].keys() & recorded[key].keys()) - CHEAPER
        assert {n: found[key][n] for n in known} == {n: recorded[key][n] for n in known}, key
