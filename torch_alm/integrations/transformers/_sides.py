"""Pairs and a Trainer that prepares its rows: each side goes through it on its own."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, cast

from transformers import IntervalStrategy, Trainer

from torch_alm.integrations.transformers._pairs import PairedDataset

FORGET = "the forget side"  # its name among the sets to evaluate, which are prepared as well


def apart(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a Trainer with the sides of their pairs as two data sets."""
    pairs = given.get("train_dataset")
    if not isinstance(pairs, PairedDataset):
        return {**given}
    sets = {**sets_of(given.get("eval_dataset")), FORGET: pairs.forget}
    return {**given, "train_dataset": pairs.retain, "eval_dataset": sets}


def join(trainer: Trainer, given: Mapping[str, Any], *, collates: bool) -> None:
    """Make pairs again of the two data sets that the Trainer has prepared.

    Raises:
        ValueError: if there is nothing to evaluate where evaluations are asked for; the Trainer
            itself has seen the forget side there.
    """
    pairs, evaluated = given.get("train_dataset"), given.get("eval_dataset")
    if not isinstance(pairs, PairedDataset):
        return
    sets, rest = cast(dict[str, Any], trainer.eval_dataset), cast(Any, trainer.train_dataset)
    prepared = copy(pairs)
    prepared.forget, prepared.retain = sets.pop(FORGET), rest
    trainer.train_dataset = prepared
    one = evaluated is None or not isinstance(evaluated, Mapping | PairedDataset)
    trainer.eval_dataset = sets.get("eval") if one else sets
    if not collates:
        trainer.data_collator = SideBySide(trainer.data_collator)
    strategy = IntervalStrategy(trainer.args.eval_strategy)
    if evaluated is None and strategy != IntervalStrategy.NO:
        raise ValueError(
            f"{type(trainer).__name__}: there is no `eval_dataset` for `eval_strategy="
            f'"{strategy.value}"`. Did you mean `eval_dataset={{"forget": ..., "retain": ...}}`?'
        )


def sets_of(evaluated: Any) -> Mapping[str, Any]:
    """Data sets to evaluate, each with a name."""
    if evaluated is None:
        return {}
    if isinstance(evaluated, PairedDataset):
        return evaluated.sides
    return evaluated if isinstance(evaluated, Mapping) else {"eval": evaluated}


class SideBySide:
    """A collator of pairs out of a collator of rows."""

    def __init__(self, collate: Any) -> None:
        self.collate = collate

    def __call__(self, rows: Sequence[Any]) -> Any:
        """A batch of each side; of single rows, theirs."""
        if "forget" not in rows[0]:
            return self.collate(rows)
        return {side: self.collate([row[side] for row in rows]) for side in ("forget", "retain")}
