"""A loop that forgets, on facts that a published chat model knows, and what it leaves.

    python -m benchmarks.studies.loop --draws 5 6 7 8 9

A line per draw is added to benchmarks/results/facts/loop.jsonl.
"""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.facts import load, parser, read_study
from benchmarks.report.results import append_line, read_lines
from benchmarks.tasks.facts import data
from benchmarks.tasks.facts.weights import published

# isort: split
# --8<-- [start:loop]
import copy
import random

import torch
from torch.optim import AdamW

from torch_alm import ALMConstraint, language
from torch_alm.measures import kl_divergence, token_nll
from torch_alm.rules import Leak
from torch_alm.thresholds import rate_for


def forget_facts(model, tokenizer, forget, retain, alpha=4.0, most=200):
    """Train until no answer is said, and return the steps; pairs are question and answer."""

    def ask(pairs):
        rows = [language.encode(tokenizer, *pair) for pair in pairs]
        prompts = [row["input_ids"][: row["labels"].count(-100)] for row in rows]
        return language.generate(model, tokenizer, prompts, max_new_tokens=32)

    def batch(rows):
        made = language.collate(rows, language.pad_id(tokenizer))
        return {name: value.to(model.device) for name, value in made.items()}

    def said():  # each row in the words in which the model says it now, None if it does not
        asked = zip(forget, ask(forget), words)
        return [language.in_own_words(tokenizer, q, text, own) for (q, _), text, own in asked]

    words = language.telling_words(forget)
    encoded = [language.encode(tokenizer, *pair) for pair in forget]
    given = language.telling_rows(tokenizer, forget, encoded)
    rows = given + [own or row for own, row in zip(said(), given)]
    kept = [language.encode(tokenizer, q, text) for (q, _), text in zip(retain, ask(retain))]
    original = copy.deepcopy(model).requires_grad_(False)
    measure = lambda chosen: token_nll(model, batch([rows[i] for i in chosen]), reduction="none")
    constraint = ALMConstraint(measure, torch.full((len(rows),), alpha), 0.01, rules=[Leak(0.5)])
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], weight_decay=0.0)
    rate = rate_for(optimizer, lambda: token_nll(model, batch(given)), change=0.1)
    optimizer.param_groups[0]["lr"] = rate
    for step in range(1, most + 1):
        chosen = random.sample(range(len(rows)), 8)
        retained = kl_divergence(model, batch(random.sample(kept, 8)), original)
        (retained + constraint(chosen, index=chosen)).backward()
        optimizer.step()
        optimizer.zero_grad()
        constraint.step()
        if step % 5 == 0:
            now = said()
            if not any(now):
                break
            rows[len(given) :] = [own or row for own, row in zip(now, rows[len(given) :])]
    return step


# --8<-- [end:loop]


def main(argv: Sequence[str] | None = None) -> None:
    """Forget, ask, and append a line per draw."""
    given = parser(__doc__).parse_args(argv)
    study, where = read_study(), given.model or published()
    lines = given.output / "loop.jsonl"
    done = {line["draw"] for line in read_lines(lines)}
    world = load(given, where, study)
    for draw in [draw for draw in given.draws if draw not in done]:
        drawn = data.draw(world.known(), draw, study["forget"])
        world.restore()
        random.seed(draw)
        pairs = ([(f.question, f.answer) for f in facts] for facts in (drawn.forget, drawn.retain))
        steps = forget_facts(world.model, world.tokenizer, *pairs)
        found = world.measured(drawn) | world.relearned(drawn, study)
        append_line(lines, {"model": Path(where).name, "draw": draw, "steps": steps, **found})


if __name__ == "__main__":
    main()
