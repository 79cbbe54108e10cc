"""State and shapes of a constraint, besides the algorithm."""

# pyright: reportPrivateUsage=false

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_alm._constraint import numbers, observations
from torch_alm._constraint.loop import Gradient, Loop, response
from torch_alm._constraint.numbers import Number, Numeric
from torch_alm._constraint.observations import Index, Observations
from torch_alm._constraint.settings import Given, Settings
from torch_alm._constraint.state import State, is_met
from torch_alm._optim.objective import is_first_pass

ROUNDING = 1e-6  # of alpha, or of 1 if that is 0: float32 measures no finer
PILE = 100  # measurements without a step, which nobody means
STATUSES = (  # worst first: a group is as well as its worst member
    "non_finite",
    "suspected_infeasible",
    "capped",
    "violated",
    "unstepped",
    "unmeasured",
    "satisfied",
    "released",
)


class Stored(Settings):
    """A state that is read, saved, loaded and given a shape."""

    _state: State
    _observed: Observations
    _loop: Loop
    _shape: torch.Size
    _is_stepped: bool  # since it was made, copied or loaded

    @property
    def mu(self) -> Number:
        """The step size there is: as given, unless a rule has raised it. It may be assigned.

        With `"auto"` the one found so far, of a vector one per entry: 0 before the first gradient.
        A number that is assigned ends the search.
        """
        return numbers.kept(self._state.mu)

    @mu.setter
    def mu(self, value: Numeric) -> None:
        self._state.mu, self._state.auto = numbers.single(value), None

    @property
    def multiplier(self) -> Number:
        """lambda, as stored: a float, or a float64 tensor for a vector measure.

        It may be assigned, also an entry of it, to go on from another one.
        """
        if self._state.multiplier is self._state.weight:  # or an entry would be assigned in both
            self._state.weight = numbers.kept(self._state.weight)
        return self._state.multiplier

    @multiplier.setter
    def multiplier(self, value: Numeric) -> None:
        state = self._state
        state.multiplier = numbers.expanded(self._fitted(value), self._shape)
        if state.steps == 0:
            state.weight = state.multiplier

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
        return self._state.skipped

    @property
    def steps(self) -> int:
        """The number of updates so far."""
        return self._state.steps

    def metrics(self) -> dict[str, Any]:
        """Return the state in plain numbers.

        Means over a vector's entries: `alpha`, `value`, `violation` (filtered), `multiplier`, `mu`,
        `weight`. `active_share` (of the steps, with a weight not 0), `skipped`, `steps`; `status`:

        - "unstepped": a hundred measurements wait, and it was never stepped since it was made,
          copied or loaded;
        - "unmeasured": of some entry nothing finite was ever seen, and no other is violated;
        - "non_finite": the latest step saw nothing finite;
        - "released": met, and every gate closed;
        - "satisfied": met, and still pushed;
        - "capped": not met, and a stored multiplier is at the limit of a rule;
        - "suspected_infeasible": not met, and 256 measured steps (32 updates) of growing pressure
          have not helped: mu or the steps are too small, or it is out of reach;
        - "violated": not met. A violation of up to a millionth of alpha (of 1 if alpha is 0) is
          none here: it is rounding.

        Cost: no device synchronisation.
        """
        state, mean = self._state, numbers.average
        return {
            "alpha": mean(self.alpha),
            "value": mean(state.value),
            "violation": mean(state.violation),
            "multiplier": mean(state.multiplier),
            "weight": mean(state.weight),
            "active_share": state.active_steps / max(state.steps, 1),
            "mu": mean(state.mu),
            "skipped": state.skipped,
            "steps": state.steps,
            "status": self._status(),
        }

    def _status(self) -> str:
        state, c = self._state, self._state.violation
        if len(self._observed) >= PILE and not self._is_stepped:
            return "unstepped"
        if state.is_blind:
            return "non_finite"
        alpha = numbers.choose(self.alpha == 0, 1.0, self.alpha)
        if numbers.any_of((c == c) & (is_met(self, c, ROUNDING * abs(alpha)) == 0)):
            if state.is_limited(self):
                return "capped"
            return "suspected_infeasible" if state.stall.is_stalled else "violated"
        if numbers.any_of(c != c):
            return "unmeasured"
        return "satisfied" if numbers.any_of(state.weight != 0) else "released"

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
        self._observed.drop()
        self._is_stepped = False

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raise what `load_state_dict` would raise, and load nothing."""
        _check_checkpoint(state_dict, self.state_dict())
        found = numbers.shape(state_dict["multiplier"])
        if found != self._shape and not self._is_open_to_shapes:
            raise ValueError(
                f"{LOADING}: the checkpoint has multipliers of shape {tuple(found)} and this "
                f"constraint {tuple(self._shape)}. Is it another constraint?"
            )

    @property
    def _is_open_to_shapes(self) -> bool:
        """True while the first measurement may still make this a vector."""
        return self._shape == () and not self._observed and self._state.steps == 0

    def _fitted(self, value: Numeric) -> Number:
        if self._shape == () and not self._is_open_to_shapes:
            return numbers.single(value)
        return numbers.host(value)

    def _take_shape(self, size: torch.Size) -> None:
        """Keep one multiplier per entry."""
        self._shape = size
        self._state.expand(size)
        if isinstance(self._alpha, Tensor):
            self._alpha = self._alpha.expand(size)

    def _placed(self, value: object, index: Index | None) -> tuple[Tensor, Tensor | None]:
        """Return the value in the shape of alpha, lambda or the first vector; and its entries."""
        if index is not None and self._state.auto is not None:
            raise ValueError(
                'ALMConstraint: mu="auto" takes no index: it looks at one entry in turn, which a '
                "batch may not have. Did you mean a number, such as mu=0.1?"
            )
        is_first = index is None and self._is_open_to_shapes
        if is_first and isinstance(value, Tensor) and value.numel() > 1:
            self._take_shape(value.shape)
        if index is None or not isinstance(value, Tensor):
            return observations.shaped(value, self._shape), None
        row = observations.entries(index, value, self._shape)
        return value.reshape(-1), row

    def discard(self, *, keep: int = 0) -> None:
        """Forget what was observed since the last step, as if it had never been measured.

        Args:
            keep: how many of the first measurements (see `observed`) stay.
        """
        self._observed.drop(keep)
        if not keep:
            self._loop.begin()

    @property
    def wants_gradient(self) -> bool:
        """True with `mu="auto"`, in steps that need the gradient whatever the weight will be."""
        auto = self._state.auto
        return auto is not None and auto.wants_gradient and not is_first_pass()

    def calibrate(self, optimizer: Optimizer, gradient: Gradient, rest: Gradient) -> None:
        """Find mu from the response of the optimizer that will apply the weight.

        Args:
            optimizer: it.
            gradient: that of the measured value.
            rest: what else is in the step.
        """
        if self._state.auto is not None and self._observed:
            coming, *_ = self._state.weighed(self._observed.mean(self._shape, self.alpha), self)
            a = {p: numbers.beyond(0.0, self.sense, x) for p, x in gradient.items()}
            stepped = {p: float(coming.weight) * x for p, x in a.items()}
            self._loop.found = response(optimizer, a, rest, stepped)

    def aim(self, weight: float) -> float:
        """Return the share of a finished forget step to take; the weight, unless mu is found."""
        auto = self._state.auto
        return weight if auto is None or self.sense == "==" else auto.aim(weight)


LOADING = "ALMConstraint.load_state_dict"


def _check_checkpoint(found: Given, mine: Given, where: str = "") -> None:
    """Raise `ValueError` if an entry would be lost, or belongs to another constraint."""
    if {*found} != {*mine}:
        raise ValueError(
            f"{LOADING} found the entries {sorted(map(str, found))}{where} and needs "
            f"{sorted(mine)} ('auto' is there with mu=\"auto\"). Is it the checkpoint of another "
            "constraint?"
        )
    for name, entry in mine.items():
        if isinstance(entry, Mapping):
            _check_checkpoint(found[name], entry, f" in {name!r}")
    if not where and found["sense"] != mine["sense"]:
        raise ValueError(
            f"{LOADING}: the checkpoint's sense is \"{found['sense']}\" and this one's "
            f'"{mine["sense"]}"; the multiplier would push the wrong way. Is it another constraint?'
        )


def not_finite(bad: int, then: str) -> str:
    """Say that measurements of a step, or its update, are not finite."""
    return (
        f"ALMConstraint.step: {bad} measurement(s) or update(s) of this step are not finite; "
        f"{then}. Is the loss unbounded, or mu too large?"
    )
