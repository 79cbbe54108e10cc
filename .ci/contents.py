"""Check the contents of a release: `contents.py FOLDER` reads the wheel and the sdist in it."""

import email
import sys
import tarfile
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

BESIDES = {"README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "pyproject.toml"}
MADE_BY_THE_BUILDER = {"PKG-INFO", ".gitignore"}


def main(folder: Path) -> None:
    """Leave with a sentence if anything is missing, strange or untrue."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    ours = {str(path) for path in Path("torch_alm").rglob("*") if is_source(path)}
    if "torch_alm/py.typed" not in ours:
        sys.exit("torch_alm/py.typed is missing: type checkers would ignore the annotations")
    with ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        agree("the wheel", held, ours)
        described = read_information(archive)
    check_metadata(described, version=wheel.name.split("-")[1])
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    agree("the sdist", held, ours | BESIDES | MADE_BY_THE_BUILDER)
    print(f"{wheel.name}, {sdist.name}: {len(ours)} files of torch_alm, nothing else")


def is_source(path: Path) -> bool:
    """Neither a folder nor a compiled module."""
    return path.is_file() and "__pycache__" not in path.parts


def agree(what: str, held: set[str], expected: set[str]) -> None:
    """Name what is missing and what is strange."""
    if held != expected:
        missing, strange = sorted(expected - held), sorted(held - expected)
        sys.exit(f"{what} lacks {missing} and should not hold {strange}")


def read_information(wheel: ZipFile) -> Message:
    """The metadata; the licence and the command are looked up beside it."""
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    beside = metadata.removesuffix("METADATA")
    if wheel.read(beside + "licenses/LICENSE") != Path("LICENSE").read_bytes():
        sys.exit("the wheel's licence is not the file LICENSE")
    if b"torch-alm = torch_alm.cli:main" not in wheel.read(beside + "entry_points.txt"):
        sys.exit("the wheel does not install the command torch-alm")
    return email.message_from_bytes(wheel.read(metadata))


def check_metadata(described: Message, *, version: str) -> None:
    """Version, licence, README, and torch as the only thing that is always installed."""
    always = [name for name in described.get_all("Requires-Dist", []) if "extra ==" not in name]
    found = {
        "Version": described["Version"],
        "License-Expression": described["License-Expression"],
        "always installed": [name.partition(">")[0] for name in always],
        "README": described.get_payload(decode=True).decode(),
    }
    expected = {
        "Version": version,
        "License-Expression": "MIT",
        "always installed": ["torch"],
        "README": Path("README.md").read_text(),
    }
    for name, value in expected.items():
        if found[name] != value:
            sys.exit(f"{name} of the wheel is {found[name]!r}; should it not be {value!r}?")
    if f'__version__ = "{version}"' not in Path("torch_alm/__init__.py").read_text():
        sys.exit(f"the wheel says {version}, torch_alm.__version__ something else")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
