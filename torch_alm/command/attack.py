"""`torch-alm evaluate` and `torch-alm attack`."""

import argparse
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torch_alm.command.files import read_files
from torch_alm.command.models import check_folder, load_for
from torch_alm.command.output import Result, check_output
from torch_alm.unlearning import report
from torch_alm.unlearning.asking import measure_for_report
from torch_alm.unlearning.attacks import run_attacks
from torch_alm.unlearning.errors import Say
from torch_alm.unlearning.folders import REPORTS
from torch_alm.unlearning.model import find_place


def evaluate(given: argparse.Namespace, say: Say) -> Result:
    """Measure one model, or two side by side."""
    begun = datetime.now(timezone.utc)
    found = read_files(given)
    check_output(given.output, REPORTS, [given.model, given.original], force=given.force)
    paths = {"original": given.original, "model": given.model}
    models = [measure_for_report(load_for(given, path, found), name)
              for name, path in paths.items() if path is not None]  # fmt: skip
    return _publish(given, begun, f"What {Path(given.model).name} knows", models=models)


def _publish(given: argparse.Namespace, begun: datetime, title: str, **found: Any) -> Result:
    settings = {k: str(v) for k, v in vars(given).items() if v not in (None, False, [], {})}
    content = report.content_of(title, f"{given.forget} against {given.retain}", settings, **found)
    device = find_place(given.device, given.precision).description()
    shown = report.publish(given.output, content, begun, device)
    return Result(0, shown, f"{given.output}: {', '.join(REPORTS)}.")


def attack(given: argparse.Namespace, say: Say) -> Result:
    """Attack one model, or two for comparison."""
    begun = datetime.now(timezone.utc)
    found = read_files(given)
    check_output(given.output, REPORTS, [given.model, given.compare], force=given.force)
    models = {"model": given.model, "compared": given.compare}
    if given.compare is not None:
        check_folder(given.compare)  # before the first one is attacked
    loaded = ((name, load_for(given, path, found)) for name, path in models.items() if path)
    title = f"Attacks on {Path(given.model).name}"
    return _publish(given, begun, title, **run_attacks(loaded, say))
