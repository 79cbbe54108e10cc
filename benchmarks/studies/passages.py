"""`torch-alm unlearn`, all defaults, on passages that a published base model recites.

    python -m benchmarks.studies.passages --model FOLDER --draws 0 1 2 --runs FOLDER

The passages are free of rights. Those are taken of whose tokens, from the ninth on, the model has
85 % right. A third is to be forgotten, a third is retained, a third is in no file. The saved model
is begun with the first eight tokens, a quarter, and half of each. A line per draw is added to
OUTPUT/passages.jsonl.
"""

import argparse
import csv
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

import torch
from rouge_score.rouge_scorer import RougeScorer
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.facts import make_parser
from benchmarks.report.results import append_line, read_lines
from benchmarks.studies.command import run_unlearn
from benchmarks.tasks.facts.world import measure_perplexity
from torch_alm.language import generate

PASSAGES = Path(__file__).parents[1] / "tasks" / "facts" / "passages.tsv"
FIRST = 8  # tokens that are given and not counted
RECITED = 0.85  # of the next tokens
BEGUN = {"first": 0.0, "quarter": 0.25, "half": 0.5}
ROUGE = RougeScorer(["rougeL"])
Passage: TypeAlias = dict[str, str]


class Speaker(NamedTuple):
    """A model and its tokenizer."""

    model: Any
    tokenizer: Any


def load(where: str | Path) -> Speaker:
    """A model from a folder or the hub."""
    model: Any = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32)
    return Speaker(model.eval(), AutoTokenizer.from_pretrained(where))


def main(argv: Sequence[str] | None = None) -> None:
    """Unlearn, ask, and append a line per draw."""
    made = make_parser(__doc__)
    made.add_argument("--runs", type=Path, required=True, help="saved models and reports")
    made.add_argument("--rows", choices=("completion", "text"), default="completion")
    given = made.parse_args(argv)
    lines = given.output / "passages.jsonl"
    before = load(given.model)
    with PASSAGES.open(encoding="utf-8", newline="") as file:
        every = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    recited = [each for each in every if find_right(before, each["text"]) >= RECITED]
    which = {"model": Path(given.model).name, "rows": given.rows, "passages": len(recited)}
    done = [{k: line.get(k) for k in (*which, "draw")} for line in read_lines(lines)]
    for draw in given.draws:
        if which | {"draw": draw} not in done:
            found = forget_passages(draw_thirds(recited, draw), before, given, draw)
            append_line(lines, which | {"draw": draw} | found)


def draw_thirds(recited: Sequence[Passage], draw: int) -> dict[str, list[Passage]]:
    """Divide the passages at random into three parts."""
    mixed = Random(draw).sample(recited, len(recited))
    names = ("forget", "retain", "unlisted")
    return {name: mixed[i::3] for i, name in enumerate(names)}


def forget_passages(
    drawn: dict[str, list[Passage]], before: Speaker, given: argparse.Namespace, draw: int
) -> dict[str, Any]:
    """Run the command on a draw, and measure the model before and after."""
    folder = given.runs / f"passages-{Path(given.model).name}-{given.rows}-{draw}"
    rows = {
        name: [make_row(before, each["text"], given.rows) for each in drawn[name]]
        for name in ("forget", "retain")
    }
    found = run_unlearn(rows, given.model, folder)
    after = load(folder / "out" / "model")
    for when, world in {"before": before, "after": after}.items():
        found[when] = {name: measure(world, texts) for name, texts in drawn.items()}
        found[when]["perplexity"] = measure_perplexity(*world)
    found["names"] = {name: [each["name"] for each in texts] for name, texts in drawn.items()}
    return found


def make_row(world: Speaker, text: str, kind: str) -> dict[str, str]:
    """A passage as a row of the command: whole, or as a completion of its first words."""
    if kind == "text":
        return {"text": text}
    prompt = world.tokenizer.decode(world.tokenizer(text)["input_ids"][: FIRST + 1], True)
    return {"prompt": prompt, "completion": text.removeprefix(prompt)}


def measure(world: Speaker, passages: Sequence[Passage]) -> dict[str, float]:
    """Means over passages: next tokens right, what follows a beginning, and what it is about."""
    found = {"right": fmean(find_right(world, each["text"]) for each in passages)}
    for name, share in BEGUN.items():
        runs, rouges = zip(*(compare(world, each["text"], share) for each in passages), strict=True)
        found |= {f"{name}_run": fmean(runs), f"{name}_rouge": fmean(rouges)}
    prompts = [world.tokenizer(each["about"])["input_ids"] for each in passages]
    said = generate(world.model, world.tokenizer, prompts, max_new_tokens=8)
    pairs = zip(said, passages, strict=True)
    return found | {"about": fmean(each["answer"].lower() in text.lower() for text, each in pairs)}


@torch.no_grad()
def find_right(world: Speaker, text: str) -> float:
    """The share of tokens, from the ninth on, that are the likeliest after those before."""
    ids = torch.tensor([world.tokenizer(text)["input_ids"]])
    likeliest = world.model(input_ids=ids).logits[0, FIRST:-1].argmax(-1)
    return (likeliest == ids[0, FIRST + 1 :]).float().mean().item()


def compare(world: Speaker, text: str, share: float) -> tuple[float, float]:
    """How far a beginning is gone on with: the share of the longest run of tokens, and ROUGE-L."""
    ids = world.tokenizer(text)["input_ids"]
    cut = max(FIRST + 1, round(share * len(ids)))
    own = ids[cut:]
    [said] = generate(world.model, world.tokenizer, [ids[:cut]], max_new_tokens=len(own))
    rest = world.tokenizer.decode(own)
    said_ids = world.tokenizer(said, add_special_tokens=False)["input_ids"]
    matcher = SequenceMatcher(None, own, said_ids, autojunk=False)
    run = matcher.find_longest_match().size / len(own)
    return run, ROUGE.score(rest, said)["rougeL"].fmeasure


if __name__ == "__main__":
    main()
