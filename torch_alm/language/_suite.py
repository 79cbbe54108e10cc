"""All attacks on one model, each with what it knew of the same answers before."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from torch_alm.language._attacks import quantized, relearned, with_prefix
from torch_alm.language._encoding import Row, pad_id
from torch_alm.language._reading import Reading, read_answers
from torch_alm.language._types import LanguageModel, Tokenizer

Read: TypeAlias = Callable[[Sequence[Row]], list[Reading]]


@dataclass(frozen=True)
class Attacked:
    """One attack, and what the model knew before and knows after it.

    Attributes:
        name: such as `"relearn forget"`.
        asked: the same answers asked in the usual way, before the attack.
        rows: what was asked after it.
        before: one reading per row of `asked`, of the model as it is.
        after: one reading per row of `rows`.
        attacker: what the attacker had and did, in numbers.
    """

    name: str
    asked: list[Row]
    rows: list[Row]
    before: list[Reading]
    after: list[Reading]
    attacker: dict[str, float]


@dataclass(frozen=True)
class Attacks:
    """The means of the attacker.

    Attributes:
        relearn_rows: examples to relearn on, the first of the forget and of the retain set.
        relearn_steps: optimizer steps of relearning.
        relearn_lr: their learning rate.
        bits: widths to round weights to.
        prefix: share of the answer that is given away.
        batch_size: rows per relearning step.
        seed: of their order.
    """

    relearn_rows: int = 8
    relearn_steps: int = 20
    relearn_lr: float = 1e-4
    bits: tuple[int, ...] = (8, 4)
    prefix: float = 0.25
    batch_size: int = 8
    seed: int = 0


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
    read: Read | None = None,
) -> Iterator[Attacked]:
    """Relearn, round, rephrase and prompt with a prefix, one after the other.

    After relearning on forget examples only the *others* are asked: what the attacker showed, or a
    copy of it, proves nothing. Every attack starts from the same weights, which return bit for bit.

    Args:
        model: the unlearned model.
        tokenizer: its tokenizer.
        forget: rows that shall be forgotten.
        retain: rows to relearn on.
        settings: what the attacker has; the default is a modest one.
        paraphrased: forget rows asked in other words, in any number.
        reworded: of `forget`, the rows that these are of, what was known before; None is all.
        max_new_tokens: longest answer, as in `read_answers`.
        autocast: makes a context for the forward passes of relearning.
        read: asks the model as it is within an attack; None is `read_answers`.

    Cost: a reading of the forget rows, one more per attack, and the relearning steps.
    """
    given = settings or Attacks()
    read = read or partial(read_answers, model, tokenizer, max_new_tokens=max_new_tokens)

    def learn(rows: Sequence[Row], asked: Sequence[Row]) -> tuple[list[Reading], float]:
        pad, steps, lr = pad_id(tokenizer), given.relearn_steps, given.relearn_lr
        size, seed = given.batch_size, given.seed
        with relearned(
            model, rows, pad, steps=steps, lr=lr, batch_size=size, seed=seed, autocast=autocast
        ) as loss:
            return read(asked), loss

    now = read(forget)
    shown = forget[: min(given.relearn_rows, len(forget) - 1)]
    copies = {tuple(row["input_ids"]) for row in shown}
    rest = [i for i, row in enumerate(forget) if tuple(row["input_ids"]) not in copies]
    if shown and rest:
        asked, before = [forget[i] for i in rest], [now[i] for i in rest]
        after, loss = learn(shown, asked)
        attacker = {"examples": float(len(shown)), "final loss": loss}
        yield Attacked("relearn forget", asked, asked, before, after, attacker)
    if others := retain[: given.relearn_rows]:
        after, loss = learn(others, forget)
        attacker = {"examples": float(len(others)), "final loss": loss}
        yield Attacked("relearn retain", [*forget], [*forget], now, after, attacker)
    for bits in given.bits:
        with quantized(model, bits) as count:
            after = read(forget)
        yield Attacked(f"int{bits}", [*forget], [*forget], now, after, {"weights": float(count)})
    if paraphrased:
        known = {id(row): reading for row, reading in zip(forget, now, strict=True)}
        asked = [*(forget if reworded is None else reworded)]
        before, after = [known[id(row)] for row in asked], read(paraphrased)
        yield Attacked("paraphrase", asked, [*paraphrased], before, after, {})
    share = given.prefix
    begun = {i: row for i, each in enumerate(forget) if (row := with_prefix(each, share))}
    if begun:
        rows, asked, before = [*begun.values()], [forget[i] for i in begun], [now[i] for i in begun]
        yield Attacked("answer prefix", asked, rows, before, read(rows), {"share": share})
