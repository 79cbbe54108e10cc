"""`torch-alm evaluate`: the report for any saved model."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_alm.cli import report
from torch_alm.cli.loading import load_for, read_files
from torch_alm.cli.measuring import measure
from torch_alm.cli.unfinished import Unfinished
from torch_alm.cli.unlearn import READ


def evaluate(given: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Measure one model, or two side by side."""
    found = read_files(given)
    Unfinished(given.output).check_free(force=given.force)
    names = {"original": given.original, "model": given.model}
    models: list[dict[str, Any]] = []
    for name, path in names.items():
        if path is not None:
            loaded = load_for(given, path, found)
            measured = measure(loaded.model, loaded.tokenizer, loaded.first(given.rows))
            models.append({"name": name, **measured})
    content = plain_content(given, f"What {Path(given.model).name} knows", models, [])
    report.publish(given.output, content)
    say(report.terminal(content))
    say(f"\n{given.output}: report.html, report.json.")
    return 0


def plain_content(
    given: argparse.Namespace, title: str, models: list[dict[str, Any]], attacks: list[Any]
) -> dict[str, Any]:
    """A report without a run behind it."""
    names = sorted(vars(given).keys() - {"verb", "output", "force"} - {*READ})
    settings = {name: getattr(given, name) for name in (*READ, *names)}
    return {
        "title": title,
        "subtitle": f"{given.forget} against {given.retain}",
        "settings": {k: v if v is None else str(v) for k, v in settings.items()},
        "versions": report.versions(),
        "goal": None,
        "models": models,
        "controller": None,
        "trace": [],
        "attacks": attacks,
        "notes": [],
    }
