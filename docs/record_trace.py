"""Keep one run's numbers per step where the documentation draws them.

    python docs/record_trace.py FOLDER METHOD OUTPUT.json [--seed 0]

FOLDER is a results folder of a benchmark. OUTPUT receives the settings of the method and, for each
step, the numbers of its trace: nothing of the texts.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

KEPT = ("forget_loss", "retain_loss", "weight", "lambda", "violation")
SETTINGS = ("alpha", "mu", "multiplier", "lr", "epochs", "batch_size", "rho_forget", "rho_retain")


def record(folder: Path, method: str, seed: int) -> dict[str, Any]:
    """Settings and, per quantity, one number per step; where a step measured nothing, null.

    Raises:
        ValueError: The folder holds no such run.
    """
    path = folder / "traces" / f"{method}-seed{seed}.jsonl"
    if not path.exists():
        raise ValueError(f"{path} does not exist. Did that method run with that seed?")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    known = json.loads((folder / "settings.json").read_text())
    return {
        "benchmark": known["benchmark"],
        "split": known["split"],
        "method": method,
        "seed": seed,
        "settings": {name: known["methods"][method][name] for name in SETTINGS},
        "steps": {name: [row.get(name) for row in rows] for name in KEPT},
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Write the record of one run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("method")
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    try:
        found = record(given.folder, given.method, given.seed)
    except ValueError as error:
        parser.error(str(error))
    draft = given.output.with_name(f".{given.output.name}")
    draft.write_text(json.dumps(found, indent=1) + "\n")
    os.replace(draft, given.output)


if __name__ == "__main__":
    main()
