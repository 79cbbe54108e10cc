"""Install a wheel where nothing but torch is, and use it: `clean_install.py WHEEL FOLDER`.

The environment is made in FOLDER. torch is linked into it from the one that runs this script, with
what its metadata says it needs; downloading it again would take minutes and show nothing.
"""

import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

NEW_MODULES = """
import sys, torch.utils.checkpoint
before = set(sys.modules)
import torch_alm
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
print(torch_alm.__file__)
"""
README = 'from importlib.metadata import metadata; print(metadata("torch-alm").get_payload())'


def main(wheel: Path, folder: Path) -> None:
    """Leave with a sentence at the first thing that is not as promised."""
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "-q"]
    subprocess.run([*pip, "--no-deps", wheel], check=True)
    link_with_requirements("torch", site)
    check_import(folder)
    check_readme(folder)
    check_command(folder, "bin/torch-alm", "--help", exit_code=0, says="unlearn")
    asked = ["--model", "M", "--forget", "F", "--retain", "R", "--output", "O"]
    check_command(folder, "bin/torch-alm", "evaluate", *asked, exit_code=2, says="torch-alm[hf]")
    here = distribution("torch").locate_file("")
    (site / "extras.pth").write_text(f"{here}\n")
    check_command(folder, "bin/python", "-m", "torch_alm", "--help", exit_code=0, says="unlearn")
    print("installed, imported, README's example run, command asked with and without extras")


def link_with_requirements(name: str, site: Path) -> None:
    """A distribution and all it needs, as links to what is installed here."""
    for needed in closure(name):
        for top in {file.parts[0] for file in needed.files or []} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(needed.locate_file(top))


def closure(name: str, seen: set[str] | None = None) -> Iterator[Distribution]:
    """The distribution and, without extras, what it requires, each once."""
    seen = set() if seen is None else seen
    try:
        found = distribution(name)
    except PackageNotFoundError:  # CUDA's parts, where torch was installed without them
        return
    if name in seen:
        return
    seen.add(name)
    yield found
    for requirement in map(Requirement, found.requires or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from closure(requirement.name, seen)


def check_import(folder: Path) -> None:
    """torch_alm comes from the wheel, and loads nothing that torch does not load."""
    names, file = run(folder, "bin/python", "-c", NEW_MODULES).stdout.split("\n")[:2]
    if names != "torch_alm" or not Path(file).is_relative_to(folder):
        sys.exit(f"`import torch_alm` loaded {names} from {file}; is torch_alm not all it needs?")


def check_readme(folder: Path) -> None:
    """The first Python block of the installed README prints what it says."""
    readme = run(folder, "bin/python", "-c", README).stdout
    block = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    if block is None:
        sys.exit("the README in the wheel has no Python block")
    promised = re.findall(r"^#> (.*)$", block[1], re.MULTILINE)
    printed = run(folder, "bin/python", "-c", block[1]).stdout.splitlines()
    if not promised or printed != promised:
        sys.exit(f"README's example printed {printed}; should it not be {promised}?")


def check_command(folder: Path, *command: str, exit_code: int, says: str) -> None:
    """The command answers, and never with a traceback."""
    done = run(folder, *command, check=False)
    answer = done.stdout + done.stderr
    if done.returncode != exit_code or says not in answer or "Traceback" in answer:
        sys.exit(f"{command} left with {done.returncode}, saying: {answer}")


def run(folder: Path, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """A program of the clean environment, run in it, so that no checkout is found by accident."""
    program, *arguments = command
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [folder / program, *arguments], cwd=folder, env=clean, capture_output=True, text=True
    )
    if check and done.returncode:
        sys.exit(f"{program} failed in the clean environment: {done.stderr}")
    return done


if __name__ == "__main__":
    main(*(Path(argument).resolve() for argument in sys.argv[1:]))
