"""LoRA in a Trainer: only the adapter is perturbed and updated; it is saved and loaded alone."""

from pathlib import Path
from typing import Any

import peft
import pytest
import torch

from tests.integrations import toy
from tests.models import llama
from torch_alm.integrations.transformers import ALMTrainer, SAMTrainer, SAULTrainer

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft

KINDS = {
    ALMTrainer: lambda: {"constraint": toy.constraint()},
    SAMTrainer: lambda: {"rho": 0.1, "train_dataset": toy.rows(20, 3)},
    SAULTrainer: lambda: {"constraint": toy.constraint(alpha=9.0), "rho": 0.1},
}


def base() -> Any:
    return llama(16, max_position_embeddings=16, attn_implementation="eager")


def adapted() -> Any:
    torch.manual_seed(1)
    lora = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(base(), lora)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_adapter_is_perturbed_and_updated(kind: Any, tmp_path: Path) -> None:
    model, moved = adapted(), set[str]()
    origin = toy.values(model)
    handle = model.base_model.model.lm_head.register_forward_pre_hook(
        lambda *_: moved.update(n for n, p in model.named_parameters() if not p.equal(origin[n]))
    )
    trainer = toy.trainer(kind, tmp_path, model, args={"max_steps": 3}, **KINDS[kind]())
    trainer.train()
    handle.remove()
    assert moved and all("lora_" in name for name in moved)
    assert moved == {name for name in origin if "lora_" in name}


def test_an_adapter_is_saved_and_loaded_and_resumed(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6}
    runs = []
    for resume in (None, str(tmp_path / "checkpoint-3")):
        trainer = toy.trainer(SAULTrainer, tmp_path, adapted(), args=saving, **KINDS[SAULTrainer]())
        trainer.train(resume_from_checkpoint=resume)
        runs.append(toy.values(trainer.model))
    assert all(torch.equal(runs[1][name], p) for name, p in runs[0].items())
    trainer.save_model(str(tmp_path / "adapter"))
    assert not list((tmp_path / "adapter").glob("model*"))
    loaded = peft.PeftModel.from_pretrained(base(), tmp_path / "adapter")
    batch = {"input_ids": torch.tensor([[3, 1, 4, 1, 5]])}
    with torch.no_grad():
        found, expected = (one.eval()(**batch).logits for one in (loaded, trainer.model))
        untouched = base().eval()(**batch).logits
    assert torch.equal(found, expected) and not torch.allclose(found, untouched, atol=1e-3)
