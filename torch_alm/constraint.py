"""ALMConstraint: one inequality and its multiplier. It knows nothing of optimizers.

Source: SAUL, section 4.1 (the multiplier, its update and the penalty) and Algorithm 1.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, SupportsIndex, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_alm._constraint import base, numbers, observations, settings
from torch_alm._constraint.attachment import Attachment
from torch_alm._constraint.base import PILE, Stored
from torch_alm._constraint.loop import Loop, refuse_values
from torch_alm._constraint.numbers import Number, Numeric
from torch_alm._constraint.observations import Index, Observation, Observations, Penalty
from torch_alm._constraint.settings import Filter, Policy, Rule, Sense
from torch_alm._constraint.state import State
from torch_alm._optim.objective import eager, is_first_pass, is_running
from torch_alm.auto import Auto

LOUD = 16  # so many skipped measurements are each said aloud


@final
class ALMConstraint(Stored):
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
        alpha: the threshold, in the units of the measure: one number, or shape (m,) for a vector
            measure of m entries. A vector has a multiplier per entry; the first one says how many.
            Without `index` an entry is a place in the batch, whichever row stands there.
        mu: step size of the multiplier and weight of the penalty, at least 0; or `"auto"`, which
            finds it from the optimizer's response, of a vector one per entry. That takes `attach`
            and `constraint(...)` in the loss (or a `DualOptimizer`), and no `every`, `filter`,
            `rules` or `index`.
        sense: which side of alpha is satisfied.
        multiplier: lambda at the start, at least 0 unless `==`: one number, or shape (m,).
        every: the multiplier takes the weight's value on every `every`-th step that measures it (of
            a vector, each entry); between them the weight still follows the violation.
        filter: what of noisy violations counts, such as `filters.Mean(8, deadband=1.0)`; the newest
            if `None`. See `torch_alm.filters`.
        rules: what an update makes of lambda+, in this order, such as `[rules.Leak(0.5),
            rules.Cap(5.0)]`. See `torch_alm.rules`.
        tolerance: a violation up to this counts as met, in `status` and for the rules. The
            multiplier follows the violation itself.
        nonfinite: "skip" ignores, counts and warns about measurements that are not finite, and
            updates that would make lambda so; "raise" raises.

    Raises:
        ValueError: if a setting makes no sense; it is named, with what it may be.

    Attributes:
        every, filter, rules, tolerance: as given. They may be assigned, as alpha, mu and the
            multiplier, and are used as assigned.

    Warns:
        UserWarning: once, when 100 measurements wait for the first `step`.

    Cost: no backward pass of its own and no copy of the parameters; one device synchronisation per
    `step`, and a reduction over ranks if `torch.distributed` is initialised (then all ranks have to
    call and step it equally often, and all of them have the same multiplier). With `mu="auto"` also
    a backward pass through the measure (of a vector: through one entry, in turn) and two copies of
    the gradients in each of the first 60 steps and every 20th later one.

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
        mu: Numeric | Literal["auto"],
        *,
        sense: Sense = ">=",
        multiplier: Numeric = 0.0,
        every: SupportsIndex = 1,
        filter: Filter | None = None,
        rules: Sequence[Rule] = (),
        tolerance: Numeric = 0.0,
        nonfinite: Policy = "skip",
    ) -> None:
        found = settings.of_constraint(
            measure=measure,
            alpha=alpha,
            mu=mu,
            sense=sense,
            multiplier=multiplier,
            every=every,
            filter=filter,
            rules=rules,
            tolerance=tolerance,
            nonfinite=nonfinite,
        )
        self.measure = measure
        start, auto = (0.0, Auto()) if found["mu"] == "auto" else (found["mu"], None)
        self._state = State(found["multiplier"], start, auto)
        self._observed, self._loop = Observations(), Loop()
        self._is_stepped = self._is_told = False
        self._alpha, self._shape = found["alpha"], torch.Size()
        self._sense: Sense = sense
        self.every: int = found["every"]
        self.filter, self.rules = filter, found["rules"]
        self.tolerance: float = found["tolerance"]
        self.nonfinite: Policy = nonfinite
        self._take_shape(numbers.shape(self._alpha) or numbers.shape(self._state.multiplier))

    def __call__(self, *args: Any, index: Index | None = None, **kwargs: Any) -> Tensor:
        """Observe `measure(*args, **kwargs)` and return its penalty, summed if it is a vector.

        `index`, as in `observe`, says whose the entries are: the measure does not get it. Without
        it a vector has one multiplier per place in the batch, and another size is refused.

        Under `torch.no_grad()`, as in a validation, nothing is observed; only `observe` does then.
        With a filter the penalty's gradient is the weight that the filtered violation gives; over
        several ranks it is the weight that the mean over ranks gives. A measurement that is not
        finite (in any entry, on any rank) costs nothing, on all ranks: a zero that leads nowhere.

        Shape: the measure's to a scalar, in float32 or wider.

        Raises:
            TypeError: for what the measure does not take, or a result that is no tensor.
            ValueError: as `observe`.

        Warns:
            UserWarning: once, if the weight is not 0 and the measure has no gradient to push with.

        Cost: that of the measure; one device synchronisation, and a reduction over ranks.
        """
        value, row = self._placed(self._measured(args, kwargs), index)
        if not (torch.is_grad_enabled() or is_running()):
            return self._penalty.of(value, row)  # no step follows, and no other rank is asked
        now = Observation(self._number(value, row), 1.0, row)
        weight, is_finite = self._coming(now)
        penalty = self._penalty.of(value, row, weight)
        if not is_finite:
            penalty = torch.zeros((), device=value.device, requires_grad=True)
        elif not value.requires_grad and numbers.any_of(numbers.pick(weight, row) != 0):
            self._warn_detached()
        elif self.wants_gradient:
            c, due = numbers.beyond(0.0, self.sense, value), self._state.auto.due
            penalty = self._loop.watch(penalty, due(c), float(due(weight)))
        self._observe(now)
        return penalty

    def _measured(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if self.measure is None:
            raise TypeError(
                "ALMConstraint was called, and its measure is None. Did you mean `observe(value)`, "
                "or to pass a measure?"
            )
        try:
            return self.measure(*args, **kwargs)
        except TypeError as error:
            if settings.takes(self.measure, args, kwargs):
                raise
            raise TypeError(
                f"ALMConstraint: its measure cannot be called with these arguments: {error}. "
                "`constraint(...)` takes what the measure takes. Is this a value you have measured "
                "already? Did you mean `constraint.penalty(value)` and `constraint.observe(value)`?"
            ) from error

    def _warn_detached(self) -> None:
        if self._is_told or is_first_pass() or not torch.is_grad_enabled():
            return
        self._is_told = True
        warnings.warn(
            "ALMConstraint: the measure returned a tensor without a gradient, and the weight is "
            "not 0: the penalty pushes nothing, and lambda grows for nothing. Was it detached, or "
            "are all parameters frozen? (For a count: `observe(value)`, and `weight = step()`.)",
            stacklevel=3,
        )

    def penalty(self, value: Tensor, *, index: Index | None = None) -> Tensor:
        """Compute ([lambda + mu c]_+^2 - lambda^2) / (2 mu), summed; observe nothing.

        With a filter its gradient is the weight that observing this value next to what is observed
        already would give.

        Args:
            value: F, with its graph.
            index: as in `observe`; only the penalties of the entries it names. One that appears
                several times has one penalty, that of the mean, as its multiplier follows the mean.

        Shape: the measure's to a scalar, in float32 or wider.

        Cost: no device synchronisation; with a filter, one and a reduction over ranks.
        """
        (value, row), weight = self._placed(value, index), None
        if self.filter is not None:
            weight, _ = self._coming(Observation(self._number(value, row), 1.0, row))
        return self._penalty.of(value, row, weight)

    @property
    def _penalty(self) -> Penalty:
        mu = 0.0 if self._state.is_waiting(self) else self._state.mu
        return Penalty(self._state.multiplier, self.alpha, mu, self.sense)

    def _number(self, value: Tensor, row: Tensor | None = None) -> Number:
        return numbers.host(observations.widened(value.detach(), self.alpha, row))

    @eager
    def _coming(self, now: Observation) -> tuple[Number, bool]:
        """Find the weight of a step with this, on all ranks; tell if it is finite on all."""
        before = [] if self.filter is None else list(self._observed)
        found = observations.mean([*before, now], self._shape, self.alpha)
        is_finite = not (found.bad and observations.mean([now], self._shape, self.alpha).bad)
        coming, *_ = self._state.weighed(found, self)
        return coming.weight, is_finite

    def observe(self, value: Numeric, *, weight: Numeric = 1.0, index: Index | None = None) -> None:
        """Take in a value: several per step are averaged by weight. No gradient is needed.

        A tensor's or a NumPy value is compared with alpha in its own type: a float32 that equals
        alpha, rounded to float32, has a violation of 0. Floats of Python are compared in float64.

        In the first, clean pass of an objective under SAM nothing is observed: the perturbed one
        counts.

        Args:
            value: F, one number or one per entry.
            weight: the share of this value in the mean of its step.
            index: whole numbers in a row, one per value: which of a vector's multipliers it is for,
                such as the positions of a batch's examples in the data set. Entries that a step
                does not observe keep their multiplier (which is their weight in that step) and,
                with a filter, their own history. An index that appears several times is averaged.

        Raises:
            ValueError: for another shape, an index out of range, or a weight that is not positive.
        """
        given = {"value": value, "weight": weight}
        found, share = settings.settled("ALMConstraint.observe", given, settings.OBSERVED).values()
        if isinstance(found, float) and self._shape == () and index is None:
            self._observe(Observation(found, share))
            return
        found, row = self._placed(numbers.tensor(found), index)
        self._observe(Observation(observations.widened(found, self.alpha, row), share, row))

    def _observe(self, now: Observation) -> None:
        if is_first_pass():
            return
        self._observed.append(now)
        if len(self._observed) == PILE and not self._is_stepped:
            warnings.warn(
                f"ALMConstraint: {PILE} measurements wait for a step, and lambda is still what it "
                "was. Did you mean `constraint.step()` after each `optimizer.step()`, or "
                "`constraint.attach(optimizer)` before the loop? (A copy, or one that was loaded, "
                "is attached to nothing.)",
                stacklevel=3,
            )

    def preview(self) -> float | Tensor:
        """Return the weight that `step()` would return now; nothing changes.

        Raises:
            RuntimeError, FloatingPointError: where `step()` would now.

        Cost: what `step` costs, which then waits for no device or rank again.
        """
        return numbers.kept(self._after("preview").weight)

    def step(self) -> float | Tensor:
        """Update the multiplier, once per optimizer step; return the weight lambda+.

        The mean of what was observed since the last step, over all ranks, gives the violation. If
        none of it was finite, or lambda + mu c would not be, the multiplier stays, as the weight.

        Raises:
            RuntimeError: if nothing was observed since the last step; with `mu="auto"`, if only
                values were, or gradients that it cannot read.
            FloatingPointError: with `nonfinite="raise"`, for a measurement that is not finite, or
                an update that would not be; with "skip" there is a warning, for each of the first
            and whenever their number has doubled.

        Cost: one device synchronisation, none for numbers already on the host.
        """
        before = self._state
        try:
            now = self._after("step")
        finally:
            self.discard()  # or the next step would fail as well
        bad = now.skipped - before.skipped
        self._state, self._is_stepped = now, True
        if bad and (now.skipped < LOUD or now.skipped.bit_length() > before.skipped.bit_length()):
            then = f"skipped ({now.skipped} so far), the multiplier stays"
            warnings.warn(base.not_finite(bad, then), stacklevel=2)
        return numbers.kept(now.weight)

    def _after(self, verb: str) -> State:
        if not self._observed:
            raise RuntimeError(
                f"ALMConstraint.{verb}() found no measurement since the last step; the multiplier "
                "would have no violation to follow. Did you call `constraint(...)`, "
                "`observe(value)` or `DualOptimizer.backward` first? (Under `torch.no_grad()` only "
                "`observe` takes a measurement; after `attach` the optimizer steps it.)"
            )
        found = self._observed.mean(self._shape, self.alpha)
        now = self._state.after(found, self, self._loop.found)
        bad = now.skipped - self._state.skipped
        if bad and self.nonfinite == "raise":
            raise FloatingPointError(base.not_finite(bad, "the multiplier would be so for ever"))
        if self._is_blind and not bad:
            refuse_values()
        return now

    @property
    def _is_blind(self) -> bool:
        """True where mu was never found, and this step needs a gradient and has none."""
        auto = self._state.auto
        if auto is None or self._loop.found is not None or not auto.wants_gradient:
            return False
        return not numbers.any_of(auto.gain > 0)

    def attach(self, optimizer: Optimizer) -> Attachment:
        """Step after every step that `optimizer` really takes; `remove()` on the result ends it.

        It is a post-hook of `optimizer.step`: one update per optimizer step, and none for one that
        a GradScaler skips, or without an observation. Do not call `step()` yourself as well.

        Args:
            optimizer: any `torch.optim.Optimizer`, also one that accelerate has prepared; it keeps
                the constraint alive. Where its step evaluates a closure several times (LBFGS) all
                are averaged: observe outside the closure.

        Raises:
            TypeError: if it is none, or has no hooks for its steps.
        """
        return Attachment(optimizer, self, None if self._state.auto is None else self._loop)

    def __getstate__(self) -> dict[str, Any]:
        """Let a copy begin without an optimizer that steps it."""
        return {**vars(self), "_is_stepped": False}

    def __repr__(self) -> str:
        name = getattr(self.measure, "__name__", repr(self.measure))
        mu = self.mu if self._state.auto is None else f'"auto" ({self.mu} so far)'
        return (
            f"ALMConstraint({name} {self.sense} {self.alpha}, mu={mu}, "
            f"multiplier={self.multiplier})"
        )
