"""The end of a run: its model saved and asked, and the report of it."""

import argparse
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch_alm.cli import report
from torch_alm.cli.adapters import save_merged
from torch_alm.cli.goal import Goal
from torch_alm.cli.loading import Files, Loaded, load_for
from torch_alm.cli.measuring import worst
from torch_alm.cli.output import MODEL, Output
from torch_alm.cli.training import Training
from torch_alm.cli.verdict import evidence_of, judge
from torch_alm.unlearning.files import write_folder
from torch_alm.unlearning.models import quiet, stored_as, stored_dtype


def save_model(
    given: argparse.Namespace, training: Training, loaded: Loaded, found: Files, output: Output
) -> dict[str, Any]:
    """Save model (or adapters) and tokenizer, whole or not at all, and ask what was saved.

    The model in memory is not what anybody will use: the folder is loaded again and measured before
    it takes its name. A model has the dtype that the original was stored in, adapters float32.
    """
    dtype = stored_dtype(given.model)
    model, tokenizer = training.method.model, loaded.tokenizer

    def fill(draft: Path) -> dict[str, Any]:
        with quiet():
            if given.merge:
                save_merged(model, tokenizer, draft, dtype)
            else:
                with nullcontext() if given.lora else stored_as(model, dtype):
                    model.save_pretrained(draft)
                tokenizer.save_pretrained(draft)
        model.to("cpu")  # so that a GPU has to hold one of the two
        return load_for(given, str(draft), found).measured(given.rows, "after")

    return write_folder(output.folder / MODEL, fill, output.announce)


def content_of(
    settings: Mapping[str, Any],
    goal: Goal,
    start: Mapping[str, Any],
    after: Mapping[str, Any],
    training: Training,
    max_retain_loss: float | None,
    note: str | None,
) -> dict[str, Any]:
    """The content of `report.json`."""
    controller = training.method.constraint.metrics()
    before, known = start["measured"], start.get("known_before", True)
    seen = evidence_of(goal, before, after, max_retain_loss=max_retain_loss, known_before=known)
    found = judge(seen)
    return {
        "title": f"Unlearning {Path(settings['model']).name}",
        "subtitle": (
            f"{settings['method']}, {len(training.trace)} steps; forgetting was pushed in "
            f"{controller['active_share']:.0%} of them."
        ),
        "settings": {**settings, "max_retain_loss": max_retain_loss, "known_before": known},
        "versions": report.versions(),
        "goal": asdict(goal),
        "verdict": {
            **asdict(found),
            "code": found.code,
            "worst": worst(after["answers"]["forget"]),
        },
        "models": [{"name": "before", **before}, {"name": "after", **after}],
        "controller": controller,
        "trace": training.trace,
        "attacks": [],
        "notes": [each for each in (note, training.ended) if each],
    }
