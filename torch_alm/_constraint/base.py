"""The base of a constraint: settings, a state, and the shape of both; no measuring."""

import math
import operator
from collections.abc import Mapping
from threading import get_ident
from typing import Any, Literal, NoReturn, SupportsIndex

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_alm._constraint import checks, numbers, status
from torch_alm._constraint.auto import Response
from torch_alm._constraint.checks import Index
from torch_alm._constraint.numbers import Number, Numeric
from torch_alm._constraint.observations import Mean, Observation, Observations, mean
from torch_alm._constraint.probe import Probe
from torch_alm._constraint.response import one_weight
from torch_alm._constraint.settings import Settings
from torch_alm._constraint.state import State, unwinds
from torch_alm._guards import is_first_pass

BLIND = 16  # steps without any gradient, from which on it is no chance


class ConstraintBase(Settings):
    """Settings that may be assigned at any time, and a state that is saved and loaded."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._state, self._observed, self._probe = State(), Observations(), Probe()
        self._shape = torch.Size()
        self._home = get_ident()  # the thread whose passes count
        self._settle(given)

    def _settle(self, given: Mapping[str, Any]) -> None:
        new, state = checks.converted(given, checks.LIMITS), self._state
        mu = state.mu if state.auto is None else "auto"
        together = {**vars(self), "mu": mu, "multiplier": state.multiplier, **new}
        checks.check("ALMConstraint", together, checks.LIMITS, checks.ORDER)
        size = checks.joint(self._shape, new, is_open=self._is_open_to_shapes)
        if together["mu"] == "auto":
            checks.check_auto(together)
        if "mu" in new:
            state.follow(new.pop("mu"))
            self._probe.begin()
        if "multiplier" in new:
            state.put(new.pop("multiplier"))
        if vars(self).get("sense", together["sense"]) != together["sense"]:
            state.turn()
        vars(self).update(new)
        state.remember_for(self)
        if {"alpha", "multiplier"} & given.keys():
            self._take_shape(size)

    @property
    def mu(self) -> Number:
        """The step size there is: as given, unless a rule has raised it. It may be assigned.

        With `"auto"` the one found so far, of a vector one per entry: 0 before the first gradient.
        """
        return numbers.kept(self._state.mu)

    @mu.setter
    def mu(self, value: Numeric | Literal["auto"]) -> None:
        self._settle({"mu": value})

    @property
    def multiplier(self) -> Number:
        """lambda, as stored: a float, or a float64 tensor for a vector measure.

        It may be assigned, to go on from another one.
        """
        return numbers.kept(self._state.multiplier)

    @multiplier.setter
    def multiplier(self, value: Numeric) -> None:
        self._settle({"multiplier": value})

    @property
    def weight(self) -> Number:
        """lambda+, what acted in the latest step; 0 means the gate is closed."""
        return numbers.kept(self._state.weight)

    @property
    def observed(self) -> int:
        """The number of measurements since the last step."""
        return len(self._observed)

    @property
    def skipped(self) -> int:
        """Measurements, of all ranks together, and updates left out as they were not finite."""
        return self._state.history.skipped

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs, sharing no memory; loads with `weights_only=True`.

        Settings are not in it, except mu, which may have grown, and the sense, to compare. What was
        observed since the last step is not either: save between steps. What filters and rules
        remember is in it by the names of their classes; those that have none there begin anew.
        """
        return {"sense": self.sense, **self._state.state()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict()`, sharing no memory with it.

        Raises:
            ValueError: if an entry is missing or unknown, or sense or shape differ; nothing is
                loaded then.
        """
        self.check_state_dict(state_dict)
        self._take_shape(numbers.shape(state_dict["multiplier"]))
        self._state.load(state_dict)
        self._state.remember_for(self)
        self.discard()

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raise what `load_state_dict` would raise, and load nothing."""
        size = None if self._is_open_to_shapes else self._shape
        checks.check_checkpoint(state_dict, self.state_dict(), size)

    @property
    def _is_open_to_shapes(self) -> bool:
        """True while the first measurement may still make this a vector."""
        return self._shape == () and not self._observed and self._state.history.steps == 0

    def _placed(self, value: Tensor, index: Index | None) -> tuple[Tensor, Tensor | None]:
        """Return the value in the shape expected, and the entries it is for."""
        if index is None:
            return self._shaped(value), None
        row = checks.entries(index, value, self._shape)
        return value.reshape(-1), row

    def _shaped(self, value: object) -> Tensor:
        """Return it in the expected shape: that of alpha, of lambda or of the first vector."""
        if isinstance(value, Tensor) and value.numel() > 1 and self._is_open_to_shapes:
            self._take_shape(value.shape)
        return checks.shaped(value, self._shape)

    def _take_shape(self, size: torch.Size) -> None:
        """Keep one multiplier per entry."""
        self._shape = size
        self._state.expand(size)
        if isinstance(self.alpha, Tensor):
            vars(self)["alpha"] = self.alpha.expand(size)

    @property
    def steps(self) -> int:
        """The number of updates so far."""
        return self._state.history.steps

    @property
    def wants_gradient(self) -> bool:
        """True with `mu="auto"`, in steps that need the gradient whatever the weight will be."""
        return self._wants_gradient

    def calibrate(
        self, optimizer: Optimizer, gradient: Mapping[Tensor, Tensor], rest: Mapping[Tensor, Tensor]
    ) -> None:
        """Find mu from the response of an optimizer to the measure's gradient."""
        if self._observed:
            sign = -1 if self.sense != "<=" else +1
            here = dict(rest), dict(gradient), sign, self._coming_weight()
            self._probe.take(one_weight(optimizer, *here))

    def aim(self, weight: float) -> float:
        """Return the share of a finished forget step to take: all of it where mu is found."""
        return weight if self._state.auto is None else float(weight != 0)

    def discard(self, *, keep: int = 0) -> None:
        """Forget what was observed since the last step, as if it had never been measured.

        Args:
            keep: how many of the first measurements (see `observed`) stay.
        """
        self._observed.drop(keep)
        if not keep and self._state.auto is not None:
            self._probe.begin()

    @property
    def _wants_gradient(self) -> bool:
        """Tell whether mu is to be found, in this pass, from the violation's own gradient."""
        auto = self._state.auto
        return auto is not None and auto.wants_gradient and not is_first_pass(self._home)

    def _watch(self, penalty: Tensor, value: Tensor, weight: Number) -> Tensor:
        """Let the entry whose turn it is be differentiated; return a penalty that tells its share.

        So does that of a measurement without a gradient.
        """
        assert self._state.auto is not None
        if not value.requires_grad:
            penalty = penalty + torch.zeros_like(penalty, requires_grad=True)
        i = self._state.auto.entry
        acting = float(weight.reshape(-1)[i]) if isinstance(weight, Tensor) else weight
        one = value.reshape(-1)[i]
        self._probe.watch(penalty, one if self.sense == "<=" else -one, acting)
        return penalty

    def _prepare(self, optimizer: Optimizer) -> None:
        if self._wants_gradient:
            self._probe.read(optimizer)

    @property
    def _slack(self) -> float:
        """Distance of one number from its violation; `nan` if the latest step saw nothing finite.

        At most 0 where it is violated, which an equality is on either side.
        """
        c = numbers.average(self._state.violation)
        if self._state.history.is_blind:
            return math.nan
        return -abs(c) if self.sense == "==" else -c

    def _slack_at(self, value: Tensor) -> float:
        """Return the `_slack` that a value alone would have, over all ranks; nothing is taken in.

        Cost: one device synchronisation.
        """
        here = Observation(value.item(), 1.0, None, value.dtype)
        found = mean([here], self._shape, self)
        c = numbers.average(found.c) if found.seen is True and not found.bad else math.nan
        return -abs(c) if self.sense == "==" else -c

    def _coming_weight(self) -> float:
        """Return this step's weight, of one number and before it is stepped."""
        return float(self._state.preview(self._observed.mean(self._shape, self), self).weight)

    def check_unwind(self, total_steps: SupportsIndex) -> bool:
        """Tell whether the gate could still close in a run of this length; warn if it could not.

        The multiplier has to give back what it took up. The steps that are left are gone through
        as if each were met by |c|, c the latest violation, with the cadence, filter and rules there
        are. An equality has no gate to close.

        Args:
            total_steps: the length of the run, from its first step.

        Warns:
            UserWarning: with the numbers, if it could not.

        Cost: that of the steps that are left, on the host; ask once, after the first step.
        """
        total = operator.index(total_steps)
        if unwinds(self._state, self, total):
            return True
        status.warn_wound_up(self._state, total)
        return False

    def _take_response(self, found: Mean) -> Response | None:
        """Return what was read of the optimizer in this step, and begin the next."""
        is_whole = numbers.any_of(found.seen) and not found.bad  # else there was none to take
        self._probe.blind += self._probe.is_blind  # a batch may have nothing that it depends on
        is_blind = self._probe.is_blind and self._probe.blind <= BLIND
        if self._wants_gradient and is_whole and not (self._probe.has_seen or is_blind):
            checks.refuse_values()
        response = self._probe.found
        self._probe.begin()
        return response

    def _refuse_unmeasured(self, verb: str) -> NoReturn:
        raise RuntimeError(
            f"ALMConstraint.{verb}() found no measurement since the last step; the multiplier "
            "would have no violation to follow. Did you call `constraint(...)`, "
            "`observe(value)` or `DualOptimizer.backward` first? (Under `torch.no_grad()` only "
            "`observe` takes a measurement.)"
        )
