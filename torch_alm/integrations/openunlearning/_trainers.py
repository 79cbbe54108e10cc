"""Our trainers as OpenUnlearning makes them: from numbers and words of a configuration."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from transformers import Trainer

from torch_alm import measures
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
        control = ALMConstraint(getattr(measures, measure), alpha, mu, **dict(constraint or {}))
        stops = [StopOnStatus(control, times=stop_when_released)] if stop_when_released else []
        given = {"constraint": control, "callbacks": [*callbacks, *stops], **kwargs}
        super().__init__(*args, **cast(Any, given), processing_class=tokenizer)
        self.tokenizer = tokenizer  # its evaluations read it; transformers 5 has dropped it
