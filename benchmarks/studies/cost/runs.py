"""The cost of a whole run: SAUL against Dual AdamW of the same length on the embedded world."""

from __future__ import annotations

import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import tofu
from benchmarks.report.results import read_lines
from benchmarks.studies.evidence.plan import GATE

RARELY_OPEN = 0.2
"""Up to this share of steps with an open gate a run is held to the target."""

TARGET = 1.20
PROBES = ("auto", 1, 8, 16)
ALPHAS = ("1.0", "2.5")


def whole_runs(quick: bool) -> list[dict[str, Any]]:
    """Per threshold: seconds of training relative to Dual AdamW, seed by seed, and the gate."""
    alphas, seeds = (ALPHAS[:1], 1) if quick else (ALPHAS, 3)
    return [
        row(
            f"SAUL, alpha={alpha}, probe_every={every}",
            ran(["--alpha", alpha, "--set", f"probe_every={every}"], seeds, quick),
        )
        for alpha in alphas
        for every in PROBES
    ]


def ran(extra: list[str], seeds: int, quick: bool) -> list[dict[str, Any]]:
    """The lines of results of both methods; one follows the other for every seed."""
    with TemporaryDirectory() as folder:
        output = Path(folder, "results")
        arguments = ["--methods", "dual_adamw,saul", "--seeds", str(seeds), "--epochs", "20"]
        arguments += ["--lr", "1e-3", *GATE]
        arguments += ["--output", str(output), *extra, *["--quick"] * quick]
        if tofu.main(arguments) != 0:
            raise RuntimeError("whole_runs: the TOFU benchmark failed; see its message above.")
        return read_lines(output / "results.jsonl")


def row(name: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The table's row: medians over seeds."""
    found = {
        key: [line for line in lines if line["method"] == key] for key in ("dual_adamw", "saul")
    }
    base, mine = found["dual_adamw"], found["saul"]
    ratios = [a["seconds"] / b["seconds"] for a, b in zip(mine, base, strict=True)]
    is_open = statistics.mean(line["gate_open"] for line in mine)
    return {
        "method": name,
        "gate open": is_open,
        "seconds": statistics.median(line["seconds"] for line in mine),
        "ratio": statistics.median(ratios),
        "target": TARGET if is_open <= RARELY_OPEN else None,
    }
