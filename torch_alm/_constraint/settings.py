"""The settings of a constraint, the filters and rules among them, and what follows from them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, NamedTuple, SupportsIndex, TypeAlias, TypeVar

from torch_alm._constraint.numbers import Mask, Number, Numeric
from torch_alm._optim.settings import Attribute

Sense: TypeAlias = Literal[">=", "<=", "=="]
Policy: TypeAlias = Literal["skip", "raise"]
Held = TypeVar("Held")
Taken = TypeVar("Taken")


class Reading(NamedTuple):
    """One step's violation, as a filter sees it.

    Attributes:
        violation: c, positive where the constraint is not met.
        seen: where there is one: True or, of a vector of which a step measured some entries, a
            tensor of truths.
        sense: which violations are to be cut: for `"=="` also negative ones.
    """

    violation: Number
    seen: Mask
    sense: Sense


class Filter(ABC):
    """A pair of functions that makes of noisy violations the one that counts.

    A float is filtered for one number and a float64 tensor, on the host, for a vector. Neither
    function changes what it is given, for a step can be looked at in advance or taken back. A
    memory consists of numbers, tensors, strings, and lists of those or dicts whose keys are
    strings; a checkpoint holds it under the name of the class.
    """

    def init(self) -> Any:  # noqa: ANN401  # any memory
        """Return the memory before the first step."""
        return None

    @abstractmethod
    def update(self, reading: Reading, memory: Any) -> tuple[Number, Any]:  # noqa: ANN401
        """Take in one step; return the filtered violation and the new memory."""

    def moved(self, memory: Any, by: Number) -> Any:  # noqa: ANN401
        """Return the memory as if every violation had been so much larger: alpha has changed.

        The base forgets: what it remembers may be of any form.
        """
        return self.init()


class Update(NamedTuple):
    """One update of the multiplier, as each rule hands it on to the next.

    Attributes:
        stored: the multiplier to be stored; at first the weight.
        mu: the mu of the steps to come; at first the one there is.
        before: the multiplier before this update.
        weight: lambda+ of this step, [before + mu c]_+.
        violation: c, filtered.
        seen: where c is of this step: True or, of a vector of which it measured some entries, a
            tensor of truths. Elsewhere `before` stays, whatever is stored.
        met_for: for how many steps in a row the constraint has been met.
        tolerance: that of the constraint.
    """

    stored: Number
    mu: float
    before: Number
    weight: Number
    violation: Number
    seen: Mask
    met_for: Number
    tolerance: float


class Rule:
    """A step from the weight to the multiplier that is stored, and to the mu that comes next.

    A rule overrides some of these functions; the base changes nothing. Numbers are floats, and
    float64 tensors on the host for a vector. No function changes what it is given. A memory is made
    of what a `Filter`'s is.

    Attributes:
        senses: the senses of constraints that it can be used with.
    """

    senses: ClassVar[tuple[Sense, ...]] = (">=", "<=", "==")

    def init(self) -> Any:  # noqa: ANN401  # any memory
        """Return the memory before the first update."""
        return None

    def update(self, update: Update, memory: Any) -> tuple[Update, Any]:  # noqa: ANN401
        """Return the update, changed by `_replace(stored=...)` or `mu=...`, and the new memory."""
        return update, memory

    def is_waiting(self, steps: int) -> bool:
        """Tell whether, after so many steps, mu acts as 0 and nothing is updated."""
        return False

    def is_limiting(self, multiplier: Number) -> bool:
        """Tell whether some stored multiplier is at a limit of this rule."""
        return False


class Setting(Attribute[Held], Generic[Held, Taken]):
    """An attribute that is checked next to the others whenever it is assigned."""

    def __set__(self, instance: "Settings", value: Taken) -> None:
        instance._settle({self._name: value})  # pyright: ignore[reportPrivateUsage]


class Settings:
    """The settings as the parts of a constraint know them; they read, and never write."""

    def _settle(self, given: Mapping[str, Any]) -> None:
        """Take over new settings next to those there are: all of them, or none."""
        raise NotImplementedError

    alpha = Setting[Number, Numeric]()
    sense = Setting[Sense, Sense]()
    every = Setting[int, SupportsIndex]()
    filter = Setting[Filter | None, Filter | None]()
    rules = Setting[tuple[Rule, ...], Sequence[Rule]]()
    tolerance = Setting[float, Numeric]()
    nonfinite = Setting[Policy, Policy]()
