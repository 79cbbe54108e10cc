"""The base of trainers with a constraint: pairs, evaluations, logs, the best checkpoint."""

from collections.abc import Mapping
from contextlib import suppress
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer

from torch_alm.constraint import ALMConstraint
from torch_alm.integrations.transformers._callback import MET, LoggingCallback
from torch_alm.integrations.transformers._objectives import refuse_optimizers
from torch_alm.integrations.transformers._pairs import PairedDataset
from torch_alm.integrations.transformers._sides import join, split_pairs

SIDES = ("forget", "retain")
KEYS = (*SIDES, "index")
PACKED = (
    "puts several answers into one row, and rows are what is paired and counted. Did you mean "
    "`packing=False`, perhaps with `padding_free=True`?"
)
REFUSED = {
    "packing": PACKED,
    "eval_packing": PACKED,
    "neftune_noise_alpha": "adds noise, which would be measured as forgetting. Did you mean None?",
    "include_num_input_tokens_seen": "looks for one `input_ids`, and a pair has two, so that the "
    'count would stay 0. Did you mean "no"?',
}


class PairedTrainer(Trainer):
    """A Trainer whose training batches are pairs and whose evaluations know the measure.

    Each side of a `PairedDataset` goes through the Trainer behind as a data set of its own, so that
    one that prepares its rows (TRL's) prepares both; without a `data_collator` its own makes a
    batch of each side.
    """

    _reporting: type[LoggingCallback] = LoggingCallback

    def __init__(self, *args: Any, constraint: ALMConstraint, **kwargs: Any) -> None:
        reporting, self.constraint = self._reporting(constraint), constraint
        self._evaluated = ""
        self._retain_losses: list[Tensor] = []
        if type(self).forget_objective is PairedTrainer.forget_objective:
            require_of_a_batch(self, constraint.measure)
        super().__init__(*args, **split_pairs(kwargs))
        refuse_optimizers(self)
        refuse_arguments(self)
        join(self, kwargs, collates=kwargs.get("data_collator") is not None or len(args) > 2)
        # A pair has no `labels` that a Trainer could count: every loss is the mean of its batch.
        self.model_accepts_loss_kwargs = False
        self.loss_is_scaled_for_ga = False  # so that micro-batches are averaged, since 5
        reporting.add_to(self)

    def retain_objective(self, model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
        """Compute the loss of the Trainer behind this one, which is lowered."""
        return self._own_loss(model, batch)

    def _own_loss(self, model: nn.Module, batch: Mapping[str, Any], **kwargs: Any) -> Any:
        """Return the mean over the batch, also if a custom loss function divides otherwise."""
        if self.compute_loss_func is not None and "labels" in batch:
            is_shifted = getattr(self, "_loss_shifts_labels", False)  # since 5: then not the first
            labels = batch["labels"][..., 1:] if is_shifted else batch["labels"]
            kwargs["num_items_in_batch"] = (labels != -100).sum()
        return super().compute_loss(model, dict(batch), **kwargs)

    def forget_objective(self, model: nn.Module, batch: Mapping[str, Any]) -> Any:
        """Return the constraint's measure of the forget batch."""
        if self.constraint.measure is None:
            raise TypeError(
                f"{type(self).__name__}: the constraint has no measure, so nothing measures the "
                "forget batch. Did you mean `ALMConstraint(token_nll, ...)`?"
            )
        return self.constraint.measure(model, batch)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Compute the retain loss of a pair; of a batch its own, or the measure of a forget set.

        A set is a forget set if it is evaluated as one: `eval_dataset={"forget": ..., ...}`, or
        `evaluate(..., metric_key_prefix="forget")`.
        """
        if is_pair(inputs):
            loss = self.retain_objective(model, inputs["retain"])
            return (loss, {}) if return_outputs else loss
        loss, outputs = self._own_loss(model, inputs, return_outputs=True)
        if self._evaluated == "forget":
            found = self.forget_objective(model, inputs)
            loss = found[1] if isinstance(found, tuple) else found  # of a pair `(loss, value)`
        return (loss, outputs) if return_outputs else loss

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **kwargs: Any,
    ) -> dict[str, float]:
        """Evaluate; `eval_forget_loss` is the constraint's measure of the forget set.

        Of a `PairedDataset` all rows of both sides are evaluated.
        """
        given = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(given, PairedDataset):
            eval_dataset = given.sides
        outer, self._evaluated = self._evaluated, metric_key_prefix.removeprefix("eval_")
        try:
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix, **kwargs)
        finally:
            self._evaluated = outer

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log the constraint's metrics beside a training loss."""
        if "loss" in logs:
            logs.update(self._control_logs())
        super().log(logs, *args, **kwargs)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train; logs are of this training alone."""
        self._retain_losses.clear()
        return super().train(*args, **kwargs)

    def _control_logs(self) -> dict[str, float]:
        """Average the retain loss since the last log; the callback adds the rest."""
        if not self._retain_losses:
            return {}
        mean: Any = self.accelerator.reduce(torch.stack(self._retain_losses).mean(), "mean")
        self._retain_losses.clear()
        return {"retain_loss": mean.item()}

    def _is_met(self, metrics: Mapping[str, float]) -> bool:
        """Return whether the forget set meets the constraint; without one, the last step.

        Of a vector, whose mean says nothing of its entries, the last step decides.
        """
        if isinstance(self.constraint.multiplier, Tensor):
            return self.constraint.metrics()["status"] in MET
        value = metrics.get("eval_forget_loss", self.constraint.metrics()["value"])
        below = self.constraint.alpha - value
        excess = {">=": below, "<=": -below, "==": abs(below)}[self.constraint.sense]
        return bool(excess <= self.constraint.tolerance)  # which nan is not

    def _set_signature_columns_if_needed(self) -> None:
        """Keep `remove_unused_columns=True` from removing both sides of a pair."""
        super()._set_signature_columns_if_needed()
        columns: list[str] = self._signature_columns or []
        self._signature_columns = [*columns, *(key for key in KEYS if key not in columns)]


def is_pair(inputs: Mapping[str, Any]) -> bool:
    """Return whether this is a batch to forget with one to keep."""
    return all(side in inputs for side in SIDES)


def refuse_arguments(trainer: Trainer) -> None:
    """Raise for arguments of a Trainer that break pairs."""
    for name, why in REFUSED.items():
        value = getattr(trainer.args, name, None)
        if value not in (None, False, 0, "no"):
            raise ValueError(f"{type(trainer).__name__}: {name}={value!r} {why}")


def require_pair(owner: object, inputs: Mapping[str, Any]) -> None:
    """Raise for a training batch that is no pair."""
    if not is_pair(inputs):
        raise ValueError(
            f"{type(owner).__name__}: a training batch has the entries {sorted(inputs)}; without "
            'a "forget" and a "retain" batch nothing would be forgotten. Did you mean '
            "`train_dataset=PairedDataset(...)` and `data_collator=PairedCollator(tokenizer)`?"
        )


def require_of_a_batch(owner: object, measure: Any) -> None:
    """Raise for a measure that cannot be called with `(model, batch)`."""
    if measure is None:
        return
    names = [*signature(measure).parameters]
    with suppress(TypeError):
        signature(measure).bind(None, None)
        if names[0] != "logits":
            return
    raise ValueError(
        f"{type(owner).__name__}: the constraint's measure takes {names} and would be called with "
        "(model, batch), which fails at the first step. Did you mean a function that fills in the "
        "rest, or to override `forget_objective`?"
    )
