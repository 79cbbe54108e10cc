"""Run an objective, and know which of its two passes this is.

An objective under SAM runs twice: a clean pass that only finds the direction, and a perturbed
pass that counts. Side effects (measurements, dropout) need to know.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states

from torch_alm import _gradients as gradients
from torch_alm._gradients import Backward, Evaluation

# By thread, and whether the pass counts. An objective may measure in threads of its own, which know
# nothing of the one that runs it: see `is_rehearsal`.
_passes: dict[int, bool] = {}


def is_rehearsal(home: int) -> bool:
    """Whether a measurement made here and now is one of a pass that does not count.

    What counts is the pass that this thread runs. If it runs none, it may be one of those in which
    an objective measures, and the pass is the one of `home`, the thread of whoever measures.
    """
    return not _passes.get(get_ident(), _passes.get(home, True))


def is_running(home: int) -> bool:
    """Whether a measurement made here and now is one of a pass at all."""
    return get_ident() in _passes or home in _passes


@contextmanager
def running(*, counts: bool) -> Iterator[None]:
    """Mark everything inside as a pass; one within a pass that does not count does not either."""
    here = get_ident()
    outer = _passes.get(here)
    try:
        try:
            _passes[here] = counts and outer is not False
            yield
        finally:
            _return_to(outer, here)
    finally:
        _return_to(outer, here)  # an interrupt may have cut the first one short


def _return_to(outer: bool | None, here: int) -> None:
    if outer is None:
        _passes.pop(here, None)
    else:
        _passes[here] = outer


def rehearsal() -> AbstractContextManager[None]:
    """Mark everything inside as a pass that does not count: measurements are not observed."""
    return running(counts=False)


class RandomState:
    """The random state of the CPU, of all GPUs, and of other devices some tensors live on."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._cpu = torch.get_rng_state()
        # Weights may be offloaded to the host and dropout be drawn on a GPU: all of those count.
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        others = {t.device: t for t in tensors if t.device.type not in ("cpu", "cuda", "meta")}
        self._kind = next((device.type for device in others), "cuda")
        self._devices = get_device_states(*others.values())

    def replay(self) -> None:
        """Go back to this state, so that the next pass draws the same numbers."""
        torch.set_rng_state(self._cpu)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        devices, states = self._devices
        if devices:
            set_device_states(devices, states, device_type=self._kind)


@dataclass
class Run:
    """One objective and the way to differentiate it.

    Attributes:
        owner: the call to name in errors, such as `"SAM.backward"`.
        pair: whether the objective may return `(loss, value)`.
        wanted: looks at the numbers and decides whether the gradient is needed.
    """

    objective: Callable[[], Any]
    owner: str
    params: list[Tensor]
    backward: Backward
    pair: bool = False
    wanted: Callable[[Evaluation], bool] | None = None

    def rehearse(self) -> None:
        """`.grad += gradient`, here, in a pass that does not count."""
        with rehearsal():
            self._differentiate(evaluate(self.objective, self.owner, pair=self.pair), 1.0)

    def __call__(self, weight: float) -> Evaluation:
        """`.grad += weight * gradient`, here, unless it is not wanted."""
        with running(counts=True):
            evaluation = evaluate(self.objective, self.owner, pair=self.pair)
            if self.wanted is None or self.wanted(evaluation):
                self._differentiate(evaluation, weight)
        return evaluation.detached()

    def _differentiate(self, evaluation: Evaluation, weight: float) -> None:
        gradients.differentiate(evaluation.loss, weight, self.backward)
        gradients.check_arrived(self.params, self.owner)


@contextmanager
def placed(sentence: str) -> Iterator[None]:
    """Add to any error where it happened and what was put back."""
    try:
        yield
    except BaseException as error:
        if sys.version_info >= (3, 11):  # Python 3.10 has no notes
            error.add_note(sentence)
        raise


def evaluate(objective: Callable[[], Any], owner: str, *, pair: bool = False) -> Evaluation:
    """Run an objective with gradients enabled and check what it returns.

    Args:
        objective: a function of no arguments that runs the forward pass.
        owner: the call to name in errors, such as `"SAM.backward"`.
        pair: whether `(loss, value)` is welcome.

    Raises:
        TypeError: if it returns something other than a tensor (or a pair, where welcome).
        ValueError: if the loss is not a scalar or has no graph.
    """
    if not callable(objective):
        raise TypeError(
            f"{owner} takes an objective, a function that runs the forward pass, and found "
            f"{type(objective).__name__}: the second pass could not be run at the moved weights. "
            "Did you mean `lambda: loss(model, batch)`?"
        )
    with torch.enable_grad():
        result = objective()
    if pair and isinstance(result, tuple) and len(result) == 2:
        loss, value = result
        return Evaluation(_scalar(loss, owner), _number(value, owner), paired=True)
    loss = _scalar(result, owner)
    return Evaluation(loss, loss, paired=False)


def _scalar(loss: object, owner: str) -> Tensor:
    """The loss, if it can be differentiated."""
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"{owner}: the objective returned {type(loss).__name__}, which has no gradient. "
            "Did you mean to return the loss tensor (not `.item()`, and without calling backward)?"
        )
    if loss.numel() != 1:
        raise ValueError(
            f"{owner}: the objective returned a tensor of shape {tuple(loss.shape)}; only a scalar "
            "has a gradient. Did you forget `.mean()`?"
        )
    if not loss.requires_grad:
        raise ValueError(
            f"{owner}: the objective returned a loss without a graph, so its gradient would be "
            "missing. Was it detached, or are all parameters frozen?"
        )
    return loss


def _number(value: object, owner: str) -> Tensor:
    """The measured value of a pair, as a 0-dim tensor."""
    exact = torch.float64 if isinstance(value, float) else None  # float32 would move it
    number = torch.as_tensor(value, dtype=exact)
    if number.numel() != 1:
        raise ValueError(
            f"{owner}: the objective returned a value of shape {tuple(number.shape)} beside its "
            "loss; a constraint here sees one number. Did you forget `.mean()`?"
        )
    return number
