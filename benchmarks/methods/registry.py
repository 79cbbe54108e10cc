"""The registry, in which a method's file enters its key, its name and its place in tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.methods.method import Method


@dataclass(frozen=True)
class Entry:
    """A method, its name in tables and its place there (smaller comes first)."""

    method: type[Method]
    label: str
    position: int

    def suffixes(self) -> tuple[str, ...]:
        """List what may follow the key: nothing, or `+alm` too where the controller is optional."""
        return ("", "+alm") if self.method.alm == "optional" else ("",)


LOSSES: dict[str, dict[str, Entry]] = {"tokens": {}, "rmu": {}}
"""The methods by the losses they lower and raise: cross-entropies, or RMU's."""


def register(
    key: str, label: str, *, position: int = 99, losses: str = "tokens"
) -> Callable[[type[Method]], type[Method]]:
    """Enter a method in the registry, as a decorator of its class."""

    def enter(method: type[Method]) -> type[Method]:
        LOSSES[losses][key] = Entry(method, label, position)
        return method

    return enter
