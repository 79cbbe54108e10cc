"""ConstraintGroup: several constraints, by name, as one."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, final

from torch import Tensor
from torch.optim import Optimizer

from torch_alm._control.answers import STATUSES, with_stationarity
from torch_alm._control.attachment import Attachments
from torch_alm._control.best import Best, OnBest, better
from torch_alm._control.numbers import Numeric, single
from torch_alm._control.observations import mean_of_numbers
from torch_alm._guards import remember
from torch_alm.constraint import ALMConstraint


@final
class ConstraintGroup(Mapping[str, ALMConstraint]):
    """Constraints that are called, stepped, logged and saved together, keyed by name.

    Each keeps its own threshold, mu, sense and cadence. The order in which they are given has no
    meaning: they are visited by name, on every rank alike.

    Args:
        constraints: the constraints by name.
        on_best: called with a `Best` (whose value is the worst violation) when
            `step(objective=...)` finds a new best step among those that meet all constraints.

    Raises:
        TypeError: if one is not an `ALMConstraint`.
        ValueError: if there is none, a name is empty or has a "/", or one constraint has two names.

    Attributes:
        best: the best step so far; `None` before the first.

    Cost: that of its members, one reduction over ranks each.

    Example:
        >>> group = ConstraintGroup(
        ...     {
        ...         "forgotten": ALMConstraint(None, alpha=2.0, mu=0.5),
        ...         "drift": ALMConstraint(None, alpha=0.1, mu=1.0, sense="<="),
        ...     }
        ... )
        >>> group.observe({"forgotten": 1.0, "drift": 0.05})
        >>> group.step()
        {'drift': 0.0, 'forgotten': 0.5}
        >>> group.metrics()["forgotten/status"], group.metrics()["status"]
        ('violated', 'violated')
    """

    def __init__(
        self, constraints: Mapping[str, ALMConstraint], *, on_best: OnBest | None = None
    ) -> None:
        self._members = {name: constraints[name] for name in sorted(constraints)}
        self.on_best = on_best
        self.best: Best | None = None
        self._steps = 0
        self._check()

    def _check(self) -> None:
        for name, member in self._members.items():
            if not isinstance(member, ALMConstraint):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(
                    f"ConstraintGroup: {name!r} is {type(member).__name__}, which cannot be "
                    "stepped. Did you mean `ALMConstraint(measure, alpha, mu)`?"
                )
            if not name or "/" in name:
                raise ValueError(
                    f"ConstraintGroup: the name {name!r} would make two metrics one. Did you mean "
                    'a name without "/"?'
                )
        if len({id(member) for member in self._members.values()}) != len(self._members):
            raise ValueError(
                "ConstraintGroup: one constraint has two names and would be stepped twice per "
                "step. Did you mean a constraint each?"
            )
        if not self._members:
            raise ValueError("ConstraintGroup: there is no constraint. Did you mean {name: ...}?")

    def __getitem__(self, name: str) -> ALMConstraint:
        """The constraint of that name."""
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        """The names, sorted."""
        return iter(self._members)

    def __len__(self) -> int:
        """How many constraints there are."""
        return len(self._members)

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """The sum of all penalties, each constraint called with the same arguments."""
        first, *others = (member(*args, **kwargs) for member in self.values())
        return sum(others, start=first)

    def observe(self, values: Mapping[str, Numeric], *, weight: Numeric = 1.0) -> None:
        """Hand each named constraint its value; see `ALMConstraint.observe`.

        Raises:
            ValueError: for a name that is not in the group; nothing is observed then.
        """
        self._check_names(values, "ConstraintGroup.observe")
        for name in sorted(values):
            self[name].observe(values[name], weight=weight)

    def discard(self) -> None:
        """Forget what was observed since the last step."""
        for member in self.values():
            member.discard()

    def step(self, *, objective: Numeric | None = None) -> dict[str, float | Tensor]:
        """Step every constraint once; returns the weights by name.

        Args:
            objective: as in `ALMConstraint.step`; here all constraints have to be met.

        Raises:
            RuntimeError: if one of them observed nothing since the last step; none is stepped then.
            FloatingPointError: if a member with `nonfinite="raise"` refuses its measurements; none
                is stepped then, and what this step observed is forgotten.
        """
        blind = [name for name, member in self.items() if not member.observed]
        if blind:
            raise RuntimeError(
                f"ConstraintGroup.step found no measurement of {blind} since the last step, so "
                "nothing was stepped. Did you observe every constraint, or should those have a "
                "cadence of their own outside the group?"
            )
        weights = self._step_together(list(self))
        self._steps += 1
        if objective is not None:
            self._rank(mean_of_numbers(single(objective)))
        return weights

    def _step_together(self, names: Sequence[str]) -> dict[str, float | Tensor]:
        """Step all of these or, if one fails (a warning that is an error, Ctrl-C), none."""
        self._refuse_together(names)
        undo = remember(*self.values())
        try:
            return {name: self[name].step() for name in names}
        except BaseException as error:
            undo()
            if not isinstance(error, KeyboardInterrupt):
                self.discard()  # or the next step would fail as well
            raise

    def _refuse_together(self, names: Sequence[str]) -> None:
        """Raise what some member's step would raise, before any is stepped."""
        try:
            for name in names:
                if self[name].nonfinite == "raise":
                    self[name].preview()
        except FloatingPointError:
            self.discard()
            raise

    def _rank(self, objective: float) -> None:
        """Whether this is the best step so far."""
        found = [member.metrics() for member in self.values()]
        if any(each["status"] not in ("satisfied", "released") for each in found):
            return
        new = Best(self._steps, objective, max(each["kkt_feasibility"] for each in found))
        if better(new, self.best):
            self.best = new
            if self.on_best is not None:
                self.on_best(new)

    def attach(self, optimizer: Optimizer) -> Attachments:
        """Attach every constraint to an optimizer; see `ALMConstraint.attach`.

        Those that have observed something step together, all of them or none.
        """
        members = {name: member.attach(optimizer) for name, member in self.items()}
        return Attachments(members, self._step_together)

    def metrics(self, *, gradient: Iterable[Tensor | None] | None = None) -> dict[str, Any]:
        """Every constraint's metrics as `name/metric`, and those of the group.

        For the group: `kkt_feasibility` and `kkt_complementarity`, the worst of all; `status`, the
        worst word, in the order non_finite, suspected_infeasible, capped, violated, unmeasured,
        satisfied, released; with the Lagrangian's gradient, `kkt_stationarity`.
        """
        members = {name: member.metrics() for name, member in self.items()}
        found = {f"{name}/{key}": v for name, each in members.items() for key, v in each.items()}
        for key in ("kkt_feasibility", "kkt_complementarity"):
            known = [each[key] for each in members.values() if each[key] == each[key]]
            found[key] = max(known, default=math.nan)
        found["status"] = min((each["status"] for each in members.values()), key=STATUSES.index)
        return with_stationarity(found, gradient)

    def state_dict(self) -> dict[str, Any]:
        """Every constraint's state by name, and the group's best step."""
        best = None if self.best is None else list(self.best)
        states = {name: member.state_dict() for name, member in self.items()}
        return {"constraints": states, "steps": self._steps, "best": best}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict()`, sharing no memory with it.

        Raises:
            ValueError: if the names differ, or a state is of another constraint; nothing is loaded
                then.
        """
        owner = "ConstraintGroup.load_state_dict"
        if {*state_dict} != {"constraints", "steps", "best"}:
            raise ValueError(
                f"{owner} found the entries {sorted(map(str, state_dict))}. Is it the checkpoint "
                "of a group?"
            )
        states = state_dict["constraints"]
        self._check_names(states, owner)
        missing = sorted({*self} - {*states})
        if missing:
            raise ValueError(
                f"{owner}: the checkpoint has nothing for {missing}; they would start again. Was "
                "it saved by another group?"
            )
        for name, member in self.items():
            member.check_state_dict(states[name])
        for name, member in self.items():
            member.load_state_dict(states[name])
        self._steps = state_dict["steps"]
        self.best = None if state_dict["best"] is None else Best(*state_dict["best"])

    def _check_names(self, given: Iterable[str], owner: str) -> None:
        unknown = sorted({*given} - {*self})
        if unknown:
            raise ValueError(
                f"{owner} found {unknown}, and the group has {list(self)}. Is a name misspelt?"
            )

    def __repr__(self) -> str:
        members = ",\n".join(f"{name}: {member!r}" for name, member in self.items())
        return f"ConstraintGroup(\n{members})"
