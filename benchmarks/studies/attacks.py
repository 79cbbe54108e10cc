"""Attacks after unlearning: relearning, rounded weights, other words, half an answer.

python -m benchmarks.studies.attacks                              SAUL with and without SAM
python -m benchmarks.studies.attacks --methods all --seeds 5      every method
python -m benchmarks.studies.attacks --data DIR --split forget01  TOFU's JSON-lines files

Every model is attacked by `torch_alm.language.attack`, the original and the retrained one, which
never saw the forget set, too: what an attack gains on that one is no hidden knowledge.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import getitem
from statistics import fmean
from typing import Any, cast

from torch import nn
from tqdm import tqdm

from benchmarks.engine.options import Options, add_arguments, script_parser
from benchmarks.engine.runner import Plan, hidden, unfinished, unlearn
from benchmarks.engine.script import planned
from benchmarks.report import tables
from benchmarks.report.results import Row
from benchmarks.tasks.tofu.batches import encode
from benchmarks.tasks.tofu.metrics import rouge_l_recall
from benchmarks.tasks.tofu.task import Tofu, add_data_arguments, load_data
from torch_alm.language import Attacked, Attacks, Reading, answer_ids, attack, decode, read_answers
from torch_alm.unlearning.files import write_text

METHODS = "saul,saul_no_sam,dual_adamw+alm"
COLUMNS = {
    "rouge": "Words of the answer said (ROUGE-L recall)",
    "exact_match": "Share of answers said word for word",
    "loss": "Loss of the answer, nats per token",
    "extraction_strength": "Extraction strength",
}
Numbers = dict[str, float]


def add_attack_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--relearn", type=int, default=8, metavar="N", help="examples to relearn on")
    add("--relearn-steps", type=int, default=20, metavar="N", help="steps of relearning")
    told = "their learning rates, each an attack of its own"
    add("--relearn-lr", type=float, nargs="+", default=[1e-4, 1e-3], metavar="X", help=told)
    add("--prefix", type=float, default=0.25, metavar="X", help="share of the answer given away")


@dataclass(frozen=True)
class Attacker:
    """An attacker: `torch_alm.language.Attacks`, with several rates of relearning."""

    settings: Attacks
    rates: tuple[float, ...]

    def attack(self, model: Any, *rows: Any, paraphrased: Any) -> Iterator[tuple[str, Attacked]]:
        """Every attack by name; relearning once per rate, all others once."""
        for number, lr in enumerate(self.rates):
            settings = replace(self.settings, relearn_lr=lr, bits=() if number else (8, 4))
            reworded = () if number else paraphrased
            for each in attack(model, *rows, settings, paraphrased=reworded):
                if each.name.startswith("relearn"):
                    yield f"{each.name}, {lr:g}", each
                elif number == 0:
                    yield each.name, each


def attacked(benchmark: Tofu, model: nn.Module, attacker: Attacker) -> dict[str, Any]:
    """Numbers without an attack and after each, and those of the retain set without one."""
    tokenizer, forget = benchmark.tokenizer, benchmark.encoded(benchmark.data.forget)
    reworded = [
        encode(tokenizer, e.paraphrased_question, e.answer, convention=benchmark.given.convention)
        for e in benchmark.data.forget_eval
        if e.paraphrased_question
    ]
    found: dict[str, Any] = {}
    retain = benchmark.encoded(benchmark.data.retain)
    rows = (tokenizer, forget, retain)
    for name, each in attacker.attack(model, *rows, paraphrased=reworded):
        before = numbers(tokenizer, each.asked, each.before)
        after = numbers(tokenizer, each.rows, each.after)
        found[name] = {"before": before, "after": after, "attacker": each.attacker}
    kept = read_answers(model, tokenizer, retain, texts=False)
    found["retain"] = {
        "loss": fmean(r.loss for r in kept),
        "exact_match": fmean(r.exact_match for r in kept),
    }
    return found


def numbers(tokenizer: Any, rows: Sequence[Any], readings: Sequence[Reading]) -> Numbers:
    texts = [decode(tokenizer, answer_ids(row)[:-1]) for row in rows]
    said = zip(readings, texts, strict=True)
    return {
        "rouge": fmean(rouge_l_recall(reading.text or "", text) for reading, text in said),
        "exact_match": fmean(r.exact_match for r in readings),
        "loss": fmean(r.loss for r in readings),
        "extraction_strength": fmean(r.extraction_strength for r in readings),
        "certificate": fmean(r.certificate for r in readings),
    }


def run(plan: Plan, attacker: Attacker) -> None:
    """Unlearn and attack whatever is not finished yet, each written down as soon as it is."""
    benchmark = cast("Tofu", plan.benchmark)
    for key, seed in tqdm(unfinished(plan), desc="runs", unit="run", disable=hidden()):
        if key in benchmark.references:
            model: nn.Module = benchmark.reference(key)
        else:
            model, _, _ = unlearn(benchmark, key, seed, plan.settings[key])
        plan.folder.append(
            {"method": key, "seed": seed, "attacks": attacked(benchmark, model, attacker)}
        )


def markdown(rows: Sequence[Row], command: str, attacker: Attacker) -> str:
    """A table per number: a line per method, a column per attack, mean and deviation over seeds."""
    settings, seeds = attacker.settings, len({row["seed"] for row in rows})
    told = (
        f"Relearning: {settings.relearn_rows} examples, {settings.relearn_steps} steps of AdamW at "
        "the rate in the column's name, then the other forget questions are asked. int8, int4: "
        "simulated round-to-nearest per output channel, the output layer left alone. Prefix: the "
        "first "
        f"{settings.prefix:.0%} of the answer's tokens are given. Mean ± deviation over {seeds} "
        "seeds of the batch order; the original and the retrained model are one each."
    )
    parts = ["# Attacks", f"Written by `{command}`.", told]
    for key, title in COLUMNS.items():
        paths = {name: (name, "after", key) for name in rows[0]["attacks"] if name != "retain"}
        parts += [f"## {title}", _table(rows, {"no attack": ("int8", "before", key), **paths})]
    retained = {"loss": ("retain", "loss"), "word for word": ("retain", "exact_match")}
    return "\n\n".join([*parts, "## Retained", _table(rows, retained)]) + "\n"


def _table(rows: Sequence[Row], columns: Mapping[str, tuple[str, ...]]) -> str:
    """A line per method; a column's number lies at the end of its path."""
    found = {
        method: [row["attacks"] for row in rows if row["method"] == method]
        for method in dict.fromkeys(row["method"] for row in rows)
    }
    body = (
        [
            tables.name_of(method),
            *(tables.spread((reduce(getitem, at, r) for r in its), 2) for at in columns.values()),
        ]
        for method, its in found.items()
    )
    return tables.markdown(["Model", *columns], body)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is not finished yet, and write the tables."""
    parser = script_parser("attacks", __doc__)
    for add in (add_arguments, add_data_arguments, add_attack_arguments):
        add(parser)
    parser.set_defaults(methods=METHODS, seeds=3, no_control=True)
    given = parser.parse_args(argv)
    settings = Attacks(given.relearn, given.relearn_steps, prefix=given.prefix)
    attacker = Attacker(settings, tuple(given.relearn_lr))
    plan = planned(parser, given, load_data, Tofu, "attacks/")
    run(plan, attacker)
    shown = f"python -m benchmarks.studies.attacks{_told(given, plan.options)}"
    text = markdown(plan.folder.rows(), shown, attacker)
    write_text(plan.folder.path / "attacks.md", text)
    print(f"\n{text}\n{plan.folder.path}: results.jsonl, settings.json, attacks.md.")
    return 0


def _told(given: argparse.Namespace, options: Options) -> str:
    """The arguments that say what was run; seeds may have been run one after the other."""
    data = "" if given.data is None else f" --data DIR --split {given.split}"
    sizes = {
        "retain-authors": given.retain_authors,
        "width": given.width,
        "questions": given.questions,
    }
    named = (f" --{name} {value}" for name, value in sizes.items() if value is not None)
    changed = (f" --set {name}={value}" for name, value in options.overrides.items())
    return "".join((data, *named, *changed))


if __name__ == "__main__":
    raise SystemExit(main())
