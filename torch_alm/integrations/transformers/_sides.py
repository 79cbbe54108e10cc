"""Pairs and a Trainer that prepares its rows: each side goes through it on its own."""

import warnings
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, cast

from torch import Tensor
from transformers import (
    DataCollatorWithPadding,
    IntervalStrategy,
    Trainer,
    default_data_collator,
)

from torch_alm.integrations.transformers._pairs import PairedCollator, PairedDataset

INDEX = "torch_alm_index"  # a column of forget rows while they are prepared
FORGET = "the forget side"  # its name among the sets to evaluate, which are prepared as well


def split_pairs(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of a Trainer with the sides of pairs as two data sets."""
    pairs = given.get("train_dataset")
    if not isinstance(pairs, PairedDataset):
        return {**given}
    forget: Any = pairs.forget
    if hasattr(forget, "add_column"):  # rows may be dropped, or moved
        forget = forget.add_column(INDEX, [*pairs.index])
    sets = given.get("eval_dataset")
    sets = sets.sides if isinstance(sets, PairedDataset) else sets
    if not isinstance(sets, Mapping):
        sets = {} if sets is None else {"eval": sets}
    sets = {**sets, FORGET: forget}
    return {**given, "train_dataset": pairs.retain, "eval_dataset": sets}


def join(trainer: Trainer, given: Mapping[str, Any], *, collates: bool) -> None:
    """Make pairs again of the two data sets that the Trainer has prepared.

    Raises:
        ValueError: if there is nothing to evaluate where evaluations are asked for; the Trainer
            itself has seen the forget side there. If all rows of a side are gone.

    Warns:
        UserWarning: if some are.
    """
    pairs, evaluated = given.get("train_dataset"), given.get("eval_dataset")
    require_collator(trainer, is_paired=isinstance(pairs, PairedDataset))
    if not isinstance(pairs, PairedDataset):
        return
    sets, rest = cast(dict[str, Any], trainer.eval_dataset), cast(Any, trainer.train_dataset)
    prepared = copy(pairs)
    forget, prepared.retain = sets.pop(FORGET), rest
    if INDEX in getattr(forget, "column_names", []):
        prepared.index, forget = [*forget[INDEX]], forget.remove_columns(INDEX)
    prepared.forget, owner, by = forget, type(trainer).__name__, "its preparation of rows"
    gone = sorted({*pairs.index}.difference(prepared.index))
    require_rows(owner, "forget", len(forget), len(pairs.forget), by, gone)
    require_rows(owner, "retain", len(rest), len(pairs.retain), by)
    trainer.train_dataset = prepared
    one = evaluated is None or not isinstance(evaluated, Mapping | PairedDataset)
    trainer.eval_dataset = sets.get("eval") if one else sets
    each: Any = trainer.data_collator
    if not collates:  # the Trainer's own for a tokenizer pads no labels
        each = PairedCollator(each.tokenizer if type(each) is DataCollatorWithPadding else each)
    trainer.data_collator = CountingCollator(owner, each)
    strategy = IntervalStrategy(trainer.args.eval_strategy)
    if evaluated is None and strategy != IntervalStrategy.NO:
        raise ValueError(
            f"{type(trainer).__name__}: there is no `eval_dataset` for `eval_strategy="
            f'"{strategy.value}"`. Did you mean `eval_dataset={{"forget": ..., "retain": ...}}`?'
        )


def require_collator(trainer: Trainer, *, is_paired: bool) -> None:
    """Raise if there are rows and nothing that makes batches of pairs of them."""
    rows, collator = trainer.train_dataset, trainer.data_collator
    is_single = type(collator) is DataCollatorWithPadding or isinstance(rows, Mapping)
    is_single = (is_single and not is_paired) or collator is default_data_collator
    if is_single and rows is not None:
        raise ValueError(
            f"{type(trainer).__name__}: nothing makes batches of pairs of the `train_dataset` (a "
            f"{type(rows).__name__}). Did you mean `PairedDataset(forget=rows, retain=others)` and "
            "`processing_class=tokenizer`?"
        )


class CountingCollator:
    """A collator of pairs whose batches are counted: each row to forget has to be in its own."""

    def __init__(self, owner: str, collate: Any) -> None:
        self.owner, self.collate = owner, collate

    def __call__(self, rows: Sequence[Any]) -> Any:
        """Make the batch; in packed or flattened rows positions begin again."""
        batch = self.collate(rows)
        if "forget" in rows[0] and "input_ids" in batch["forget"]:
            ids, positions = (batch["forget"].get(key) for key in ("input_ids", "position_ids"))
            found = len(ids) if positions is None else int((positions == 0).sum())
            require_rows(self.owner, "forget", found, len(rows), "its `data_collator`")
            for side in ("forget", "retain"):
                refuse_padding(self.owner, side, batch[side])
        return batch


def refuse_padding(owner: str, side: str, batch: Mapping[str, Any]) -> None:
    """Raise if labels of a batch are on padding."""
    labels, mask = batch.get("labels"), batch.get("attention_mask")
    if not isinstance(labels, Tensor) or not isinstance(mask, Tensor) or mask.shape != labels.shape:
        return
    if count := int(((mask == 0) & (labels != -100)).sum()):
        raise ValueError(
            f"{owner}: {count} labels of a {side} batch are on padding (where `attention_mask` is "
            "0), which would be scored as if it were answers. Did you mean -100 there?"
        )


def require_rows(
    owner: str, verb: str, left: int, given: int, by: str, gone: Sequence[int] = ()
) -> None:
    """Warn if fewer rows are left than were given; raise if there is none."""
    named = f" (number {', '.join(map(str, gone[:9]))}{' ...' if gone[9:] else ''})" if gone else ""
    message = f"{owner}: {given - left} of {given} rows to {verb}{named} are gone after {by}"
    why = "Is a limit such as `max_length` too low, or a batch larger than the data?"
    if not left:
        raise ValueError(f"{message}; nothing is left to {verb}. {why}")
    if left < given:
        message += ", and neither status nor evaluation counts them"
        warnings.warn(f"{message}. {why}", stacklevel=4)
