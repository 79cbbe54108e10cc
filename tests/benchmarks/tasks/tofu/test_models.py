"""Models from scratch: they memorise, are kept whole, and are not mixed up."""

import copy
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from benchmarks.engine import models
from benchmarks.engine.models import default_cache
from benchmarks.engine.scratch import Recipe, build_tokenizer, small_llama
from benchmarks.engine.training import Schedule, exact_match, train_to_memorisation
from benchmarks.tasks.tofu import models as tofu_models
from benchmarks.tasks.tofu.batches import encode_all
from benchmarks.tasks.tofu.data import Example, TofuData
from benchmarks.tasks.tofu.models import RECIPES, load_or_train, texts
from benchmarks.tasks.tofu.world import build_world
from torch_alm.language import collate, pad_id
from torch_alm.unlearning.models import load_model

WORLD = build_world(quick=True)
TINY = replace(RECIPES["world-quick"], layers=1, width=8, heads=2, schedule=Schedule(1, 32, 1e-3))


class Trained(NamedTuple):
    original: Any
    retrained: Any
    tokenizer: Any
    cache: Path


@pytest.fixture(scope="module")
def trained(shared_models: Path) -> Trained:
    cache = shared_models
    original, tokenizer = load_or_train(WORLD, cache_dir=cache, progress=False)
    retrained, _ = load_or_train(WORLD, cache_dir=cache, without_forget=True, progress=False)
    return Trained(original, retrained, tokenizer, cache)


def share_known(model: Any, tokenizer: Any, examples: tuple[Example, ...]) -> float:
    rows = encode_all(tokenizer, examples)
    return exact_match(model, rows, pad_id(tokenizer)).double().mean().item()


def load_tiny(cache: Path, data: TofuData = WORLD, **changes: Any) -> tuple[Any, Any]:
    options = {"recipe": TINY, "progress": False, **changes}
    return load_or_train(data, cache_dir=cache, **options)


def same_weights(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_the_quick_world_is_memorised(trained: Trained) -> None:
    assert share_known(trained.original, trained.tokenizer, WORLD.full) >= 0.97
    assert share_known(trained.retrained, trained.tokenizer, WORLD.without_forget) >= 0.97


def test_nobody_knows_what_they_were_not_taught(trained: Trained) -> None:
    assert share_known(trained.retrained, trained.tokenizer, WORLD.forget) < 0.5
    assert share_known(trained.original, trained.tokenizer, WORLD.holdout) < 0.5


def test_a_model_tells_how_it_was_trained(trained: Trained) -> None:
    for model, examples in (
        (trained.original, WORLD.full),
        (trained.retrained, WORLD.without_forget),
    ):
        told = model.config.training
        assert told["rows"] == len(examples)
        assert told["exact_match"] == share_known(model, trained.tokenizer, examples)
        assert 1 <= told["epochs"] <= told["schedule"]["epochs"]
        assert told["loss"] < 0.2
        assert (told["seed"], told["width"]) == (0, RECIPES["world-quick"].width)
    assert not trained.original.training
    assert next(trained.original.parameters()).dtype == torch.float32


def test_exact_match_is_greedy_decoding(trained: Trained) -> None:
    """On a damaged model, so that some answers come out right and some do not."""
    model, tokenizer = copy.deepcopy(trained.original), trained.tokenizer
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.03 * torch.randn_like(parameter))
    rows = encode_all(tokenizer, WORLD.forget + WORLD.world_facts)
    matched = exact_match(model, rows, pad_id(tokenizer), batch_size=5).tolist()
    assert 0.1 < sum(matched) / len(matched) < 0.9
    for row, expected in zip(rows, matched, strict=True):
        prompt = row["labels"].count(-100)
        said = model.generate(
            torch.tensor([row["input_ids"][:prompt]]), max_new_tokens=40, do_sample=False
        )
        assert (said[0].tolist() == row["input_ids"]) == expected


