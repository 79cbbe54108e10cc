"""The outcome of unlearning, an evaluation or attacks: shown in a notebook, saved as a folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd  # pyright: ignore[reportMissingTypeStubs]

from torch_alm.language._models import LanguageModel, Tokenizer
from torch_alm.unlearning import report
from torch_alm.unlearning.errors import Refusal
from torch_alm.unlearning.folders import MODEL, write_folder
from torch_alm.unlearning.layer_cache import Weights
from torch_alm.unlearning.model import fingerprint
from torch_alm.unlearning.ranks import run_on_first
from torch_alm.unlearning.run import Run


@dataclass(frozen=True, repr=False)
class Outcome:
    """A verdict, its answers and numbers, and the model.

    Attributes:
        model: the model, or with `lora` peft's model around it.
        tokenizer: the model's tokenizer.
        content: everything in `report.json`.
        original: the weights that the model came with; `None` where nothing was trained.
        run: the state that `resume` continues.
    """

    model: LanguageModel
    tokenizer: Tokenizer
    content: Mapping[str, Any]
    begun: datetime
    device: str = ""
    original: Weights | None = None
    run: Run | None = None
    _judged: str = field(init=False, default="")

    def __post_init__(self) -> None:
        """Record a fingerprint of the trained weights: `save` refuses others."""
        if self.original is not None:
            object.__setattr__(self, "_judged", fingerprint(self.model))

    @property
    def verdict(self) -> str:
        """`"met"`, `"met at a cost"`, `"not met"`, an attack's, or `"measured"`."""
        found = self.content["verdict"]
        return found["outcome"] if found else "measured"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons against a goal that is not met, or the attacks that succeeded."""
        return tuple(self.content["verdict"]["missed"]) if self.content["verdict"] else ()

    @property
    def text(self) -> str:
        """Verdict, cost and reason for the end of the run; empty for `evaluate`, see `numbers`."""
        found = self.content["verdict"] or {"text": "", "cost": ""}
        return " ".join([found["text"], found["cost"], *self.content["notes"][-1:]]).strip()

    @property
    def answers(self) -> dict[str, Mapping[str, Sequence[Mapping[str, Any]]]]:
        """Answers of each model, by its name (such as `"before"`) and the set of rows."""
        return {each["name"]: each["answers"] for each in self.content["models"]}

    @property
    def numbers(self) -> dict[str, Mapping[str, Mapping[str, float]]]:
        """The means of each set, by the model's name."""
        return {each["name"]: each["numbers"] for each in self.content["models"]}

    @property
    def trace(self) -> Sequence[Mapping[str, float]]:
        """The numbers of each step."""
        return self.content["trace"]

    def to_frame(self) -> pd.DataFrame:
        """Return a frame with a row per answer: model, set, question and answer."""
        rows: list[dict[str, Any]] = [
            {"model": name, "set": kind, **answer}
            for name, sets in self.answers.items() for kind, found in sets.items()
            for answer in found
        ]  # fmt: skip
        attacked = self.content["attacks"]
        rows += [
            {"model": each["name"], "attack": one["name"], **answer}
            for each in attacked for one in each["rows"] for answer in one["answers"]
        ]  # fmt: skip
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        return f"Outcome({self.text or self.verdict})"

    def _repr_html_(self) -> str:
        return report.to_excerpt(self.content)

    def put_back(self) -> None:
        """Restore the weights that the model had before."""
        if self.original is not None:
            self.original.put_back()

    def save(self, folder: str | Path) -> None:
        """Write model (or adapters), tokenizer and reports, as the command does: the first rank.

        Raises:
            Refusal: the folder exists and is not empty, or cannot be written; the weights have
                changed since the verdict.
        """
        try:
            run_on_first(lambda: self._write(Path(folder)))
        except OSError as error:
            told = f"{folder} cannot be written ({error.strerror}). Is it yours?"
            raise Refusal(told) from error

    def _write(self, folder: Path) -> None:
        if self.original is not None and fingerprint(self.model) != self._judged:
            raise Refusal(
                "the model has other weights now than those that were judged. Did you mean to save "
                "it before what came then, such as `put_back` or another run?"
            )
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise Refusal(f"{folder} is there, and not empty. Did you mean another folder?")

        def fill(draft: Path) -> None:
            self.model.save_pretrained(draft)
            self.tokenizer.save_pretrained(draft)

        if self.original is not None:
            write_folder(folder / MODEL, fill)
        folder.mkdir(parents=True, exist_ok=True)
        report.publish(folder, self.content, self.begun, self.device)
