"""A loop that forgets, on facts that a published chat model knows, and what it leaves.

    python -m benchmarks.studies.loop --draws 5 6 7 8 9

A line per draw is added to benchmarks/results/facts/loop.jsonl.
"""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.facts import load, make_parser, read_study
from benchmarks.report.results import append_line, read_lines
from benchmarks.tasks.facts import data
from benchmarks.tasks.facts.weights import make_published

# isort: split
# --8<-- [start:loop]
import copy
import random

import torch
from torch.optim import AdamW

from torch_alm import ALMConstraint, DualOptimizer, language
from torch_alm.measures import kl_divergence, token_nll
from torch_alm.rules import Leak
from torch_alm.thresholds import level_of, rate_for


def forget_facts(model, tokenizer, forget, retain, unknown, least=60, most=100):
    """Train until one answer in ten is said, if any; return the steps. Pairs: question, answer."""

    def encode_all(pairs):
        return [language.encode(tokenizer, *pair) for pair in pairs]

    def label_telling(pairs):  # labels on the words alone that tell something
        return language.telling_rows(tokenizer, pairs, encode_all(pairs))

    def ask(pairs):  # prompts, and what the model goes on with, both in tokens
        prompts = [row["input_ids"][: row["labels"].count(-100)] for row in encode_all(pairs)]
        return prompts, language.continuations(model, tokenizer, prompts, max_new_tokens=32)

    def reword():  # each row in the words in which the model says it now, None if it does not
        asked = zip(*ask(forget), language.telling_words(forget))
        return [language.in_own_words(tokenizer, *each) for each in asked]

    def batch(rows):
        made = language.collate(rows, language.pad_id(tokenizer))
        return {name: value.to(model.device) for name, value in made.items()}

    def losses(rows):  # one per row, in nats per token
        return token_nll(model, batch(rows), reduction="none")

    def measure(rows):  # what is descended, of rows below alpha; what the constraint sees
        loss = losses(rows)
        low = loss < alpha
        value = loss.clamp(max=alpha).mean() if low.any() else 1.1 * alpha
        return -torch.where(low, loss, 0.0).sum() / low.sum().clamp(min=1), torch.as_tensor(value)

    given = label_telling(forget)
    rows = given + [own or row for own, row in zip(reword(), given)]
    texts = tokenizer.batch_decode(ask(retain)[1], skip_special_tokens=True)
    kept = encode_all([(q, text.strip()) for (q, _), text in zip(retain, texts)])
    alpha = level_of(lambda row: losses([row]).mean(), label_telling(unknown)).value
    original = copy.deepcopy(model).requires_grad_(False)
    params = [p for p in model.parameters() if p.requires_grad]
    odds = lambda: -losses(given).expm1().clamp(min=1e-9).log().mean()  # log p / (1 - p)
    rate = rate_for(AdamW(params), odds, change=1.2)
    sides = [AdamW(params, lr=rate, weight_decay=0.0) for _ in range(2)]
    optimizer = DualOptimizer(*sides, ALMConstraint(None, alpha, mu=0.01, rules=[Leak(0.5)]))
    for step in range(1, most + 1):
        going, staying = random.sample(rows, 6), batch(random.sample(kept, 4))
        optimizer.backward(
            retain=lambda: kl_divergence(model, staying, original),
            forget=lambda: measure(going),
        )
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0:
            now = reword()
            if step >= least and sum(map(bool, now)) <= len(forget) / 10:
                break
            rows[len(given) :] = [own or row for own, row in zip(now, rows[len(given) :])]
    return step


# --8<-- [end:loop]


def main(argv: Sequence[str] | None = None) -> None:
    """Forget, ask, and append a line per draw."""
    given = make_parser(__doc__).parse_args(argv)
    study, where = read_study(), given.model or make_published()
    lines = given.output / "loop.jsonl"
    done = {(line["model"], line["draw"]) for line in read_lines(lines)}
    world = load(given, where, study)
    known, name = world.recall(), Path(where).name
    unknown = [fact for fact in world.facts if fact not in known]
    for draw in [draw for draw in given.draws if (name, draw) not in done]:
        drawn = data.draw(known, draw, study["forget"])
        world.restore()
        random.seed(draw)
        sets = (drawn.forget, drawn.retain, unknown)
        pairs = ([(f.question, f.answer) for f in facts] for facts in sets)
        steps = forget_facts(world.model, world.tokenizer, *pairs)
        found = world.measure(drawn) | world.relearn(drawn, study)
        append_line(lines, {"model": name, "draw": draw, "steps": steps, **found})


if __name__ == "__main__":
    main()
