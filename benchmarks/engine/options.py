"""Options of the benchmark scripts, checked before anything is trained."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from benchmarks import methods
from benchmarks.engine.model_setup import ModelSetup, add_setup_arguments, model_setup
from benchmarks.engine.presets import PRESETS, check_preset
from benchmarks.methods.settings import Settings, parse

FIRST_RUN = ("single_adamw", "dual_adamw", "dual_adamw+alm", "saul")

LAST_SEED = 2**31  # a search adds to it

# Short options for the settings people change most; `--set name=value` reaches every other one.
SHORT = {
    "--lr": ("lr",),
    "--forget-lr": ("forget_lr",),
    "--alpha": ("alpha",),
    "--mu": ("mu",),
    "--multiplier": ("multiplier",),
    "--rho": ("rho_forget", "rho_retain"),
    "--epochs": ("epochs",),
    "--batch-size": ("batch_size",),
    "--optimizer": ("optimizer",),
    "--scale": ("scale",),
}


@dataclass(frozen=True)
class Options:
    """A checked command line; what is not told here `add_arguments` tells.

    Attributes:
        methods: Keys of the registry, in the order of the table.
        control: Run the retain side alone beside them.
        seeds: Seeds of the batch order; the models to unlearn from are the same for all of them.
        overrides: Settings that replace the preset's, for every method.
        match: Metric and level of a matched comparison, if asked for.
        fixed: Settings that matching leaves as they are.
        refine: Settings tried after these, by bisection.
    """

    methods: tuple[str, ...]
    control: bool
    seeds: tuple[int, ...]
    output: Path
    cache: Path | None
    overwrite: bool
    quick: bool
    preset: str
    overrides: dict[str, Any]
    match: tuple[str, float] | None
    trials: int
    refine: int
    fixed: tuple[str, ...]
    model_setup: ModelSetup
    memory_limit: float | None


def script_parser(prog: str | None, doc: str | None) -> argparse.ArgumentParser:
    """A parser of which `--help` shows the first lines of a script as they stand."""
    return _Parser(prog=prog, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors stand by themselves, not below all options."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n{self.prog} --help lists the options.\n")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    listed = (
        "keys of methods, comma-separated, or 'all'; "
        f"'{methods.CONTROL}' for the control alone; default: %(default)s"
    )
    add("--methods", default=",".join(FIRST_RUN), metavar="LIST", help=listed)
    add("--no-control", action="store_true", help="leave out the run of the retain side alone")
    add("--seed", type=int, default=0, metavar="N", help="first seed of the batch order")
    add("--seeds", type=int, default=1, metavar="K", help="how many seeds, from --seed on")
    add("--output", type=Path, metavar="DIR", help="where the results go")
    add("--overwrite", action="store_true", help="drop earlier results in DIR")
    add("--cache", type=Path, metavar="DIR", help="where trained models are kept")
    add("--quick", action="store_true", help="a tiny world and model: seconds, no findings")
    add("--preset", metavar="NAME", help=f"settings to start from: {', '.join(PRESETS)}")
    add("--match", metavar="METRIC=LEVEL", help="search settings that meet a level, then report")
    add("--trials", type=int, default=8, metavar="K", help="settings tried per method by --match")
    finer = "settings tried after those, between the best one and the next that forgets too little"
    add("--refine", type=int, default=0, metavar="K", help=finer)
    kept = "settings that --match leaves as they are, comma-separated"
    add("--fix", default="", metavar="LIST", help=kept)
    named = "any other setting of the methods, repeatable"
    add("--set", action="append", default=[], metavar="NAME=VALUE", dest="sets", help=named)
    add_setup_arguments(parser)
    for option, names in SHORT.items():
        add(option, metavar="X", dest=names[0], help=f"overrides {' and '.join(names)}")


def checked(
    given: argparse.Namespace,
    *,
    name: str,
    preset: str,
    levels: Mapping[str, bool],
    losses: str = "tokens",
) -> Options:
    """The options behind parsed arguments.

    Args:
        given: What `argparse` read.
        name: Name of the output folder under `results/` where none is given.
        preset: The preset where none is given.
        levels: The numbers a matched comparison may hold fixed.
        losses: What the benchmark's methods lower and raise, unless `--set losses=...` says else.

    Raises:
        ValueError: An unknown method, preset or setting, or a value that makes no sense.
    """
    if given.seeds < 1 or given.trials < 1:
        raise ValueError(
            f"--seeds {given.seeds} and --trials {given.trials}: nothing would be run. "
            "Did you mean at least 1 of each?"
        )
    if given.refine < 0 or (given.refine and given.match is None):
        raise ValueError(
            f"--refine {given.refine}: how many settings --match tries after its --trials, and "
            f"--match is {given.match or 'not given'}. Did you mean both, and at least 0 settings?"
        )
    if given.fix and given.match is None:
        raise ValueError(
            f"--fix {given.fix}: what --match leaves as it is, and --match is not given. Did you "
            "mean both?"
        )
    if not 0 <= given.seed <= LAST_SEED - given.seeds:
        raise ValueError(f"--seed {given.seed}: no generator takes it. Did you mean 0?")
    chosen = given.preset or preset
    check_preset(chosen)
    changes = overrides(given)
    keys = method_keys(given.methods, changes.get("losses", losses))
    if given.no_control and not keys:
        raise ValueError(
            f"--methods {given.methods} --no-control: nothing would be run. "
            "Did you mean one of the two?"
        )
    return Options(
        methods=keys,
        control=not given.no_control,
        seeds=tuple(range(given.seed, given.seed + given.seeds)),
        output=given.output or Path("results") / name,
        cache=given.cache,
        overwrite=given.overwrite,
        quick=given.quick,
        preset=chosen,
        overrides=changes,
        match=metric_level(given.match, levels),
        trials=given.trials,
        refine=given.refine,
        fixed=fixed(given.fix),
        model_setup=model_setup(given),
        memory_limit=given.memory_limit,
    )


def method_keys(text: str, losses: str = "tokens") -> tuple[str, ...]:
    """The methods of a comma-separated list, each once; `all` is every one with these losses.

    The control is no method: it runs beside them, and alone where the list has nothing else.
    """
    if losses not in methods.LOSSES:
        known = " or ".join(methods.LOSSES)
        raise ValueError(f"losses={losses}: no method has such losses. Did you mean {known}?")
    known = methods.names(losses)
    named = [key.strip() for key in text.split(",") if key.strip()]
    wanted = [k for key in named for k in (known if key == "all" else [key])]
    if not wanted:
        raise ValueError(f"--methods {text!r} names none. Known: {', '.join(known)}.")
    compared = tuple(dict.fromkeys(key for key in wanted if key != methods.CONTROL))
    for key in compared:
        methods.check(key, losses)
    return compared


def fixed(text: str) -> tuple[str, ...]:
    """The settings of a comma-separated list.

    Raises:
        ValueError: There is no setting of that name.
    """
    known = [field.name for field in dataclasses.fields(Settings)]
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in set(found) - set(known):
        raise ValueError(f"--fix {name!r} is no setting. Did you mean {_one_of(name, known)}?")
    return found


def overrides(given: argparse.Namespace) -> dict[str, Any]:
    """Settings named on the command line, read as their types."""
    texts = {n: getattr(given, names[0]) for names in SHORT.values() for n in names}
    for entry in given.sets:
        name, equals, text = entry.partition("=")
        if not equals:
            raise ValueError(f"--set {entry!r} sets nothing. Did you mean NAME=VALUE?")
        texts[name.strip()] = text.strip()
    return {name: parse(name, text) for name, text in texts.items() if text is not None}


def refuse_unread(given: argparse.Namespace, *names: str) -> None:
    """Refuse options that the embedded worlds, which have all of their own, would not read.

    Args:
        given: The parsed command line.
        names: Of the options, as in `given`.

    Raises:
        ValueError: One of them was given.
    """
    for name in names:
        if value := getattr(given, name):
            shown = " ".join(map(str, value)) if isinstance(value, list) else value
            raise ValueError(
                f"--{name.replace('_', '-')} {shown} would not be read: the embedded world has all "
                "of its own. Did you leave --data or --model out?"
            )


def _one_of(name: str, known: Iterable[str]) -> str:
    """The closest of the known names, or all where none is close."""
    names = list(known)
    return ", ".join(map(repr, difflib.get_close_matches(name, names, n=1) or names))


def metric_level(text: str | None, levels: Mapping[str, bool]) -> tuple[str, float] | None:
    """`forget_rouge=0.03` as a name and a number."""
    if text is None:
        return None
    name, _, level = (part.strip() for part in text.partition("="))
    if name not in levels:
        raise ValueError(
            f"--match {text!r}: {name!r} is nothing to match. Did you mean {_one_of(name, levels)}?"
        )
    try:
        found = float(level)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"--match {text!r}: {level!r} is no level. Did you mean a number?")
    return name, found
