"""The options of every script, read from the fields of a dataclass and checked."""

import dataclasses
import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from transformers import HfArgumentParser

from benchmarks import methods
from benchmarks.methods.settings import hints, value_of

FIRST_RUN = "single_adamw,dual_adamw,dual_adamw+alm,saul"
SHORT = ("lr", "alpha", "mu", "epochs", "batch_size")
"""Settings with an option of their own; `--set NAME=VALUE` reaches every other one."""

HOW = ("methods", "control", "seed", "seeds", "output", "overwrite", "cache", "judge")
"""Options on which no single result depends."""

Kind = TypeVar("Kind", bound="Options")


def option(told: str, default: Any = None, **more: Any) -> Any:
    """Return a field of the options with its line of `--help`; a list may be repeated."""
    if isinstance(default, list):
        return field(default_factory=list, metadata={"help": told, "action": "extend"})
    return field(default=default, metadata={"help": told, **more})


@dataclass
class Options:
    """A checked command line."""

    methods: str = option("keys of methods, comma-separated, or all", FIRST_RUN)
    control: bool = option("leave out the run of the retain side alone", True)
    seed: int = option("first seed of the batch order", 0)
    seeds: int = option("how many seeds, from --seed on", 1)
    output: Path | None = option("where the results go; default: results/NAME")
    overwrite: bool = option("drop earlier results there", False)
    cache: Path | None = option("where trained models are kept; default: ~/.cache/torch-alm")
    quick: bool = option("a tiny world and model: seconds, no findings", False)
    preset: Literal["paper", "recommended"] | None = option(
        "settings to start from; default: paper with --model, else recommended"
    )
    set: list[str] = option("NAME=VALUE: any other setting of the methods", [])
    lr: str | None = option("learning rate; takes the forget side's along")
    alpha: str | None = option("threshold; alone in nats per token")
    mu: str | None = option("step size of the multiplier, or auto")
    rho: str | None = option("radius of both perturbations")
    epochs: str | None = option("passes over the forget set")
    batch_size: str | None = option("forget rows per step, and as many retain rows")
    data: Path | None = option("folder of the benchmark's files, for --model")
    model: str | None = option("a causal LM to unlearn from, local or from the hub")
    parameters: str | None = option(
        "what is trained: a regular expression of whole names, or all, rmu, below"
    )
    lora: int = option("rank of adapters, trained instead; 0 for none", 0)

    def __post_init__(self) -> None:
        """Check the options against each other.

        Raises:
            ValueError: Two contradict each other; the message suggests a fix.
        """
        if self.seeds < 1:
            raise ValueError(f"--seeds {self.seeds}: did you mean at least 1?")
        if self.lora and self.parameters not in (None, "all"):
            raise ValueError(
                f"--lora {self.lora} with --parameters {self.parameters!r}: either adapters are "
                "trained or parameters are. Did you mean one of the two?"
            )
        if self.data is not None and self.model is None:
            raise ValueError(
                "--data without --model: a model trained here knows nothing of these files. Did "
                "you mean --model NAME_OR_PATH?"
            )
        if self.quick and self.model is not None:
            raise ValueError(
                "--quick with --model: it makes the invented data and their model small, and "
                "would change nothing here. Did you mean --epochs 1?"
            )

    def keys(self, losses: str = "tokens") -> tuple[str, ...]:
        """Return the methods to compare, each once, without the control.

        Raises:
            ValueError: One of them is unknown, or nothing would be run.
        """
        named = [key.strip() for key in self.methods.split(",") if key.strip()]
        wanted = [k for key in named for k in (methods.names(losses) if key == "all" else [key])]
        compared = tuple(dict.fromkeys(key for key in wanted if key != methods.CONTROL))
        for key in compared:
            methods.check_method(key, losses)
        if not compared and not self.control:
            raise ValueError(
                f"--methods {self.methods!r} --no-control: nothing would be run. Known: "
                f"{', '.join(methods.names(losses))}."
            )
        return (methods.CONTROL, *compared) if self.control else compared

    def all_seeds(self) -> range:
        return range(self.seed, self.seed + self.seeds)

    def overrides(self, losses: str = "tokens") -> dict[str, Any]:
        """Return the settings named on the command line, as numbers or words.

        Raises:
            ValueError: None of the methods has a setting of that name.
        """
        texts = {name: getattr(self, name) for name in SHORT}
        texts |= {"rho_forget": self.rho, "rho_retain": self.rho}
        for entry in self.set:
            name, equals, text = entry.partition("=")
            if not equals:
                raise ValueError(f"--set {entry!r} sets nothing. Did you mean NAME=VALUE?")
            texts[name.strip()] = text.strip()
        known = {n for key in methods.names(losses) for n in hints(methods.kind_of(key, losses))}
        for name in texts.keys() - known:
            closest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise ValueError(f"no method has a setting {name!r}. Did you mean {closest!r}?")
        return {name: value_of(text) for name, text in texts.items() if text is not None}

    def identity(self) -> dict[str, Any]:
        """Return everything that a result depends on."""
        found = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {
            name: str(value) if isinstance(value, Path) else value
            for name, value in found.items()
            if name not in HOW
        }


class Parser(HfArgumentParser):
    """A parser whose errors are printed without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n{self.prog} --help lists the options.\n")


def parse(kind: type[Kind], argv: Sequence[str] | None, doc: str | None) -> tuple[Parser, Kind]:
    """Parse a script's command line; return parser and options, or exit with a message."""
    parser = Parser(kind, description=doc, allow_abbrev=False)
    try:
        (found,) = parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
    except ValueError as error:
        parser.error(str(error))
    return parser, found
