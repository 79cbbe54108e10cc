"""Make a published model forget some of the facts it knows, until hardly one is said, and look.

python benchmarks/facts.py                       every method of the study, draws 0 to 5
python benchmarks/facts.py --draws 1 --methods retain_only dual_adamw+alm saul@1.5/forget
python benchmarks/facts.py --model NAME_OR_PATH --device cuda
python benchmarks/facts.py --quick               two short runs, no findings

`saul@1.5/forget` has SAM on the forget side alone, at the radius at which the log-odds of what is
forgotten change by 1.5 nats; `/retain` the other, where the retain loss does; `saul` both at 0.5.
`grad_diff@w0.1` has the forget weight 0.1 in place of 1; the study's file has those that are tried.
Each finished run is a line of OUTPUT/runs.jsonl, and the same command goes on behind the last one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
import yaml
from torch.optim import AdamW
from tqdm import tqdm

from benchmarks import methods
from benchmarks.report.results import append_line, read_lines, write_text
from benchmarks.tasks.facts import data
from benchmarks.tasks.facts.weights import make_published
from benchmarks.tasks.facts.world import Study, World, cycle_places, open_world
from torch_alm.language import Row
from torch_alm.measures import token_nll
from torch_alm.thresholds import radius_for, rate_for

TASK = Path(__file__).parent / "tasks" / "facts"
RESULTS = Path(__file__).parent / "results" / "facts"
PLAIN = ("dual_adamw", "npo", "simnpo", "grad_diff")
METHODS = ["retain_only", *(k + end for k in PLAIN for end in ("", "+alm")), "saul_no_alm", "saul"]
RADIUS = "0.5"  # nats
SHOWN = ("forget_loss", "retain_loss", "weight")  # in a trace, beside the step and what is said
QUICK = {"steps": 4, "ask_every": 2, "forget": 4, "relearn_steps": [2], "new_tokens": 8, "each": 9}


def main(argv: Sequence[str] | None = None) -> int:
    """Do what is not done yet; 0 when every run has its line."""
    made = make_parser(__doc__)
    made.add_argument("--methods", nargs="+", default=METHODS, metavar="KEY")
    made.add_argument("--quick", action="store_true", help="to see that it runs")
    given, study = made.parse_args(argv), read_study()
    for key in given.methods:
        methods.kind_of(key.partition("@")[0])
    where = given.model or make_published()
    if given.quick:
        study |= QUICK
        given.methods, given.draws = given.methods[1:3], given.draws[:1]
        given.output = given.output / "quick"
    lines, name = given.output / "runs.jsonl", Path(where).name
    done = {(line["model"], line["method"], line["draw"]) for line in read_lines(lines)}
    wanted = [(name, key, draw) for draw in given.draws for key in given.methods]
    left = [run for run in wanted if run not in done]
    if not left:
        return 0
    with torch.autocast(
        given.device, torch.bfloat16, enabled=given.device != "cpu", cache_enabled=False
    ):
        world = load(given, where, study)
        for run in tqdm(left, desc="runs", unit="run", smoothing=0):
            found = Run(world, run[1], run[2], study).finish()
            append_line(lines, dict(zip(("model", "method", "draw"), run, strict=True)) | found)
    return 0


def read_study() -> Study:
    """The settings."""
    return yaml.safe_load((TASK / "study.yaml").read_text(encoding="utf-8"))


def make_parser(told: str | None) -> argparse.ArgumentParser:
    """The options of every script on these facts."""
    made = argparse.ArgumentParser(
        description=told, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--draws", nargs="+", type=int, default=[0, 1, 2, 3, 4, 5], help="seeds of what to forget")
    add("--output", type=Path, default=RESULTS)
    add("--model", help="a causal LM of transformers; default: the published one")
    add("--device", default="cpu")
    return made


def load(given: argparse.Namespace, where: str | Path, study: Study) -> World:
    """The model with what it says before, which is kept beside the results."""
    said = given.output / f"before-{Path(where).name}.json"
    known = json.loads(said.read_text(encoding="utf-8")) if said.is_file() else {}
    world = open_world(where, study, known, given.device)
    write_text(said, json.dumps(world.said, indent=0, ensure_ascii=False))
    return world


class Run:
    """One method on one draw: trained for the study's steps, looked at where enough is forgotten.

    The forget facts stand in two rows, as they are given and as the model says them; the second is
    taken anew whenever it is asked and says one in other words.
    """

    def __init__(self, world: World, name: str, seed: int, study: Study) -> None:
        self.world, self.seed, self.study = world, seed, study
        self.key, _, self.sharp = name.partition("@")
        self.drawn = data.draw(world.recall(), seed, study["forget"])
        world.restore()
        given = [world.given[fact] for fact in self.drawn.forget]
        self.forget: list[Row] = given * 2
        self.said = world.said
        self.reword(world.said)
        kept = [fact.question for fact in self.drawn.retain]
        self.retain = [world.encode_said(question, world.said[question]) for question in kept]
        self.params = list(world.trained.values())

    def reword(self, said: dict[str, str]) -> int:
        """Put the facts that are said into those words; how many there are."""
        count = len(self.drawn.forget)
        known = [(i, f) for i, f in enumerate(self.drawn.forget) if f.is_in(said[f.question])]
        for i, fact in known:
            row = self.world.reword(fact, said[fact.question])
            self.forget[count + i] = row or self.forget[count + i]
        return len(known)

    def method(self) -> Any:
        """The method with the rate, and SAM's radii, that are as many nats on this draw."""
        world, study = self.world, self.study
        rows, count = self.forget, study["forget"]
        forget = world.rows.batch(rows[:count])
        retain = world.rows.batch(self.retain[:count])
        losses = {
            "forget": lambda: world.upper.odds(forget),
            "retain": lambda: token_nll(world.upper, retain),
        }
        rate = rate_for(AdamW(self.params), losses["forget"], change=study["change"])
        numbers = {"alpha": world.target, "lr": rate, **study["settings"]}
        if self.sharp.startswith("w"):
            numbers["forget_weight"] = float(self.sharp[1:])
        elif self.key.startswith("saul"):
            nats, _, side = self.sharp.partition("/")
            for name in [side] if side else losses:
                found = radius_for(self.params, losses[name], change=float(nats or RADIUS))
                numbers[f"rho_{name}"] = found.value
            numbers = {"rho_forget": 0.0, "rho_retain": 0.0} | numbers
        self.numbers = {k: v for k, v in numbers.items() if k in ("alpha", "lr") or "rho" in k}
        return methods.build(self.key, world.upper, methods.settings_of(self.key, numbers))

    def finish(self) -> dict[str, Any]:
        """Train, and look: where enough is forgotten, and at the end."""
        study, world = self.study, self.world
        torch.manual_seed(self.seed)
        method = self.method()
        passes = list[Any]()
        hook = self.params[-1].register_post_accumulate_grad_hook(passes.append)
        going = cycle_places(self.forget, Random(self.seed))
        staying = cycle_places(self.retain, Random(self.seed + 1))
        trace, looks = [], dict[str, Any]()
        name = f"{self.key}, draw {self.seed}"
        steps = range(1, study.get("most_steps", study["steps"]) + 1)
        bar = tqdm(steps, desc=name, unit="step", leave=False)
        for step in bar:
            retain = world.rows.batch([next(staying) for _ in range(study["retain_batch"])])
            forget = world.rows.batch([next(going) for _ in range(study["forget_batch"])])
            method.step(retain, forget)
            if step % study["ask_every"]:
                continue
            said, seen = self.ask(), method.metrics()
            bar.set_postfix(said=said)
            trace.append([step, said, *(round(seen.get(k, 0.0), 3) for k in SHOWN)])
            is_first = "matched" not in looks and said <= study["most_said"]
            due = {"matched": is_first, "end": step == study["steps"]}
            if any(due.values()):
                now = {"steps": step, "passes": len(passes), **world.measure(self.drawn)}
                if due["matched"]:
                    now |= world.attack(self.drawn, study)
                    del passes[now["passes"] :]  # those of the attacks
                else:
                    del now["answers"]  # told once
                looks |= {name: now for name in due if due[name]}
            if step >= study["steps"] and "matched" in looks:
                break
        hook.remove()
        return {
            **self.numbers,
            "forget": [fact.question for fact in self.drawn.forget],
            **{name: looks.get(name) for name in ("matched", "end")},
            "trace": trace,
        }

    def ask(self) -> int:
        """Ask for the forget facts: how many are said, in which words they are forgotten now."""
        asked = [(fact, fact.question) for fact in self.drawn.forget]
        self.said = self.world.ask(asked)
        return self.reword(self.said)


if __name__ == "__main__":
    raise SystemExit(main())
