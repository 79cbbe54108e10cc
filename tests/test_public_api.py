"""A name, a parameter or a default cannot change unnoticed: all are written in public_api.txt.

    python tests/test_public_api.py

writes them anew. Annotations are left to the type checker. A name that a class of ours inherits, or
overrides, is written once, where it was first given: torch's and transformers' are theirs.
"""

import inspect
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from torch_alm.command import main

RECORDED = Path(__file__).with_name("public_api.txt")
MODULES = (
    "torch_alm", "torch_alm.checkpoint", "torch_alm.command", "torch_alm.filters",
    "torch_alm.integrations.lightning", "torch_alm.integrations.transformers",
    "torch_alm.language", "torch_alm.measures", "torch_alm.rules", "torch_alm.thresholds",
    "torch_alm.unlearning",
)  # fmt: skip
VERBS = ("unlearn", "evaluate", "attack")


def test_public_api_is_the_recorded_one() -> None:
    recorded, found = RECORDED.read_text().splitlines(), described().splitlines()
    gone, new = sorted({*recorded} - {*found}), sorted({*found} - {*recorded})
    assert found == recorded, (
        f"The public API changed. Gone: {gone}. New: {new}. If that is meant, "
        "`python tests/test_public_api.py` writes it down; does CHANGELOG.md tell users of it?"
    )


def described() -> str:
    """All of it, a line per name."""
    names = [line for module in MODULES for line in of_module(module)]
    return "".join(f"{line}\n" for line in [*names, *(o for verb in VERBS for o in options(verb))])


def options(verb: str) -> list[str]:
    """Name the options of a verb, as its usage shows them."""
    usage = help_of(verb).partition("\n\n")[0]
    return [f"torch-alm {verb} {option}" for option in sorted({*re.findall(r"--[a-z-]+", usage)})]


def help_of(verb: str) -> str:
    told = io.StringIO()
    with redirect_stdout(told), suppress(SystemExit):
        main([verb, "--help"])
    return told.getvalue()


def of_module(path: str) -> Iterator[str]:
    """The names in `__all__`, or those that a module without it defines."""
    module = import_module(path)
    defined = [n for n, v in vars(module).items() if getattr(v, "__module__", None) == path]
    for name in sorted(getattr(module, "__all__", defined)):
        value = getattr(module, name)
        if not name.startswith("_"):
            yield from of_object(f"{path}.{name}", value)


def of_object(path: str, value: Any) -> Iterator[str]:
    yield path + signature(value)
    if inspect.isclass(value):
        for name, member in sorted(members(value).items()):
            yield f"{path}.{name}{signature(member)}"


def members(kind: type) -> dict[str, Any]:
    """Public methods, properties and fields that it is the first to define, `__call__` too."""
    ours = [o for o in reversed(kind.__mro__) if o.__module__.startswith("torch_alm.")]
    names = dict.fromkeys(n for o in ours for n in names_in(o))
    theirs = [o for o in kind.__mro__[1:] if o not in ours or is_public(o)]
    given = {n for o in theirs for each in o.__mro__ for n in names_in(each)}
    if issubclass(kind, torch.optim.Optimizer):
        given |= {*vars(torch.optim.SGD([torch.zeros(1)]))}  # what torch gives each one
    public = [n for n in names if n not in given and (n == "__call__" or not n.startswith("_"))]
    return {n: inspect.getattr_static(kind, n, None) for n in public}


def names_in(kind: type) -> list[str]:
    return [*vars(kind), *vars(kind).get("__annotations__", {})]


def is_public(kind: type) -> bool:
    """Tell whether a class is written down itself."""
    return any(getattr(import_module(m), kind.__name__, None) is kind for m in MODULES)


def signature(function: Any) -> str:
    """Parameters and defaults, functions by their names; nothing for what takes no call."""
    function = getattr(function, "__func__", function)
    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ""
    plain = [p.replace(annotation=p.empty) for p in given if p.name != "self"]
    return re.sub(r"<(?:function|class) '?([\w.]+)[^>]*>", r"\1", str(inspect.Signature(plain)))


if __name__ == "__main__":
    RECORDED.write_text(described())
