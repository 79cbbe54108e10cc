"""Places on the command line, looked at before anything is read, trained or asked of the hub."""

from __future__ import annotations

import argparse
import os

from torch_alm.unlearning.files import check_writable
from torch_alm.unlearning.models import check_folder

MODELS = ("model", "retrained")
WRITTEN = ("output", "cache")


def check_places(given: argparse.Namespace) -> None:
    """Refuse a path that has no model, and one that nothing could be written to.

    A name on the hub is asked for later, once the rest is known to make sense.

    Raises:
        ValueError: One of them is so.
    """
    for option in MODELS:
        name = getattr(given, option, None)
        if name is not None and (os.path.exists(name) or name.startswith(("/", "."))):
            check_folder(name)
    for option in WRITTEN:
        path = getattr(given, option)
        if path is not None:
            check_writable(path, f"--{option} {path}")
