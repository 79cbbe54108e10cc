"""Adapters of peft, to be trained in place of a model's own weights."""

import peft
import torch

from torch_alm.language import LanguageModel

RANK = 16


def with_adapters(model: LanguageModel, seed: int) -> LanguageModel:
    """The model with adapters to train: those that it came with, or new ones.

    Adapters on top of adapters would not do: other tools load one of the two and leave out the
    other, and what was forgotten comes back. So the same ones are trained on. New ones have rank
    16, count twice (`lora_alpha` is 2 rank), are on every linear layer but the output, and change
    nothing before a step.
    """
    if isinstance(model, peft.PeftModel):
        return model
    config = peft.LoraConfig(
        r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    torch.manual_seed(seed)
    return peft.get_peft_model(model, config)
