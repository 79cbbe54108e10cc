"""A disk that is full, read-only or gone: a sentence, a run that is kept, and one that goes on."""

import copy
import errno
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.cli.conftest import FINISHED, Command
from tests.cli.test_unlearn import StopAfter
from torch_alm.cli import closing, keeping, loading
from torch_alm.cli import unlearn as unlearn_module
from torch_alm.cli.measuring import measure
from torch_alm.cli.methods import METHODS
from torch_alm.unlearning.files import write_folder, write_text
from torch_alm.unlearning.refusal import Unwritten

# A state after every step; two of them
RUN = ("--method", "dual", "--lr", "1e-3", "--steps", 2, "--batch-size", 6, "--save-every", 1e-9)
WRITERS = (
    (Path, "open"),
    (torch, "save"),
    (os, "replace"),
    (transformers.LlamaForCausalLM, "save_pretrained"),
    (transformers.PreTrainedTokenizerFast, "save_pretrained"),
)


class Disk:
    """A disk that counts what is written below a folder, and refuses what it is told to."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder, self.written = folder, 0
        self.refuses: Callable[[int], bool] = lambda count: False
        self.error = OSError(errno.ENOSPC, "No space left on device")
        for owner, name in WRITERS:
            patch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def found(*given: Any, **more: Any) -> Any:
            reads = write.__name__ == "open" and given[1:2] not in (("w",), ("wb",))
            if not reads and any(self._is_below(each) for each in given):
                self.written += 1
                if self.refuses(self.written):
                    raise self.error
            return write(*given, **more)

        return found

    def _is_below(self, given: Any) -> bool:
        name = getattr(given, "name", None) if hasattr(given, "fileno") else given
        return isinstance(name, str | Path) and str(name).startswith(str(self.folder))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model is measured once for all runs: what is said of it is not looked at here."""
    known: dict[str, Any] = {}

    def measured(model: Any, tokenizer: Any, rows: Any, label: str) -> Any:
        if label not in known:
            known[label] = measure(model, tokenizer, rows, label)
        return known[label]

    loaded: list[Any] = []
    load = unlearn_module.load_for

    def once(*given: Any, **more: Any) -> Any:
        if not loaded:
            loaded.append(load(*given, **more))
        return copy.deepcopy(loaded[0])

    monkeypatch.setattr(loading, "measure", measured)
    monkeypatch.setattr(closing, "load_for", lambda *_, **__: loaded[0])
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # waits for the disk, at no work
    monkeypatch.setattr(unlearn_module, "load_for", once)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Disk:
    monkeypatch.setattr(keeping, "sleep", lambda seconds: None)
    return Disk(monkeypatch, tmp_path)


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


def state_of(folder: Path) -> int:
    """The step of the state that was written down; 0 without one. A broken file raises."""
    path = folder / "unfinished" / "state.pt"
    return len(torch.load(path, weights_only=True)["trace"]) if path.is_file() else 0


@pytest.mark.parametrize("kind", ["once", "until there is room or Ctrl-C"])
def test_a_fault_at_any_write_loses_nothing_and_the_same_command_ends_the_run(
    command: Command, tmp_path: Path, disk: Disk, quick: None, monkeypatch: Any, kind: str
) -> None:
    assert command("unlearn", *RUN, output="clean") in FINISHED
    count, full, codes = disk.written, [False], set()

    def wait(seconds: float) -> None:
        full[0] = False
        if fault % 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(keeping, "sleep", wait)
    for fault in range(1, count + 1):
        folder, disk.written = tmp_path / f"{fault}", 0

        def refuses(written: int, fault: int = fault) -> bool:
            if written == fault:
                full[0] = kind != "once"
            return written == fault or full[0]

        disk.refuses = refuses
        code = command("unlearn", *RUN, output=folder.name)
        full[0], disk.refuses = False, lambda written: False
        codes.add(code)
        assert code in {2, 130, *FINISHED}, "never a traceback"
        assert leftovers(folder) == []
        assert state_of(folder) in range(3), "what was written down is whole"
        if code not in FINISHED:
            assert command("unlearn", *RUN, output=folder.name) in FINISHED
        assert weights(folder) == weights(tmp_path / "clean")
    assert {2, *FINISHED} & codes and (130 in codes) == (kind != "once")


