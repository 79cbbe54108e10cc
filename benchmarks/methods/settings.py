"""The hyperparameters that every method has; what is a method's own stands in its file."""

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
        losses: What a method lowers and raises: cross-entropies of tokens, or RMU's distances of
            hidden states (see `rmu.py`).
        optimizer: What moves the weights; two of them where a method keeps two states.
        lr: Learning rate.
        weight_decay: Decoupled decay, applied once per step (a forget side never decays).
        epochs: Passes over the forget set.
        batch_size: Forget examples per step, and as many retain examples.
        forget_weight: Weight of the forget direction where no controller replaces it.
        retain: What the retain side lowers: the cross-entropy of the labels, or the divergence from
            the model before the first step.
        retain_weight: Weight of the retain loss.
        measure: What the controller looks at: the cross-entropy, that of every row by itself, or
            a certified share of wrong answers or tokens (see `forgetting.py`).
        tau: Sharpness of the certificate, in probability.
        alpha: What the measure is to reach; `relative:SHARE` is a share of c^2/d (RMU's losses).
        mu: Step size of the multiplier; `auto` finds it.
        multiplier: lambda to start from.
        scale: Multiply the forget gradient by lambda, or the finished forget step.
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
        """Refuse values no method could work with, before anything is trained.

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
        """The arguments of `ALMConstraint` these settings stand for."""
        rules = [Leak(self.release)] if self.release > 0 else []
        return {
            "alpha": self.alpha,
            "mu": self.mu,
            "multiplier": self.multiplier,
            "rules": rules,
        }


@functools.cache
def hints(kind: type[Settings]) -> dict[str, Any]:
    """The settings of a kind, and the type of each."""
    found = get_type_hints(kind)
    return {field.name: found[field.name] for field in dataclasses.fields(kind)}


def fits(value: object, kind: Any) -> bool:
    """Tell whether a value is of a type: a number, a word on a list, or one of several types."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is not None:  # a union
        return any(fits(value, each) for each in get_args(kind))
    if kind is float:
        return isinstance(value, float | int) and math.isfinite(value)
    return isinstance(value, kind)


def in_range(name: str, value: object) -> bool:
    """Tell whether a number is not below what makes sense; other values are."""
    if not isinstance(value, float | int) or name in SIGNED:
        return True
    return value >= 1 if name in AT_LEAST_ONE else value >= 0


def value_of(text: str) -> float | int | str | None:
    """A setting as it is written on a command line.

    >>> [value_of(text) for text in ("3", "1e-4", "none", "auto")]
    [3, 0.0001, None, 'auto']
    """
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return None if text.lower() == "none" else text
