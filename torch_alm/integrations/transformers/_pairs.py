"""Forget and retain in one data set: every forget row with a retain row drawn for it."""

import random
from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset

from torch_alm.language import Row, Tokenizer, collate, pad_id

Pair = dict[str, Row]


class PairedDataset(Dataset[Pair]):
    """`{"forget": row, "retain": row}`: one epoch visits every forget row once.

    Its retain row is drawn uniformly, with replacement, from the seed, the epoch and the row's
    place alone. So an epoch is the same whatever the order, the workers and the ranks, and the same
    after a resume; the Trainer announces epochs through `set_epoch`.

    Args:
        forget: rows to forget, as `torch_alm.language.encode` makes them of questions, chats and
            texts.
        retain: rows to keep.
        seed: of the retain rows.

    Raises:
        ValueError: if there is nothing to forget or nothing to keep.

    Example:
        >>> rows = [{"input_ids": [0, n], "labels": [-100, n]} for n in range(9)]
        >>> pairs = PairedDataset(forget=rows[:2], retain=rows[2:], seed=0)
        >>> len(pairs), sorted(pairs[0])
        (2, ['forget', 'retain'])
    """

    def __init__(self, forget: Sequence[Row], retain: Sequence[Row], *, seed: int = 0) -> None:
        for name, rows in (("forget", forget), ("retain", retain)):
            if len(rows) == 0:
                raise ValueError(
                    f"PairedDataset: there is nothing to {name}; no step could be taken. Was the "
                    "file read?"
                )
        self.forget, self.retain, self.seed = forget, retain, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Draw other retain rows from now on, those of this epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """How many rows are to be forgotten."""
        return len(self.forget)

    def __getitem__(self, index: int) -> Pair:
        """The forget row at `index`, and a retain row."""
        draw = random.Random(f"{self.seed} {self.epoch} {index}")
        return {
            "forget": self.forget[index],
            "retain": self.retain[draw.randrange(len(self.retain))],
        }


class PairedCollator:
    """Pads pairs into `{"forget": batch, "retain": batch}`, and single rows into one batch.

    Batches are padded on the right: `input_ids`, `attention_mask`, `labels` (-100), each (B, T).

    Args:
        tokenizer: for its pad token, or EOS where it has none.

    Raises:
        ValueError: for a tokenizer without EOS.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.pad_id = pad_id(tokenizer)

    def __call__(self, rows: Sequence[Any]) -> dict[str, Any]:
        """The batch."""
        if "input_ids" in rows[0]:
            return collate(rows, self.pad_id)
        sides = ("forget", "retain")
        return {side: collate([row[side] for row in rows], self.pad_id) for side in sides}
