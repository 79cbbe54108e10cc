"""The API that users rely on, one line per name: `python -m tests.public_api` writes it anew."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, get_origin

from torch_alm.cli.options import VERBS, parser

RECORDED = Path(__file__).with_name("public_api.txt")
OURS = "torch_alm"
MODULES = (
    "torch_alm",
    "torch_alm.checkpoint",
    "torch_alm.cli",
    "torch_alm.filters",
    "torch_alm.integrations.transformers",
    "torch_alm.language",
    "torch_alm.measures",
    "torch_alm.rules",
    "torch_alm.thresholds",
)


def described() -> str:
    """All of it. Annotations are left to the type checker, inherited names to their makers."""
    lines = [line for module in MODULES for line in of_module(module)]
    lines += [line for verb in VERBS for line in of_verb(verb)]
    return "".join(f"{line}\n" for line in lines)


def of_verb(verb: str) -> Iterator[str]:
    """Options of the command as its usage shows them, and what each is where it is not given."""
    with redirect_stdout(StringIO()) as told, suppress(SystemExit):
        parser().parse_args([verb, "--help"])
    usage = " ".join(told.getvalue().partition("\n\n")[0].split())
    free = re.findall(r"\[--.*?\]", usage)
    needed = re.findall(r"--\S+ \S+", re.sub(r"\[.*?\]", "", usage))
    yield from (f"torch-alm {verb} {option}" for option in (*needed, *free))
    words = [word for option in needed for word in option.split()]
    given = vars(parser().parse_args([verb, *words])).items()
    yield from (f"torch-alm {verb} {n}={v!r}" for n, v in sorted(given) if f"--{n}" not in words)


def of_module(path: str) -> Iterator[str]:
    module = import_module(path)
    for name in sorted(public_names(module)):
        value = getattr(module, name)
        if not inspect.ismodule(value):
            yield from of_object(f"{path}.{name}", value)


def public_names(module: Any) -> list[str]:
    """`__all__`, or, in a module that is one idea, what is defined in it."""
    return getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def of_object(path: str, value: Any) -> Iterator[str]:
    # Whether the alias of a type or `Any` is a class differs between versions of Python.
    if not inspect.isclass(value) or get_origin(value) is not None or value is Any:
        yield path + (signature(value) if inspect.isroutine(value) else "")
        return
    yield path + signature(value)
    for name, member in sorted(members(value).items()):
        yield f"{path}.{name}{signature_of_member(member)}"


def signature_of_member(member: Any) -> str:
    """Without `self`; nothing for a property or an attribute."""
    if isinstance(member, staticmethod):
        return signature(member.__func__)
    method = member.__func__ if isinstance(member, classmethod) else member
    return signature(method, bound=True) if inspect.isroutine(method) else ""


def members(kind: type) -> dict[str, Any]:
    """Public methods, properties and attributes that classes of ours define, `__call__` too."""
    found: dict[str, Any] = {}
    for owner in reversed(kind.__mro__):
        if owner.__module__.startswith(OURS):
            found |= dict.fromkeys(set_on_self(owner)) | vars(owner)
            found |= dict.fromkeys(vars(owner).get("__annotations__", {}))
    return {name: found[name] for name in found if name == "__call__" or not name.startswith("_")}


def set_on_self(kind: type) -> set[str]:
    """The names in `self.name = ...` anywhere in the class."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, IndentationError):  # made at run time, as a NamedTuple's base is
        return set()
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def signature(function: Any, *, bound: bool = False) -> str:
    """Parameters, kinds and defaults; nothing for what takes no call, such as a type's alias."""
    try:
        given = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    parameters = [p.replace(annotation=p.empty) for p in given.parameters.values()]
    if bound:
        parameters = parameters[1:]
    plain = [
        p if p.default is p.empty else p.replace(default=Written(p.default)) for p in parameters
    ]
    return str(inspect.Signature(plain))


class Written:
    """A default as one would write it: a function by its name, without the address it lies at."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return getattr(self.value, "__qualname__", None) or repr(self.value)


if __name__ == "__main__":
    RECORDED.write_text(described())
