"""Settings of a run: whatever its result depends on."""

import argparse
import hashlib
from pathlib import Path
from typing import Any

from torch_alm.cli.methods import BETAS, RHO
from torch_alm.cli.sources import records_of

LORA = ("lora", "lora_rank", "lora_targets", "merge")
RATES = ("lr", "rho", "mu", "beta")
FOLLOWED = ("method", *LORA, "accumulate", "steps", "epochs", *RATES, "alpha", "certify")
READ = ("model", "max_length", "rows", "batch_size", "seed", "device", "precision")
ASKED = ("template", "system", "columns")


def settings_of(given: argparse.Namespace) -> dict[str, Any]:
    """Everything the result depends on; two runs with the same are the same run."""
    own = {"rho": given.rho or RHO, "beta": given.beta or BETAS.get(given.method)}
    plain = {name: getattr(given, name) for name in (*READ, *ASKED, *FOLLOWED, "redact")}
    names = ("forget", "retain", "holdout")
    paths = {name: getattr(given, name) for name in names if getattr(given, name)}
    read = {name: f"{path}, sha256 {_hash(path)}" for name, path in paths.items()}
    return {**plain, **own, **read}


def _hash(path: Path) -> str:
    read = path.read_bytes() if path.is_file() else repr(records_of(path)).encode()
    return hashlib.sha256(read).hexdigest()[:16]
