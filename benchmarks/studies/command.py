"""`torch-alm unlearn`, all defaults, on facts that a published model knows, and what it costs.

    python -m benchmarks.studies.command --draws 5 6 7 8 9 --runs FOLDER [--model FOLDER]

It is given the forget facts and the retain facts of a draw, one wording each. The saved model is
then asked with transformers alone, in its chat template or, if it has none, as the command asks
it; rewordings and unseen facts were in none of its files. At last it is trained on three of the
forgotten facts, ten steps of half a nat each, and asked the others.
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
from torch.optim import AdamW
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.facts import RESULTS, trained
from benchmarks.report.results import append_line, read_lines
from benchmarks.tasks.facts import data
from benchmarks.tasks.facts.weights import published
from torch_alm.language import collate, pad_id
from torch_alm.measures import token_nll
from torch_alm.thresholds import rate_for

LINES = RESULTS / "command.jsonl"


def main(argv: Sequence[str] | None = None) -> None:
    """Unlearn, ask, and append a line per draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", nargs="+", type=int, default=[1])
    parser.add_argument("--runs", type=Path, required=True, help="saved models and reports")
    parser.add_argument("--model", type=Path, help="a folder of transformers; else SmolLM2")
    parser.add_argument("--lines", type=Path, default=LINES, help="a line per draw is added to it")
    given = parser.parse_args(argv)
    whole = given.model or published()
    facts, done = data.read_facts(), {(x["model"], x["draw"]) for x in read_lines(given.lines)}
    questions = [text for fact in facts for text in (fact.question, fact.rewording)]
    said = dict(zip(questions, asked(whole, questions), strict=True))
    known = [fact for fact in facts if fact.is_in(said[fact.question])]
    for draw in [draw for draw in given.draws if (whole.name, draw) not in done]:
        drawn, folder = data.draw(known, draw, 12), given.runs / str(draw)
        model = folder / "out" / "model"
        found = {**unlearned(drawn, whole, folder), **seen(drawn, model, said)}
        found |= {"relearned_said": relearned(drawn, model)}
        append_line(given.lines, {"model": whole.name, "draw": draw, **found})


def unlearned(drawn: data.Draw, whole: Path, folder: Path) -> dict[str, float]:
    """Run the command on a draw; its code, steps, minutes, and the most memory of a run so far."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "torch_alm", "unlearn", "--model", str(whole)]
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


def relearned(drawn: data.Draw, path: Path, rows: int = 3, steps: int = 10) -> float:
    """The share of the other forget facts that is said after steps on the first few of them."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    trained(model, model.config.num_hidden_layers // 2, 0)
    given = [data.gold_row(tokenizer, fact) for fact in drawn.forget[:rows]]
    batch = collate(given, pad_id(tokenizer))
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], weight_decay=0.0)
    optimizer.param_groups[0]["lr"] = rate_for(
        optimizer, lambda: token_nll(model, batch), change=0.5
    )
    for _ in range(steps):
        token_nll(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    others = drawn.forget[rows:]
    said = answered(model, tokenizer, [fact.question for fact in others])
    return round(sum(f.is_in(text) for f, text in zip(others, said, strict=True)) / len(others), 3)


def asked(path: Path, questions: Sequence[str]) -> list[str]:
    """What a saved model answers."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    return answered(model, AutoTokenizer.from_pretrained(path), questions)


@torch.no_grad()
def answered(model: Any, tokenizer: Any, questions: Sequence[str], size: int = 64) -> list[str]:
    """Ask with the template and `generate` of transformers, greedily; no question is an answer."""
    tokenizer.padding_side, answers = "left", []
    for i in range(0, len(questions), size):
        part = [prompt(tokenizer, question) for question in questions[i : i + size]]
        is_chat = tokenizer.chat_template is not None
        texts = tokenizer(part, return_tensors="pt", padding=True, add_special_tokens=not is_chat)
        out = model.generate(**texts, max_new_tokens=24, do_sample=False)
        behind = out[:, texts["input_ids"].shape[1] :]
        answers += tokenizer.batch_decode(behind, skip_special_tokens=True)
    return [text.partition("Question:")[0] for text in answers]


def prompt(tokenizer: Any, question: str) -> str:
    """A question in the chat template, or as a base model is asked."""
    if tokenizer.chat_template is None:
        return f"Question: {question}\nAnswer:"
    turn = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)


if __name__ == "__main__":
    main()
