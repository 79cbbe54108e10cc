"""A model that is not there is told at once: one question to the hub at most, and none without."""

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError

from tests.cli.conftest import Command
from torch_alm.cli.hub import check_on_hub
from torch_alm.cli.refusal import Refusal

Patch = pytest.MonkeyPatch


@pytest.fixture
def asked(monkeypatch: Patch, tmp_path: Path) -> list[str]:
    """Names that the hub is asked for: it knows `a/model`, and nothing is in the cache."""
    names: list[str] = []

    def model_info(_: object, name: str, *, timeout: float) -> None:
        assert timeout <= 10
        names.append(name)
        if name != "a/model":
            raise RepositoryNotFoundError("404", response=MagicMock())

    monkeypatch.setattr("torch_alm.cli.hub.HfApi.model_info", model_info)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return names


def test_the_hub_is_asked_once_for_a_name_that_may_be_one(asked: list[str]) -> None:
    check_on_hub("a/model")
    with pytest.raises(Refusal, match=r"--model a/nother is no folder, and the hub has no model"):
        check_on_hub("a/nother")
    assert asked == ["a/model", "a/nother"]


@pytest.mark.parametrize("name", ["models/my/best", "a b", "model:latest", "runs//model"])
def test_what_is_no_name_is_not_asked_for(name: str, asked: list[str], monkeypatch: Patch) -> None:
    with pytest.raises(Refusal, match="is no folder, and no name of a model"):
        check_on_hub(name)
    assert asked == []


@pytest.mark.parametrize(
    "error", [OfflineModeIsEnabled("offline mode"), OSError("no route.\nHelp")]
)
def test_without_a_network_it_is_a_sentence(
    error: Exception, asked: list[str], command: Command, capsys: Any, monkeypatch: Patch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("torch_alm.cli.hub.HfApi.model_info", fails)
    assert command("evaluate", model=Path("a/model")) == 2
    told = " ".join(capsys.readouterr().err.split())
    first = str(error).splitlines()[0].rstrip(".")
    assert told.startswith("torch-alm: --model a/model is no folder, it is not in the hub's cache")
    assert f"({first})" in told and told.endswith("?")


@pytest.mark.parametrize("file", ["config.json", "adapter_config.json"])
def test_a_model_in_the_cache_is_not_asked_for(file: str, asked: list[str], tmp_path: Path) -> None:
    repository = tmp_path / "cache" / "models--b--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("1" * 40)
    (repository / "snapshots" / ("1" * 40)).mkdir(parents=True)
    (repository / "snapshots" / ("1" * 40) / file).write_text("{}")
    check_on_hub("b/model")
    assert asked == []
