"""The tables that the claims rest on are differences of runs on the same seeds."""

from typing import Any

import pytest
from scipy import stats

from benchmarks.studies.evidence import claims
from benchmarks.studies.evidence.recorded import Recorded

KEYS = (claims.UTILITY, claims.WORDS, claims.LOSS, claims.AUTHORS, claims.RETAIN)
PLAIN, WITH = (0.62, 0.58, 0.66), (0.93, 0.935, 0.92)


def row(method: str, seed: int, value: float) -> dict[str, Any]:
    others = ("retain_exact_match", "membership_auc")
    return {"method": method, "seed": seed, **dict.fromkeys((*KEYS, *others), value)}


def recorded(*rows: dict[str, Any], stage: str = claims.STAGE) -> Recorded:
    return Recorded({stage: list(rows)}, {stage: []})


def cells(table: str) -> list[list[str]]:
    return [[c.strip() for c in line.strip("|").split("|")] for line in table.splitlines()[2:]]


@pytest.mark.parametrize(("key", "other"), [("npo", "npo+alm"), ("saul_no_alm", "saul")])
def test_what_the_controller_adds_is_a_paired_t_interval(key: str, other: str) -> None:
    runs = [row(name, s, u) for name, us in ((key, PLAIN), (other, WITH)) for s, u in enumerate(us)]
    alone = [row("original", 0, 0.94), row("retain_only", 0, 0.93)]
    (found,) = cells(claims.gained(recorded(*alone, *runs)))
    oracle = stats.ttest_rel(WITH, PLAIN).confidence_interval(0.95)
    half = (oracle.high - oracle.low) / 2
    assert found[1:4] == ["0.620", "0.928", f"{oracle.low + half:+.3f} ± {half:.3f}"]


def test_a_part_is_compared_with_its_own_absence_under_one_target() -> None:
    runs = [row("saul", s, u) for s, u in enumerate(WITH)]
    runs += [row("saul_no_sam", s, u) for s, u in enumerate(PLAIN)]
    found = {line[0]: line[2] for line in cells(claims.differences(recorded(*runs)))}
    name = "SAUL − SAUL w/o SAM"
    assert found[name].startswith(f"{sum(WITH) / 3 - sum(PLAIN) / 3:+.3f} ±")
    assert set(found.values()) - {found[name]} == {"–"}, "nothing else was run"
