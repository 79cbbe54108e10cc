"""Forget and retain in one data set: every forget row with a retain row drawn for it."""

import random
from collections.abc import Callable, Mapping, Sequence, Set, Sized
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from torch_alm.language import Row, collate, pad_id
from torch_alm.language._encoding import ASKED
from torch_alm.language._models import Tokenizer

Pair = dict[str, Any]


class PairedDataset(Dataset[Pair]):
    """`{"forget": row, "retain": row, "index": i}`: one epoch visits every forget row i once.

    One retain row for each, so an epoch has as many of either side; to see more of them, train for
    more epochs. It is drawn uniformly, with replacement, by the seed, the epoch and the row's place
    alone. So an epoch is the same whatever the order, the workers and the ranks, and the same
    after a resume. Our Trainers and `ConstraintCallback` set its epoch; any other loop, or one
    that has it inside another data set, has to call `set_epoch`: else all epochs are the same.

    Args:
        forget: rows to forget, as `torch_alm.language.encode` makes them of questions, chats and
            texts; behind `ALMTrainer` or `SAULTrainer` a trainer that prepares its rows (TRL's)
            takes its own data sets.
        retain: rows to keep, likewise.
        seed: of the retain rows.

    Raises:
        ValueError: if there is nothing to forget or nothing to keep.
        TypeError: for a stream, whose rows cannot be counted, or rows that are no mappings.

    Example:
        >>> rows = [{"input_ids": [0, n], "labels": [-100, n]} for n in range(9)]
        >>> pairs = PairedDataset(forget=rows[:2], retain=rows[2:], seed=0)
        >>> len(pairs), sorted(pairs[0])
        (2, ['forget', 'index', 'retain'])
    """

    def __init__(self, forget: Sequence[Row], retain: Sequence[Row], *, seed: int = 0) -> None:
        for name, rows in (("forget", forget), ("retain", retain)):
            if not hasattr(rows, "__len__") or isinstance(rows, str | Mapping | Set):
                raise TypeError(
                    f"PairedDataset: `{name}` is a {type(rows).__name__}, whose rows cannot be "
                    "counted or drawn. Did you mean `list(...)` of it, rows of `language.encode`, "
                    'or, without this class, a stream of `{"forget": row, "retain": row}`?'
                )
            if len(rows) == 0:
                raise ValueError(
                    f"PairedDataset: there is nothing to {name}; no step could be taken. Was the "
                    "file read?"
                )
            if not isinstance(rows[0], Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(
                    f"PairedDataset: a row of `{name}` is a {type(rows[0]).__name__}, where no "
                    "`input_ids` and `labels` can be found. Did you mean "
                    "`language.encode(tokenizer, question, answer)` of it?"
                )
        self.forget, self.retain, self.seed = forget, retain, seed
        self.index: Sequence[int] = range(len(forget))  # of what is left, once some are gone
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()  # for persistent workers

    @property
    def epoch(self) -> int:
        """The epoch whose retain rows are drawn."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Draw the retain rows of this epoch from now on."""
        self._epoch.fill_(epoch)

    @property
    def sides(self) -> dict[str, Sequence[Row]]:
        """Return the rows of each side, for an evaluation."""
        return {"forget": self.forget, "retain": self.retain}

    def __len__(self) -> int:
        """Number of rows to be forgotten."""
        return len(self.forget)

    def __getitem__(self, index: int) -> Pair:
        """Return the forget row at `index`, and a retain row."""
        draw = random.Random(f"{self.seed} {self.epoch} {index}")
        return {
            "forget": self.forget[index],
            "retain": self.retain[draw.randrange(len(self.retain))],
            "index": self.index[index],
        }


class PairedCollator:
    """A collator of pairs: `{"forget": batch, "retain": batch}`; single rows become one batch.

    Batches are padded on the right: `input_ids`, `attention_mask`, `labels` (-100), each (B, T).
    Other columns pass: one number per token is padded (with 0), a number is stacked. Beside both
    sides, `index` (B,) holds the places of the forget rows in the data set. Rows with
    `position_ids` may be packed: several sequences in one row, whose positions begin again at 0.
    Models of transformers find those only without an attention mask and without a cache, so such a
    batch has no `attention_mask` but `use_cache=False`, and its padding is a sequence of its own.

    Args:
        tokenizer: for its pad token, or EOS where it has none. In its place a collator of your own,
            a function of rows, which then makes the batch of each side.

    Raises:
        ValueError: for a tokenizer without EOS; for a column that cannot be stacked, by its name.
    """

    def __init__(self, tokenizer: Tokenizer | Callable[[Any], Any]) -> None:
        is_function = callable(tokenizer) and not hasattr(tokenizer, "eos_token_id")
        self.collate = tokenizer if is_function else partial(pad_rows, pad=pad_id(tokenizer))

    def __call__(self, rows: Sequence[Any]) -> Any:
        """Make the batch."""
        if "forget" not in rows[0]:
            return self.collate(rows)
        sides = {side: self.collate([row[side] for row in rows]) for side in ("forget", "retain")}
        if "index" in rows[0]:
            sides["index"] = torch.tensor([row["index"] for row in rows])
        return sides


def pad_rows(rows: Sequence[Any], pad: int) -> dict[str, Any]:
    """Make one batch of rows of tokens, with all their columns."""
    batch: dict[str, Any] = {**collate(rows, pad)}
    for name in sorted({name for row in rows for name in row} - {"input_ids", "labels", ASKED}):
        batch[name] = stack_column(name, rows, batch["input_ids"].shape[1])
    if "position_ids" in batch:
        del batch["attention_mask"]
        batch["use_cache"] = False
    return batch


def stack_column(name: str, rows: Sequence[Any], longest: int) -> Tensor:
    """Make one column: (B,) of numbers, or (B, T) of numbers per token."""
    values = [row.get(name) for row in rows]
    if all(isinstance(value, bool | int | float) for value in values):
        return torch.tensor(values)
    pairs = [(value, len(row["input_ids"])) for value, row in zip(values, rows, strict=True)]
    if not all(isinstance(v, Sized) and not isinstance(v, str) and len(v) == n for v, n in pairs):
        raise ValueError(
            f"PairedCollator: the column {name!r} is not one number, nor one per token, in every "
            "row, so that it has no place in a batch. Did you mean to remove it from the rows?"
        )
    step = int(name == "position_ids")  # padding is a sequence of its own
    return torch.tensor([[*v, *(i * step for i in range(longest - n))] for v, n in pairs])
