"""Our trainers for OpenUnlearning, made from a configuration."""

from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from typing import Any, cast

from transformers import Trainer

from torch_alm import filters, measures, rules
from torch_alm.constraint import ALMConstraint
from torch_alm.integrations.transformers import ALMTrainer, SAULTrainer, StopOnStatus


def make_trainers(base: type[Trainer]) -> list[type[Trainer]]:
    """Return `SAUL` and `ALM` over OpenUnlearning's trainer; class names register them."""
    kinds = {"SAUL": SAULTrainer, "ALM": ALMTrainer}
    return [type(name, (ConfiguredTrainer, kind, base), {}) for name, kind in kinds.items()]


class ResumableTrainer(Trainer):
    """A mixin for what OpenUnlearning's script leaves out.

    It takes `args.resume_from_checkpoint` and does not pass it on. Its evaluations bring their own
    data, and it gives none to the Trainer, which since 4.46 does not evaluate without, and calls
    the tokenizer otherwise.
    """

    def __init__(
        self, *args: Any, eval_dataset: Any = None, tokenizer: Any = None, **kwargs: Any
    ) -> None:
        given, known = {} if eval_dataset is None else eval_dataset, signature(Trainer).parameters
        name = "processing_class" if "processing_class" in known else "tokenizer"  # since 4.46
        super().__init__(*args, eval_dataset=given, **kwargs, **{name: tokenizer})
        self.tokenizer = tokenizer  # its evaluations read it; transformers 5 has dropped it

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train, from a checkpoint if one is given; `True` is the newest of the run."""
        given = resume_from_checkpoint or self.args.resume_from_checkpoint
        return super().train(given, *args, **kwargs)


class ConfiguredTrainer(ResumableTrainer):
    """A mixin that makes the constraint."""

    def __init__(
        self,
        *args: Any,
        alpha: float,
        mu: float = 1e-3,
        measure: str = "token_nll",
        constraint: Mapping[str, Any] | None = None,
        stop_when_released: int = 0,
        callbacks: Sequence[Any] = (),
        **kwargs: Any,
    ) -> None:
        settings = {"alpha": alpha, "mu": mu, "measure": measure, **(constraint or {})}
        control = from_settings(type(self).__name__, settings)
        stops = [StopOnStatus(control, times=stop_when_released)] if stop_when_released else []
        given = {"constraint": control, "callbacks": [*callbacks, *stops], **kwargs}
        super().__init__(*args, **cast(Any, given))


def options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Make a filter and rules of names and arguments: `{"filter": {"Mean": {"window": 8}}}`."""
    found = dict(given)
    if found.get("filter") is not None:
        (found["filter"],) = _make_named(filters, found["filter"])
    found["rules"] = [made for each in found.get("rules", ()) for made in _make_named(rules, each)]
    return found


def _make_named(module: Any, given: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    for name in given:
        if name not in module.__all__:
            raise ValueError(
                f"constraint: {module.__name__} has no {name!r}. Did you mean one of "
                f"{', '.join(module.__all__)}?"
            )
    return [getattr(module, name)(**arguments) for name, arguments in given.items()]


def from_settings(owner: str, settings: Mapping[str, Any]) -> ALMConstraint:
    """Make the constraint that a configuration describes; `alpha` is required."""
    given: dict[str, Any] = {"measure": "token_nll", "mu": 1e-3, **settings}
    known = [name for name in measures.__all__ if is_of_a_batch(getattr(measures, name))]
    if given["measure"] not in known:
        raise ValueError(
            f"{owner}: {given['measure']!r} is no measure of a model and a batch. Did you mean one "
            f"of {', '.join(known)}?"
        )
    if "alpha" not in given:
        raise ValueError(
            f"{owner}: the constraint has no alpha, so nothing says how much is to be forgotten. "
            "Did you mean `+trainer.method_args.constraint.alpha=4.0`?"
        )
    return ALMConstraint(getattr(measures, given.pop("measure")), **options(given))


def is_of_a_batch(measure: Any) -> bool:
    """Return whether a model and a batch are all that a measure needs."""
    parameters = signature(measure).parameters.values()
    return [p.name for p in parameters if p.default is Parameter.empty] == ["model", "batch"]
