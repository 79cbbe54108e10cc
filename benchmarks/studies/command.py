"""Defaults of the command compared: `torch-alm unlearn` as a user types it, on small models.

python benchmarks/studies/command.py goals --data DIR      one method, several goals, three models
python benchmarks/studies/command.py methods --data DIR    every method, the default goal, one model

The models are made on the spot from TOFU's files, and differ in size and in what they know; beside
each stands one that never saw the forget rows, which says what *gone* looks like. Every run is the
command in a process of its own, and so is the attack on what it saved. A finished run is a line of
`results.jsonl` and is not repeated.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine.options import script_parser
from benchmarks.engine.scratch import Lesson, Recipe, teach
from benchmarks.engine.training import Schedule
from benchmarks.report.results import read_lines
from benchmarks.tasks.tofu.batches import encode_all
from benchmarks.tasks.tofu.data import Example, load_tofu

GOALS = {
    "alpha-4": ("--alpha", "4"),
    "certify-0.95": ("--certify", "0.95"),
    "holdout": ("--holdout", "holdout.jsonl"),
    "alpha-2": ("--alpha", "2"),
    "alpha-6": ("--alpha", "6"),
    "alpha-3": ("--alpha", "3"),
    "alpha-5": ("--alpha", "5"),
}
METHODS = {
    **{name: ("--method", name) for name in ("saul", "dual", "grad_diff", "npo", "simnpo")},
    **{f"{name}-lora": ("--method", name, "--lora") for name in ("saul", "grad_diff")},
    **{
        f"{name}-certify": ("--method", name, "--certify", "0.95") for name in ("saul", "grad_diff")
    },
}
ATTACKER = ("--relearn-lr", "1e-3")


@dataclass(frozen=True)
class Pupil:
    """A model and what it knows.

    Attributes:
        layers: Transformer blocks.
        width: Size of the hidden state.
        forget: Rows to forget, the first of the split.
        retain: Rows to keep.
        wordings: In how many wordings it was taught each question, 1 or 2.
    """

    layers: int
    width: int
    forget: int
    retain: int
    wordings: int = 1

    def recipe(self) -> Recipe:
        schedule = Schedule(60, batch_size=8, lr=2e-3, target=0.99)
        return Recipe("bpe", 1500, self.layers, self.width, 4, schedule)


PUPILS = {
    "narrow": Pupil(1, 96, forget=20, retain=60),
    "deep": Pupil(2, 128, forget=40, retain=120),
    "two-wordings": Pupil(2, 160, forget=20, retain=60, wordings=2),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Do the runs that are left, then write the table."""
    parser = script_parser("command.py", __doc__)
    parser.add_argument("part", choices=("goals", "methods"))
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="TOFU's files")
    parser.add_argument("--output", type=Path, default=Path("results") / "command", metavar="DIR")
    parser.add_argument("--pupils", nargs="+", choices=PUPILS, help="these models alone")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    kinds = GOALS if given.part == "goals" else METHODS
    names = given.pupils or (PUPILS if given.part == "goals" else ("deep",))
    folder = given.output / given.part
    folder.mkdir(parents=True, exist_ok=True)
    lines = folder / "results.jsonl"
    done = {(row["model"], row["run"]) for row in read_lines(lines)}
    for name in names:
        place = taught(given.output / "models" / name, PUPILS[name], given.data)
        for key, options in {"never saw": (), "original": (), **kinds}.items():
            if (name, key) not in done:
                row = {"model": name, "run": key, **run(place, folder / f"{name}-{key}", options)}
                with lines.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                (folder / "report.md").write_text(table(read_lines(lines)))
    return 0


