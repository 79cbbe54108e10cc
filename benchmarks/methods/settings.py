"""The hyperparameters of every method; those of a single method are in its file."""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from torch_alm.rules import Leak

SIGNED = ("alpha", "forget_weight", "margin")
AT_LEAST_ONE = ("epochs", "batch_size", "probe_every")


@dataclass(frozen=True)
class Settings:
    """The hyperparameters of a run.

    Attributes:
        losses: Cross-entropies of tokens, or RMU's distances of hidden states (see `rmu.py`).
        optimizer: The optimizer; a method with two states has two of them.
        lr: Learning rate.
        weight_decay: Decoupled decay, applied once per step (a forget side never decays).
        epochs: Passes over the forget set.
        batch_size: Forget examples per step, and as many retain examples.
        forget_weight: Weight of the forget direction without a controller.
        retain: The retain loss: cross-entropy of the labels, or divergence from the original model.
        retain_weight: Weight of the retain loss.
        measure: The controller's measure: the cross-entropy, that of each row by itself, or a
            certified share of wrong answers or tokens (see `forgetting.py`).
        tau: Sharpness of the certificate, in probability.
        alpha: Threshold of the measure; `relative:SHARE` is a share of c^2/d (RMU's losses).
        mu: Step size of the multiplier; `auto` finds it.
        multiplier: Initial lambda.
        scale: Whether lambda multiplies the forget gradient or the forget step.
        release: Share of the multiplier given back per step while alpha is met; 0 for none.
    """

    losses: Literal["tokens", "rmu"] = "tokens"
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float = 1e-5
    weight_decay: float = 0.0
    epochs: int = 10
    batch_size: int = 8
    forget_weight: float = 1.0
    retain: Literal["nll", "kl"] = "nll"
    retain_weight: float = 1.0
    measure: Literal["token_nll", "row_nll", "certificate", "token_certificate"] = "token_nll"
    tau: float = 0.1
    alpha: float | str = 10.0
    mu: float | Literal["auto"] = 1e-4
    multiplier: float = 1.0
    scale: Literal["gradient", "step"] = "gradient"
    release: float = 0.0

    def __post_init__(self) -> None:
        """Check the values before anything is trained.

        Raises:
            ValueError: A number that is negative, not finite or of another type, or a word that is
                not on the list.
        """
        for name, kind in hints(type(self)).items():
            value = getattr(self, name)
            if not (fits(value, kind) and in_range(name, value)):
                words = ", ".join(get_args(kind)) if get_origin(kind) is Literal else ""
                usual = self.__dataclass_fields__[name].default
                raise ValueError(
                    f"the setting {name} is {value!r}, which no method can work with. "
                    f"Did you mean {f'one of {words}' if words else f'something like {usual!r}'}?"
                )
        if self.losses == "rmu" and self.retain != "nll":
            raise ValueError(
                f"the setting retain is {self.retain!r}, and RMU's losses have a retain side of "
                "their own. Did you mean losses=tokens?"
            )

    def controller(self) -> dict[str, Any]:
        """Return the arguments of `ALMConstraint` for these settings."""
        rules = [Leak(self.release)] if self.release > 0 else []
        return {"alpha": self.alpha, "mu": self.mu, "multiplier": self.multiplier, "rules": rules}


@functools.cache
def hints(kind: type[Settings]) -> dict[str, Any]:
    """Return the settings of a kind, and the type of each."""
    found = get_type_hints(kind)
    return {field.name: found[field.name] for field in dataclasses.fields(kind)}


def fits(value: object, kind: Any) -> bool:
    """Return whether a value is of a type: a number, a word on a list, or one of several types."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is not None:  # a union
        return any(fits(value, each) for each in get_args(kind))
    if kind is float:
        return isinstance(value, float | int) and math.isfinite(value)
    return isinstance(value, kind)


def in_range(name: str, value: object) -> bool:
    """Return whether a number is not below its minimum; other values always are in range."""
    if not isinstance(value, float | int) or name in SIGNED:
        return True
    return value >= 1 if name in AT_LEAST_ONE else value >= 0


def value_of(text: str) -> float | int | str | None:
    """Parse a setting from the command line.

    >>> [value_of(text) for text in ("3", "1e-4", "none", "auto")]
    [3, 0.0001, None, 'auto']
    """
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return None if text.lower() == "none" else text
