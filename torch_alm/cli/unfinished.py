"""A run that is not through yet: its settings, and everything it needs to go on bit for bit."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from torch_alm.unlearning.files import write_json, write_tensors
from torch_alm.unlearning.refusal import Refusal

LOADED = ("weights", "tokenizer")  # what can be told once the model is loaded
BROKEN = (OSError, EOFError, LookupError, RuntimeError, TypeError, UnpicklingError, ValueError)
LENGTH = ("steps", "epochs")  # of which a run may be given more than it began with


class Unfinished:
    """The folder `unfinished` inside the output folder.

    Attributes:
        settings: the file of the run's settings, and of what was measured before it.
        state: that of weights, optimizers, constraint, random state, and what happened so far.
        is_own: whether what is kept there is known to be of this run.
    """

    def __init__(self, output: Path) -> None:
        self.output, self.folder = output, output / "unfinished"
        self.settings, self.state = self.folder / "run.json", self.folder / "state.pt"
        self.is_own = False

    def claim(self, settings: Mapping[str, Any], *, force: bool) -> dict[str, Any] | None:
        """The record of an unfinished run with the same settings, or None; changes nothing.

        Args:
            settings: of the run; before the model is loaded, without its `weights` and `tokenizer`.
            force: whether another run may be given up for this one, once it begins.

        Raises:
            Refusal: the folder holds a run of other settings, and `force` is off; or files that no
                run has written.
        """
        self._check_own()
        return None if force or not self.settings.is_file() else self.check_same(settings)

    def _check_own(self) -> None:
        found = [*self.folder.iterdir()] if self.folder.is_dir() else []
        foreign = [p for p in found if p not in (self.settings, self.state) and p.name[0] != "."]
        if foreign:
            raise Refusal(
                f"{foreign[0]} was not written by torch-alm, which keeps in {self.folder} what "
                "it needs to go on. Should it lie elsewhere?"
            )

    def check_same(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The record of the unfinished run, if it has these settings.

        Raises:
            Refusal: it has others; names three of them.
        """
        with self._legible(self.settings):
            earlier = json.loads(self.settings.read_text(encoding="utf-8"))
            was, _ = earlier["settings"], earlier["before"]
        now = {**{k: was.get(k) for k in LOADED}, **json.loads(json.dumps(settings))}
        names = [k for k in {**was, **now} if k not in LENGTH]
        different = [k for k in names if was.get(k) != now.get(k)]
        if different:
            told = "; ".join(
                f"{k} was {was.get(k)!r} and is now {now.get(k)!r}" for k in different[:3]
            )
            raise Refusal(
                f"--output {self.output} holds a run of other settings: {told}. Did "
                "you mean another folder, or --force to begin anew?"
            )
        self.is_own = True
        return earlier

    def begin(self, settings: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        """Write down what is about to be run; the state of an earlier run goes when that is."""
        content = {"settings": settings, "before": before}
        write_json(self.settings, content, lambda *_: self.state.unlink(missing_ok=True))
        self.is_own = True

    def save(self, state: Mapping[str, Any]) -> None:
        """Write the state, whole or not at all."""
        write_tensors(self.state, state)

    def load(self) -> dict[str, Any] | None:
        """The state, if one was saved."""
        if not self.state.exists():
            return None
        with self._legible(self.state):
            return torch.load(self.state, map_location="cpu", weights_only=True)

    @contextmanager
    def _legible(self, path: Path) -> Iterator[None]:
        try:
            yield
        except BROKEN as error:
            raise Refusal(
                f"{path} cannot be read ({type(error).__name__}), so the run cannot go on. Was it "
                "cut off, or changed? --force begins anew."
            ) from error

    def done(self) -> None:
        """Remove everything: the run is through, and nothing of this is needed any more."""
        with suppress(OSError):  # it is not there, is read-only by now, or holds what is not ours
            for path in (self.state, self.settings, *self.folder.glob(".*.partial-*")):
                path.unlink(missing_ok=True)
            self.folder.rmdir()
