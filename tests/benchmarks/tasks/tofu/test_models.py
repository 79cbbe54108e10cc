"""Models from scratch: they memorise, are kept whole, and are not mixed up."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pytest
import torch

from benchmarks.engine import models
from benchmarks.engine.models import load_model
from benchmarks.engine.training import Schedule
from benchmarks.tasks.tofu.batches import encode_all
from benchmarks.tasks.tofu.data import Example, TofuData
from benchmarks.tasks.tofu.models import RECIPES, load_or_train, texts
from benchmarks.tasks.tofu.world import build_world
from torch_alm.language import answer_scores, pad_id

WORLD = build_world(quick=True)
TINY = replace(RECIPES["world-quick"], layers=1, width=8, heads=2, schedule=Schedule(1, 32, 1e-3))


class Trained(NamedTuple):
    original: Any
    retrained: Any
    tokenizer: Any
    cache: Path


@pytest.fixture(scope="module")
def trained(shared_models: Path) -> Trained:
    original, tokenizer = load_or_train(WORLD, shared_models)
    retrained, _ = load_or_train(WORLD, shared_models, without_forget=True)
    return Trained(original, retrained, tokenizer, shared_models)


def share_known(model: Any, tokenizer: Any, examples: tuple[Example, ...]) -> float:
    scores = answer_scores(model, encode_all(tokenizer, examples), pad_id(tokenizer), tau=1.0)
    return fmean(score.exact_match for score in scores)


def load_tiny(cache: Path, data: TofuData = WORLD, **changes: Any) -> tuple[Any, Any]:
    return load_or_train(data, cache, **{"recipe": TINY, **changes})


def same_weights(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_the_quick_world_is_memorised_and_nothing_else_is_known(trained: Trained) -> None:
    assert share_known(trained.original, trained.tokenizer, WORLD.full) >= 0.97
    assert share_known(trained.retrained, trained.tokenizer, WORLD.without_forget) >= 0.97
    assert share_known(trained.retrained, trained.tokenizer, WORLD.forget) < 0.5
    assert share_known(trained.original, trained.tokenizer, WORLD.holdout) < 0.5


def test_words_are_tokens_and_nothing_is_unknown(trained: Trained) -> None:
    tokenizer = trained.tokenizer
    for text in texts(WORLD):
        assert "None" not in text
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer("Zyx")["input_ids"] == [tokenizer.bos_token_id, tokenizer.unk_token_id]


def test_a_kept_model_is_loaded_not_trained(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "teach", None)
    model, tokenizer = load_or_train(WORLD, trained.cache)
    assert same_weights(model, trained.original)
    assert tokenizer.get_vocab() == trained.tokenizer.get_vocab()


CHANGES: dict[str, Callable[[TofuData], tuple[TofuData, dict[str, Any]]]] = {
    "role": lambda data: (data, {"without_forget": True}),
    "recipe": lambda data: (data, {"recipe": replace(TINY, width=16)}),
    "facts": lambda data: (build_world(1, quick=True), {}),
    "words": lambda data: (replace(data, holdout=(Example("Who?", "Zyx"),)), {}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_model_has_another_place(tmp_path: Path, change: str) -> None:
    load_tiny(tmp_path)
    data, options = CHANGES[change](WORLD)
    load_tiny(tmp_path, data, **options)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("failing", ["scratch.train_to_memorisation", "models.Path.rename"])
def test_a_failure_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(f"benchmarks.engine.{failing}", fail)
        with pytest.raises(KeyboardInterrupt):
            load_tiny(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert load_tiny(tmp_path)[0].config.training["epochs"] == 1


def test_an_unusable_model_is_refused(trained: Trained, tmp_path: Path) -> None:
    weights = trained.original.state_dict()
    weights.pop("model.norm.weight")
    trained.original.save_pretrained(tmp_path, state_dict=weights)
    trained.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"lacks \['model.norm.weight'\], which would be random"):
        load_model(tmp_path)
    tokenizer = copy.deepcopy(trained.tokenizer)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no EOS token"):
        load_model(tmp_path)
