"""Our trainers as OpenUnlearning makes them: from numbers and words of a configuration."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from transformers import Trainer

from torch_alm import filters, measures, rules
from torch_alm.constraint import ALMConstraint
from torch_alm.integrations.transformers import ALMTrainer, SAULTrainer, StopOnStatus


def trainers(base: type[Trainer]) -> list[type[Trainer]]:
    """`SAUL` and `ALM` over OpenUnlearning's trainer, registered by the names of the classes."""
    kinds = {"SAUL": SAULTrainer, "ALM": ALMTrainer}
    return [type(name, (FromConfig, kind, base), {}) for name, kind in kinds.items()]


class FromConfig(Trainer):
    """Makes the constraint, and hands the tokenizer over by the name that transformers knows."""

    def __init__(
        self,
        *args: Any,
        alpha: float,
        mu: float = 1e-3,
        measure: str = "token_nll",
        constraint: Mapping[str, Any] | None = None,
        stop_when_released: int = 0,
        tokenizer: Any = None,
        callbacks: Sequence[Any] = (),
        **kwargs: Any,
    ) -> None:
        if measure not in measures.__all__:
            raise ValueError(
                f"{type(self).__name__}: there is no measure {measure!r}. Did you mean one of "
                f"{', '.join(measures.__all__)}?"
            )
        control = ALMConstraint(getattr(measures, measure), alpha, mu, **options(constraint or {}))
        stops = [StopOnStatus(control, times=stop_when_released)] if stop_when_released else []
        given = {"constraint": control, "callbacks": [*callbacks, *stops], **kwargs}
        super().__init__(*args, **cast(Any, given), processing_class=tokenizer)
        self.tokenizer = tokenizer  # its evaluations read it; transformers 5 has dropped it


def options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Make a filter and rules of their names and arguments: `{"filter": {"Mean": {"window": 8}}}`.

    Raises:
        ValueError: if there is no filter or rule of that name.
    """
    found = dict(given)
    if found.get("filter") is not None:
        (found["filter"],) = _named(filters, found["filter"])
    found["rules"] = [made for each in found.get("rules", ()) for made in _named(rules, each)]
    return found


def _named(module: Any, given: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    for name in given:
        if name not in module.__all__:
            raise ValueError(
                f"constraint: {module.__name__} has no {name!r}. Did you mean one of "
                f"{', '.join(module.__all__)}?"
            )
    return [getattr(module, name)(**arguments) for name, arguments in given.items()]
