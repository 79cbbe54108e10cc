"""ALMConstraint: one inequality and its price. It knows nothing of optimizers.

Source: SAUL, section 4.1 (the multiplier, its update and the penalty) and Algorithm 1.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor

from torch_alm import _numbers as numbers
from torch_alm._filter import Window
from torch_alm._numbers import Mean, Number, Observation
from torch_alm._passes import is_rehearsal

Sense: TypeAlias = Literal[">=", "<=", "=="]


@final
class ALMConstraint:
    r"""`measure(...) >= alpha` (or `<=`, `==`), as an augmented Lagrangian term.

    With the violation c = alpha - F (`>=`, `==`) or c = F - alpha (`<=`), every step does

        lambda+ = [lambda + mu c]_+        the weight that acts in this very step
        lambda  = lambda+

    and the penalty is ([lambda + mu c]_+^2 - lambda^2) / (2 mu), whose gradient is lambda+ grad c:
    lambda+ already holds the quadratic term. For `==` nothing is projected and lambda may be
    negative. mu = 0 is a fixed multiplier with the penalty lambda c.

    Two ways to use it. As a loss, `loss = retain + constraint(model, batch)`, and `step()` once per
    optimizer step. Or as a controller of somebody else's forget update: `observe(value)`, then
    `weight = step()` scales that update, and 0 means: skip it.

    Args:
        measure: a function of whatever you call the constraint with, returning F; `None` if you
            only `observe`.
        alpha: the threshold, in the units of the measure; a tensor for a vector measure.
        mu: step size of the multiplier and weight of the penalty, at least 0.
        sense: which side of alpha is satisfied.
        multiplier: lambda at the start, at least 0 unless `==`; a tensor for a vector measure.
        every: the multiplier takes the weight's value on every `every`-th step only; between them
            the weight still follows the violation.
        window: the violation that counts is the mean over the last `window` steps (of as many as
            there are, at first).
        deadband: with k > 0, a positive mean violation counts only beyond k standard errors,
            max(c - k sd / sqrt(W), 0), with the sample standard deviation; c <= 0 stays.
        nonfinite: "skip" ignores, counts and warns about measurements that are not finite; "raise"
            raises.

    Raises:
        ValueError: if `alpha` or `mu` is not finite, `mu` or `multiplier` negative, `every` or
            `window` below 1, `deadband` negative or without a window, or a word is unknown.

    Attributes:
        measure, alpha, mu, sense, every, window, deadband, nonfinite: as given; may be changed.
        skipped: measurements left out because they were not finite.

    Cost: no backward pass of its own and no copy of the parameters; one device synchronisation per
    `step`, and a reduction over ranks if `torch.distributed` is initialised.

    Source: SAUL, section 4.1; Hestenes 1969, Powell 1969, Rockafellar 1973.

    Example:
        >>> constraint = ALMConstraint(lambda x: x, alpha=2.0, mu=0.5)
        >>> x = torch.tensor(1.0, requires_grad=True)
        >>> constraint(x).backward()
        >>> x.grad  # lambda+ grad c = [0 + 0.5 (2 - 1)]_+ times -1
        tensor(-0.5000)
        >>> constraint.step()
        0.5
    """

    def __init__(
        self,
        measure: Callable[..., Tensor] | None,
        alpha: float | Tensor,
        mu: float,
        *,
        sense: Sense = ">=",
        multiplier: float | Tensor = 0.0,
        every: int = 1,
        window: int = 1,
        deadband: float = 0.0,
        nonfinite: Literal["skip", "raise"] = "skip",
    ) -> None:
        """Set the constraint up; see the class."""
        self.measure = measure
        self.alpha = numbers.host(alpha)
        self.mu = float(mu)
        self.sense: Sense = sense
        self.every = every
        self.window = window
        self.deadband = float(deadband)
        self.nonfinite = nonfinite
        self._multiplier = numbers.host(multiplier)
        self._check()
        self._weight = self._multiplier
        self._value: Number = math.nan
        self._violation: Number = math.nan
        self._filter = Window()
        self._observed: list[Observation] = []
        self._steps = self._active_steps = self.skipped = 0
        shapes = numbers.shape(self.alpha), numbers.shape(self._multiplier)
        self._shape = torch.broadcast_shapes(*shapes)
        self._has_fixed_shape = self._shape != ()
        self._take_shape(self._shape)

    def _check(self) -> None:
        mu, multiplier = self.mu, self._multiplier
        legal = numbers.is_finite(multiplier) and (
            self.sense == "==" or not numbers.any_of(multiplier < 0)
        )
        has_room = self.deadband == 0 or (self.deadband > 0 and self.window >= 2)
        rules = {
            "alpha": (numbers.is_finite(self.alpha), "a finite threshold"),
            "mu": (math.isfinite(mu) and mu >= 0, "at least 0 (0 fixes the multiplier)"),
            "sense": (self.sense in (">=", "<=", "=="), '">=", "<=" or "=="'),
            "multiplier": (legal, 'finite, and at least 0 for ">=" and "<="'),
            "every": (self.every >= 1, "a number of steps, at least 1"),
            "window": (self.window >= 1, "a number of steps, at least 1"),
            "deadband": (has_room, "at least 0, and needs a window of 2 steps or more"),
            "nonfinite": (self.nonfinite in ("skip", "raise"), '"skip" or "raise"'),
        }
        for name, (passed, rule) in rules.items():
            if not passed:
                found = multiplier if name == "multiplier" else getattr(self, name)
                raise ValueError(
                    f"ALMConstraint: {name} is {found!r}; it must be {rule}. Are the arguments in "
                    "the order (measure, alpha, mu)?"
                )

    @property
    def multiplier(self) -> float | Tensor:
        """lambda, as stored: a float, or a float64 tensor for a vector measure."""
        return numbers.copied(self._multiplier)

    @property
    def weight(self) -> float | Tensor:
        """lambda+, what acted in the latest step; 0 means the gate is closed."""
        return numbers.copied(self._weight)

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Observe `measure(*args, **kwargs)` and return its penalty, summed if it is a vector.

        With a window the penalty's gradient is the weight that the filtered violation gives; over
        several ranks it is the weight that the mean over ranks gives. A measurement that is not
        finite costs nothing: a zero that leads nowhere.

        Shape: the measure's to a scalar, in float32 or wider.

        Cost: that of the measure; one device synchronisation.
        """
        if self.measure is None:
            raise TypeError(
                "ALMConstraint was called and its measure is None, so there is nothing to measure. "
                "Did you mean `observe(value)`, or to pass a measure?"
            )
        value = self.measure(*args, **kwargs)
        number = numbers.host(self._shaped(value))
        before = [] if self.window == 1 else list(self._observed)
        self.observe(number)
        if not numbers.is_finite(number):
            return torch.zeros((), device=value.device, requires_grad=True)
        return self._priced(value, numbers.mean([*before, (number, 1.0)]))

    def _priced(self, value: Tensor, mean: Mean) -> Tensor:
        """The penalty with its gradient given: lambda+ (c - c_0) plus its value at c_0."""
        c, c_0 = self._violation_of(value), self._signed(numbers.host(self._shaped(value)))
        filtered = self._filter.peek(
            self._signed(mean.value), mean.seen, self.window, self.deadband
        )
        weight = self._project(self._multiplier + self.mu * filtered)
        level = self._level(c_0) - weight * c_0
        if isinstance(weight, Tensor) and isinstance(level, Tensor):
            weight, level = (n.to(c.device, c.dtype) for n in (weight, level))
        return (weight * c + level).sum()

    def _level(self, c: Number) -> Number:
        """The value of the penalty at the violation c."""
        multiplier, mu = self._multiplier, self.mu
        price = multiplier * c + 0.5 * mu * c * c
        if self.sense == "==" or mu == 0:
            return price
        return numbers.choose(multiplier + mu * c > 0, price, -multiplier * multiplier / (2 * mu))

    def penalty(self, value: Tensor) -> Tensor:
        """([lambda + mu c]_+^2 - lambda^2) / (2 mu), summed; observes nothing.

        Shape: the measure's to a scalar, in float32 or wider.

        Cost: no device synchronisation.
        """
        c = self._violation_of(value)
        multiplier = torch.as_tensor(self._multiplier, dtype=c.dtype, device=c.device)
        price = multiplier * c + 0.5 * self.mu * c.square()
        if self.sense == "==" or self.mu == 0:
            return price.sum()
        floor = -multiplier.square() / (2 * self.mu)
        return torch.where(multiplier + self.mu * c > 0, price, floor).sum()

    def _violation_of(self, value: Tensor) -> Tensor:
        """c with its graph, in the value's device and float32 or wider."""
        value = self._shaped(value)
        value = value.to(torch.promote_types(value.dtype, torch.float32))
        alpha = self.alpha
        if isinstance(alpha, Tensor):
            alpha = alpha.to(value.device, value.dtype)
        return value - alpha if self.sense == "<=" else alpha - value

    def observe(self, value: float | Tensor, *, weight: float = 1.0) -> None:
        """Measure: several values per step are averaged by weight. No gradient is needed.

        Inside the first, clean pass of an objective under SAM nothing is observed: the perturbed
        pass counts.

        Raises:
            ValueError: if the shape is not the one expected, or the weight is not positive.
        """
        if is_rehearsal():
            return
        if not (math.isfinite(weight) and weight > 0):
            raise ValueError(
                f"ALMConstraint.observe: weight is {weight!r}; a mean needs positive weights. Did "
                "you mean the share of this micro-batch in the step?"
            )
        if isinstance(value, Tensor):
            value = self._shaped(value.detach())
        elif self._shape != ():
            value = self._shaped(torch.tensor(float(value)))
        self._observed.append((value, weight))

    def _shaped(self, value: Tensor) -> Tensor:
        """The value in the expected shape: that of alpha, of lambda or of the first vector."""
        if value.ndim and value.numel() > 1 and not (self._has_fixed_shape or self._is_used()):
            self._take_shape(value.shape)
        if value.shape == self._shape:
            return value
        if self._shape == () and value.numel() == 1:
            return value.reshape(())
        raise ValueError(
            f"ALMConstraint: the measure returned shape {tuple(value.shape)} where "
            f"{tuple(self._shape)} was expected; broadcasting would move the wrong multipliers. "
            "Did you forget `.mean()`, or an alpha with one entry per constraint?"
        )

    def _is_used(self) -> bool:
        return bool(self._observed) or self._steps > 0

    def _take_shape(self, shape: torch.Size) -> None:
        """One multiplier per entry."""
        self._shape = shape
        if shape == ():
            return
        self._has_fixed_shape = True
        for name in ("_multiplier", "_weight", "_value", "_violation"):
            number = torch.as_tensor(getattr(self, name), dtype=torch.float64)
            setattr(self, name, number.expand(shape).clone())

    def step(self) -> float | Tensor:
        """Update the multiplier, once per optimizer step; returns the weight lambda+.

        The mean of what was observed since the last step, over all ranks, gives the violation. If
        none of it was finite, the multiplier stays and is the weight.

        Raises:
            RuntimeError: if nothing was observed since the last step.
            FloatingPointError: for a measurement that is not finite, with `nonfinite="raise"`.

        Cost: one device synchronisation, none for numbers already on the host.
        """
        if not self._observed:
            raise RuntimeError(
                "ALMConstraint.step() found no measurement since the last step; the multiplier "
                "would have no violation to follow. Did you call `constraint(...)`, "
                "`observe(value)` or `DualOptimizer.backward` first?"
            )
        observed, self._observed = self._observed, []
        value, seen, bad = numbers.mean(observed)
        self._report(bad)
        c = self._filter.push(self._signed(value), seen, self.window, self.deadband)
        weight = self._project(self._multiplier + self.mu * c)
        self._value = numbers.choose(seen, value, self._value)
        self._violation = numbers.choose(seen, c, self._violation)
        self._weight = numbers.choose(seen, weight, self._multiplier)
        self._steps += 1
        self._active_steps += numbers.any_of(self._weight != 0)
        if self._steps % self.every == 0:
            self._multiplier = self._weight
        return self.weight

    def _signed(self, value: Number) -> Number:
        """The violation c, positive where the constraint is not met."""
        return value - self.alpha if self.sense == "<=" else self.alpha - value

    def _project(self, multiplier: Number) -> Number:
        return multiplier if self.sense == "==" else numbers.positive(multiplier)

    def _report(self, bad: int) -> None:
        """Count and name measurements that are not finite."""
        if not bad:
            return
        if self.nonfinite == "raise":
            raise FloatingPointError(
                f"ALMConstraint.step: {bad} measurement(s) of this step are not finite and would "
                "have made the multiplier so for ever. Is the loss unbounded?"
            )
        self.skipped += bad
        warnings.warn(
            f"ALMConstraint.step: {bad} measurement(s) of this step are not finite; skipped "
            f"({self.skipped} so far), the multiplier does not see them. Is the loss unbounded?",
            stacklevel=3,
        )

    def metrics(self) -> dict[str, Any]:
        """The state in plain numbers, means over the entries of a vector.

        `value`, `violation` (filtered), `multiplier`, `weight`, `active_share` (of the steps, with
        a weight other than 0), `skipped`, `steps`, and `status`: "unmeasured", "violated",
        "satisfied", or "released" (satisfied, and the gate closed).
        """
        return {
            "value": numbers.average(self._value),
            "violation": numbers.average(self._violation),
            "multiplier": numbers.average(self._multiplier),
            "weight": numbers.average(self._weight),
            "active_share": self._active_steps / max(self._steps, 1),
            "skipped": self.skipped,
            "steps": self._steps,
            "status": self._status(),
        }

    def _status(self) -> str:
        c = self._violation
        if not numbers.any_of(c == c):
            return "unmeasured"
        if numbers.any_of(c != 0 if self.sense == "==" else c > 0):
            return "violated"
        return "satisfied" if numbers.any_of(self._weight != 0) else "released"

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs, sharing no memory; loads with `weights_only=True`."""
        return {
            "sense": self.sense,
            "mu": self.mu,
            "multiplier": numbers.copied(self._multiplier),
            "weight": numbers.copied(self._weight),
            "value": numbers.copied(self._value),
            "violation": numbers.copied(self._violation),
            "history": self._filter.state(),
            "steps": self._steps,
            "active_steps": self._active_steps,
            "skipped": self.skipped,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore `state_dict()`, sharing no memory with it.

        Raises:
            ValueError: if an entry is missing or unknown, or sense or shape differ; nothing is
                loaded then.
        """
        self._check_state(state_dict)
        self._take_shape(numbers.shape(state_dict["multiplier"]))
        self.mu = state_dict["mu"]
        for name in ("multiplier", "weight", "value", "violation"):
            setattr(self, f"_{name}", numbers.copied(numbers.host(state_dict[name])))
        self._filter = Window(state_dict["history"])
        self._steps = state_dict["steps"]
        self._active_steps = state_dict["active_steps"]
        self.skipped = state_dict["skipped"]
        self._observed = []

    def _check_state(self, state_dict: dict[str, Any]) -> None:
        owner = "ALMConstraint.load_state_dict"
        mine = self.state_dict()
        if {*state_dict} != {*mine}:
            raise ValueError(
                f"{owner} found the entries {sorted(map(str, state_dict))} and needs "
                f"{sorted(mine)}. Is it the checkpoint of a constraint?"
            )
        if state_dict["sense"] != self.sense:
            raise ValueError(
                f"{owner}: the checkpoint's sense is \"{state_dict['sense']}\" and this one's "
                f'"{self.sense}"; the multiplier would push the wrong way. Is it another constraint?'
            )
        shape = numbers.shape(state_dict["multiplier"])
        if shape != self._shape and (self._has_fixed_shape or self._is_used()):
            raise ValueError(
                f"{owner}: the checkpoint has multipliers of shape {tuple(shape)} and this "
                f"constraint {tuple(self._shape)}. Is it another constraint?"
            )

    def __repr__(self) -> str:
        name = getattr(self.measure, "__name__", repr(self.measure))
        return (
            f"ALMConstraint({name} {self.sense} {self.alpha}, mu={self.mu}, "
            f"multiplier={self.multiplier})"
        )
