"""The options of unlearning, evaluation and attacks, with their defaults."""

from collections.abc import Mapping, Sequence
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
TRAINERS = {"learning_rate": "lr", "max_steps": "steps", "num_train_epochs": "epochs",
            "gradient_accumulation_steps": "accumulate"}  # fmt: skip
SHARDS = ("fsdp", "fsdp_config", "deepspeed")  # of the Trainer: here each process holds it all
LARGEST = 3e38  # float32's
POSITIVE = ("alpha", "max_retain_loss", "lr", "mu", "save_every", "relearn_lr")
SHARES = ("max_probe_loss", "prefix")
APART = (("template", "system"), ("steps", "epochs"))  # one of each at most
SHARED = ("template", "system", "precision", "max_length", "batch_size", "seed", "quiet", "rows")
ATTACKER = ("relearn", "relearn_steps", "relearn_lr", "prefix")


@dataclass(frozen=True)
class Options:
    """Options by name; the command has the same ones, and shows these sentences as its help.

    Attributes:
        template: how the model is asked: a text with {question} and {answer}; the command takes a
            file with one, too; default: the chat template, or 'Question: ...' and 'Answer: ...'
        system: system message for the chat template; default: the template's own, or none
        precision: fp32, or bfloat16 autocast over fp32 weights; auto: bf16 on a GPU that has it
        max_length: most tokens of a row; a longer answer or text is several rows
        batch_size: rows of a kind at once
        seed: of the order of the rows
        quiet: no bars and no notes: the result alone
        rows: most retain, probe and holdout rows to measure; of an attack, most forget rows to ask,
            by default all
        method: how to forget
        alpha: forget until the mean telling loss is so many nats; default: until every answer is as
            unknown as built-in facts that the model gets wrong
        answers: forget the answers of the rows (given), or what the model itself says (said)
        max_retain_loss: the goal is met at a cost (exit code 4) if the retain loss ends above;
            default: if a tenth of the retain answers or of their words is lost, or 0.1 nats
        max_probe_loss: likewise if more than this share of the probe answers is lost that were said
            before
        anyway: go on though the model does not say the forget answers; no goal counts as met then
        lora: train adapters only, and save them; those of the model, if it has some
        steps: most steps; default: 1000 or ten epochs, whichever is more; given more, a run that is
            through goes on
        epochs: most passes over the forget set
        lr: a learning rate that stays; default: begin where a step changes the forget answers by
            0.6 nats of log-odds
        layers: first layer that is trained, with all behind it; default: the upper half of a model
            of eight layers or more, all weights of a smaller one
        mu: step size of the multiplier
        accumulate: batches per step
        gradient_checkpointing: compute layers a second time in the backward pass, and keep less in
            memory
        save_every: minutes after which all is written that a killed run needs to go on
        report_to: where the Trainer reports to, such as wandb or tensorboard
        relearn: examples to relearn on
        relearn_steps: steps of relearning
        relearn_lr: their learning rate
        prefix: share of the answer that is given away
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
                raise Refusal(f"`{each.name}` is {value!r}, which is {told}.")
        for one, other in APART:
            if None not in (getattr(self, one), getattr(self, other)):
                raise Refusal(f"`{one}` and `{other}` were both given. Did you mean one of them?")


def names_of(verb: str) -> list[str]:
    """Return the names of the options that a verb has."""
    if verb == "unlearn":
        return [each.name for each in fields(Options) if each.name not in ATTACKER]
    return [*SHARED, *(ATTACKER if verb == "attack" else ())]


def check_name(verb: str, name: str, known: Sequence[str]) -> None:
    """Raise `Refusal` for an option that a verb does not have."""
    if name not in known:
        plain = name.strip("-").replace("-", "_")
        if plain in SHARDS:
            raise Refusal(
                f"{verb} has no option {name}: every process holds the whole model. Did you mean "
                "`lora`, which trains less of it, or SAULTrainer with `fsdp_config`?"
            )
        near = [o for o in known if o.strip("-") == TRAINERS.get(plain)]
        near += get_close_matches(name, known, 1, 0.75)
        meant = f"Did you mean {near[0]}?" if near else "Is it of another verb?"
        raise Refusal(f"{verb} has no option {name}. {meant}")


def by_name(verb: str, given: Mapping[str, Any]) -> Options:
    """Return the options of a verb, given by name; raise `Refusal` for one it does not have."""
    for name in given:
        check_name(verb, name, names_of(verb))
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
