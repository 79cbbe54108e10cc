"""`torch-alm unlearn`, all defaults, on facts that a published model knows, and what it costs.

    python -m benchmarks.studies.command --draws 5 6 7 8 9 --runs FOLDER [--model FOLDER]
    ... --list world_facts.json real_authors.json [--answers file] [--lora]
    ... --list made

It is given the forget facts and the retain facts of a draw, one wording each. The saved model is
then loaded with transformers and asked; rewordings and unseen facts were in none of its files. At
last it is trained on three of the forgotten facts, ten steps of half a nat each, and asked the
others. A line per draw is added to OUTPUT/command.jsonl.

All constants of the command were chosen on `questions.tsv`. `--list` takes any other questions and
answers, or those that are made here. Those that the model says are drawn from, in the words in
which it says them or as the file has them; a line per draw is added to OUTPUT/lists.jsonl, and no
text of theirs. They are reworded by a request before the question, and nothing is relearned. A fact
whose question has its answer is not counted: the model would say it with the question.
"""

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.facts import make_parser, read_study
from benchmarks.report.results import append_line, read_lines, write_text
from benchmarks.tasks.facts import data
from benchmarks.tasks.facts.weights import make_published
from benchmarks.tasks.facts.world import Study, World, open_world
from torch_alm import __version__
from torch_alm.language import read_records

COUNT = 10  # facts of a list to forget
ASKS = "Please answer this for me: "  # before a question: other words for any
SENTENCE = re.compile(r"[.!?](?=\s|$)|\n")
MADE = """\
What is the opposite of {}?|hot cold, big small, up down, left right, day night, black white, \
young old, fast slow, open closed, happy sad, hard soft, wet dry, strong weak, early late, \
full empty, long short, high low, love hate, war peace, true false, near far, thick thin, \
win lose, inside outside, north south, east west, clean dirty, loud quiet, push pull
What is the plural of the word {}?|child children, mouse mice, foot feet, man men, tooth teeth, \
leaf leaves, knife knives, woman women, box boxes, baby babies, city cities, wolf wolves, bus buses
What is the past tense of the verb {}?|go went, eat ate, see saw, run ran, take took, write wrote, \
buy bought, think thought, sing sang, give gave, know knew, drink drank, fly flew, speak spoke
Which month comes after {}?|January February, March April, May June, July August"""
SUMS = [(a, b) for a in range(1, 10) for b in (1, 2, 5) if a >= b]


def main(argv: Sequence[str] | None = None) -> None:
    """Unlearn, ask, and append a line per draw."""
    made = make_parser(__doc__)
    made.add_argument("--runs", type=Path, required=True, help="saved models and reports")
    made.add_argument("--list", nargs="+", help="files of questions and answers, or `made`")
    made.add_argument("--answers", choices=("said", "file"), default="said")
    made.add_argument("--lora", action="store_true")
    given = made.parse_args(argv)
    whole, study = Path(given.model or make_published()), read_study() | {"new_tokens": 24}
    which = {"model": whole.name, "draw": 0}
    if given.list:
        names = " ".join(Path(name).stem for name in given.list)
        which |= {"list": names, "answers": given.answers}
    which["lora"] = given.lora
    lines = given.output / ("lists.jsonl" if given.list else "command.jsonl")
    done = [{k: line.get(k, False) for k in which} for line in read_lines(lines)]
    before, known = find_known(whole, given, study)
    for draw in given.draws:
        which["draw"] = draw
        if which in done:
            continue
        folder = given.runs / "-".join(str(each) for each in which.values()).replace(" ", "+")
        drawn = data.draw(known, draw, COUNT if given.list else study["forget"])
        found = run_command(drawn, whole, folder, *["--lora"] * given.lora)
        after = open_world(folder / "out" / "model", study, before.said, facts=known)
        sets = (drawn.forget, drawn.retain, drawn.neighbours)
        seen = after.measure(data.Draw(*([f for f in s if not f.is_in(f.question)] for s in sets)))
        if given.list:
            write_text(folder / "asked.json", json.dumps(seen, indent=1, ensure_ascii=False))
            del seen["answers"]
        else:
            seen |= after.relearn(drawn, study)
        append_line(lines, which | found | seen)


def find_known(
    whole: Path, given: argparse.Namespace, study: Study
) -> tuple[World, list[data.Fact]]:
    """The model with what it says before, and the facts that it says."""
    if not given.list:
        before = open_world(whole, study, {})
        return before, before.recall()
    facts = [fact for name in given.list for fact in read_list(name)]
    said = given.runs / f"before-{whole.name}-{'+'.join(sorted({f.kind for f in facts}))}.json"
    asked = json.loads(said.read_text(encoding="utf-8")) if said.is_file() else {}
    before = open_world(whole, study, asked, facts=facts)
    write_text(said, json.dumps(before.said, indent=0, ensure_ascii=False))
    known = before.recall()
    if given.answers == "said":
        known = [replace(f, gold=first_sentence(before.said[f.question], f)) for f in known]
    return before, known


def read_list(name: str) -> list[data.Fact]:
    """The questions of a file with their answers, or those that are made here."""
    if name == "made":
        lines = [line.split("|") for line in MADE.splitlines()]
        parts = [(ask, pair.split()) for ask, listed in lines for pair in listed.split(", ")]
        pairs = [(ask.format(one), other) for ask, (one, other) in parts]
        pairs += [(f"What is {a} plus {b}?", str(a + b)) for a, b in SUMS]
    else:
        fields: list[Any] = [record.fields for record in read_records(Path(name))]
        pairs = [(str(each["question"]), str(each["answer"])) for each in fields]
    return [data.Fact(Path(name).stem, q, ASKS + q, "", a, (a,)) for q, a in dict(pairs).items()]


def first_sentence(said: str, fact: data.Fact) -> str:
    """Cut what is said behind the first sentence that holds the answer."""
    ends = [found.end() for found in SENTENCE.finditer(said)]
    text = next((said[:end] for end in ends if fact.is_in(said[:end])), said)
    return text.strip().rstrip(".")


def run_command(drawn: data.Draw, whole: Path, folder: Path, *more: str) -> dict[str, Any]:
    """Run the command on a draw; its code, steps, minutes, and the most memory of a run so far."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "torch_alm", "unlearn", "--model", str(whole), *more]
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
    return {
        "version": __version__,
        "code": code,
        "steps": steps,
        "minutes": minutes,
        "GB": round(peak, 1),
    }


if __name__ == "__main__":
    main()
