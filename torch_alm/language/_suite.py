"""All attacks on one model, each with what it knew of the same answers before."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch_alm.language._attacks import quantized, relearned, with_prefix
from torch_alm.language._encoding import Row, pad_id
from torch_alm.language._models import LanguageModel, Tokenizer
from torch_alm.language._reading import Reading, read_answers


@dataclass(frozen=True)
class Attacked:
    """One attack, and what the model knew before and knows after it."""

    name: str  # such as "relearn forget"
    asked: list[Row]  # the same answers asked in the usual way, before the attack
    rows: list[Row]  # what was asked after it
    before: list[Reading]  # one per row of `asked`, of the model as it is
    after: list[Reading]  # one per row of `rows`
    attacker: dict[str, float]  # what the attacker had and did


@dataclass(frozen=True)
class Attacks:
    """The means of the attacker."""

    relearn_rows: int = 8  # the first of the forget and of the retain set
    relearn_steps: int = 20
    relearn_lr: float = 1e-4
    bits: tuple[int, ...] = (8, 4)  # widths to round weights to
    prefix: float = 0.25  # share of the answer that is given away
    batch_size: int = 8  # rows per relearning step
    seed: int = 0  # of their order


def attack(
    model: LanguageModel,
    tokenizer: Tokenizer,
    forget: Sequence[Row],
    retain: Sequence[Row],
    settings: Attacks | None = None,
    *,
    paraphrased: Sequence[Row] = (),
    reworded: Sequence[Row] | None = None,
    max_new_tokens: int | None = None,
    autocast: Callable[[], Any] = nullcontext,
    read: Callable[[Sequence[Row]], list[Reading]] | None = None,
) -> Iterator[Attacked]:
    """Relearn, round, rephrase and prompt with a prefix, one after the other.

    After relearning on forget examples only the *others* are asked: what the attacker showed, or a
    copy of it, proves nothing. Every attack starts from the same weights, which return bit for bit.

    Args:
        model: the unlearned model.
        tokenizer: its tokenizer.
        forget: rows that shall be forgotten.
        retain: rows to relearn on.
        settings: what the attacker has.
        paraphrased: forget rows asked in other words, in any number.
        reworded: of `forget`, the rows that these are of; None is all.
        max_new_tokens: longest answer, as in `read_answers`.
        autocast: makes a context for the forward passes of relearning.
        read: asks the model as it is within an attack; None is `read_answers`.

    Cost: a reading of the forget rows, one more per attack, and the relearning steps.
    """
    has, pad = settings or Attacks(), pad_id(tokenizer)
    read = read or partial(read_answers, model, tokenizer, max_new_tokens=max_new_tokens)
    known = {id(row): one for row, one in zip(forget, read(forget), strict=True)}

    def told(
        name: str, asked: Sequence[Row], after: list[Reading], rows: Sequence[Row], **had: float
    ) -> Attacked:
        return Attacked(name, [*asked], [*rows], [known[id(row)] for row in asked], after, had)

    shown = forget[: min(has.relearn_rows, len(forget) - 1)]
    copies = {tuple(row["input_ids"]) for row in shown}
    others = [row for row in forget if tuple(row["input_ids"]) not in copies]
    how: dict[str, Any] = {"steps": has.relearn_steps, "lr": has.relearn_lr, "seed": has.seed}
    how |= {"batch_size": has.batch_size}
    sides = {"forget": (shown, others), "retain": (retain[: has.relearn_rows], forget)}
    for side, (rows, asked) in sides.items():
        if rows and asked:
            with relearned(model, rows, pad, autocast=autocast, **how) as loss:
                after = read(asked)
            had = {"examples": float(len(rows)), "final loss": loss}
            yield told(f"relearn {side}", asked, after, asked, **had)
    for bits in has.bits:
        with quantized(model, bits) as count:
            after = read(forget)
        yield told(f"int{bits}", forget, after, forget, weights=float(count))
    if paraphrased:
        asked = forget if reworded is None else reworded
        yield told("paraphrase", asked, read(paraphrased), paraphrased)
    begun = [(row, rest) for row in forget if (rest := with_prefix(row, has.prefix))]
    if begun:
        asked, rows = zip(*begun, strict=True)
        yield told("answer prefix", asked, read(rows), rows, share=has.prefix)
