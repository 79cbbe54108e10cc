"""Short passes give the numbers of whole ones, whatever the family."""

from typing import Any

import peft
import pytest
import torch
import transformers
from accelerate import cpu_offload, dispatch_model
from accelerate.hooks import ModelHook, add_hook_to_module

from tests.models import FORGET, RETAIN
from tests.unlearning.test_verbs import Fails
from torch_alm.unlearning import Refusal, layer_cache, resume, unlearn
from torch_alm.unlearning.layer_cache import LayerCache, answer_logits
from torch_alm.unlearning.model import freeze_below, silence

SIZES = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4,
         "num_attention_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0}  # fmt: skip
HEADS = {**SIZES, "num_key_value_heads": 1, "head_dim": 8}
SLIDING = {**HEADS, "sliding_window": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": HEADS,
    "Qwen2": {**SLIDING, "use_sliding_window": True, "max_window_layers": 1},
    "Qwen3": {**SLIDING, "use_sliding_window": True, "max_window_layers": 3},
    "Gemma2": SLIDING,
    "Gemma3Text": {**SLIDING, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "GPT2": {"vocab_size": 40, "n_embd": 16, "n_layer": 4, "n_head": 2, "n_positions": 64},
    "GPTNeoX": SIZES,
    "Phi3": SLIDING,
    "Olmo2": HEADS,
    "Mistral": SLIDING,
}
ROWS = [[5, 6, 7, 8, 9, 10, 11, 12, 13], [14, 15, 16, 17], [18, 19, 20, 21, 22, 23, 24]]


def small(family: str, **more: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**FAMILIES.get(family, HEADS) | more)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for p in model.parameters():  # biases, too, and norms that differ
            p.add_(0.1 * torch.randn_like(p))
    return model.eval()


def batch(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :2] = labels[0, 4] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def by_hand(model: Any, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """The logits of the labelled tokens, from each row alone."""
    found = []
    for ids, mask, labels in zip(*given.values(), strict=True):
        logits = model(input_ids=ids[mask > 0][None]).logits[0]
        found.append(logits[:-1][labels[mask > 0][1:] != -100])
    return torch.cat(found)


def gradients(model: Any, logits: torch.Tensor) -> list[torch.Tensor]:
    weights = torch.linspace(-1, 1, logits.numel()).view_as(logits)
    (logits * weights).mean().backward()
    found = [p.grad.clone() for p in model.parameters() if p.requires_grad]
    model.zero_grad()
    return found


def runs_of(model: Any) -> list[int]:
    """A list that has an entry for each run of the layers below the third."""
    runs = list[int]()
    for name, module in model.named_modules():
        if name.endswith((".0.mlp", ".1.mlp")):
            module.register_forward_hook(lambda *_: runs.append(1))
    return runs


def same_within(model: Any, given: dict[str, torch.Tensor]) -> None:
    """Logits and gradients are those of whole passes over each row alone, twice."""
    whole = by_hand(model, given)
    wanted = gradients(model, whole)
    for _ in range(2):
        logits, _ = answer_logits(model, given)
        torch.testing.assert_close(logits, whole, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close([*gradients(model, logits)], wanted, rtol=1e-5, atol=1e-6)


def runs_again(model: Any) -> int:
    """Count the two layers that run when the same rows come again."""
    runs, lower = runs_of(model), LayerCache(model)
    with lower.enable():
        assert len(lower.layers) == 2
        same_within(model, batch(ROWS))
        runs.clear()
        answer_logits(model, batch(ROWS))
    return len(runs)


@pytest.mark.parametrize("family", FAMILIES)
def test_lower_layers_computed_once_give_what_they_gave(family: str) -> None:
    model = small(family)
    freeze_below(model, 2)
    lower = LayerCache(model)
    with lower.enable():
        assert len(lower.layers) == 2
        same_within(model, batch(ROWS))
        runs = runs_of(model)
        for rows in (ROWS[::-1], ROWS[1:]):
            answer_logits(model, batch(rows))
        assert not runs
        with torch.no_grad():  # of what is trained, the next pass is another
            [p.mul_(1.1) for p in model.parameters() if p.requires_grad]
        same_within(model, batch(ROWS))
    runs.clear()
    answer_logits(model, batch(ROWS))
    assert len(runs) == 2


def test_what_is_not_right_padded_without_a_cache_is_computed_whole() -> None:
    model = small("Llama")
    freeze_below(model, 2)
    given = batch(ROWS)
    left = {k: v.flip(1) for k, v in given.items()}
    whole = {name: model(**x).logits for name, x in {"left": left, "cached": given}.items()}
    written = model.generate(given["input_ids"][:1], max_new_tokens=4, do_sample=False)
    with LayerCache(model).enable():
        answer_logits(model, given)
        assert torch.equal(model(**left, use_cache=False).logits, whole["left"])
        assert torch.equal(model(**given).logits, whole["cached"])
        again = model.generate(given["input_ids"][:1], max_new_tokens=4, do_sample=False)
        assert torch.equal(again, written)


def test_without_room_rows_are_computed_anew(monkeypatch: Any) -> None:
    monkeypatch.setattr(layer_cache, "memory_limit", lambda: 0)
    model = small("Llama")
    freeze_below(model, 2)
    assert runs_again(model) == 2


def handed_on(model: Any) -> None:
    """Let the third layer add what the first makes of its input."""
    kept = dict[str, torch.Tensor]()
    layers = model.model.layers
    layers[0].mlp.register_forward_hook(lambda _, __, found: kept.update(own=found))
    layers[2].mlp.register_forward_hook(lambda _, __, found: found + kept.pop("own"))


@pytest.mark.parametrize("changed", [
    lambda model: model.model.embed_tokens.requires_grad_(True),
    lambda model: model.model.layers.requires_grad_(True),
    handed_on,
])  # fmt: skip
def test_a_model_of_another_make_is_computed_whole(changed: Any) -> None:
    model = small("Llama", tie_word_embeddings=False)
    freeze_below(model, 2)
    changed(model)
    lower = LayerCache(model)
    with lower.enable():
        assert not lower.layers
        same_within(model, batch(ROWS))
    assert not any("forward" in vars(layer) for layer in model.model.layers)
    same_within(model, batch(ROWS))


def test_below_the_first_adapter_it_is_likewise() -> None:
    config = peft.LoraConfig(target_modules=["q_proj"], layers_to_transform=[2, 3])
    with silence():
        model = peft.get_peft_model(small("Llama"), config)
    with torch.no_grad():
        [p.normal_() for p in model.parameters() if p.requires_grad]
    assert runs_again(model) == 0


def halved(layer: Any) -> None:
    """Give a layer a `forward` of its own, which halves what it adds."""
    whole = layer.forward
    layer.forward = lambda x, *args, **more: x + (whole(x, *args, **more) - x) / 2


def told(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(**batch(ROWS), use_cache=False).logits


@pytest.mark.parametrize(
    ("how", "hooked"),
    [("ends", halved), ("fails", halved), ("in no room", halved),
     ("ends", lambda layer: add_hook_to_module(layer, ModelHook()))],
)  # fmt: skip
def test_a_layer_keeps_the_forward_that_it_came_with(
    tokenizer: Any, hooked: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "in no room":  # the original is asked in every step
        monkeypatch.setattr(layer_cache, "memory_limit", lambda: 0)
    model = small("Llama", num_hidden_layers=8, vocab_size=len(tokenizer))
    for layer in model.model.layers:
        hooked(layer)
    forwards, before = [vars(layer)["forward"] for layer in model.model.layers], told(model)
    given = {"steps": 4, "lr": 1e-2, "alpha": 9.0, "anyway": True, "quiet": True}
    if how == "fails":
        with pytest.raises(KeyboardInterrupt):
            unlearn(model, tokenizer, FORGET, RETAIN, callbacks=[Fails()], **given)
    else:
        outcome = unlearn(model, tokenizer, FORGET, RETAIN, **given)
        assert outcome.trace[0]["retain_loss"] == pytest.approx(0.0, abs=1e-6), (
            "the model as it was"
        )
        assert outcome.trace[-1]["retain_loss"] > 1e-3, "and not as it is"
        outcome = resume(outcome, steps=1)
        assert outcome.trace[0]["retain_loss"] > 1e-3
        outcome.put_back()
    assert [vars(layer)["forward"] for layer in model.model.layers] == forwards
    assert torch.equal(told(model), before)


def test_a_model_that_accelerate_holds_in_one_place_ends_as_a_plain_one(tokenizer: Any) -> None:
    one, other = (small("Llama", num_hidden_layers=8, vocab_size=len(tokenizer)) for _ in range(2))
    for model in (one, dispatch_model(other, {"": "cpu"}, force_hooks=True)):
        given = {"steps": 3, "alpha": 9.0, "anyway": True, "quiet": True}
        unlearn(model, tokenizer, FORGET, RETAIN, **given)
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def on_disk(model: Any, folder: Any) -> Any:
    places = {"lm_head": "cpu", "model.embed_tokens": "cpu", "model.norm": "cpu",
              "model.rotary_emb": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk",
              "model.layers.2": "cpu", "model.layers.3": "disk"}  # fmt: skip
    return dispatch_model(model, places, offload_dir=folder)


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("pieces", [lambda model, _: cpu_offload(model), on_disk])
def test_a_model_in_pieces_is_refused_before_it_is_changed(
    tokenizer: Any, pieces: Any, lora: bool, tmp_path: Any
) -> None:
    model = small("Llama", vocab_size=len(tokenizer), tie_word_embeddings=False)
    whole = told(model)
    model = pieces(model, tmp_path)
    with pytest.raises(Refusal, match="without values: accelerate"):
        unlearn(model, tokenizer, FORGET, RETAIN, lora=lora)
    assert torch.equal(told(model), whole) and not hasattr(model, "peft_config")
