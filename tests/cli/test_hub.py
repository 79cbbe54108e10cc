"""A model that is not there is told at once: one question to the hub at most, and none without."""

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError

from tests.cli.conftest import Command
from torch_alm.cli.files import read_entries
from torch_alm.unlearning.hub import check_model
from torch_alm.unlearning.refusal import Refusal

Patch = pytest.MonkeyPatch


@pytest.fixture
def asked(monkeypatch: Patch, tmp_path: Path) -> list[str]:
    """Names that the hub is asked for: it knows `a/model`, and nothing is in the cache."""
    names: list[str] = []

    def repo_info(_: object, name: str, *, repo_type: str, timeout: float) -> None:
        assert timeout <= 10
        names.append(name if repo_type == "model" else f"{repo_type} {name}")
        if name != "a/model":
            raise RepositoryNotFoundError("404", response=MagicMock())

    monkeypatch.setattr("torch_alm.unlearning.hub.HfApi.repo_info", repo_info)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return names


def test_the_hub_is_asked_once_for_a_name_that_may_be_one(asked: list[str]) -> None:
    check_model("a/model")
    with pytest.raises(Refusal, match=r"the model a/nother is no folder, and the hub has no model"):
        check_model("a/nother")
    with pytest.raises(Refusal, match=r"^a/set:train is no file, and the hub has no dataset of"):
        read_entries(Path("a/set:train"), "forget")
    assert asked == ["a/model", "a/nother", "dataset a/set"]


@pytest.mark.parametrize("name", ["models/my/best", "a b", "model:latest", "runs//model"])
def test_what_is_no_name_is_not_asked_for(name: str, asked: list[str], monkeypatch: Patch) -> None:
    with pytest.raises(Refusal, match="is no folder, and no name of a model"):
        check_model(name)
    assert asked == []


@pytest.mark.parametrize(
    "error", [OfflineModeIsEnabled("offline mode"), OSError("no route.\nHelp")]
)
def test_without_a_network_it_is_a_sentence(
    error: Exception, asked: list[str], command: Command, capsys: Any, monkeypatch: Patch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("torch_alm.unlearning.hub.HfApi.repo_info", fails)
    assert command("evaluate", model=Path("a/model")) == 2
    told = " ".join(capsys.readouterr().err.split())
    first = str(error).splitlines()[0].rstrip(".")
    assert told.startswith("torch-alm: the model a/model is no folder, is not in the hub's cache, ")
    assert f"({first})" in told and told.endswith("?")


@pytest.mark.parametrize("file", ["config.json", "adapter_config.json"])
def test_a_model_in_the_cache_is_not_asked_for(file: str, asked: list[str], tmp_path: Path) -> None:
    repository = tmp_path / "cache" / "models--b--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("1" * 40)
    (repository / "snapshots" / ("1" * 40)).mkdir(parents=True)
    (repository / "snapshots" / ("1" * 40) / file).write_text("{}")
    check_model("b/model")
    assert asked == []