def test_the_last_good_save_outlives_an_autosave_that_fails(
    command: Command, tmp_path: Path, disk: Disk, quick: None, monkeypatch: Any, capsys: Any
) -> None:
    """The second autosave finds the disk full, and so does Ctrl-C, which is not waited for."""
    folder, writes = tmp_path / "out", list[int]()

    def full(written: int) -> bool:
        writes.append(state_of(folder))
        return writes[-1] == 1

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    disk.refuses = full
    monkeypatch.setattr(keeping, "sleep", interrupted)
    with monkeypatch.context() as patch:
        StopAfter(patch, 3, METHODS["dual"])
        assert command("unlearn", *RUN, "--steps", 3) == 130
    told = capsys.readouterr()
    assert "Stopped after step 3 of 3, which could not be written down" in told.out
    assert " ".join(told.err.split()).count("what was last written down is its step 1") == 2
    assert state_of(folder) == 1 and leftovers(folder) == []
    disk.refuses = lambda written: False
    assert command("unlearn", *RUN, "--steps", 3) in FINISHED
    assert "Going on after step 1 of 3." in capsys.readouterr().out


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """A disk that fills up: what is written beyond is refused in the middle of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_disk_that_is_full_in_the_middle_of_a_file_is_a_sentence_and_a_wait(
    command: Command, tmp_path: Path, quick: None, monkeypatch: Any, capsys: Any
) -> None:
    """Neither state nor model fits; the hour is over, and nothing broken is left."""
    waited: list[float] = []
    monkeypatch.setattr(keeping, "sleep", waited.append)
    monkeypatch.setattr(keeping, "TRIES", 3)
    with no_file_above(30_000):
        assert command("unlearn", *RUN, "--json") == 2
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 1
    words = " ".join(told.err.split())
    assert "there is no space left for" in words and "The run goes on; nothing of it" in words
    assert words.count("The run waits in memory, after step 2") == 1
    assert waited == [keeping.SECONDS] * 3
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["unfinished", "run.json"]
    assert command("unlearn", *RUN) in FINISHED


def test_a_folder_keeps_its_name_where_the_new_one_cannot_take_it(
    tmp_path: Path, monkeypatch: Any
) -> None:
    path, replace = tmp_path / "model", os.replace
    write_folder(path, lambda draft: (draft / "a").write_text("old"))

    def fails(source: Path, target: Path) -> None:
        if "partial" in Path(source).name:
            raise OSError(errno.EROFS, "Read-only file system")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(Unwritten, match=r"cannot write \(Read-only file system\) "):
        write_folder(path, lambda draft: (draft / "a").write_text("new"))
    assert (path / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_what_a_killed_run_has_begun_to_write_goes_with_the_next(tmp_path: Path) -> None:
    left = tmp_path / ".file.partial-1"
    left.mkdir()
    (left / "part").write_text("x" * 99)
    (tmp_path / ".other.partial-1").write_text("of another file")
    write_text(tmp_path / "file", "whole")
    assert {p.name for p in tmp_path.iterdir()} == {"file", ".other.partial-1"}


@pytest.mark.parametrize("killed", ["before", "after"])
def test_a_folder_that_a_killed_run_was_replacing_is_put_back_or_goes(
    tmp_path: Path, killed: str
) -> None:
    path, old = tmp_path / "model", tmp_path / ".model.old-1"
    for each in (old, path) if killed == "after" else (old,):
        each.mkdir()
        (each / "a").write_text("old")

    def fails(draft: Path) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_folder(path, fails)
    assert (path / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("writer", ["write_json", "write_text"])
def test_a_run_that_was_killed_before_its_reports_is_run_again(
    command: Command, tmp_path: Path, quick: None, monkeypatch: Any, writer: str
) -> None:
    """A model is there and no state; an older model that lost its name is not left over."""

    def killed(*_: object) -> None:
        raise SystemError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(f"torch_alm.cli.report.{writer}", killed)
        with pytest.raises(SystemError, match="killed"):
            command("unlearn", *RUN, "--save-every", 99)
    assert state_of(tmp_path / "out") == 0
    shutil.copytree(tmp_path / "out" / "model", tmp_path / "out" / ".model.old-1")
    assert command("unlearn", *RUN) in FINISHED
    assert leftovers(tmp_path / "out") == []
