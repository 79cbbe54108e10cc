"""The machine that was measured on."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def machine() -> dict[str, Any]:
    """Describe this machine, without names of hosts."""
    named = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    packages = ("torch", "transformers", "pytorch_optimizer")
    return {
        "processor": named[0] if named else platform.machine(),
        "cores": len(named),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }
