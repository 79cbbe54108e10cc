"""`torch-alm unlearn`, all defaults, on facts that a published model knows, and what it costs.

    python -m benchmarks.studies.command --draws 5 6 7 8 9 --runs FOLDER [--model FOLDER]

It is given the forget facts and the retain facts of a draw, one wording each. The saved model is
then loaded with transformers and asked; rewordings and unseen facts were in none of its files. At
last it is trained on three of the forgotten facts, ten steps of half a nat each, and asked the
others. A line per draw is added to OUTPUT/command.jsonl.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.facts import make_parser, read_study
from benchmarks.report.results import append_line, read_lines
from benchmarks.tasks.facts import data
from benchmarks.tasks.facts.weights import make_published
from benchmarks.tasks.facts.world import open_world


def main(argv: Sequence[str] | None = None) -> None:
    """Unlearn, ask, and append a line per draw."""
    made = make_parser(__doc__)
    made.add_argument("--runs", type=Path, required=True, help="saved models and reports")
    given = made.parse_args(argv)
    whole, lines = Path(given.model or make_published()), given.output / "command.jsonl"
    study = read_study() | {"new_tokens": 24}
    before = open_world(whole, study, {})
    done = {(line["model"], line["draw"]) for line in read_lines(lines)}
    for draw in [draw for draw in given.draws if (whole.name, draw) not in done]:
        drawn, folder = data.draw(before.recall(), draw, study["forget"]), given.runs / str(draw)
        found = run_command(drawn, whole, folder)
        after = open_world(folder / "out" / "model", study, before.said)
        seen = after.measure(drawn) | after.relearn(drawn, study)
        append_line(lines, {"model": whole.name, "draw": draw, **found, **seen})


def run_command(drawn: data.Draw, whole: Path, folder: Path) -> dict[str, float]:
    """Run the command on a draw; its code, steps, minutes, and the most memory of a run so far."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "torch_alm", "unlearn", "--model", str(whole)]
    for name in ("forget", "retain"):
        rows = [{"question": f.question, "answer": f.answer} for f in getattr(drawn, name)]
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        words += [f"--{name}", str(path)]
    begun = time.monotonic()
    code = subprocess.run([*words, "--output", str(folder / "out")], check=False).returncode
    minutes = round((time.monotonic() - begun) / 60, 1)
    found = json.loads((folder / "out" / "report.json").read_text(encoding="utf-8"))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9
    steps = len(found["trace"])
    return {"code": code, "steps": steps, "minutes": minutes, "GB": round(peak, 1)}


if __name__ == "__main__":
    main()
