"""ConstraintGroup: several constraints, by name, as one."""

# pyright: reportPrivateUsage=false

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

from torch import Tensor
from torch.optim import Optimizer

from torch_alm._constraint.attachment import Attachments
from torch_alm._constraint.numbers import Numeric
from torch_alm._constraint.state import STATUSES
from torch_alm.constraint import ALMConstraint


@final
class ConstraintGroup(Mapping[str, ALMConstraint]):
    """Constraints that are called, stepped, logged and saved together, keyed by name.

    Its members stay: a group of others is another one.

    Args:
        constraints: the constraints by name.

    Raises:
        TypeError, ValueError: for no dict of constraints; for names that are empty or have a "/".

    Cost: that of its members, one reduction over ranks each, in the order of their names.

    Example:
        >>> forgotten = ALMConstraint(None, alpha=2.0, mu=0.5)
        >>> drift = ALMConstraint(None, alpha=0.1, mu=1.0, sense="<=")
        >>> group = ConstraintGroup({"forgotten": forgotten, "drift": drift})
        >>> group.observe({"forgotten": 1.0, "drift": 0.05})
        >>> group.step(), group.metrics()["status"]
        ({'drift': 0.0, 'forgotten': 0.5}, 'violated')
    """

    def __init__(self, constraints: Mapping[str, ALMConstraint]) -> None:
        members = constraints.values() if isinstance(constraints, Mapping) else [None]  # pyright: ignore[reportUnnecessaryIsInstance]
        if not all(isinstance(each, ALMConstraint) for each in members):
            raise TypeError(
                f"ConstraintGroup: constraints is {constraints!r}, which cannot be stepped. "
                'Did you mean a dict, such as {"forgotten": ALMConstraint(...)}?'
            )
        self._members = dict(sorted(constraints.items()))
        others = {*map(id, self.values())}
        if not len(others) == len(self) > 0 or any(not name or "/" in name for name in self):
            raise ValueError(
                f"ConstraintGroup: the names are {[*self]}; it takes one at least, each of another "
                'constraint, none empty or with a "/", which would make two metrics one.'
            )

    def __getitem__(self, name: str) -> ALMConstraint:
        """Return the constraint of that name."""
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, in order."""
        return iter(self._members)

    def __len__(self) -> int:
        """Return the number of constraints."""
        return len(self._members)

    def __repr__(self) -> str:
        return f"ConstraintGroup({self._members})"

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Add up all penalties, each constraint called with the same arguments, also an `index`.

        With rows of its own a member is called by name, as `group["drift"](model, batch)`.

        Without an `index`, a member with a vector has a multiplier per place in the batch. If one
        raises, none has observed anything.
        """
        with self._all_or_none():
            first, *others = (member(*args, **kwargs) for member in self.values())
        return sum(others, start=first)

    @contextmanager
    def _all_or_none(self) -> Iterator[None]:
        before = [(member, member.observed) for member in self.values()]
        try:
            yield
        except BaseException:
            for member, count in before:
                member.discard(keep=count)
            raise

    def observe(self, values: Mapping[str, Numeric], *, weight: Numeric = 1.0) -> None:
        """Hand each named constraint its value, or none; other names raise a `ValueError`."""
        self._check_names(values, "observe", {*values} - {*self})
        with self._all_or_none():
            for name in sorted(values):
                self[name].observe(values[name], weight=weight)

    def discard(self) -> None:
        """Forget what was observed since the last step."""
        for member in self.values():
            member.discard()

    def step(self) -> dict[str, float | Tensor]:
        """Step every constraint once; return the weights by name.

        Raises:
            RuntimeError: if one of them observed nothing since the last step; none is stepped then,
                nor if the `step` of a member would raise.
        """
        if blind := [name for name, member in self.items() if not member.observed]:
            raise RuntimeError(
                f"ConstraintGroup.step found no measurement of {blind} since the last step, and "
                "steps nothing. Did you observe every constraint?"
            )
        try:
            for member in self.values():  # what one refuses is refused before any is stepped
                member.preview()
            return {name: member.step() for name, member in self.items()}
        except Exception:
            self.discard()  # or the next step would fail as well
            raise

    def attach(self, optimizer: Optimizer) -> Attachments:
        """Attach every constraint to an optimizer; see `ALMConstraint.attach`."""
        return Attachments(member.attach(optimizer) for member in self.values())

    def metrics(self) -> dict[str, Any]:
        """Return every constraint's metrics as `name/metric`, and two of the group.

        `steps`, the most; `status`, the worst of all, in the order non_finite,
        suspected_infeasible, capped, violated, unstepped, unmeasured, satisfied, released,
        never_active.
        """
        each = {name: member.metrics() for name, member in self.items()}
        found = {f"{name}/{key}": value for name in each for key, value in each[name].items()}
        status = min((of["status"] for of in each.values()), key=STATUSES.index)
        return {**found, "steps": max(of["steps"] for of in each.values()), "status": status}

    def state_dict(self) -> dict[str, Any]:
        """Return every constraint's state by name."""
        return {name: member.state_dict() for name, member in self.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict()`, or raise a `ValueError` and load nothing."""
        self._check_names(state_dict, "load_state_dict", {*state_dict} ^ {*self})
        for name, member in self.items():
            member._check_state_dict(state_dict[name])
        for name, member in self.items():
            member.load_state_dict(state_dict[name])

    def _check_names(self, given: Iterable[str], verb: str, wrong: set[str]) -> None:
        if wrong:
            raise ValueError(
                f"ConstraintGroup.{verb}: {sorted(wrong)} is in one alone of what was given, "
                f"{sorted(given)}, and the group, {[*self]}. Is a name misspelt?"
            )
