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
ALPHAS = ("1.0", "2.5", "3.5")
BEFORE = ("--lr", "1e-3", *GATE)


def whole_runs(quick: bool) -> list[dict[str, Any]]:
    """Seconds of training relative to Dual AdamW, seed by seed, and the gate.

    For several thresholds of the preset before, a gate; and for the present one, with aimed steps.
    """
    alphas, seeds = (ALPHAS[:1], 1) if quick else (ALPHAS, 3)
    gate = [
        row(
            f"SAUL, alpha={alpha}, probe_every={every}",
            ran([*BEFORE, "--alpha", alpha, "--set", f"probe_every={every}"], seeds, quick),
        )
        for alpha in alphas
        for every in PROBES
    ]
    present = ran([], seeds, quick, "dual_adamw,dual_adamw+alm,saul")
    return [
        *gate,
        row("Dual AdamW + ALM, the preset: aimed", present, "dual_adamw+alm"),
        row("SAUL, the preset: aimed", present),
    ]


def ran(
    extra: list[str], seeds: int, quick: bool, methods: str = "dual_adamw,saul"
) -> list[dict[str, Any]]:
    """The lines of results of all methods; one follows the other for every seed."""
    with TemporaryDirectory() as folder:
        output = Path(folder, "results")
        arguments = ["--methods", methods, "--seeds", str(seeds), "--epochs", "20"]
        arguments += ["--output", str(output), *extra, *["--quick"] * quick]
        if tofu.main(arguments) != 0:
            raise RuntimeError("whole_runs: the TOFU benchmark failed; see its message above.")
        return read_lines(output / "results.jsonl")


def row(name: str, lines: list[dict[str, Any]], method: str = "saul") -> dict[str, Any]:
    """The table's row: medians over seeds."""
    base, mine = ([r for r in lines if r["method"] == key] for key in ("dual_adamw", method))
    ratios = [a["seconds"] / b["seconds"] for a, b in zip(mine, base, strict=True)]
    is_open = statistics.mean(line["gate_open"] for line in mine)
    return {
        "method": name,
        "gate open": is_open,
        "seconds": statistics.median(line["seconds"] for line in mine),
        "ratio": statistics.median(ratios),
        "target": TARGET if is_open <= RARELY_OPEN else None,
    }
