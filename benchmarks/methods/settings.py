"""Every number a method can be given, under one name each."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from torch_alm.filters import Mean
from torch_alm.rules import Leak


@dataclass(frozen=True)
class Settings:
    """The hyperparameters of a run; a method reads the ones it knows and leaves the others alone.

    Attributes:
        losses: What methods lower and raise: cross-entropies of tokens, or RMU's distances of
            hidden states (see `rmu.py`).
        optimizer: What moves the weights; two of them where a method keeps two states.
            `adamw8bit` is torchao's, whose moments take a quarter of the memory.
        reference: Where the model of before is kept, by methods that compare with it: beside the
            other, or in the machine's memory, from where its weights come when they are used.
        rounding: Of a perturbation of bfloat16 weights, which nearest rounding mostly drops.
        lr: Learning rate, of both sides unless `forget_lr` is given.
        forget_lr: Learning rate of the forget side of a method with two states. Where a preset has
            one, it keeps its ratio to `lr` when only that is changed.
        weight_decay: Decoupled decay, applied once per step (the forget side never decays).
        epochs: Passes over the forget set.
        batch_size: Forget examples per step, and as many retain examples.
        max_grad_norm: Clip the combined gradient of a one-state method; None leaves it alone.
        forget_weight: Weight of the forget direction where no controller replaces it.
        retain_weight: Weight of the retain direction; the controller never touches it.
        measure: What the controller looks at: the token-mean cross-entropy of the forget batch, its
            margin certificate (a share of answers), the same over tokens, the share of `level`
            that the answers cost, each counting up to it and no further, or the share of answers
            or tokens that greedy decoding misses (`failure`, `token_failure`). Dual AdamW and SAUL
            also raise it, so they take none without a gradient; the others keep their own
            direction.
        tau: Sharpness of the certificates.
        level: Nats per answer token at which an answer counts as forgotten in `level_share`; a
            number or a word, as for alpha.
        alpha: Level the measure has to reach: nats per answer token, or a share. Or a word that
            becomes a number before the run (`benchmarks/engine/levels.py`): `never_seen`,
            `retrained`, `rate:SHARE`; with RMU's losses, `relative:SHARE` of c^2/d.
        mu: Penalty parameter and dual step size of the controller; 0 freezes the multiplier, `auto`
            finds it, in Dual AdamW and SAUL and without window, cadence and release.
        multiplier: lambda_0, the multiplier to start from.
        scale: Where lambda+ acts in methods with two states: on the gradient, or on the finished
            step.
        every: Steps between two updates of the stored multiplier.
        window: Steps whose mean violation the controller looks at.
        deadband: Standard errors a positive mean violation has to exceed; needs a window.
        probe_every: Methods with two states: while the gate is closed and lambda is 0, measure the
            forget batch on every `probe_every`-th step only.
        release: Share of the multiplier given back per step while alpha is met; 0 for none.
        release_after: Steps in a row for which alpha has to be met first.
        sam_every: Find a perturbation in every so many backward passes; use it again in between.
        rho_forget: Radius of the forget side's perturbation, Euclidean over all weights.
        rho_retain: Radius of the retain side's perturbation.
        beta: Inverse temperature of NPO and SimNPO.
        margin: Margin of SimNPO (its gamma; 0 in every released setting).
        steps: Single AdamW: one step on the sum, or two steps through the same state.
        kappa: Weight of the sharpness term in Sharp Min-Max.
        forget_mode: Sharp Min-Max: maximise sharpness (as published), or plain SAM.
        order: Sharp Min-Max: retain step first, or both gradients at the same point.
        reading: Relearning-resilient: which number drives the multiplier (see that file).
        dual_lr: PDU: step size of the retain multiplier.
        retain_multiplier: PDU: retain multiplier to start from.
        epsilon: PDU: level the retain loss may not exceed.
        warmup_epochs: PDU: epochs before the retain multiplier starts to move.
        layer: RMU's losses: the layer whose states are steered, by name; `auto` is number 7.
        coefficient: RMU's losses: c, the length of the vector steered to.
        mask: RMU's losses: labelled tokens only, or every position with padding.
        multipliers: RMU's losses: one multiplier for all topics, or one each.
    """

    losses: Literal["tokens", "rmu"] = "tokens"
    optimizer: Literal["adamw", "sgd", "adamw8bit"] = "adamw"
    reference: Literal["resident", "offloaded"] = "resident"
    rounding: Literal["nearest", "stochastic"] = "nearest"
    lr: float = 1e-5
    forget_lr: float | None = None
    weight_decay: float = 0.0
    epochs: int = 10
    batch_size: int = 8
    max_grad_norm: float | None = None
    forget_weight: float = 1.0
    retain_weight: float = 1.0
    measure: Literal[
        "token_nll", "certificate", "token_certificate", "level_share", "failure", "token_failure"
    ] = "token_nll"
    tau: float = 0.1
    level: float | str = "never_seen"
    alpha: float | str = 10.0
    mu: float | Literal["auto"] = 1e-4
    multiplier: float = 1.0
    scale: Literal["gradient", "step"] = "gradient"
    every: int = 1
    window: int = 1
    deadband: float = 0.0
    probe_every: int = 8
    release: float = 0.0
    release_after: int = 1
    sam_every: int = 1
    rho_forget: float = 1e-3
    rho_retain: float = 1e-3
    beta: float = 0.1
    margin: float = 0.0
    steps: Literal["joint", "alternating"] = "joint"
    kappa: float = 1.0
    forget_mode: Literal["sharpness_max", "sam"] = "sharpness_max"
    order: Literal["sequential", "simultaneous"] = "sequential"
    reading: Literal["clean_ce", "worst_npo"] = "clean_ce"
    dual_lr: float = 5.0
    retain_multiplier: float = 100.0
    epsilon: float = 0.3
    warmup_epochs: int = 5
    layer: str = "auto"
    coefficient: float = 6.5
    mask: Literal["tokens", "all"] = "tokens"
    multipliers: Literal["shared", "per_topic"] = "shared"

    def __post_init__(self) -> None:
        """Refuse values no method could work with, before anything is trained.

        Raises:
            ValueError: A count below 1, a rate or radius below 0, or a word not on the list.
        """
        for name in (
            "epochs",
            "batch_size",
            "every",
            "window",
            "release_after",
            "sam_every",
            "probe_every",
        ):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("lr", "weight_decay", "multiplier", "rho_forget", "rho_retain"):
            self._require(name, 0 <= getattr(self, name) <= LARGEST, "0 or more")
        self._require("forget_lr", 0 <= (self.forget_lr or 0) <= LARGEST, "0 or more")
        self._require("mu", self.mu == "auto" or 0 <= self.mu <= LARGEST, "0 or more, or auto")
        self._require("tau", self.tau > 0, "more than 0")
        self._require("release", 0 <= self.release <= 1, "a share, or 0 for none")
        for name in ("alpha", "level"):
            self._require(name, is_level(getattr(self, name)), LEVELS)
        for name, words in _choices().items():
            self._require(name, getattr(self, name) in words, f"one of {', '.join(words)}")

    def controller(self) -> dict[str, Any]:
        """The arguments of `ALMConstraint` these settings stand for."""
        names = ("alpha", "mu", "multiplier", "every")
        found = {name: getattr(self, name) for name in names}
        if self.window > 1 or self.deadband > 0:
            found["filter"] = Mean(self.window, self.deadband)
        if self.release > 0:
            found["rules"] = [Leak(self.release, self.release_after)]
        return found

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            found = getattr(self, name)
            raise ValueError(
                f"Settings: {name} is {found!r}, which no method can work with. "
                f"Did you mean {expected}?"
            )


LARGEST = 3e38  # of float32
LEVELS = "a number, never_seen, retrained, rate:SHARE (such as 0.95) or relative:SHARE (of c^2/d)"


def is_level(alpha: float | str) -> bool:
    """Tell whether this is a number, or a word that stands for one."""
    if not isinstance(alpha, str):
        return math.isfinite(alpha)
    word, _, share = alpha.partition(":")
    if word not in ("rate", "relative"):
        return alpha in ("never_seen", "retrained")
    try:
        return 0 < float(share) < (1 if word == "rate" else math.inf)
    except ValueError:
        return False


def _level(name: str, text: str) -> float | str:
    try:
        return float(text)
    except ValueError as error:
        if is_level(text):
            return text
        raise ValueError(f"{name}={text}: expected {LEVELS}, found {text!r}.") from error


@functools.cache  # types are evaluated anew each time, and a search makes thousands of settings
def _choices() -> dict[str, tuple[str, ...]]:
    """The words each worded setting may take, read off its type."""
    hints = get_type_hints(Settings)
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


def parse(name: str, text: str) -> object:
    """The value of setting `name` written as `text` on a command line.

    Raises:
        ValueError: No setting of that name, or a text that is not of its type.
    """
    default = {field.name: field.default for field in dataclasses.fields(Settings)}
    if name not in default:
        closest = difflib.get_close_matches(name, default, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"no setting is called {name!r}. Did you mean {closest!r}? Known: {', '.join(default)}."
        )
    if text.lower() == "none" and default[name] is None:
        return None
    if name in ("alpha", "level"):
        return _level(name, text)
    if text == "auto" and name == "mu":
        return text
    kind = float if default[name] is None else type(default[name])
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(f"{name}={text}: expected {kind.__name__}, found {text!r}.") from error
