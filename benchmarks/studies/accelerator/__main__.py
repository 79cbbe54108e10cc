"""Exactness, waits, memory and time of the optimizers on an accelerator.

    python -m benchmarks.studies.accelerator [--device cuda|cpu] [--quick]
        [--sections NAME ...] [--output DIR] [--traces DIR]

A section is a list of named checks and measurements. One that fails is reported with its error,
and the others go on; on a card each section has a process of its own, so that one that breaks the
device ends alone. After every section `accelerator.json` is written, and `accelerator.md` from it;
sections that are run replace theirs. It is meant to take less than twenty minutes on one card.

With `--device cpu` it shows that the study itself works, and what of it holds without a device.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.report.results import parsed, read_record, write_record
from benchmarks.studies.accelerator.apart import lines_apart
from benchmarks.studies.accelerator.checks import Line, Place
from benchmarks.studies.accelerator.page import page, told
from benchmarks.studies.accelerator.sections import SECTIONS, lines
from benchmarks.studies.machine import machine

ABSENT = 2


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.accelerator", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="toy sizes, to see it run")
    parser.add_argument("--sections", nargs="+", default=[*SECTIONS], choices=[*SECTIONS])
    parser.add_argument("--traces", type=Path, help="folder for profiles of the timed steps")
    return parsed(parser, arguments)


def described(place: Place) -> dict[str, Any]:
    """The machine, and what CUDA there is."""
    found = {**machine(), "device": place.device.type}
    if not place.is_cuda:
        return found
    total = torch.cuda.get_device_properties(0).total_memory
    return {
        **found,
        "cards": torch.cuda.device_count(),
        "memory GB": round(total / 1e9, 1),
        "driver": driver(),
        "cuda": torch.version.cuda,
        "capability": ".".join(map(str, torch.cuda.get_device_capability(0))),
    }


def driver() -> str | None:
    """The version of NVIDIA's driver, which torch does not tell."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.split("\n")[0].strip() or None


def study(
    place: Place,
    names: Sequence[str],
    output: Path,
    run: Callable[[str, Place], Iterator[Line]],
) -> int:
    """Run sections and write after each; the number of lines that failed."""
    content, where, failed = read_record(output, "accelerator"), described(place), 0
    for name in names:
        content[name] = {"machine": where, "lines": []}
        for line in run(name, place):
            content[name]["lines"].append(line)
            failed += line["status"] == "failed"
            print(f"{name:10} {line['status']:8} {line['name']}: {told(line)}", flush=True)
        write_record(output, "accelerator", content, page)
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; 1 if anything failed, 2 without the device."""
    options = parse(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "torch finds no CUDA device here, and nothing would be shown about one. Did you mean "
            "--device cpu, which shows that the study itself works?",
            file=sys.stderr,
        )
        return ABSENT
    options.output.mkdir(parents=True, exist_ok=True)
    place = Place(torch.device(options.device), options.quick, options.traces)
    run = lines_apart if place.is_cuda else lines
    return int(study(place, options.sections, options.output, run) > 0)


if __name__ == "__main__":
    raise SystemExit(main())
