"""The options of unlearning, evaluation and attacks, with their defaults."""

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Options:
    """What may be asked for; the command has options of the same names and defaults.

    Attributes:
        template: how the model is asked: a text with `{question}` and `{answer}`.
        system: a system message for the chat template.
        precision: `"fp32"`, `"bf16"` for autocast, or `"auto"`.
        max_length: most tokens of a row; a longer answer or text is several rows.
        batch_size: rows of a kind at once.
        seed: of the order of the rows.
        quiet: no bars.
        rows: most retain, probe and holdout rows to measure; of an attack, most forget rows to ask.
        method: `"dual"` or `"saul"`.
        alpha: mean telling loss to reach, in nats; measured if neither it nor `certify` is given.
        certify: share of answers to be certified not to be said word for word.
        answers: `"given"`, those of the rows, or `"said"`, what the model says itself.
        max_retain_loss: retain loss above which the goal is met at a cost.
        max_probe_loss: share of the probe answers that may be lost, likewise.
        anyway: go on though the model does not say the forget answers.
        lora: train adapters only.
        steps: most steps; 1000 or ten epochs, whichever is more, if neither is given.
        epochs: most passes over the forget rows.
        lr: a learning rate that stays; found if not given.
        layers: first layer that is trained.
        mu: step size of the multiplier.
        accumulate: batches per step.
        gradient_checkpointing: compute layers a second time in the backward pass.
        save_every: minutes between two checkpoints.
        report_to: where the Trainer reports to.
        relearn: examples that an attacker relearns on.
        relearn_steps: steps of relearning.
        relearn_lr: their learning rate.
        prefix: share of the answer that is given away.
    """

    template: str | None = None
    system: str | None = None
    precision: str = "auto"
    max_length: int = 512
    batch_size: int = 8
    seed: int = 0
    quiet: bool = False
    rows: int | None = 200
    method: str = "dual"
    alpha: float | None = None
    certify: float | None = None
    answers: str = "given"
    max_retain_loss: float | None = None
    max_probe_loss: float = 0.1
    anyway: bool = False
    lora: bool = False
    steps: int | None = None
    epochs: int | None = None
    lr: float | None = None
    layers: int | None = None
    mu: float = 0.01
    accumulate: int = 1
    gradient_checkpointing: bool = False
    save_every: float = 15.0
    report_to: str = "none"
    relearn: int = 8
    relearn_steps: int = 20
    relearn_lr: float = 1e-4
    prefix: float = 0.25

    @classmethod
    def of(cls, given: Any) -> "Options":
        """The options among the attributes of an object, such as parsed arguments."""
        return cls(
            **{f.name: getattr(given, f.name) for f in fields(cls) if hasattr(given, f.name)}
        )
