"""An attribute that takes more types than it holds, as constraints have them."""

from typing import TYPE_CHECKING, Generic, TypeVar, overload

T = TypeVar("T")


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
