"""From the paths of a command line to a model and its rows."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from peft import PeftModel

from torch_alm.cli import files
from torch_alm.cli.files import Encoded, Entry
from torch_alm.cli.measuring import measure
from torch_alm.cli.places import Place, place
from torch_alm.language import Format, LanguageModel, Row, Tokenizer
from torch_alm.unlearning.models import load_model, positions_of
from torch_alm.unlearning.whole import check_answers

Files: TypeAlias = Mapping[str, Sequence[Entry]]
"""The user's rows by set, checked against one another before any model is loaded."""

SHARED = {
    "retain": "it would be forgotten and kept at once",
    "holdout": "what was trained on says nothing of what was not",
}
"""The files that no row to be forgotten may stand in as well, and why."""


@dataclass(frozen=True)
class Loaded:
    """A model, its tokenizer, and the rows as it reads them."""

    model: LanguageModel
    tokenizer: Tokenizer
    place: Place
    sets: Mapping[str, Encoded]
    adapters: Any = None
    """The model of peft around it, where it came with adapters that are to be trained."""

    def rows(self, name: str) -> list[Row]:
        """The token rows of a set."""
        return [row for _, row in self.sets.get(name, ())]

    def measured(self, count: int, label: str) -> dict[str, Any]:
        """Measure the model on all rows to forget, and on the first of the others."""
        rows = {n: each if n == "forget" else each[:count] for n, each in self.sets.items()}
        return measure(self.model, self.tokenizer, rows, label)


def read_files(given: argparse.Namespace) -> Files:
    """Read all files.

    Raises:
        Refusal: one is missing, empty or malformed, or a row stands in two of them.
    """
    read = partial(files.read_entries, columns=given.columns)
    forget, retain = read(given.forget, "forget"), read(given.retain, "retain")
    holdout = read(given.holdout, "holdout") if given.holdout else []
    files.check_distinct(forget, retain, SHARED["retain"])
    for rows in (forget, retain):
        files.check_distinct(rows, holdout, SHARED["holdout"])
    return {"forget": forget, "retain": retain, "holdout": holdout}


def format_of(given: argparse.Namespace) -> Format:
    """The format in which the command line has the model asked."""
    return Format(template=given.template, system=given.system)


def load_for(given: argparse.Namespace, name: str, found: Files, *, lora: bool = False) -> Loaded:
    """Load a model and encode the rows for it; with `lora` its own adapters stay apart."""
    where = place(given.device, given.precision, lora=lora)
    whole, tokenizer = load_model(name, device=where.device, dtype=where.dtype, merge=not lora)
    adapters = whole if isinstance(whole, PeftModel) else None
    model = whole if adapters is None else adapters.get_base_model()
    longest = min(given.max_length, positions_of(model))
    sets = {
        key: files.encode_entries(tokenizer, rows, longest, format_of(given))
        for key, rows in found.items()
        if rows
    }
    for key in ("retain", "holdout"):
        files.check_apart(sets["forget"], sets.get(key, ()), SHARED[key])
    check_answers(f"the model {name}", model, sets["forget"][0][1])
    return Loaded(model, tokenizer, where, sets, adapters)