def taught(place: Path, pupil: Pupil, data: Path) -> Path:
    """The folder with the original model, the one that never saw the rows, and their files."""
    if (place / "never saw").is_dir():
        return place
    tofu = load_tofu(data, "forget01")
    forget, retain = tofu.forget_eval[: pupil.forget], tofu.retain_eval[: pupil.retain]
    place.mkdir(parents=True, exist_ok=True)
    for name, rows in (("forget", forget), ("retain", retain), ("holdout", tofu.holdout)):
        (place / f"{name}.jsonl").write_text("".join(_line(row) for row in rows))
    texts = tuple(_texts((*forget, *retain, *tofu.holdout)))
    for name, known in (("original", (*forget, *retain)), ("never saw", retain)):
        rows = [each for row in known for each in _wordings(row, pupil.wordings)]
        lesson = Lesson(name, texts, [], lambda tokenizer, rows=rows: encode_all(tokenizer, rows))
        model, tokenizer = teach(lesson, pupil.recipe(), 0, f"{place.name}, {name}")
        model.save_pretrained(place / name)
        tokenizer.save_pretrained(place / name)
    return place


def run(place: Path, folder: Path, options: Sequence[str]) -> dict[str, Any]:
    """One run of the command, and what it left, asked in the usual way and under attack.

    Without options nothing is unlearned: the model of the folder's name is looked at.
    """
    files = [f"--{name}={place / name}.jsonl" for name in ("forget", "retain")]
    model = place / ("never saw" if folder.name.endswith("never saw") else "original")
    common = ("--device=cpu", "--quiet", "--json", "--rows=1000", "--force")
    options = [str(place / o) if o.endswith(".jsonl") else o for o in options]
    verb = ["unlearn", *options, *common] if options else ["evaluate", *common]
    told = command(*verb, f"--model={model}", f"--output={folder}", *files)
    saved = folder / "model" if options else model
    attack = ("attack", *ATTACKER, *common, f"--model={saved}", f"--output={folder}-attack")
    numbers = told["numbers"]["after" if options else "model"]
    found = {
        "outcome": told["outcome"],
        "notes": told["notes"],
        "forget": numbers["forget"],
        "retain": numbers["retain"],
        "attacks": {
            row["name"]: row["after"] for row in command(*attack, *files)["attacks"]["model"]
        },
    }
    report = json.loads((folder / "report.json").read_text())
    return {**found, "steps": len(report["trace"]), "seconds": report["run"]["seconds"]}


def command(*words: str) -> dict[str, Any]:
    """The line of JSON that the command prints.

    Raises:
        RuntimeError: it has refused.
    """
    done = subprocess.run(
        [sys.executable, "-m", "torch_alm", *words], capture_output=True, text=True
    )
    told = json.loads(done.stdout) if done.stdout else {"code": 2, "text": done.stderr}
    if told["code"] not in (0, 3, 4):
        raise RuntimeError(f"torch-alm {' '.join(words)}: {told['text']}")
    return told


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """All runs below one another, shares in percent."""
    head = ("model", "run", "outcome", "steps", "loss", "verbatim", "words", "ES", "paraphrase",
            "prefix", "relearned", "retain verbatim", "retain words")  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * 3 + " ---: |" * (len(head) - 3)]
    for row in rows:
        forget, retain, attacks = row["forget"], row["retain"], row["attacks"]
        came = (attacks[key]["rouge"] for key in ("paraphrase", "answer prefix", "relearn forget"))
        shares = (forget["exact_match"], forget["rouge"], forget["extraction_strength"], *came,
                  retain["exact_match"], retain["rouge"])  # fmt: skip
        told = (row["model"], row["run"], row["outcome"], row["steps"], f"{forget['loss']:.2f}")
        lines.append(
            "| " + " | ".join(map(str, (*told, *(f"{100 * s:.0f} %" for s in shares)))) + " |"
        )
    return "\n".join(lines) + "\n"


def _wordings(row: Example, count: int) -> list[Example]:
    asked = (row.question, row.paraphrased_question)[:count]
    return [Example(question, row.answer) for question in asked if question is not None]


def _texts(rows: Sequence[Example]) -> Iterator[str]:
    for row in rows:
        for each in _wordings(row, 2):
            yield f"Question: {each.question}\nAnswer: {each.answer}"


def _line(row: Example) -> str:
    more = {"paraphrased_question": row.paraphrased_question} if row.paraphrased_question else {}
    return json.dumps({"question": row.question, "answer": row.answer, **more}) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
