"""`torch-alm unlearn`, all defaults, on facts that the published model knows, and what it costs.

    python -m benchmarks.studies.command --draws 1 2 3 4 5 --runs FOLDER

It is given the forget facts and the retain facts of a draw, one wording each. The saved model is
then asked with transformers alone; rewordings and unseen facts were in none of its files. At last
it is trained on three of the forgotten facts, as in `benchmarks/facts.py`, and asked the others.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.facts import RESULTS, TASK, trained
from benchmarks.report.results import append_line, read_lines
from benchmarks.tasks.facts import data
from benchmarks.tasks.facts.weights import published
from benchmarks.tasks.facts.world import World

LINES = RESULTS / "command.jsonl"


def main(argv: Sequence[str] | None = None) -> None:
    """Unlearn, ask, and append a line per draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", nargs="+", type=int, default=[1])
    parser.add_argument("--runs", type=Path, required=True, help="models of 540 MB and reports")
    given = parser.parse_args(argv)
    facts, done = data.read_facts(), {line["draw"] for line in read_lines(LINES)}
    questions = [text for fact in facts for text in (fact.question, fact.rewording)]
    said = dict(zip(questions, asked(published(), questions), strict=True))
    known = [fact for fact in facts if fact.is_in(said[fact.question])]
    for draw in [draw for draw in given.draws if draw not in done]:
        drawn, folder = data.draw(known, draw, 12), given.runs / str(draw)
        model = folder / "out" / "model"
        found = {**unlearned(drawn, folder), **seen(drawn, model, said)}
        append_line(LINES, {"draw": draw, **found, "relearned_said": relearned(drawn, model, said)})


def unlearned(drawn: data.Draw, folder: Path) -> dict[str, float]:
    """Run the command on a draw; its code, steps, minutes, and the most memory of a run so far."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "torch_alm", "unlearn", "--model", str(published())]
    for name in ("forget", "retain"):
        rows = [
            {"question": fact.question, "answer": f"{fact.before} {fact.gold}."}
            for fact in getattr(drawn, name)
        ]
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        words += [f"--{name}", str(path)]
    begun = time.monotonic()
    code = subprocess.run([*words, "--output", str(folder / "out")], check=False).returncode
    minutes = (time.monotonic() - begun) / 60
    found = json.loads((folder / "out" / "report.json").read_text(encoding="utf-8"))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9
    return {
        "code": code,
        "steps": len(found["trace"]),
        "minutes": round(minutes, 1),
        "GB": round(peak, 1),
    }


def seen(drawn: data.Draw, model: Path, said: Mapping[str, str]) -> dict[str, float]:
    """The shares of facts that a saved model says, of those that were `said` before."""
    found: dict[str, float] = {}
    kinds = {fact.kind for fact in drawn.forget}
    for name, facts, key in (
        ("forget", drawn.forget, "question"),
        ("reworded", drawn.forget, "rewording"),
        ("retain", drawn.retain, "question"),
        ("neighbours", drawn.neighbours, "question"),
        ("kin", [fact for fact in drawn.neighbours if fact.kind in kinds], "question"),
    ):
        known = [fact for fact in facts if fact.is_in(said[getattr(fact, key)])]
        now = asked(model, [getattr(fact, key) for fact in known])
        kept = sum(fact.is_in(text) for fact, text in zip(known, now, strict=True))
        found[f"{name}_said"] = round(kept / len(known), 3)
    return found


def relearned(drawn: data.Draw, path: Path, said: Mapping[str, str]) -> float:
    """The share of the other forget facts that is said after steps on the first few of them."""
    study = yaml.safe_load((TASK / "study.yaml").read_text(encoding="utf-8"))
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    trained(model, study["layers"], 0)
    tokenizer = AutoTokenizer.from_pretrained(path)
    facts, layers, tokens = data.read_facts(), study["layers"], study["new_tokens"]
    world = World(model, tokenizer, facts, layers, tokens, dict(said))
    rows, steps = study["relearn_rows"], study["relearn_steps"]
    return round(world.relearned(drawn, rows, steps, study["settings"]["lr"]), 3)


@torch.no_grad()
def asked(path: Path, questions: Sequence[str], new: int = 24, size: int = 64) -> list[str]:
    """What a saved model answers, with the template and `generate` of transformers, greedily."""
    tokenizer: Any = AutoTokenizer.from_pretrained(path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    turns = [[{"role": "user", "content": question}] for question in questions]
    texts = [tokenizer.apply_chat_template(t, add_generation_prompt=True, tokenize=False)
             for t in turns]  # fmt: skip
    answers: list[str] = []
    for i in range(0, len(texts), size):
        part = tokenizer(texts[i : i + size], return_tensors="pt", padding=True,
                         add_special_tokens=False)  # fmt: skip
        out = model.generate(**part, max_new_tokens=new, do_sample=False)
        behind = out[:, part["input_ids"].shape[1] :]
        answers += tokenizer.batch_decode(behind, skip_special_tokens=True)
    return answers


if __name__ == "__main__":
    main()
