"""The optimizers a problem is solved with; plain ones, as `torch.optim` has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop


class Setting(NamedTuple):
    """An optimizer's settings. Plain descent takes its rate from the problem, in its units."""

    make: Callable[[Tensor, float], Optimizer]
    rate: float
    is_relative: bool = False

    def optimizer(self, theta: Tensor, rate: float, unit: float) -> Optimizer:
        """For an objective in other units a plain gradient is that much larger: its rate is not."""
        return self.make(theta, self.rate * rate / unit if self.is_relative else self.rate)


SETTINGS = {
    "sgd": Setting(lambda p, lr: SGD([p], lr=lr), 0.25, True),
    "momentum": Setting(lambda p, lr: SGD([p], lr=lr, momentum=0.9), 0.1, True),
    "adam_slow": Setting(lambda p, lr: Adam([p], lr=lr), 5e-3),
    "adam": Setting(lambda p, lr: Adam([p], lr=lr), 1e-2),
    "adam_fast": Setting(lambda p, lr: Adam([p], lr=lr), 5e-2),
    "adamw": Setting(lambda p, lr: AdamW([p], lr=lr), 1e-2),
    "rmsprop": Setting(lambda p, lr: RMSprop([p], lr=lr), 5e-3),
}
