"""`torch-alm evaluate`: the report for any saved model."""

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torch_alm.cli import report
from torch_alm.cli.loading import load_for, read_files
from torch_alm.cli.output import REPORTS, Output
from torch_alm.cli.places import place
from torch_alm.cli.report import Result
from torch_alm.cli.settings import READ

# Nothing in a report depends on them
UNTOLD = {"verb", "output", "force", "json", "quiet", "redact"}


def evaluate(given: argparse.Namespace, say: Callable[[str], None]) -> Result:
    """Measure one model, or two side by side."""
    begun = datetime.now(timezone.utc)
    found = read_files(given)
    output = Output(given.output, REPORTS)
    output.check([given.model, given.original], force=given.force)
    names = {"original": given.original, "model": given.model}
    models: list[dict[str, Any]] = []
    for name, path in names.items():
        if path is not None:
            loaded = load_for(given, path, found)
            is_asked = given.precision == "bf16"  # auto measures as a verdict does
            with loaded.place.context()() if is_asked else nullcontext():
                measured = loaded.measured(given.rows, name)
            models.append({"name": name, **measured})
    content = plain_content(given, f"What {Path(given.model).name} knows", models, [])
    return published(given, output, content, begun)


def published(
    given: argparse.Namespace, output: Output, content: dict[str, Any], begun: datetime
) -> Result:
    """Write the reports of a verb that gives no verdict."""
    device = place(given.device, given.precision, lora=False).device
    shown = report.publish(output, content, begun, device, redact=given.redact)
    return Result(0, shown, f"{output.folder}: {', '.join(REPORTS)}.")


def plain_content(
    given: argparse.Namespace, title: str, models: list[dict[str, Any]], attacks: list[Any]
) -> dict[str, Any]:
    """A report without a run behind it."""
    names = sorted(vars(given).keys() - UNTOLD - {*READ})
    settings = {name: getattr(given, name) for name in (*READ, *names)}
    return {
        "title": title,
        "subtitle": f"{given.forget} against {given.retain}",
        "settings": {k: v if v is None else str(v) for k, v in settings.items()},
        "versions": report.versions(),
        "goal": None,
        "verdict": None,
        "models": models,
        "controller": None,
        "trace": [],
        "attacks": attacks,
        "notes": [],
    }
