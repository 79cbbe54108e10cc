"""Cheaper ways to SAM's gradient: what they cost, and how near they come.

    python -m benchmarks.studies.cheaper_sam [--radii 0.01 0.03 0.1] [--epochs 5] [--output FOLDER]

SAUL on the embedded world of TOFU's benchmark, each side with full SAM. In every step the gradients
of the cheaper ways are computed beside SAM's, at the same weights and on the same batch, and do not
move anything. *plain* is the gradient at theta. *every=k* moves by the direction that was found
every k steps, as `SAM(every=k)` does. *part* finds delta on the first two of eight examples (as in
ESAM, Du et al. 2022), *look* is LookSAM (Liu et al. 2022): the plain gradient, and what SAM's had
at right angles to it k steps ago. Passes are those of one side, forward and backward; a plain
gradient takes one. *Cosine* is that of the gradient with SAM's, *of the change* that of what is
added to the plain gradient; medians over steps. The second table has whole runs: what is left at
the end, medians and ranges over seeds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks import tofu
from benchmarks.methods.method import Batch
from benchmarks.methods.saul import SAUL
from benchmarks.report import tables
from benchmarks.report.results import RECORDED, Row, read_lines
from benchmarks.studies.evidence.plan import GATE
from torch_alm.unlearning.files import write_text

EVERY, PART = (2, 3, 5), 2
RUNS = {  # at a radius where it matters
    "full SAM": ["rho_retain=0.03", "rho_forget=0.03"],
    "every=3": ["rho_retain=0.03", "rho_forget=0.03", "sam_every=3"],
    "no perturbation": ["rho_retain=0", "rho_forget=0"],
}
NUMBERS = ("forget_probability", "retain_probability", "model_utility", "gate_open")
Loss = Callable[[], Tensor]
Key = tuple[str, str, str]


class Side:
    """One side's gradients, and what was kept of earlier steps."""

    def __init__(self, params: list[nn.Parameter], rho: float) -> None:
        self.params, self.rho, self.steps = params, rho, 0
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def gradient(self, loss: Loss) -> Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss(), self.params)])

    def perturbed(self, loss: Loss, direction: Tensor) -> Tensor:
        """The gradient a radius away from theta, which comes back."""
        saved = [p.detach().clone() for p in self.params]
        moves = (self.rho * direction / direction.norm()).split([p.numel() for p in self.params])
        with torch.no_grad():
            for p, move in zip(self.params, moves, strict=True):
                p.add_(move.view_as(p))
        try:
            return self.gradient(loss)
        finally:
            with torch.no_grad():
                for p, value in zip(self.params, saved, strict=True):
                    p.copy_(value)

    def ways(self, loss: Loss, part: Loss) -> Iterator[tuple[str, float, Tensor, Tensor, Tensor]]:
        """Name, passes, gradient, and the plain and SAM's gradient of this step."""
        g = self.gradient(loss)
        sam = self.perturbed(loss, g)
        yield "plain", 1.0, g, g, sam
        yield f"part, {PART} of 8", 1 + PART / 8, self.perturbed(loss, self.gradient(part)), g, sam
        for k in EVERY:
            if self.steps % k == 0 or k not in self.kept:
                across = sam - (sam @ g) / (g @ g) * g
                self.kept[k] = g, across / g.norm()
                continue
            direction, across = self.kept[k]
            yield f"every={k}", 1 + 1 / k, self.perturbed(loss, direction), g, sam
            yield f"look, {k}", 1 + 1 / k, g + g.norm() * across, g, sam
        self.steps += 1


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()).clamp(min=1e-30))


def compared(rho: float, epochs: int) -> list[list[str]]:
    """The table's rows for one radius."""
    found: dict[Key, list[tuple[float, float]]] = defaultdict(list)
    sides: dict[str, Side] = {}
    step = SAUL.step

    def watched(self: Any, retain: Batch, forget: Batch) -> None:
        params = [p for p in self.model.parameters() if p.requires_grad]
        losses = {"retain": (self.kept, retain, rho), "forget": (self.forgotten, forget, -rho)}
        for name, (loss, batch, radius) in losses.items():
            side = sides.setdefault(name, Side(params, radius))
            few = {key: value[:PART] for key, value in batch.items()}
            for way, passes, mine, g, sam in side.ways(
                lambda loss=loss, batch=batch: loss(batch), lambda loss=loss, few=few: loss(few)
            ):
                pair = cosine(mine, sam), cosine(mine - g, sam - g)
                found[name, way, f"{passes:.2f}"].append(pair)
        step(self, retain, forget)

    with patch.object(SAUL, "step", watched):
        ran([f"rho_retain={rho}", f"rho_forget={rho}"], 1, epochs)
    return [[f"{rho:g}", *key, *medians(pairs)] for key, pairs in sorted(found.items())]


def medians(pairs: list[tuple[float, float]]) -> list[str]:
    return [f"{statistics.median(column):.3f}" for column in zip(*pairs, strict=True)]


def ended(name: str, changes: list[str], seeds: int, epochs: int) -> list[str]:
    """One row of the second table."""
    lines = ran(changes, seeds, epochs)
    return [name, *(spread([line[number] for line in lines]) for number in NUMBERS)]


def ran(changes: list[str], seeds: int, epochs: int) -> list[Row]:
    """Run SAUL on the embedded world; a line of results per seed."""
    arguments = ["--methods", "saul", "--seeds", str(seeds), "--epochs", str(epochs)]
    arguments += ["--alpha", "2.5", "--no-control", "--lr", "1e-3", *GATE]
    arguments += [word for change in changes for word in ("--set", change)]
    with tempfile.TemporaryDirectory() as folder:
        tofu.main([*arguments, "--output", folder])
        return [x for x in read_lines(Path(folder, "results.jsonl")) if x["method"] == "saul"]


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def report(rows: list[list[str]], runs: list[list[str]], epochs: int) -> str:
    names = ["rho", "side", "way", "passes", "cosine", "of the change"]
    return "\n".join(
        [
            "# Cheaper ways to SAM's gradient\n",
            "Written by `python -m benchmarks.studies.cheaper_sam`, which says what the columns",
            f"are: SAUL on the embedded world, {epochs} epochs. Full SAM takes 2 passes, and its",
            "cosine is 1.\n",
            tables.markdown(names, rows, "---"),
            "\nWhole runs, twice as long:\n",
            tables.markdown(["SAUL", *NUMBERS], runs, "---"),
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--radii", type=float, nargs="+", default=[0.01, 0.03, 0.1])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RECORDED)
    given = parser.parse_args(arguments)
    rows = [row for rho in given.radii for row in compared(rho, given.epochs)]
    runs = [ended(name, sets, given.seeds, 2 * given.epochs) for name, sets in RUNS.items()]
    write_text(given.output / "cheaper_sam.md", text := report(rows, runs, given.epochs) + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
