"""The model that is saved is of the dtype that came in, and is the one the verdict is about."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from tests.command.conftest import FINISHED, Command, Refused, report
from torch_alm.command.models import stored_dtype
from torch_alm.unlearning.errors import Refusal
from torch_alm.unlearning.model import find_place

WORDS = ("--epochs", 4, "--lr", "3e-3", "--rows", 4)


@pytest.fixture
def narrow(folder: Path, tokenizer: Any, tmp_path: Path) -> Callable[[torch.dtype], Path]:
    def saved(dtype: torch.dtype) -> Path:
        path = tmp_path / str(dtype).rpartition(".")[2]
        AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).save_pretrained(path)
        tokenizer.save_pretrained(path)
        return path

    return saved


def dtypes(folder: Path) -> set[str]:
    """Of the weights in the file, as it says itself."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118


def test_the_folder_of_a_run_is_not_its_model(refused: Refused, unlearned: Path) -> None:
    assert f"Did you mean {unlearned / 'model'}" in refused("evaluate", model=unlearned)


@pytest.mark.parametrize(("dtype", "named"), [(torch.bfloat16, "BF16"), (torch.float16, "F16")])
def test_a_model_comes_back_in_the_dtype_it_was_stored_in(
    command: Command, narrow: Any, tmp_path: Path, dtype: torch.dtype, named: str
) -> None:
    original = narrow(dtype)
    assert dtypes(original) == {named}
    assert command("unlearn", *WORDS, model=original) in FINISHED
    saved = tmp_path / "out" / "model"
    assert dtypes(saved) == {named}
    found = AutoConfig.from_pretrained(saved).dtype
    assert found in (dtype, str(dtype).rpartition(".")[2])
    assert AutoModelForCausalLM.from_pretrained(saved, dtype="auto").dtype is dtype
    assert command("evaluate", "--rows", 4, output="again", model=saved) == 0
    after, again = report(tmp_path / "out")["models"][1], report(tmp_path / "again")["models"][0]
    assert after["numbers"]["forget"] == again["numbers"]["forget"], (
        "what was asked is what was saved"
    )
    assert list(tmp_path.glob("*/model/*.bin")) == []


def test_adapters_are_float32_and_their_model_says_what_it_is(
    command: Command, narrow: Any, tmp_path: Path
) -> None:
    assert command("unlearn", *WORDS, "--lora", model=narrow(torch.bfloat16)) in FINISHED
    adapters = tmp_path / "out" / "model"
    with safe_open(adapters / "adapter_model.safetensors", "pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F32"}  # noqa: SIM118
    assert stored_dtype(str(adapters)) is torch.bfloat16


def test_a_gpu_of_a_mac_that_is_not_there_is_refused(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    with pytest.raises(Refusal, match="`device` is mps"):
        find_place("mps", "auto")
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    assert find_place("mps", "auto").device == "mps"
