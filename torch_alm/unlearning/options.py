"""The options of unlearning, evaluation and attacks, with their defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from torch_alm.unlearning.errors import Refusal

CHOICES = {
    "precision": ("auto", "fp32", "bf16"),
    "method": ("dual", "saul"),
    "answers": ("given", "said"),
}
LEAST = {"max_length": 8, "batch_size": 1, "seed": 0, "rows": 1, "steps": 1, "epochs": 1,
         "layers": 0, "accumulate": 1, "relearn": 0, "relearn_steps": 1}  # fmt: skip
LARGEST = 3e38  # float32's
POSITIVE = ("alpha", "max_retain_loss", "lr", "mu", "save_every", "relearn_lr")
SHARES = ("max_probe_loss", "prefix")
APART = (("template", "system"), ("steps", "epochs"))  # one of each at most
SHARED = ("template", "system", "precision", "max_length", "batch_size", "seed", "quiet", "rows")
ATTACKER = ("relearn", "relearn_steps", "relearn_lr", "prefix")


@dataclass(frozen=True)
class Options:
    """Options by name; the command has the same names and defaults.

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
        alpha: mean telling loss to reach, in nats; measured if it is not given.
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

    def __post_init__(self) -> None:
        """Raise `Refusal` for a value that makes no sense."""
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and (told := fault(each.name, value)):
                raise Refusal(f"{each.name} is {value!r}, which is {told}.")
        for one, other in APART:
            if None not in (getattr(self, one), getattr(self, other)):
                raise Refusal(f"{one} and {other} were both given. Did you mean one of them?")


def by_name(verb: str, given: Mapping[str, Any]) -> Options:
    """Return the options of a verb, given by name; raise `Refusal` for one it does not have."""
    every = [each.name for each in fields(Options)]
    known = {
        "unlearn": [name for name in every if name not in ATTACKER],
        "evaluate": [*SHARED],
        "attack": [*SHARED, *ATTACKER],
    }
    if wrong := [name for name in given if name not in known[verb]]:
        near = get_close_matches(wrong[0], known[verb], 1, 0.7)
        other = "Is it of another verb, or the command's alone?"
        meant = f"Did you mean {near[0]}?" if near else other
        raise Refusal(f"{verb} has no option {wrong[0]}. {meant}")
    return Options(**given)


def options_of(given: Any) -> Options:
    """Return the options among the attributes of an object, such as parsed arguments."""
    names = [each.name for each in fields(Options)]
    return Options(**{name: getattr(given, name) for name in names if hasattr(given, name)})


def fault(name: str, value: Any) -> str:
    """Return what is wrong with the value of an option, or nothing; texts and flags may be any."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_whole = is_number and isinstance(value, int)
    if name in CHOICES and value not in CHOICES[name]:
        return f"not one of {', '.join(CHOICES[name])}"
    if name in LEAST and not (is_whole and LEAST[name] <= value < 2**63):
        return f"no whole number from {LEAST[name]} on"
    if name in SHARES and not (is_number and 0 <= value <= 1):
        return "no share from 0 to 1, such as 0.95"
    if name in POSITIVE and not (is_number and 0 < value < LARGEST):
        return "no finite number above 0"
    return ""
