"""ALMConstraint: one inequality and its multiplier. It knows nothing of optimizers.

Source: SAUL, section 4.1 (the multiplier, its update and the penalty) and Algorithm 1.
"""

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, SupportsIndex, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_alm._constraint import faults, numbers, observations, settings
from torch_alm._constraint.attachment import Attachment, StepCounter
from torch_alm._constraint.gradient_reader import GradientReader, refuse_values
from torch_alm._constraint.numbers import Mask, Number, Numeric
from torch_alm._constraint.observations import Index, Mean, Observation
from torch_alm._constraint.settings import Filter, Policy, Reading, Rule, Sense
from torch_alm._constraint.state import STEPS, UPDATES, Stall, State
from torch_alm._optim.objective import eager, is_first_pass, is_running
from torch_alm._optim.steps import Gradient, response
from torch_alm.auto import Auto

LOUD = 16  # so many skipped measurements are each said aloud
ROUNDING = 1e-6  # of alpha, or of 1 if that is 0: float32 measures no finer


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
        UserWarning: once, when 100 measurements wait for the first `step`, or 10 in a loop
            whose optimizer steps.

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

    every: int
    filter: Filter | None
    rules: Sequence[Rule]
    tolerance: float
    nonfinite: Policy

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
        found = settings.settle_constraint(
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
        self.measure, self.filter, self.nonfinite = measure, filter, nonfinite
        self.every, self.rules = found["every"], found["rules"]
        self.tolerance = found["tolerance"]
        self._alpha: Number = found["alpha"]
        self._sense: Sense = sense
        start, auto = (0.0, Auto()) if found["mu"] == "auto" else (found["mu"], None)
        self._state = State(found["multiplier"], start, auto)
        self._observed = list[Observation]()
        self._cached_mean = 0, Mean(0.0, False, 0)  # the mean of the first so many of them
        self._reader, self._shape = GradientReader(), torch.Size()
        self._is_stepped, self._warned = False, set[str]()  # since it was made, copied or loaded
        self._counter: StepCounter | None = None  # before the first step
        self._steps_counted = self._moves = 0  # steps of optimizers; between measurements that wait
        self._take_shape(numbers.shape(self._alpha) or numbers.shape(self._state.multiplier))

    # c, lambda+ and the penalty, whose gradient is lambda+ grad c.

    def _violation(self, value: Any, alpha: Any) -> Any:  # noqa: ANN401  # floats or tensors
        """Compute c = alpha - F, or F - alpha for `<=`: positive where the goal is not met."""
        return value - alpha if self._sense == "<=" else alpha - value

    def _positive_part(self, pressure: Number) -> Number:
        """Compute lambda+ = [lambda + mu c]_+ from mu c; for `==` there is no bracket."""
        plus = self._state.multiplier + pressure
        if self._sense == "==":
            return plus
        return plus.clamp(min=0.0) if isinstance(plus, Tensor) else max(plus, 0.0)

    def _sum_penalties(
        self, value: Tensor, row: Tensor | None = None, weight: Number | None = None
    ) -> Tensor:
        """Sum ([lambda + mu c]_+^2 - lambda^2) / (2 mu) over the entries; lambda c for mu = 0.

        Given a weight, its gradient is weight grad c: which one is right may be known only from
        other steps and other ranks.
        """
        value, alpha, is_alpha = observations.align(value, self._alpha, row)
        c = self._violation(value, alpha)
        c = c - torch.where(is_alpha, c.detach(), torch.zeros_like(c))
        c, row = observations.merge_repeated(c, row)
        here = c if weight is None else c.detach()
        multiplier, mu = (observations.cast(n, c, row) for n in (self._state.multiplier, self._mu))
        price = multiplier * here + 0.5 * mu * here * here
        if self._sense != "==":
            floor = -multiplier * multiplier / (2 * mu)
            price = torch.where((multiplier + mu * here > 0) | (mu == 0), price, floor)
        if weight is not None:
            price = observations.cast(weight, c, row) * (c - here) + price
        return price.sum()

    def __call__(
        self, *args: Any, index: Index | None = None, weight: Numeric = 1.0, **kwargs: Any
    ) -> Tensor:
        """Observe `measure(*args, **kwargs)` and return its penalty, summed if it is a vector.

        `index`, as in `observe`, says whose the entries are. Without it a vector has one multiplier
        per place in the batch, and another size is refused. `weight`, as there, is the share in
        what the step averages, such as the rows of a micro-batch; the penalty is not scaled by it.
        The measure gets neither.

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
        if self.measure is None:
            raise TypeError(
                "ALMConstraint was called, and its measure is None. Did you mean `observe(value)`, "
                "or to pass a measure?"
            )
        value, row = self._place_value(self.measure(*args, **kwargs), index)
        is_plain = type(weight) is float and 0 < weight < math.inf
        share: Any = weight if is_plain else settings.settle_observation(0.0, weight)[1]
        if not (torch.is_grad_enabled() or is_running()):
            return self._sum_penalties(value, row)  # no step follows, and no other rank is asked
        now = Observation(self._number(value, row), share, row)
        coming, is_finite = self._next_weight(now)
        penalty = self._sum_penalties(value, row, coming)
        if not is_finite:
            penalty = torch.zeros((), device=value.device, requires_grad=True)
        elif not value.requires_grad and numbers.any_of(numbers.pick(coming, row) != 0):
            if torch.is_grad_enabled() and not is_first_pass() and "detached" not in self._warned:
                self._warned.add("detached")
                warnings.warn(faults.DETACHED, stacklevel=2)
        elif self._wants_gradient:
            c, due = self._violation(value, 0.0), self._state.auto.due_entry
            penalty = self._reader.watch(penalty, due(c), float(due(coming)))
        self._observe(now)
        return penalty

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
        (value, row), weight = self._place_value(value, index), None
        if self.filter is not None:
            weight, _ = self._next_weight(Observation(self._number(value, row), 1.0, row))
        return self._sum_penalties(value, row, weight)

    def _number(self, value: Tensor, row: Tensor | None = None) -> Number:
        return numbers.to_host(observations.widen(value.detach(), self._alpha, row))

    @eager
    def _next_weight(self, now: Observation) -> tuple[Number, bool]:
        """Find the weight of a step with this, on all ranks; return whether it is finite on all."""
        before = [] if self.filter is None else self._observed
        found = observations.mean([*before, now], self._shape, self._alpha)
        is_bad = found.bad and observations.mean([now], self._shape, self._alpha).bad
        return self._weigh_next(found)[0].weight, not is_bad

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
        found: Any = value
        share: Any = weight
        row = None
        is_plain = isinstance(value, Tensor) and value.is_floating_point()
        if not (is_plain and type(weight) is float and 0 < weight < math.inf):
            found, share = settings.settle_observation(value, weight)
        size = found.shape if isinstance(found, Tensor) else ()
        if index is not None or size != self._shape:
            found, row = self._place_value(numbers.to_tensor(found), index)
        if isinstance(found, Tensor):
            found = observations.widen(found.detach(), self._alpha, row)
        self._observe(Observation(found, share, row))

    def _observe(self, now: Observation) -> None:
        if is_first_pass():
            return
        self._observed.append(now)
        if not self._is_stepped:
            self._await_step()

    def _await_step(self) -> None:
        """Warn, once, where measurements pile up, sooner in a loop whose optimizer steps."""
        self._counter = self._counter or StepCounter()
        taken, count = self._counter.count, len(self._observed)
        self._moves = 0 if count == 1 else self._moves + (taken != self._steps_counted)
        self._steps_counted = taken
        if self._is_unstepped and "unstepped" not in self._warned:
            self._warned.add("unstepped")
            warnings.warn(faults.UNSTEPPED.format(count), stacklevel=4)

    @property
    def _is_unstepped(self) -> bool:
        count = 0 if self._is_stepped else len(self._observed)
        return count >= faults.PILE or (count >= faults.FEW and self._moves >= faults.MOVES)

    def preview(self) -> float | Tensor:
        """Return the weight that `step()` would return now; nothing changes.

        Raises:
            RuntimeError, FloatingPointError: where `step()` would now.

        Cost: what `step` costs, which then waits for no device or rank again.
        """
        return numbers.copy_to_host(self._compute_state("preview").weight)

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
            now = self._compute_state("step")
        finally:
            self.discard()  # or the next step would fail as well
        bad = now.skipped - before.skipped
        self._state, self._is_stepped = now, True
        if self._counter is not None:
            self._counter = self._counter.remove()
        if bad and (now.skipped < LOUD or now.skipped.bit_length() > before.skipped.bit_length()):
            then = f"skipped ({now.skipped} so far), the multiplier stays"
            warnings.warn(faults.describe_nonfinite(bad, then), stacklevel=2)
        return now.weight.clone() if isinstance(now.weight, Tensor) else now.weight

    def _compute_state(self, verb: str) -> State:
        if not self._observed:
            faults.refuse_nothing(verb)
        found = self._mean()
        now, c, seen, acts = self._weigh_next(found)
        overflows = acts is not True and numbers.any_of(acts != found.seen)
        if bad := found.bad + overflows:
            now.skipped += bad
            if self.nonfinite == "raise":
                raise FloatingPointError(
                    faults.describe_nonfinite(bad, "the multiplier would be so for ever")
                )
        elif now.auto is not None and self._reader.found is None and not now.auto.steps:
            refuse_values()
        before = now.violation
        met = (abs(c) if self._sense == "==" else c) <= self.tolerance
        is_new = now.level != self._alpha
        if is_new is not False and numbers.any_of(is_new):  # a new run begins
            now.stall, now.run = Stall(), 0.0 * now.multiplier
        now.level = self._alpha + 0.0 * now.multiplier
        now.steps += 1
        acted = now.weight != 0
        now.active_steps += acted if isinstance(acted, bool) else numbers.any_of(acted)
        now.is_blind = seen is not True and not numbers.any_of(seen)
        news = {"value": found.value, "violation": c, "visits": now.visits + 1}
        news["met_for"] = (now.met_for + 1) * met
        vars(now).update(news) if seen is True else now.replace_entries(news, seen)
        self._update(now, acts)
        self._watch(now, seen, before, met)
        return now

    def _mean(self) -> Mean:
        """Average what was observed; asked twice, it waits for devices and other ranks once."""
        if self._cached_mean[0] != len(self._observed):
            found = observations.mean(self._observed, self._shape, self._alpha)
            self._cached_mean = len(self._observed), found
        return self._cached_mean[1]

    def _weigh_next(self, found: Mean) -> tuple[State, Number, Mask, Mask]:
        """Find the weight of one more step, in a state of its own that the filter has moved on.

        Returns it with c, filtered, and where c was seen and where it acts: all stays finite.
        """
        now, auto = copy.copy(self._state), self._state.auto
        c = self._violation(found.value, self._alpha)
        seen = found.seen & (c - c == 0)  # infinity less infinity is no number
        if self.filter is not None:
            risen = self._violation(0.0, self._alpha - now.level)  # since it was measured
            c = now.filter_violation(self.filter, Reading(c, seen, self._sense), risen)
            seen = seen & (c - c == 0)
        mu = self._mu if self.rules else now.mu
        plus = self._positive_part(mu * c if auto is None else auto.push(c))
        acts = seen & (plus - plus == 0)
        now.weight = plus if acts is True else numbers.choose(acts, plus, now.multiplier)
        return now, c, seen, acts

    @property
    def _mu(self) -> Number:
        """The mu that acts: 0 while a rule has it wait, and nothing is updated."""
        return 0.0 if self._state.is_waiting(self.rules) else self._state.mu

    def _update(self, now: State, acts: Mask) -> None:
        """Store lambda+, or what the rules make of it, where the cadence says so."""
        if now.auto is not None:
            self._find_mu(now, acts)
            return
        is_due = acts & (now.visits % self.every == 0)
        if self.rules:
            if not self._state.is_waiting(self.rules):
                now.apply(self.rules, is_due, self.tolerance)
        elif is_due is True:
            now.multiplier = now.weight
        else:
            now.multiplier = numbers.choose(is_due, now.weight, now.multiplier)

    def _find_mu(self, now: State, acts: Mask) -> None:
        """Let mu follow what was seen; lambda, too, up to the limit where more does not help."""
        now.auto, limit = copy.copy(now.auto), now.stall.limit
        grown = self._positive_part(now.auto.step(now.violation, acts, self._reader.found))
        now.mu = now.auto.mu
        is_beyond = (limit > 0) & (abs(grown) > limit) & (abs(grown) > abs(now.multiplier))
        now.multiplier = numbers.choose(is_beyond, now.multiplier, grown)

    def _watch(self, now: State, seen: Mask, before: Number, met: Mask) -> None:
        """Count steps in a row violated to one side, where the multiplier is free to push."""
        pushes = (met == 0) & (now.mu > 0)
        if self.rules and (self._state.is_waiting(self.rules) or now.is_limited(self.rules)):
            pushes = False
        run = (now.run * ((now.violation > 0) == (before > 0)) + 1.0) * pushes
        now.run = run if seen is True else numbers.choose(seen, run, now.run)
        first = float(max(STEPS, UPDATES * (self.every if now.auto is None else now.auto.every)))
        is_long = now.run > first
        if now.stall.is_begun or (is_long is not False and numbers.any_of(is_long)):
            now.stall = now.stall.watch(now.run, now.violation, seen, first, now.weight)

    def attach(self, optimizer: Optimizer) -> Attachment:
        """Step after every step that `optimizer` really takes; `remove()` on the result ends it.

        It is a post-hook of `optimizer.step`: one update per optimizer step, and none for one that
        a GradScaler skips (its measurement is averaged with the next, of the same theta), or
        without an observation. Do not call `step()` yourself as well.

        Args:
            optimizer: any `torch.optim.Optimizer`, also one that accelerate has prepared; it keeps
                the constraint alive. Where its step evaluates a closure several times (LBFGS) all
                are averaged: observe outside the closure.

        Raises:
            TypeError: if it is none, or has no hooks for its steps.
        """
        return Attachment(optimizer, self, None if self._state.auto is None else self._reader)

    @property
    def alpha(self) -> Number:
        """The threshold on the host: a float, or a float64 tensor. It may be assigned."""
        return self._alpha

    @alpha.setter
    def alpha(self, value: Numeric) -> None:
        self._alpha = self._fit_value(value)

    @property
    def sense(self) -> Sense:
        """The satisfied side of alpha."""
        return self._sense

    @property
    def mu(self) -> Number:
        """The step size there is: as given, unless a rule has raised it. It may be assigned.

        With `"auto"` the one found so far, of a vector one per entry: 0 before the first gradient.
        A number that is assigned ends the search.
        """
        return self._state.mu

    @mu.setter
    def mu(self, value: Numeric) -> None:
        self._state.mu, self._state.auto = numbers.to_float(value), None

    @property
    def multiplier(self) -> Number:
        """lambda, as stored: a float, or a float64 tensor for a vector measure.

        It may be assigned, also an entry of it, to go on from another one.
        """
        found = self._state.multiplier
        if isinstance(found, Tensor) and found is self._state.weight:
            self._state.weight = found.clone()  # or an entry would be assigned in both
        return found

    @multiplier.setter
    def multiplier(self, value: Numeric) -> None:
        state = self._state
        state.multiplier = numbers.expand(self._fit_value(value), self._shape)
        if state.steps == 0:
            state.weight = state.multiplier

    @property
    def weight(self) -> Number:
        """lambda+, what acted in the latest step; 0 means the gate is closed."""
        return numbers.copy_to_host(self._state.weight)

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

        - "unstepped": a hundred measurements wait, or ten between which an optimizer has stepped,
          and it was never stepped since it was made, copied or loaded;
        - "unmeasured": of some entry nothing finite was ever seen, and no other is violated;
        - "non_finite": the latest step saw nothing finite;
        - "released": met, and every gate closed;
        - "never_active": so, and none was ever open, as where it held from the start;
        - "satisfied": met, and still pushed;
        - "capped": not met, and a stored multiplier is at the limit of a rule;
        - "suspected_infeasible": not met, and 256 measured steps (32 updates, with `mu="auto"` 640
          steps) of growing pressure have not helped: mu or the steps are too small, or it is out of
          reach;
        - "violated": not met. A violation of up to a millionth of alpha (of 1 if alpha is 0) is
          none here: it is rounding.

        Cost: no device synchronisation.
        """
        state, mean = self._state, numbers.average
        return {
            "alpha": mean(self._alpha),
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
        if self._is_unstepped:
            return "unstepped"
        if state.is_blind:
            return "non_finite"
        more = ROUNDING * abs(numbers.choose(self._alpha == 0, 1.0, self._alpha))
        if numbers.any_of((abs(c) if self._sense == "==" else c) > self.tolerance + more):
            if state.is_limited(self.rules):
                return "capped"
            return "suspected_infeasible" if state.stall.is_stalled else "violated"
        if numbers.any_of(c != c):
            return "unmeasured"
        if numbers.any_of(state.weight != 0):
            return "satisfied"
        return "released" if state.active_steps else "never_active"

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs, sharing no memory; loads with `weights_only=True`.

        Settings are not in it, except mu, which may have grown, and the sense, to compare. What was
        observed since the last step is not either: save between steps. What filters and rules
        remember is in it by the names of their classes; those that have none there begin anew.
        """
        return {"sense": self._sense, **self._state.state()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict()`, sharing no memory with it.

        Raises:
            ValueError: if an entry is missing or unknown, or sense or shape differ; nothing is
                loaded then.
        """
        self._check_state_dict(state_dict)
        self._take_shape(numbers.shape(state_dict["multiplier"]))
        self._state.load(state_dict)
        self.discard()
        self._is_stepped, self._warned = False, set()

    def _check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raise what `load_state_dict` would raise, and load nothing."""
        faults.check_checkpoint(state_dict, self.state_dict())
        found = numbers.shape(state_dict["multiplier"])
        if found != self._shape and not self._is_open_to_shapes:
            faults.refuse_shape(found, self._shape)

    @property
    def _is_open_to_shapes(self) -> bool:
        """Return whether the first measurement may still make this a vector."""
        return self._shape == () and not self._observed and self._state.steps == 0

    def _fit_value(self, value: Numeric) -> Number:
        if self._shape == () and not self._is_open_to_shapes:
            return numbers.to_float(value)
        return numbers.to_host(value)

    def _take_shape(self, size: torch.Size) -> None:
        """Keep one multiplier per entry."""
        self._shape = size
        self._state.expand(size)
        if isinstance(self._alpha, Tensor):
            self._alpha = self._alpha.expand(size)

    def _place_value(self, value: object, index: Index | None) -> tuple[Tensor, Tensor | None]:
        """Return the value in the shape of alpha, lambda or the first vector; and its entries."""
        if index is not None and self._state.auto is not None:
            faults.refuse_index()
        is_first = index is None and self._is_open_to_shapes
        if is_first and isinstance(value, Tensor) and value.numel() > 1:
            self._take_shape(value.shape)
        if index is None or not isinstance(value, Tensor):
            return observations.check_shape(value, self._shape), None
        row = observations.entries(index, value, self._shape)
        return value.reshape(-1), row

    def discard(self, *, keep: int = 0) -> None:
        """Forget what was observed since the last step, as if it had never been measured.

        Args:
            keep: how many of the first measurements (see `observed`) stay.
        """
        del self._observed[keep:]
        self._cached_mean = 0, self._cached_mean[1]
        if not keep and self._state.auto is not None:
            self._reader.begin()

    @property
    def _wants_gradient(self) -> bool:
        """Whether, with `mu="auto"`, this step needs the gradient whatever the weight will be."""
        auto = self._state.auto
        return auto is not None and auto.wants_gradient and not is_first_pass()

    def _calibrate(
        self, optimizer: Optimizer, gradient: Gradient, rest: Gradient, times: float
    ) -> None:
        """Find mu from the response of the optimizer that will apply the weight to this gradient.

        The rest is what else is in the step; of the gradient it holds so many times the weight.
        """
        if self._state.auto is not None and self._observed:
            weight = times * float(self._weigh_next(self._mean())[0].weight)
            a = {p: self._violation(x, 0.0) for p, x in gradient.items()}
            stepped = {p: weight * x for p, x in a.items()}
            gain, balance, is_plain = response(optimizer, a, rest, stepped)
            self._reader.found = times * gain, balance / times, is_plain

    def __getstate__(self) -> dict[str, Any]:
        """Let a copy begin without an optimizer that steps it."""
        return {**vars(self), "_is_stepped": False, "_warned": set(), "_counter": None}

    def __repr__(self) -> str:
        name = getattr(self.measure, "__name__", repr(self.measure))
        mu = self.mu if self._state.auto is None else f'"auto" ({self.mu} so far)'
        return (
            f"ALMConstraint({name} {self.sense} {self.alpha}, mu={mu}, "
            f"multiplier={self.multiplier})"
        )
