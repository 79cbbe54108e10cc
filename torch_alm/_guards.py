"""What a constraint takes from the optimizers, and a way back for one whose step fails."""

from collections.abc import Callable
from itertools import chain

from torch_alm._optim import objective
from torch_alm._optim.objective import eager

__all__ = ["eager", "is_first_pass", "is_running", "remember"]

OURS = __name__.partition(".")[0] + "."


def is_first_pass(_: int) -> bool:
    """Tell whether this thread runs a pass that does not count."""
    return objective.is_first_pass()


def is_running(_: int) -> bool:
    """Tell whether this thread runs a pass at all."""
    return objective.is_running()


def remember(*objects: object) -> Callable[[], None]:
    """Return a function that gives the objects, and those of this library in them, what they hold.

    Attributes are remembered, not copied: what they hold is replaced by our code, never changed,
    but for lists of this library, whose entries are remembered, too. Objects of ours are found in
    plain lists as well.

    Cost: about 5 us for a constraint.
    """
    found: dict[int, tuple[object, dict[str, object], list[object]]] = {}
    waiting = [*objects]
    while waiting:
        each = waiting.pop()
        if id(each) in found:
            continue
        attributes = dict(vars(each))
        found[id(each)] = (each, attributes, list(each) if isinstance(each, list) else [])
        held = (v if type(v) is list else (v,) for v in attributes.values())
        ours = (v for v in chain.from_iterable(held) if type(v).__module__.startswith(OURS))
        waiting += [value for value in ours if getattr(value, "__dict__", None)]

    def undo() -> None:
        for each, attributes, entries in found.values():
            vars(each).clear()
            vars(each).update(attributes)
            if isinstance(each, list):
                each[:] = entries

    return undo
