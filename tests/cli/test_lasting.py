"""A run outlives whoever reads what it says."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import FINISHED, Command, report
from torch_alm.cli.lasting import lasting

RUN = ("--method", "dual", "--lr", "1e-3", "--steps", 1, "--batch-size", 6)


class Gone(io.TextIOWrapper):
    """A pipe whose reader has gone."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())

    def write(self, text: str) -> int:
        raise BrokenPipeError

    flush = close = lambda self: None


@pytest.mark.parametrize("gone", [("stdout",), ("stderr",), ("stdout", "stderr")])
@pytest.mark.parametrize("kind", [Gone, lambda: None])
def test_a_run_that_nobody_listens_to_is_saved(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: Any, kind: Any
) -> None:
    """A stream is None where the shell has closed it (`>&-`)."""
    for name in gone:
        monkeypatch.setattr(sys, name, kind())
    assert command("unlearn", *RUN) in FINISHED
    assert (tmp_path / "out" / "model" / "config.json").is_file()
    assert len(report(tmp_path / "out")["trace"]) == 1


def test_a_dead_pipe_leaves_the_exit_code_as_it_is() -> None:
    """Python would flush once more when it ends, and exit with 120."""
    reader, writer = os.pipe()
    os.close(reader)
    asked = [sys.executable, "-m", "torch_alm", "--help"]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    with os.fdopen(writer) as pipe:
        done = subprocess.run(asked, stdout=pipe, stderr=subprocess.PIPE, env=buffered)
    assert (done.returncode, done.stderr) == (0, b"")


def test_what_a_terminal_cannot_write_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    with lasting():
        print("caf\u00e9", "\udcff")
    assert stream.buffer.getvalue().strip() == rb"caf\xe9 \udcff"  # pyright: ignore
