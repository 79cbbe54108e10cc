"""Every module of the benchmarks can be imported where all that it needs is installed."""

import pkgutil
from importlib import import_module
from importlib.util import find_spec

import pytest

import benchmarks

PEERS = {"cooper", "humancompatible"}  # with which studies compare; the others are always here


def names() -> list[str]:
    return [module.name for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")]


@pytest.mark.parametrize("name", names())
def test_a_module_is_imported(name: str) -> None:
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        assert missing in PEERS and find_spec(missing) is None
        pytest.skip(f"{name} needs {missing}, which is not installed")
