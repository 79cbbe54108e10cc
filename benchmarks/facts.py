"""Make a published chat model forget some of the facts it knows, and see what else it loses.

python benchmarks/facts.py                               one draw, Dual AdamW with and without +ALM
python benchmarks/facts.py --draws 1 2 3 4 5 --methods retain_only dual_adamw+alm npo saul
python benchmarks/facts.py --kind landmark --methods dual_adamw+alm --set steps=15
python benchmarks/facts.py --model NAME_OR_PATH --layers 20 --device cuda

Each finished run is a line of OUTPUT/runs.jsonl, and the same command goes on behind the last one.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import yaml
from tqdm import tqdm

from benchmarks import methods
from benchmarks.report.results import append_line, read_lines
from benchmarks.tasks.facts import data
from benchmarks.tasks.facts.weights import published
from benchmarks.tasks.facts.world import World

TASK = Path(__file__).parent / "tasks" / "facts"
RESULTS = Path(__file__).parent / "results" / "facts"


def main(argv: Sequence[str] | None = None) -> int:
    """Do what is not done yet; 0 when every run has its line."""
    given = parser().parse_args(argv)
    study = yaml.safe_load((TASK / "study.yaml").read_text(encoding="utf-8"))
    overrides = overridden(given, study)
    lines = given.output / "runs.jsonl"
    done = {run_name(line) for line in read_lines(lines)}
    wanted = [
        {"method": key, "draw": seed, "kind": given.kind, "overrides": overrides}
        for seed in given.draws
        for key in given.methods
    ]
    left = [run for run in wanted if run_name(run) not in done]
    if not left:
        return 0
    given.output.mkdir(parents=True, exist_ok=True)
    world = load(given, study)
    for run in tqdm(left, desc="runs", unit="run", smoothing=0):
        append_line(lines, {**run, **finished(world, run, study)})
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("facts.py", description=__doc__, formatter_class=_Plain)
    add = made.add_argument
    add("--methods", nargs="+", default=["dual_adamw", "dual_adamw+alm"], metavar="KEY")
    add("--draws", nargs="+", type=int, default=[1], help="seeds of what is to be forgotten")
    add("--kind", help="forget facts of one kind, such as landmark")
    add("--set", nargs="+", default=[], metavar="NAME=VALUE", help="other than in study.yaml")
    add("--output", type=Path, default=RESULTS)
    add("--model", help="a causal LM of transformers; default: the published one")
    add("--layers", type=int, help="the first layer that is trained")
    add("--lora", type=int, default=0, metavar="RANK", help="train adapters of these layers")
    add("--device", default="cpu")
    return made


class _Plain(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    pass


def overridden(given: argparse.Namespace, study: dict[str, Any]) -> dict[str, Any]:
    """Collect what differs from the study: `--set`, the model and what of it is trained.

    Raises:
        ValueError: A name that neither the study nor one of the methods has.
    """
    found = {name: yaml.safe_load(text) for name, _, text in (t.partition("=") for t in given.set)}
    kinds = [methods.kind_of(key) for key in given.methods]
    known = {*study, *(field.name for kind in kinds for field in fields(kind))}
    if unknown := found.keys() - known:
        raise ValueError(
            f"--set {min(unknown)}: no such setting. Known: {', '.join(sorted(known))}."
        )
    options = ("model", "layers", "lora")
    return found | {name: getattr(given, name) for name in options if getattr(given, name)}


def run_name(run: dict[str, Any]) -> str:
    """Name a run by what tells it from others."""
    return json.dumps([run[name] for name in ("method", "draw", "kind", "overrides")])


def load(given: argparse.Namespace, study: dict[str, Any]) -> World:
    """The model with what it says before, which is kept beside the results."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = given.model or published()
    first = study["layers"] if given.layers is None else given.layers
    tokenizer = AutoTokenizer.from_pretrained(where)
    model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32).to(given.device)
    trained(model.eval(), first, given.lora)
    said = given.output / f"before{'' if given.model is None else '-' + Path(where).name}.json"
    known = json.loads(said.read_text(encoding="utf-8")) if said.is_file() else {}
    world = World(model, tokenizer, data.read_facts(), first, study["new_tokens"], known)
    said.write_text(json.dumps(world.said, indent=0, ensure_ascii=False), encoding="utf-8")
    return world


def trained(model: Any, first: int, rank: int) -> None:
    """Leave the layers from `first` on to train, or adapters of `rank` in them, added in place."""
    layers = range(first, model.config.num_hidden_layers)
    upper = tuple(f"model.layers.{number}." for number in layers)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(upper))
    if rank:
        from peft import LoraConfig, inject_adapter_in_model

        linear = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
        names = [name for name in linear if name.startswith(upper)]
        inject_adapter_in_model(LoraConfig(r=rank, target_modules=names), model)


def finished(world: World, run: dict[str, Any], study: dict[str, Any]) -> dict[str, Any]:
    """One run: its numbers, its steps and a few of its answers."""
    numbers = {"alpha": world.target, **study["settings"], **study["controller"]}
    settings = methods.settings_of(run["method"], numbers | run["overrides"])
    study = study | run["overrides"]
    drawn = data.draw(world.known(), run["draw"], study["forget"], run["kind"])
    world.reset()
    torch.manual_seed(run["draw"])
    method = methods.build(run["method"], world.upper, settings)
    began = time.perf_counter()
    trace = steps(world, method, drawn, run, study)
    seconds = (time.perf_counter() - began) / len(trace)
    found, said = world.measured(drawn)
    back = world.relearned(drawn, study["relearn_rows"], study["relearn_steps"], settings.lr)
    opened = [row["gate_open"] for row in trace]
    return {
        **found,
        "relearned_said": back,
        "alpha": {**numbers, **run["overrides"]}["alpha"],
        "pushed": sum(opened) / len(opened),
        "seconds_per_step": seconds,
        "trace": [round(row.get("forget_loss", float("nan")), 3) for row in trace],
        "forget": [fact.question for fact in drawn.forget],
        "answers": {
            q: said[q] for f in drawn.forget for q in (f.question, f.rewording) if q in said
        },
        "lost": {
            fact.question: said[fact.question]
            for fact in (*drawn.retain, *drawn.neighbours)
            if not fact.is_in(said[fact.question])
        },
    }


def steps(
    world: World, method: Any, drawn: data.Draw, run: dict[str, Any], study: dict[str, Any]
) -> list[dict[str, Any]]:
    """Unlearn; what each step saw."""
    count, size = study["steps"], study["forget_batch"]
    pairs = world.batches(drawn, size, study["retain_batch"], count, run["draw"])
    trace = []
    label = f"{run['method']}, draw {run['draw']}"
    with tqdm(pairs, total=count, desc=label, unit="step", leave=False) as bar:
        for number, (retain, forget) in enumerate(bar, 1):
            method.step(retain, forget)
            trace.append(method.metrics())
            if number % -(-study["forget"] // size) == 0:
                method.end_of_epoch()
    return trace


if __name__ == "__main__":
    raise SystemExit(main())
