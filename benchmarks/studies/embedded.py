"""The study of facts in the embedded world, which is another one for every draw: seconds a run.

    python -m benchmarks.studies.embedded                        the weights, and SAM
    python -m benchmarks.studies.embedded --parts npo sam --draws 1 2

The settings stand in `embedded` of the study's file. A small model is taught each world, and kept
in the cache. Each finished run is a line of OUTPUT/runs.jsonl.
"""

import functools
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from benchmarks.facts import Run, make_parser, read_study
from benchmarks.report.results import append_line, read_lines
from benchmarks.tasks.facts.data import Fact
from benchmarks.tasks.facts.evidence import KNOWN, list_weights
from benchmarks.tasks.facts.world import Study, World, train_from
from benchmarks.tasks.tofu.data import Example
from benchmarks.tasks.tofu.models import load_or_train
from benchmarks.tasks.tofu.world import WORDINGS, build_world

NAME = "embedded"


def main(argv: Sequence[str] | None = None) -> int:
    """Do what is not done yet; 0 when every run has its line."""
    study = read_study()
    study |= study.pop(NAME)
    made = make_parser(__doc__)
    parts = {k: [f"{k}+alm", *list_weights(k)] for k in study["weighed"]}
    parts["sam"] = list_radii(study)
    made.add_argument("--parts", nargs="+", default=list(parts), choices=parts)
    given = made.parse_args(argv)
    lines = given.output / "runs.jsonl"
    done = {tuple(map(line.get, KNOWN)) for line in read_lines(lines)}
    open_world = functools.lru_cache(1)(lambda draw: invent_world(draw, study))
    wanted = [(NAME, p, key, n) for n in given.draws for p in given.parts for key in parts[p]]
    for name in tqdm([name for name in wanted if name not in done], desc="runs"):
        _, part, key, draw = name
        run = Run(open_world(draw), key, draw, study | study.get(part, {}))
        append_line(lines, dict(zip(KNOWN, name, strict=True)) | shorten(run.finish()))
    return 0


def list_radii(study: Study) -> list[str]:
    """SAUL with SAM on either side and on both, at each radius, and at 0."""
    sides = ("/forget", "/retain", "")
    return ["dual_adamw+alm", *(f"saul@{r}{side}" for r in study["radii"] for side in sides)]


def shorten(found: dict[str, Any]) -> dict[str, Any]:
    """Keep the numbers of a run, without its texts and steps."""
    looks = {name: found[name] for name in ("matched", "end") if found[name]}
    kept = {
        name: {k: round(v, 4) for k, v in look.items() if k != "answers"}
        for name, look in looks.items()
    }
    numbers = {k: found[k] for k in ("alpha", "lr", "rho_forget", "rho_retain") if k in found}
    return numbers | dict.fromkeys(("matched", "end")) | kept


def invent_world(draw: int, study: Study) -> World:
    """The world of a draw and the model that was taught it; its authors are asked for.

    What the model does not know are facts of authors that it has never seen.
    """
    data = build_world(draw % study["worlds"])
    model, tokenizer = load_or_train(data)
    first = model.config.num_hidden_layers // 2
    train_from(model, first)
    taught = [*data.forget, *data.retain][:: study["each"]]
    facts = [read_fact(example) for example in (*taught, *data.holdout)]
    return World(model, tokenizer, facts, first, study["new_tokens"])


def read_fact(example: Example) -> Fact:
    """A fact of the embedded world, found by the wording in which it is asked.

    Raises:
        ValueError: It has none of them.
    """
    for kind, forms in WORDINGS.items():
        for number, (question, answer) in enumerate(forms):
            begin, end = question.split("{name}")
            name = example.question.removeprefix(begin).removesuffix(end)
            before, after = answer.format(name=name, value="|").split("|")
            value = example.answer.removeprefix(before).removesuffix(after)
            if (begin + name + end, before + value + after) == example.pair:
                other = forms[(number + 1) % len(forms)][0].format(name=name)
                gold = (value + after).removesuffix(".")
                return Fact(kind, example.question, other, before.strip(), gold, (value,), before)
    raise ValueError(f"{example.question!r} is no question of the embedded world.")


if __name__ == "__main__":
    raise SystemExit(main())
