"""A run that is not through yet: its settings, and everything it needs to go on bit for bit."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_alm.cli.refusal import Refusal
from torch_alm.cli.writing import write_json, write_tensors


@dataclass(frozen=True)
class Unfinished:
    """The folder `unfinished` inside the output folder."""

    output: Path

    @property
    def folder(self) -> Path:
        """Where the state lies."""
        return self.output / "unfinished"

    @property
    def settings(self) -> Path:
        """The settings of the run, and what was measured before it."""
        return self.folder / "run.json"

    @property
    def state(self) -> Path:
        """Weights, optimizers, constraint, random state, and what happened so far."""
        return self.folder / "state.pt"

    def claim(self, settings: Mapping[str, Any], *, force: bool) -> dict[str, Any] | None:
        """Take the output folder: what an unfinished run of the same settings has written, or None.

        Raises:
            Refusal: the folder holds something else, and `force` is off.
        """
        if force:
            shutil.rmtree(self.folder, ignore_errors=True)
            return None
        if self.settings.is_file():
            return self._same_run(settings)
        self.check_free(force=False)
        return None

    def check_free(self, *, force: bool) -> None:
        """Refuse an output folder that is not empty, unless `force` is on."""
        taken = self.output.exists() and (not self.output.is_dir() or any(self.output.iterdir()))
        if taken and not force:
            raise Refusal(
                f"--output {self.output} is not empty, and what is there might be overwritten. Did "
                "you mean another folder, or --force?"
            )

    def _same_run(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        earlier = json.loads(self.settings.read_text(encoding="utf-8"))
        was, now = earlier["settings"], json.loads(json.dumps(settings))
        different = [k for k in {**was, **now} if was.get(k) != now.get(k)]
        if different:
            told = "; ".join(
                f"{k} was {was.get(k)!r} and is now {now.get(k)!r}" for k in different[:3]
            )
            raise Refusal(
                f"--output {self.output} holds an unfinished run of other settings: {told}. Did "
                "you mean another folder, or --force to begin anew?"
            )
        return earlier

    def begin(self, settings: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        """Write down what is about to be run."""
        write_json(self.settings, {"settings": settings, "before": before})

    def save(self, state: Mapping[str, Any]) -> None:
        """Write the state, whole or not at all."""
        write_tensors(self.state, state)

    def load(self) -> dict[str, Any] | None:
        """The state, if one was saved."""
        if not self.state.is_file():
            return None
        return torch.load(self.state, map_location="cpu", weights_only=True)

    def done(self) -> None:
        """The run is through; nothing of this is needed any more."""
        shutil.rmtree(self.folder, ignore_errors=True)
