"""Other versions to run `.ci/run` with: prints a `constraints.txt` that differs in one thing.

`pinned` is the file itself. `oldest-torch` and `newest-torch` exchange torch, and leave open what a
release of torch pins. `oldest` has the lower bound of each library of the extras. `free` keeps
torch alone, for a Python that some pinned version does not install on. `floor` is what
`.ci/floor` installs.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MADE = "made by .ci/constraints.py"
WITH_TORCH = {"sympy", "torch"}
FSDP2 = "2.8"  # the oldest torch in which all tests pass, those of sharded parameters included
FLOOR = ("accelerate==0.34.2", "transformers==4.45.1")  # beside the lower bound of torch
LIBRARIES = (
    "bench",
    "hf",
    "test",
)  # `.ci/run` runs the tests with these


def main(which: str) -> str:
    """The text of a constraints file."""
    text = (ROOT / "constraints.txt").read_text()
    if which == "pinned":
        return text
    pinned = [line for line in text.splitlines() if not line.startswith("#")]
    others = [line for line in pinned if name_of(line) not in WITH_TORCH]
    free = [line for line in pinned if name_of(line) == "torch"]
    lines = {
        "free": free,
        "newest-torch": others,
        "oldest-torch": [*others, f"torch=={FSDP2}"],
        "floor": [f"torch=={bounds('dependencies')['torch']}.*", *FLOOR],
        "oldest": [*free, *oldest()],
    }[which]
    return "\n".join([f"# {which}: {MADE}", *lines]) + "\n"


def oldest() -> list[str]:
    """The lower bounds of the extras that `.ci/run` runs the tests with."""
    found = {name: bound for extra in LIBRARIES for name, bound in bounds(extra).items()}
    return [f"{name}=={bound}" for name, bound in sorted(found.items())]


def bounds(key: str) -> dict[str, str]:
    """Each name in a list of pyproject.toml with its lower bound."""
    # By hand: Python 3.10 has no tomllib.
    text = (ROOT / "pyproject.toml").read_text()
    entries = re.search(rf"^{key} = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert entries is not None, key
    return dict(re.findall(r'^  "([\w-]+)>=([\d.]+)', entries[1], re.MULTILINE))


def name_of(line: str) -> str:
    """The distribution that a line of constraints is about."""
    return line.partition("==")[0].lower()


if __name__ == "__main__":
    print(main(sys.argv[1]), end="")