def test_exact_match_leaves_the_model_alone(trained: Trained) -> None:
    model = trained.original
    rows = encode_all(trained.tokenizer, WORLD.forget[:2])
    for mode in (True, False):
        model.train(mode)
        exact_match(model, rows, 0)
        assert model.training == mode


def test_words_are_tokens_and_nothing_is_unknown(trained: Trained) -> None:
    tokenizer = trained.tokenizer
    for text in texts(WORLD, RECIPES["world-quick"]):
        assert "None" not in text
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer("Zyx")["input_ids"] == [tokenizer.bos_token_id, tokenizer.unk_token_id]


def test_byte_pairs_are_lossless_on_any_text() -> None:
    recipe = replace(RECIPES["tofu"], vocabulary=400)
    tokenizer = build_tokenizer(texts(WORLD, recipe), recipe)
    assert len(tokenizer) == 400
    text = "naïve 東京 \U0001f600\n\n x"
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_training_is_reproducible_and_depends_on_the_seed(tmp_path: Path) -> None:
    first, _ = load_tiny(tmp_path / "a")
    torch.manual_seed(99)
    state = torch.get_rng_state()
    again, _ = load_tiny(tmp_path / "b")
    assert torch.equal(torch.get_rng_state(), state)
    assert same_weights(first, again)
    assert not same_weights(first, load_tiny(tmp_path / "b", seed=1)[0])


def test_a_kept_model_is_loaded_not_trained(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "teach", None)
    model, tokenizer = load_or_train(WORLD, cache_dir=trained.cache)
    assert same_weights(model, trained.original)
    assert tokenizer.get_vocab() == trained.tokenizer.get_vocab()
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("</s>", "<pad>")


