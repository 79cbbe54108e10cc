"""The output folder: what a run wrote into it may be replaced by another, and nothing else."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_alm.unlearning.files import check_writable, digest_of, write_json
from torch_alm.unlearning.refusal import Refusal

REPORTS = ("report.html", "report.json")
MODEL = "model"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Output:
    """An output folder, and the names that a run will write there."""

    folder: Path
    targets: Sequence[str]

    def check(self, models: Iterable[str | None], *, force: bool) -> None:
        """Refuse to write where something else might be lost.

        Args:
            models: all models of the command line; none of their folders is written to.
            force: whether what earlier runs wrote may be replaced.

        Raises:
            Refusal: names what stands there.
        """
        for model in models:
            if model is not None and os.path.isdir(model):
                self._check_model(Path(model))
        if self._is_taken() and not force:
            raise Refusal(
                f"--output {self.folder} is not empty, and what is there might be overwritten. Did "
                "you mean another folder, or --force?"
            )
        check_writable(self.folder, f"--output {self.folder}")
        self.check_own()

    def _is_taken(self) -> bool:
        """True if there is a file; folders within folders hold nothing that could be lost."""
        if not self.folder.is_dir():
            return self.folder.exists()
        return any(path.is_symlink() or not path.is_dir() for path in self.folder.rglob("*"))

    def check_own(self) -> None:
        """Refuse to replace a file that no run has written, or that has changed since."""
        known = self._known()
        found = [path for name in self.targets for path in _files(self.folder / name)]
        foreign = [path for path in found if digest(path) not in known.get(self._name(path), [])]
        if foreign:
            more = f" (and {len(foreign) - 1} more)" if len(foreign) > 1 else ""
            raise Refusal(
                f"{foreign[0]}{more} was not written by torch-alm, or has changed since, and would "
                "be replaced; --force replaces only what a run has written. Did you mean another "
                "--output?"
            )

    def announce(self, draft: Path, path: Path) -> None:
        """Write down what is about to take a name, beside what has it now.

        Whichever of the two stands there when the run ends, by whatever end, a run has written it.
        """
        files = self._known()
        for file in _files(draft):
            name = self._name(path / file.relative_to(draft))
            files[name] = sorted({*files.get(name, []), digest(file)})
        self._write(files)

    def note(self, *names: str) -> None:
        """Write down that these were written by a run."""
        kept = {k: v for k, v in self._known().items() if not _is_below(k, names)}
        new = [path for name in names for path in _files(self.folder / name)]
        self._write(kept | {self._name(path): [digest(path)] for path in new})

    def _write(self, files: dict[str, list[str]]) -> None:
        write_json(self.folder / MANIFEST, {"written by": "torch-alm", "files": files})

    def _known(self) -> dict[str, list[str]]:
        """The digests of each file that a run has written: one, or two while it is replaced."""
        path = self.folder / MANIFEST
        if not path.is_file():
            return {}
        try:
            found = json.loads(path.read_text(encoding="utf-8"))["files"]
            return {k: [v] if isinstance(v, str) else list(v) for k, v in found.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refusal(
                f"{path} is not the list that torch-alm keeps of what it wrote, so that nothing "
                "can be replaced here. Did you mean another --output?"
            ) from error

    def _check_model(self, model: Path) -> None:
        own, there = model.resolve(), self.folder.resolve()
        if there.is_relative_to(own):
            raise Refusal(
                f"--output {self.folder} is the folder of the model {model}, or lies inside it; "
                "the model would be changed. Did you mean another folder?"
            )
        for target in (there / name for name in self.targets):
            if own.is_relative_to(target.resolve()):
                raise Refusal(
                    f"the model {model} is what --output {self.folder} would replace by its "
                    "result. Did you mean another folder?"
                )

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def digest(path: Path) -> str:
    """See `digest_of`; whatever is no plain file, no run has ever written."""
    return "no plain file" if path.is_symlink() or not path.is_file() else digest_of(path)


def _files(path: Path) -> list[Path]:
    """A file or link, or all of those below a folder."""
    if path.is_symlink() or not path.is_dir():
        return [path] if path.is_symlink() or path.exists() else []
    return sorted(p for p in path.rglob("*") if p.is_symlink() or not p.is_dir())


def _is_below(name: str, parents: Iterable[str]) -> bool:
    return any(name == parent or name.startswith(f"{parent}/") for parent in parents)
