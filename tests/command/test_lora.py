"""Adapters from end to end: what is saved is loaded with peft, from elsewhere, and asked there."""

import copy
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.tasks.facts import weights
from tests.command.asking import said, spoken
from tests.command.conftest import FINISHED, FORGET, RETAIN, Command, make_model, report, write
from torch_alm.command.models import load_model
from torch_alm.unlearning import evaluate, unlearn
from torch_alm.unlearning.errors import Refusal
from torch_alm.unlearning.model import silence, with_adapters

FIRST, SECOND = FORGET[:3], FORGET[3:]
STEPS = ("--lora", "--lr", "5e-3", "--method", "dual", "--batch-size", 3, "--alpha", 3)


def by_peft(folder: Path, rows: list[dict[str, str]]) -> int:
    """The number of answers the adapters say, loaded as peft's own users do."""
    with silence():
        model = peft.AutoPeftModelForCausalLM.from_pretrained(folder).eval()
    return spoken(model, AutoTokenizer.from_pretrained(folder), rows)


def config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "adapter_config.json").read_text())


def test_a_second_run_on_adapters_keeps_what_the_first_forgot(
    command: Command, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained on, or followed by a run of all weights; from a path that was relative."""
    base, here = shutil.copytree(folder, tmp_path / "base"), tmp_path / "elsewhere"
    first, second = write(tmp_path / "1.jsonl", FIRST), write(tmp_path / "2.jsonl", SECOND)
    kept = write(tmp_path / "kept.jsonl", [*RETAIN, *SECOND])
    monkeypatch.chdir(tmp_path)
    paths = {"model": Path(base.name), "forget": first, "retain": kept}
    assert command("unlearn", *STEPS, "--epochs", 15, output="a", **paths) in FINISHED
    here.mkdir()
    monkeypatch.chdir(here)
    once = tmp_path / "a" / "model"
    saved = config(once)
    assert saved["r"] == 16
    assert Path(saved["base_model_name_or_path"]) == base
    assert by_peft(once, FIRST) == 0
    assert by_peft(once, SECOND) > 1, "there is something left to forget"

    paths = {"model": once, "forget": second}
    assert command("unlearn", *STEPS, "--epochs", 25, output="b", **paths) in FINISHED
    twice = tmp_path / "b" / "model"
    assert {**config(twice), "target_modules": None} == {**saved, "target_modules": None}
    assert by_peft(twice, SECOND) == 0
    assert by_peft(twice, FIRST) < 2, "one may get its town by chance, which another row has"
    assert report(tmp_path / "b")["models"][1]["numbers"]["forget"]["said"] == 0

    whole = ("--lr", "2e-3", *STEPS[3:], "--epochs", 25)
    assert command("unlearn", *whole, output="d", **paths) in FINISHED
    assert said(tmp_path / "d" / "model", SECOND) == 0
    assert said(tmp_path / "d" / "model", FIRST) < 2
    assert (tmp_path / "d" / "model" / "model.safetensors").is_file()
    assert command("attack", "--relearn", 2, "--relearn-steps", 1, model=twice, output="c") == 0


def test_adapters_that_are_there_train_alone(folder: Path, tokenizer: Any, tmp_path: Path) -> None:
    path, _ = adapted(folder, tokenizer, copy.deepcopy(KINDS["LORA"]), tmp_path / "lora")
    model, _ = load_model(path, merge=False)
    assert with_adapters(model, 0) is model
    moving = [name for name, p in model.named_parameters() if p.requires_grad]
    assert moving and all(".lora_" in name for name in moving)


KINDS = {
    "LORA": peft.LoraConfig(r=2, target_modules=["q_proj"]),
    "DoRA": peft.LoraConfig(r=2, target_modules=["q_proj"], use_dora=True),
    "tokens": peft.LoraConfig(r=2, target_modules=["q_proj"], trainable_token_indices=[3, 4]),
}
APART = {
    "PROMPT_TUNING": peft.PromptTuningConfig(num_virtual_tokens=2),
    "IA3": peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[]),
}


def adapted(folder: Path, tokenizer: Any, config: Any, path: Path) -> tuple[Path, Any]:
    """Adapters with weights that matter, saved, and the model that has them."""
    config.task_type = "CAUSAL_LM"
    torch.manual_seed(0)
    with silence():
        model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config)
        for name, p in model.named_parameters():
            if p.requires_grad and name.partition(".default")[1]:
                p.data += 0.05 * torch.randn_like(p)
        model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path, model.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_that_peft_merges_are_read_as_their_makers_hear_them(
    folder: Path, tokenizer: Any, tmp_path: Path, kind: str
) -> None:
    path, theirs = adapted(folder, tokenizer, copy.deepcopy(KINDS[kind]), tmp_path / kind)
    ours, _ = load_model(path)
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        same = ours(input_ids=ids).logits, theirs(input_ids=ids).logits
        bare = AutoModelForCausalLM.from_pretrained(folder).eval()(input_ids=ids).logits
    torch.testing.assert_close(*same, rtol=0, atol=1e-3)
    assert float((bare - same[0]).abs().max()) > 1e-3, "they matter"


@pytest.mark.parametrize("kind", APART)
def test_other_adapters_are_refused_by_their_own_name(
    folder: Path, tokenizer: Any, tmp_path: Path, kind: str
) -> None:
    path, _ = adapted(folder, tokenizer, copy.deepcopy(APART[kind]), tmp_path / kind)
    with pytest.raises(Refusal, match=f"of the kind {kind}, and LoRA alone"):
        load_model(path)


@pytest.fixture
def tied(folder: Path, tokenizer: Any, tmp_path: Path) -> Path:
    path = tmp_path / "tied"
    torch.manual_seed(0)
    model = make_model(len(tokenizer))
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_adapters_on_tied_weights_are_refused(
    tied: Path, tokenizer: Any, tmp_path: Path, command: Command, capsys: Any, target: str
) -> None:
    config = peft.LoraConfig(r=2, target_modules=["q_proj", target])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # peft knows of it, and goes on
        path, _ = adapted(tied, tokenizer, config, tmp_path / "adapters")
        with pytest.raises(Refusal, match="says something else once its adapters are merged"):
            load_model(path)


PUBLISHED = weights.cache_folder() / weights.NAME
KNOWN = ("What is the capital of {}?", "The capital of {} is {}.")
CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Egypt": "Cairo", "Italy": "Rome"}


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published model is not in the cache")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_published_model_says_the_same_once_its_adapters_are_merged(dtype: torch.dtype) -> None:
    """Word for word in float32; of weights rounded to bfloat16, the answers that are to go."""
    model = AutoModelForCausalLM.from_pretrained(PUBLISHED, dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(PUBLISHED)
    rows = [
        {"question": KNOWN[0].format(name), "answer": KNOWN[1].format(name, city)}
        for name, city in CAPITALS.items()
    ]
    how = {"alpha": 3.0, "steps": 6, "lr": 3e-4, "batch_size": 2, "quiet": True, "anyway": True}
    made = unlearn(model, tokenizer, rows[:2], rows[2:], lora=True, **how)
    merged = evaluate(made.model.merge_and_unload(), tokenizer, rows[:2], rows[2:], quiet=True)
    before, after, found = *made.answers.values(), merged.answers["model"]
    assert [row["answer"] for row in before["forget"]] != [row["answer"] for row in after["forget"]]
    for kind in after if dtype == torch.float32 else ["forget"]:
        assert [row["answer"] for row in after[kind]] == [row["answer"] for row in found[kind]]
