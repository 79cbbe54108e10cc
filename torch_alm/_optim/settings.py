"""Numbers as people have them: Python's, NumPy's, tensors of one entry."""

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from torch import Tensor

T = TypeVar("T")


def number(value: Any, name: str) -> float:  # noqa: ANN401
    """Convert one number to a float.

    Raises:
        TypeError: if it is not one; names the setting and what was found.
    """
    try:
        if not isinstance(value, str):
            return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError):  # None; several entries
        pass
    raise TypeError(f"{name} is {value!r}, where one number belongs. Did you mean a float?")


def count(value: Any, name: str) -> int:  # noqa: ANN401
    """Convert to a whole number, at least 1, or raise a `ValueError` that names it."""
    try:
        found = operator.index(value)
    except TypeError:  # 2.5, nan or a word
        found = 0
    if found < 1:
        raise ValueError(f"{name} is {value!r}, and counts from 1. Did you mean 1, every time?")
    return found


class Attribute(Generic[T]):
    """An attribute that holds one type and takes all that can be converted to it.

    Python finds the value, once it is set, in the instance itself.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type) -> "Attribute[T]": ...
        @overload
        def __get__(self, instance: object, owner: type) -> T: ...
        def __get__(self, instance: object | None, owner: type) -> "Attribute[T] | T": ...


class Setting(Attribute[T]):
    """An attribute that is converted and checked whenever it is set, not only at construction."""

    def __init__(self, checked: Callable[[Any, str], T]) -> None:
        """Take the function from what is set, and the setting's name, to what is kept."""
        self._checked = checked

    def __set__(self, instance: object, value: object) -> None:
        name = f"{type(instance).__name__}: {self._name}"
        vars(instance)[self._name] = self._checked(value, name)
