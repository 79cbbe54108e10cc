"""Objects that are saved and loaded: all of their attributes are their state."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Size

from torch_alm._constraint import numbers


class Stateful:
    """An object all of whose attributes are its state.

    Attributes:
        PER_ENTRY: those that are one number per multiplier.
    """

    PER_ENTRY: ClassVar[tuple[str, ...]] = ()

    def state(self) -> dict[str, Any]:
        """Return everything remembered, sharing no memory; nothing of a part that is not there."""
        return {
            name: value.state() if isinstance(value, Stateful) else numbers.kept(value)
            for name, value in vars(self).items()
            if value is not None
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`, sharing no memory with it."""
        for name, value in vars(self).items():
            if isinstance(value, Stateful):
                value.load(state[name])
            elif value is not None:
                setattr(self, name, numbers.kept(state[name]))

    def expand(self, size: Size) -> None:
        """Keep one number per entry."""
        for name in self.PER_ENTRY:
            setattr(self, name, numbers.expanded(getattr(self, name), size))
        for value in vars(self).values():
            if isinstance(value, Stateful):
                value.expand(size)