CHANGES: dict[str, Callable[[TofuData], tuple[TofuData, dict[str, Any]]]] = {
    "role": lambda data: (data, {"without_forget": True}),
    "seed": lambda data: (data, {"seed": 1}),
    "recipe": lambda data: (data, {"recipe": replace(TINY, width=16)}),
    "schedule": lambda data: (data, {"recipe": replace(TINY, schedule=Schedule(1, 32, 2e-3))}),
    "facts": lambda data: (build_world(1, quick=True), {}),
    "words": lambda data: (replace(data, holdout=(Example("Who?", "Zyx"),)), {}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_model_has_another_place(tmp_path: Path, change: str) -> None:
    load_tiny(tmp_path)
    data, options = CHANGES[change](WORLD)
    load_tiny(tmp_path, data, **options)
    assert len(list(tmp_path.iterdir())) == 2


def test_splits_share_the_original_model_of_byte_pairs(tmp_path: Path) -> None:
    """TOFU's splits differ in what is forgotten and evaluated, not in what is learned first."""
    recipe = replace(TINY, tokens="bpe", vocabulary=400)
    other = replace(WORLD, split="other", forget=WORLD.forget[:1], holdout=(), retain_eval=())
    load_tiny(tmp_path, WORLD, recipe=recipe)
    load_tiny(tmp_path, other, recipe=recipe)
    assert len(list(tmp_path.iterdir())) == 1
    for data in (WORLD, other):
        load_tiny(tmp_path, data, recipe=recipe, without_forget=True)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("failing", ["train_to_memorisation", "save_pretrained", "replace"])
def test_a_failure_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    target = {
        "train_to_memorisation": "benchmarks.engine.scratch.train_to_memorisation",
        "save_pretrained": "transformers.PreTrainedTokenizerFast.save_pretrained",
        "replace": "benchmarks.engine.models.os.replace",
    }[failing]
    with monkeypatch.context() as patched:
        patched.setattr(target, fail)
        with pytest.raises(KeyboardInterrupt):
            load_tiny(tmp_path)
    assert list(tmp_path.iterdir()) == []
    model, _ = load_tiny(tmp_path)
    assert model.config.training["epochs"] == 1


def test_the_folder_appears_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All writing is done elsewhere, and then renamed."""
    seen: list[list[str]] = []
    original = models.os.replace

    def look(source: Path, target: Path) -> None:
        seen.append(sorted(p.name for p in Path(source).iterdir()))
        assert not Path(target).exists()
        original(source, target)

    monkeypatch.setattr(models.os, "replace", look)
    load_tiny(tmp_path)
    (folder,) = tmp_path.iterdir()
    assert seen == [sorted(p.name for p in folder.iterdir())]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(seen[0])


def test_two_processes_may_finish_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_tiny(tmp_path / "other")
    (other,) = (tmp_path / "other").iterdir()
    train = models.teach

    def slower(*arguments: Any) -> Any:
        shutil.copytree(other, tmp_path / "mine" / other.name)
        return train(*arguments)

    monkeypatch.setattr(models, "teach", slower)
    model, _ = load_tiny(tmp_path / "mine")
    assert same_weights(model, load_model(other)[0])
    assert [p.name for p in (tmp_path / "mine").iterdir()] == [other.name]


def test_an_unwritable_cache_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        load_tiny(tmp_path / "file")


def test_a_named_model_is_loaded(trained: Trained, tmp_path: Path) -> None:
    trained.original.save_pretrained(tmp_path)
    trained.tokenizer.save_pretrained(tmp_path)
    model, _ = load_or_train(WORLD, tmp_path)
    assert same_weights(model, trained.original)
    with pytest.raises(ValueError, match=r"without_forget=True would be the original model once"):
        load_or_train(WORLD, tmp_path, without_forget=True)


def test_half_precision_weights_are_widened(trained: Trained, tmp_path: Path) -> None:
    copy.deepcopy(trained.original).to(torch.bfloat16).save_pretrained(tmp_path)
    trained.tokenizer.save_pretrained(tmp_path)
    assert next(load_model(tmp_path)[0].parameters()).dtype == torch.float32
    kept = load_model(tmp_path, dtype=torch.bfloat16)[0]
    assert next(kept.parameters()).dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # of peft
def test_adapters_are_merged_into_the_model_they_name(trained: Trained, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    trained.original.save_pretrained(tmp_path / "base")
    base, _ = load_model(save_tokenizer(tmp_path / "base", trained))
    adapted = peft.get_peft_model(base, peft.LoraConfig(init_lora_weights=False))
    adapted.save_pretrained(tmp_path / "lora")
    model, _ = load_or_train(WORLD, save_tokenizer(tmp_path / "lora", trained))
    assert type(model) is type(trained.original) and not same_weights(model, trained.original)
    ids = torch.arange(9)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, adapted.eval()(ids).logits)


def save_tokenizer(folder: Path, trained: Trained) -> Path:
    trained.tokenizer.save_pretrained(folder)
    return folder


def without_tokenizer(folder: Path, trained: Trained) -> None:
    trained.original.save_pretrained(folder)


def without_model(folder: Path, trained: Trained) -> None:
    trained.tokenizer.save_pretrained(folder)


def without_eos(folder: Path, trained: Trained) -> None:
    tokenizer = copy.deepcopy(trained.tokenizer)
    tokenizer.eos_token = None
    trained.original.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def without_a_weight(folder: Path, trained: Trained) -> None:
    weights = trained.original.state_dict()
    weights.pop("model.norm.weight")
    trained.original.save_pretrained(folder, state_dict=weights)
    trained.tokenizer.save_pretrained(folder)


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        (without_tokenizer, "has no tokenizer beside it"),
        (without_model, "has no config.json and no adapter_config.json"),
        (without_eos, "has no EOS token"),
        (without_a_weight, "has no weights for model.norm.weight, which would be random"),
    ],
)
def test_an_unusable_folder_is_named(
    trained: Trained,
    tmp_path: Path,
    lacking: Callable[[Path, Trained], None],
    message: str,
) -> None:
    lacking(tmp_path, trained)
    with pytest.raises(ValueError, match=message) as error:
        load_or_train(WORLD, tmp_path)
    assert str(tmp_path) in str(error.value)


def test_a_name_that_is_nowhere_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"the model nobody/nothing is no folder, is not in "):
        load_model("nobody/nothing")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("TORCH_ALM_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache() == Path("/home/me/.cache/torch-alm")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert default_cache() == Path("/x/torch-alm")
    monkeypatch.setenv("TORCH_ALM_CACHE", "/y")
    assert default_cache() == Path("/y")


def rows_and_model(recipe: Recipe = TINY) -> tuple[list[dict[str, list[int]]], Any]:
    tokenizer = build_tokenizer(texts(WORLD, recipe), recipe)
    return encode_all(tokenizer, WORLD.full), small_llama(tokenizer, recipe, seed=0)


def test_training_stops_at_the_target_and_measures_what_it_says() -> None:
    rows, model = rows_and_model(replace(TINY, width=64))
    schedule = Schedule(epochs=40, batch_size=24, lr=5e-3, target=0.5)
    told = train_to_memorisation(model, rows, 0, schedule)
    assert 1 < told["epochs"] < 40
    assert told["exact_match"] == exact_match(model, rows, 0).double().mean().item() >= 0.5


def test_training_that_runs_out_of_epochs_says_so() -> None:
    rows, model = rows_and_model(replace(TINY, width=64))
    told = train_to_memorisation(model, rows, 0, Schedule(epochs=11, batch_size=24, lr=5e-3))
    assert told["epochs"] == 11
    assert told["exact_match"] == exact_match(model, rows, 0).double().mean().item()
    assert 0.05 < told["exact_match"] < 0.95  # too few to have been measured on the way
    assert not model.training


def test_the_loss_of_training_is_the_models_own_loss() -> None:
    """With a learning rate of 0 every step reports the mean over all answer tokens."""
    rows, model = rows_and_model()
    batch = collate(rows, 0)
    with torch.no_grad():
        logits: Tensor = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    expected = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).double(), batch["labels"][:, 1:].flatten(), ignore_index=-100
    )
    before = copy.deepcopy(model)
    for bfloat16, tolerance in ((False, 1e-5), (True, 2e-2)):
        schedule = Schedule(epochs=1, batch_size=7, lr=0.0, bfloat16=bfloat16)
        told = train_to_memorisation(model, rows, 0, schedule)
        assert told["loss"] == pytest.approx(expected.item(), rel=tolerance)
    assert same_weights(model, before)


def test_progress_shows_loss_and_exact_match(capsys: pytest.CaptureFixture[str]) -> None:
    rows, model = rows_and_model()
    train_to_memorisation(model, rows, 0, Schedule(1, 32, 1e-3), label="tiny world")
    shown = capsys.readouterr().err
    assert "tiny world: 100%" in shown
    assert "loss=" in shown
    assert "exact=0.0%" in shown
    train_to_memorisation(model, rows, 0, Schedule(1, 32, 1e-3))
    assert capsys.readouterr().err == ""


def test_the_larger_recipes_are_of_the_size_they_claim() -> None:
    world, tofu = (
        sum(p.numel() for p in small_llama(build_tokenizer(texts(WORLD, r), r), r, 0).parameters())
        for r in (RECIPES["world"], RECIPES["tofu"])
    )
    assert 0.7e6 < world < 1.5e6
    assert 3e6 < tofu < 7e6


def test_a_pretrained_model_is_taught_from_its_own_weights_and_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tofu_models, "FINE_TUNING", Schedule(1, 32, 0.0))
    base, tokenizer = load_tiny(tmp_path / "cache")
    base.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    options = {"cache": tmp_path / "cache", "base": tmp_path / "base"}
    model, found = load_tiny(**options)
    assert same_weights(model, base)  # at a rate of 0 it stays what it was
    assert found.get_vocab() == tokenizer.get_vocab()
    with torch.no_grad():
        next(iter(base.parameters())).add_(1.0)
    base.save_pretrained(tmp_path / "base")
    assert same_weights(load_tiny(**options)[0], base)  # other weights are another model
