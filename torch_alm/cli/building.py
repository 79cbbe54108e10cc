"""From settings to a run: the method at work on its rows, and the guide beside it."""

import argparse
from collections.abc import Mapping
from math import ceil
from typing import Any

import torch

from torch_alm.cli.adapters import with_adapters
from torch_alm.cli.goal import Goal
from torch_alm.cli.guide import Guide, spread
from torch_alm.cli.loading import Loaded
from torch_alm.cli.methods import METHODS, Rates
from torch_alm.cli.training import Training
from torch_alm.cli.verdict import COST_LOSS, evidence_of, judge
from torch_alm.language import LanguageModel, pad_id
from torch_alm.unlearning.models import quiet
from torch_alm.unlearning.refusal import Refusal

STEPS, EPOCHS = 1000, 10  # of a run whose length was not given, whichever is more
LR, LORA_LR = 1e-5, 1e-4  # where a run begins whose rate was not given


def trained(
    settings: Mapping[str, Any], loaded: Loaded, *, recomputes: bool = False
) -> LanguageModel:
    """The model whose weights shall move: with `--lora` those of adapters alone.

    The loaded model has them from then on; new ones change nothing before the first step. One that
    recomputes its layers in the backward pass need not keep what is between them.

    Raises:
        Refusal: it cannot recompute them.
    """
    torch.manual_seed(settings["seed"])
    if recomputes:
        if not loaded.model.supports_gradient_checkpointing:
            raise Refusal(
                f"--gradient-checkpointing, and {type(loaded.model).__name__} cannot compute its "
                "layers a second time. Did you mean --accumulate, with a smaller --batch-size?"
            )
        with quiet():  # it is to be called otherwise one day, and cannot yet in transformers 4
            loaded.model.gradient_checkpointing_enable({"use_reentrant": False})
    return with_adapters(settings, loaded) if settings["lora"] else loaded.model


def training_of(
    settings: Mapping[str, Any], loaded: Loaded, model: LanguageModel, goal: Goal
) -> Training:
    """The method at work on a model, before its first step."""
    torch.manual_seed(settings["seed"])
    lr = settings["lr"] or (LORA_LR if settings["lora"] else LR)
    rates = Rates(lr, settings["rho"], settings["mu"], settings["beta"] or 0.0)
    method = METHODS[settings["method"]](model, goal, rates, loaded.place.context())
    size, accumulate = settings["batch_size"], settings["accumulate"]
    steps, epochs = settings["steps"], settings["epochs"]
    if steps is None and epochs is None:
        steps = max(STEPS, EPOCHS * ceil(len(loaded.rows("forget")) / (size * accumulate)))
    return Training(
        method,
        loaded.rows("forget"),
        loaded.rows("retain"),
        pad_id(loaded.tokenizer),
        epochs=epochs or 0,
        batch_size=size,
        seed=settings["seed"],
        accumulate=accumulate,
        steps=steps,
    )


def guide_of(
    given: argparse.Namespace, training: Training, loaded: Loaded, start: Mapping[str, Any]
) -> Guide:
    """The guide that sets the rate and ends the run, before its first step.

    The loss of the retain rows may rise as far as the verdict lets it; the rows of which that is
    told are those that the verdict asks.
    """
    method, before = training.method, start["measured"]
    limit = given.max_retain_loss

    def ask() -> bool:
        now = loaded.measured(given.rows, "asking")
        seen = evidence_of(method.goal, before, now, max_retain_loss=limit, known_before=True)
        return judge(seen).outcome == "met"

    kept = min(given.rows, len(training.retain))
    forget, retain = spread(len(training.forget)), spread(kept)
    return Guide(
        method,
        training.batches(training.forget, forget, given.batch_size),
        training.batches(training.retain, retain, given.batch_size),
        allowance=COST_LOSS if limit is None else limit - before["numbers"]["retain"]["loss"],
        fixed=given.lr is not None,
        ask=ask,
        known=start.get("known_before", True),
    )
