"""For the scripts: a second run, which draws what the first has drawn."""

from pathlib import Path

import pytest


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pictures: to lay out and compress them takes as long as a short training."""
    from benchmarks.report import figures

    def touched(_: object, path: Path) -> None:
        path.touch()

    monkeypatch.setattr(figures, "save", touched)
