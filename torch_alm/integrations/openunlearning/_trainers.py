"""Our trainers for OpenUnlearning, made from a configuration."""

from collections.abc import Mapping, Sequence
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
    data, and it gives none to the Trainer, which does not evaluate without, and calls the tokenizer
    otherwise.
    """

    def __init__(
        self, *args: Any, eval_dataset: Any = None, tokenizer: Any = None, **kwargs: Any
    ) -> None:
        given = {} if eval_dataset is None else eval_dataset
        super().__init__(*args, eval_dataset=given, processing_class=tokenizer, **kwargs)
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
        control = from_settings(settings)
        stops = [StopOnStatus(control, times=stop_when_released)] if stop_when_released else []
        given = {"constraint": control, "callbacks": [*callbacks, *stops], **kwargs}
        super().__init__(*args, **cast(Any, given))


def _find(module: Any, name: str) -> Any:
    if name not in module.__all__:
        raise ValueError(
            f"constraint: {module.__name__} has no {name!r}. Did you mean one of "
            f"{', '.join(module.__all__)}?"
        )
    return getattr(module, name)


def _make_named(module: Any, given: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    return [_find(module, name)(**arguments) for name, arguments in given.items()]


def from_settings(settings: Mapping[str, Any]) -> ALMConstraint:
    """Make the constraint that a configuration describes; `alpha` is required.

    A filter and rules have names and arguments there: `{"filter": {"Mean": {"window": 8}}}`.
    """
    given: dict[str, Any] = {"measure": "token_nll", "mu": 1e-3, **settings}
    if given.get("filter") is not None:
        (given["filter"],) = _make_named(filters, given["filter"])
    given["rules"] = [made for each in given.get("rules", ()) for made in _make_named(rules, each)]
    return ALMConstraint(_find(measures, given.pop("measure")), **given)
