"""ALMConstraint: one inequality and its price. It knows nothing of optimizers.

Source: SAUL, section 4.1 (the multiplier, its update and the penalty) and Algorithm 1.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from threading import get_ident
from typing import Any, SupportsIndex, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_alm._control import answers, checkpoint, notices, numbers, settings, terms
from torch_alm._control.attachment import Attachment
from torch_alm._control.best import Best, OnBest
from torch_alm._control.controller import Controller
from torch_alm._control.growth import PenaltyGrowth
from torch_alm._control.numbers import Number, Numeric
from torch_alm._control.observations import (
    Mean,
    Observation,
    Observations,
    mean,
    mean_of_numbers,
)
from torch_alm._control.price import Tariff
from torch_alm._control.release import Release
from torch_alm._control.settings import RULES
from torch_alm._control.shapes import Index, entries, joint, shaped
from torch_alm._control.terms import Policy, Sense
from torch_alm._guards import eager, is_first_pass, is_running, remember


@final
class ALMConstraint(terms.Terms):
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
            max(c - k sd / sqrt(W), 0), with the sample standard deviation; c <= 0 stays. For `==`
            both signs are cut.
        ema: in place of a window, an exponential mean: in (0, 1), the share of the old mean that
            is kept per step; the first steps are averaged evenly enough to have no bias to zero.
        warmup: in the first `warmup` steps mu acts as 0: values are observed and fill the window,
            the multiplier stays, and the weight (and the penalty's gradient) is the multiplier.
        tolerance: a violation up to this counts as met in `status`, for the best step, for a
            release and for the growth of mu. The multiplier follows the violation itself.
        max_multiplier: a limit for the stored multiplier (for `==`, of its size); the weight may
            exceed it by mu c. It warns when the limit is reached. `None`, no limit, by default.
        hold: conditional integration: in an update whose violation has shrunk to `hold` times that
            of the update before, or less, the multiplier does not grow. The weight still follows.
        release: how a multiplier is given back while the constraint is met; see `Release`.
        growth: how mu grows on too little progress; see `PenaltyGrowth`.
        total_steps: the length of the run, if known: the first measurement warns if that many steps
            of such a violation could not bring lambda to zero.
        on_best: called with a `Best` when `step(objective=...)` finds a new best step, to save it.
        nonfinite: "skip" ignores, counts and warns about measurements that are not finite, and
            updates that would make lambda so; "raise" raises.

    Raises:
        ValueError: if a setting makes no sense; the message names it and what it may be.

    Attributes:
        alpha: the threshold on the host. Like all settings it may be assigned later, and takes
            numbers of Python, of NumPy and tensors; what makes no sense is refused, then as now.
        mu: the current one, which `growth` may raise.
        best: the best step so far, of those with an objective; `None` before the first.
        skipped: measurements and updates left out because they were not finite.

    Warns:
        UserWarning: once, before the first `step`, if theta has moved on 16 times between
            measurements (seen in a parameter that they depend on), or 512 of them wait where no
            parameter is known. Micro-batches at one theta may be any number.

    Cost: no backward pass of its own and no copy of the parameters; one device synchronisation per
    `step`, and a reduction over ranks if `torch.distributed` is initialised (then all ranks have to
    call and step it equally often, and all of them have the same multiplier).

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
        alpha: Numeric,
        mu: Numeric,
        *,
        sense: Sense = ">=",
        multiplier: Numeric = 0.0,
        every: SupportsIndex = 1,
        window: SupportsIndex = 1,
        deadband: Numeric = 0.0,
        ema: Numeric = 0.0,
        warmup: SupportsIndex = 0,
        tolerance: Numeric = 0.0,
        max_multiplier: Numeric | None = None,
        hold: Numeric | None = None,
        release: Release | None = None,
        growth: PenaltyGrowth | None = None,
        total_steps: Numeric | None = None,
        on_best: OnBest | None = None,
        nonfinite: Policy = "skip",
    ) -> None:
        given = {name: value for name, value in locals().items() if name in RULES}
        self.measure, self.growth, self.on_best = measure, growth, on_best
        self._controller = Controller()
        self._observed = Observations()
        self._home = get_ident()  # the thread whose passes count
        self._shape = torch.Size()
        self._settle(given)

    def _settle(self, given: Mapping[str, Any]) -> None:
        new = settings.converted(given)
        settings.check({**vars(self), "multiplier": self.multiplier, **new})
        size = joint(self._shape, new, is_open=self._is_open_to_shapes)
        if "multiplier" in new:
            self._controller.put(new.pop("multiplier"))
        vars(self).update(new)
        if {"alpha", "multiplier"} & given.keys():
            self._take_shape(size)

    @property
    def multiplier(self) -> Number:
        """lambda, as stored: a float, or a float64 tensor for a vector measure.

        It may be assigned, to go on from another one.
        """
        return numbers.copied(self._controller.multiplier)

    @multiplier.setter
    def multiplier(self, value: Numeric) -> None:
        self._settle({"multiplier": value})

    @property
    def weight(self) -> Number:
        """lambda+, what acted in the latest step; 0 means the gate is closed."""
        return numbers.copied(self._controller.weight)

    @property
    def observed(self) -> int:
        """How many measurements there are since the last step."""
        return len(self._observed)

    @property
    def skipped(self) -> int:
        """Measurements, of all ranks together, and updates left out as they were not finite."""
        return self._controller.record.skipped

    @property
    def best(self) -> Best | None:
        """The step with the lowest objective among those that met the constraint."""
        return self._controller.record.best

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Observe `measure(*args, **kwargs)` and return its penalty, summed if it is a vector.

        With a window the penalty's gradient is the weight that the filtered violation gives; over
        several ranks it is the weight that the mean over ranks gives. A measurement that is not
        finite (in any entry) costs nothing: a zero that leads nowhere.

        Shape: the measure's to a scalar, in float32 or wider.

        Cost: that of the measure; one device synchronisation, and a reduction over ranks.
        """
        if self.measure is None:
            raise TypeError(
                "ALMConstraint was called and its measure is None, so there is nothing to measure. "
                "Did you mean `observe(value)`, or to pass a measure?"
            )
        value = self._shaped(self.measure(*args, **kwargs))
        now = Observation(numbers.host(value), 1.0, dtype=value.dtype)
        penalty = self._tangent(value, now)
        self._observe(now, value)
        if numbers.is_finite(now.value):
            return penalty
        return torch.zeros((), device=value.device, requires_grad=True)

    def penalty(self, value: Tensor, *, index: Index | None = None) -> Tensor:
        """([lambda + mu c]_+^2 - lambda^2) / (2 mu), summed; observes nothing.

        With a window or an ema its gradient is the weight that observing this value next to what is
        observed already would give.

        Args:
            value: F, with its graph.
            index: as in `observe`; only the entries it names are priced.

        Shape: the measure's to a scalar, in float32 or wider.

        Cost: no device synchronisation; with a filter, one and a reduction over ranks.
        """
        value, row = self._placed(value, index)
        if terms.smoothing(self).is_on:
            return self._tangent(value, Observation(numbers.host(value), 1.0, row, value.dtype))
        return self._tariff.of_entries(row).penalty(value)

    @eager
    def _tangent(self, value: Tensor, now: Observation) -> Tensor:
        """The penalty with its gradient given: the weight that all steps and ranks together say."""
        before = list(self._observed) if terms.smoothing(self).is_on else []
        weight = self._controller.preview(mean([*before, now], self._shape, self), self)
        weight = numbers.pick(weight, now.row)
        return self._tariff.of_entries(now.row).tangent(value, weight=weight, now=now)

    def observe(self, value: Numeric, *, weight: Numeric = 1.0, index: Index | None = None) -> None:
        """Measure: several values per step are averaged by weight. No gradient is needed.

        A tensor's or a NumPy value is compared with alpha in its own type: a float32 that equals
        alpha, rounded to float32, has a violation of 0. A Python float is compared in float64.

        Inside the first, clean pass of an objective under SAM nothing is observed: the perturbed
        pass counts. An objective may measure in threads of its own: in a thread that runs no
        objective it is the pass of the thread that made the constraint or last stepped it.

        Args:
            value: F, one number or one per entry.
            weight: the share of this value in the mean of its step.
            index: whole numbers in a row, one per value: which of a vector's multipliers it is for,
                such as the positions of a batch's examples in the data set. Entries that a step
                does not observe keep their multiplier (which is their weight in that step) and,
                with a window, their own history. An index that appears several times is averaged.

        Raises:
            ValueError: if the shape is not the one expected, the index out of range, or the weight
                not positive.
        """
        share = weight if isinstance(weight, float) else numbers.tried(numbers.single, weight)
        if not (isinstance(share, float) and math.isfinite(share) and share > 0):
            raise ValueError(
                f"ALMConstraint.observe: weight is {weight!r}; a mean needs positive weights. Did "
                "you mean the share of this micro-batch in the step?"
            )
        if isinstance(value, float) and self._shape == () and index is None:
            self._observe(Observation(float(value), float(share)))
            return
        found, row = self._placed(numbers.tensor(value), index)
        on_host = found.ndim == 0 and found.device.type == "cpu"
        number = float(found.item()) if on_host else found.clone()
        self._observe(Observation(number, float(share), row, found.dtype), value)

    def _observe(self, now: Observation, value: object = None) -> None:
        if is_first_pass(self._home):
            return
        observed = self._observed
        observed.append(now)
        if observed.waiting is None:
            return
        graph = value if isinstance(value, Tensor) else None
        inside = is_running(self._home)
        if observed.waiting.measured(graph, len(observed), is_in_pass=inside):
            notices.never_stepped(len(observed), observed.waiting.owner, self.multiplier)
            observed.waiting = None

    def _idle(self, owner: str) -> None:
        """A step of an attached optimizer had nothing observed."""
        waiting = self._observed.waiting
        if waiting is not None and waiting.step_was_blind():
            notices.never_measured(owner, self.multiplier)
            self._observed.waiting = None

    def discard(self, *, keep: int = 0) -> None:
        """Forget what was observed since the last step, as if it had never been measured.

        Args:
            keep: how many of the first measurements (see `observed`) stay.
        """
        self._observed.drop(keep)

    def preview(self) -> float | Tensor:
        """The weight that `step()` would return now; nothing changes.

        Raises:
            RuntimeError, FloatingPointError: where `step()` would.

        Cost: what `step` costs, which then waits for no device or rank again.
        """
        self._check_observed("preview")
        found = self._observed.mean(self._shape, self)
        if self.nonfinite == "raise":
            self._refuse(found)
        return numbers.copied(self._controller.preview(found, self))

    def step(self, *, objective: Numeric | None = None) -> float | Tensor:
        """Update the multiplier, once per optimizer step; returns the weight lambda+.

        The mean of what was observed since the last step, over all ranks, gives the violation. If
        none of it was finite, or lambda + mu c would not be, the multiplier stays, as the weight.

        Args:
            objective: what is minimised, such as the retain loss: the step with the lowest among
                those that meet the constraint becomes `best`, and `on_best` is called. The numbers
                are those of the weights the value was measured at: step the constraint before the
                optimizer if the callback saves the weights.

        Raises:
            RuntimeError: if nothing was observed since the last step.
            FloatingPointError: with `nonfinite="raise"`, for a measurement that is not finite, or
                an update that would not be.

        Warns:
            UserWarning: for either, with `nonfinite="skip"`.

        Cost: one device synchronisation, none for numbers already on the host; one more for an
        objective on a device.
        """
        self._check_observed("step")
        undo = remember(self)
        try:
            found = self._update()
        except BaseException as error:
            undo()
            if not isinstance(error, KeyboardInterrupt):
                self._observed.drop()  # or the next step would fail as well
            raise
        if objective is not None:
            self._rank(mean_of_numbers(numbers.single(objective)), found)
        return self.weight

    def _update(self) -> Mean:
        self._home, self._observed.waiting = get_ident(), None
        found = self._observed.mean(self._shape, self)
        self._observed.drop()
        self._report(found)
        self._controller.step(found, self)
        return found

    def _check_observed(self, verb: str) -> None:
        if not self._observed:
            raise RuntimeError(
                f"ALMConstraint.{verb}() found no measurement since the last step; the multiplier "
                "would have no violation to follow. Did you call `constraint(...)`, "
                "`observe(value)` or `DualOptimizer.backward` first?"
            )

    def _report(self, found: Mean) -> None:
        """Say what was not finite and, at the first measurement, what this run cannot reach."""
        if self.nonfinite == "raise":
            self._refuse(found)
        if found.bad:
            self._controller.record.skipped += found.bad
            notices.not_finite(found.bad, self.skipped)
        if not self._controller.is_measured and numbers.any_of(found.seen):
            c = numbers.choose(found.seen, found.c, math.nan)
            notices.cannot_unwind(self._controller.multiplier, c, self)

    def _refuse(self, found: Mean) -> None:
        """Raise for what would otherwise be skipped."""
        if found.bad:
            notices.refuse_not_finite(found.bad)
        if self._controller.overflows(found, self):
            notices.refuse_overflow(self._controller.multiplier, found.c, self)

    def _rank(self, objective: float, found: Mean) -> None:
        """Whether this is the best step so far."""
        is_met = terms.is_met_everywhere(self, self._controller.violation)
        if not (is_met and numbers.any_of(found.seen)):
            return
        best = self._controller.record.rank(objective, self._controller.value)
        if best is not None and self.on_best is not None:
            self.on_best(best)

    def attach(self, optimizer: Optimizer) -> Attachment:
        """Step after every step that `optimizer` really takes; `remove()` on the result ends it.

        It is a post-hook of `optimizer.step`, so that with gradient accumulation there is one
        update per optimizer step, and none for a step that a GradScaler skips. After a step without
        an observation nothing happens. Do not call `step()` yourself as well.

        What was observed for a skipped step is dropped at once where `SAM` or a fused optimizer is
        told of it, as is the base of a `SAM`. Where nobody is told, it is dropped when the next
        gradient starts from nothing (`zero_grad(set_to_none=True)`, the default) after a newer
        measurement. In loops that take several gradients apart before one step this would say
        nothing, so nothing is inferred there: a skipped step's measurements are averaged with the
        next one's, at the same theta.

        Args:
            optimizer: any `torch.optim.Optimizer`, also one that accelerate has prepared. It keeps
                the constraint alive; `remove()` is needed only to end it sooner.

        Raises:
            TypeError: if it is none, or has no hooks for its steps.

        Warns:
            UserWarning: once, if the optimizer takes 16 steps with nothing ever measured, or theta
                moves on while its `step` is never called.

        Cost: two hooks on one parameter; one synchronisation per step if a GradScaler hands its
        verdict over to the optimizer (fused optimizers).
        """
        return Attachment(optimizer, self._observed, self.step, self._idle)

    def metrics(self, *, gradient: Iterable[Tensor | None] | None = None) -> dict[str, Any]:
        """The state in plain numbers.

        Means over the entries of a vector: `value`, `violation` (filtered), `multiplier`, `weight`.
        The worst entry: `overshoot` (how far beyond alpha the violation has ever been),
        `kkt_feasibility` ([c]_+, or |c| for `==`), `kkt_complementarity` (|min(-c, lambda+)|).
        `active_share` (of the steps, with a weight other than 0 in some entry), `mu`, `skipped`,
        `steps`. `status` is one word:

        - "unmeasured": nothing finite was ever seen;
        - "non_finite": the latest step saw nothing finite;
        - "released": met, and every gate closed;
        - "satisfied": met, and still pushed;
        - "capped": not met, and a stored multiplier is at `max_multiplier`;
        - "suspected_infeasible": not met, and the pressure has grown for at least 256 steps (32
          updates) while the violation has not: out of reach, or the steps are too small;
        - "violated": not met.

        Args:
            gradient: that of the Lagrangian: what `.grad` holds after `(objective +
                constraint(...)).backward()`. Its norm is added as `kkt_stationarity`.

        Cost: no device synchronisation; one for the gradient.
        """
        return answers.with_stationarity(answers.metrics(self._controller, self), gradient)

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs, sharing no memory; loads with `weights_only=True`.

        Settings are not in it, except mu, which may have grown, and the sense, to compare. What was
        observed since the last step is not either: save between steps.
        """
        return {"sense": self.sense, "mu": self.mu, **self._controller.state()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict()`, sharing no memory with it.

        Raises:
            ValueError: if an entry is missing or unknown, or sense or shape differ; nothing is
                loaded then.
        """
        self.check_state_dict(state_dict)
        self._take_shape(numbers.shape(state_dict["multiplier"]))
        self.mu = state_dict["mu"]
        self._controller.load(state_dict)
        self._observed.drop()

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raise what `load_state_dict` would raise, and load nothing."""
        size = None if self._is_open_to_shapes else self._shape
        checkpoint.check(state_dict, self.state_dict(), size)

    @property
    def _tariff(self) -> Tariff:
        return Tariff(
            self._controller.multiplier, self.alpha, self._controller.rate(self), self.sense
        )

    @property
    def _is_open_to_shapes(self) -> bool:
        """Nothing has said yet whether this is a vector: the first measurement does."""
        return self._shape == () and not self._observed and self._controller.record.steps == 0

    def _placed(self, value: Tensor, index: Index | None) -> tuple[Tensor, Tensor | None]:
        """A value in the shape expected, and the entries it is for."""
        if index is None:
            return self._shaped(value), None
        row = entries(index, value, self._shape)
        return value.reshape(-1), row

    def _shaped(self, value: object) -> Tensor:
        """A value in the expected shape: that of alpha, of lambda or of the first vector."""
        if isinstance(value, Tensor) and value.numel() > 1 and self._is_open_to_shapes:
            self._take_shape(value.shape)
        return shaped(value, self._shape)

    def _take_shape(self, size: torch.Size) -> None:
        """One multiplier per entry."""
        self._shape = size
        self._controller.expand(size)
        if isinstance(self.alpha, Tensor):
            vars(self)["alpha"] = self.alpha.expand(size)

    def __repr__(self) -> str:
        name = getattr(self.measure, "__name__", repr(self.measure))
        return (
            f"ALMConstraint({name} {self.sense} {self.alpha}, mu={self.mu}, "
            f"multiplier={self.multiplier})"
        )
