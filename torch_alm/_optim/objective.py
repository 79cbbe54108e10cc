"""Run an objective, at a point of somebody's choosing, and check what it returns.

An objective under SAM runs twice: a first pass that only finds the direction, and a perturbed pass
that counts. Side effects (measurements, dropout) need to know.
"""

import random
import sys
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.checkpoint import get_device_states, set_device_states

from torch_alm._guards import Call, running
from torch_alm._optim import gradients
from torch_alm._optim.gradients import Backward
from torch_alm._optim.wrapper import Wrapper

Objective: TypeAlias = Callable[[], Any]


class Evaluation(NamedTuple):
    """One run of an objective.

    Attributes:
        loss: what is differentiated.
        value: what a constraint sees.
        paired: whether these were given apart.
        times: how many times the gradient of the loss was added to `.grad`.
        clean: the value at theta, if a first pass has seen it.
    """

    loss: Tensor
    value: Tensor
    paired: bool
    times: float | Tensor = 0.0
    clean: Tensor | None = None


Ask: TypeAlias = Callable[[Evaluation], bool]


def replaying(tensors: list[Tensor]) -> list[Call]:
    """List the calls after which a pass draws the same random numbers as one that begins now.

    On the CPU, on all GPUs, and on other devices that some of the tensors are on; Python's, and
    NumPy's where somebody has imported it, as models that draw their masks with it have.
    """
    calls: list[Call] = [partial(torch.set_rng_state, torch.get_rng_state())]
    calls.append(partial(random.setstate, random.getstate()))
    if (numpy := sys.modules.get("numpy")) is not None:
        calls.append(partial(numpy.random.set_state, numpy.random.get_state()))
    # Weights may be offloaded to the host and dropout be drawn on a GPU: all of those count.
    if torch.cuda.is_initialized():
        calls.append(partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    others = {t.device: t for t in tensors if t.device.type not in ("cpu", "cuda", "meta")}
    devices, states = get_device_states(*others.values())
    if devices:
        kind = next(iter(others)).type
        calls.append(partial(set_device_states, devices, states, device_type=kind))
    return calls


@dataclass
class Run:
    """One objective and the way to differentiate it.

    Attributes:
        owner: the call to name in errors, such as `"SAM.backward"`.
        pair: whether the objective may return `(loss, value)`.
        wanted: looks at the numbers and decides whether the gradient is needed.
        ahead: as `wanted`, of a first pass; without its gradient there is no other pass.
        sign: of the side that looks ahead. The loss of a pair is descended, so its first pass
            leaves sign times the gradient: the way from there leads to where that loss is higher.
        is_over: whether a first pass was the last.
    """

    objective: Objective
    owner: str
    params: list[Tensor]
    backward: Backward
    pair: bool = False
    wanted: Ask | None = None
    ahead: Ask | None = None
    sign: int = +1
    is_over: bool = False

    def __call__(self, weight: float = 1.0, *, counts: bool = True) -> Evaluation:
        """`.grad += weight * gradient`, here; the objective's numbers, without their graph.

        Args:
            weight: scales the gradient.
            counts: false for a first pass, whose measurements nobody observes.
        """
        with running(counts=counts):
            found = evaluate(self.objective, self.owner, pair=self.pair)
            times: float | Tensor = 0.0
            if not counts and found.paired:
                weight = float(self.sign)
            is_wanted = self.wanted if counts else self.ahead
            if is_wanted is None or is_wanted(found):
                given = self.backward, self.params, self.owner
                times = gradients.differentiate(found.loss, weight, *given)
            else:
                self.is_over = not counts
        return Evaluation(found.loss.detach(), found.value.detach(), found.paired, times)


class ObjectiveOptimizer(Wrapper):
    """A wrapper of one optimizer that takes gradients of objectives at a point of its own choosing.

    `sign` is +1 if the objective is higher there, -1 if it is lower; `uses` counts those of the
    latest way there.
    """

    sign: ClassVar[int]
    base: Optimizer
    uses: int
    _scratch: dict[Tensor, Tensor]

    @property
    def _bases(self) -> Mapping[str, Optimizer]:
        return {"base": self.base}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The base optimizer's groups: the same list, not a copy."""
        return self.base.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.base.param_groups = groups

    @property
    def state(self) -> defaultdict[Tensor, Any]:
        """The base optimizer's state."""
        return self.base.state

    @state.setter
    def state(self, state: defaultdict[Tensor, Any]) -> None:
        self.base.state = state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base optimizer; its `"rho"`, if any, is its own radius."""
        self.base.add_param_group(param_group)

    def share_memory(self, other: "ObjectiveOptimizer") -> None:
        """Keep copies of theta where another one does that never perturbs at the same time."""
        self._scratch = other._scratch

    @abstractmethod
    def renew(self) -> None:
        """Forget the point that was chosen: the next gradient is taken at one found anew."""

    @abstractmethod
    def accumulate(
        self,
        objective: Objective,
        weight: float,
        backward: Backward | None,
        *,
        pair: bool = False,
        wanted: Ask | None = None,
        ahead: Ask | None = None,
    ) -> Evaluation:
        """`.grad += weight * gradient` at that point, if wanted; the objective's numbers there.

        They are those at theta, and that is all, if `ahead` does not want the way to that point.
        """

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied optimizer."""
        self._scratch = {}
        super().__setstate__(state)


def innermost(optimizer: Optimizer) -> Optimizer:
    """Find the optimizer that has the state, whose `step` needs no perturbed gradient."""
    return optimizer.base if isinstance(optimizer, ObjectiveOptimizer) else optimizer


@contextmanager
def placed(sentence: str) -> Iterator[None]:
    """Add to any error where it happened and what was put back."""
    try:
        yield
    except BaseException as error:
        if sys.version_info >= (3, 11):  # Python 3.10 has no notes
            error.add_note(sentence)
        raise


def evaluate(objective: Objective, owner: str, *, pair: bool = False) -> Evaluation:
    """Run an objective with gradients enabled and check what it returns; see `Run`.

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
    paired = pair and isinstance(result, tuple) and len(result) == 2
    loss, value = result if paired else (result, result)
    if not (isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad):
        raise _no_loss(loss, owner)
    return Evaluation(loss, _number(value, owner) if paired else loss, paired)


def _no_loss(found: object, owner: str) -> TypeError | ValueError:
    """Say why something cannot be differentiated."""
    if not isinstance(found, Tensor):
        return TypeError(
            f"{owner}: the objective returned {type(found).__name__}, which has no gradient. "
            "Did you mean to return the loss tensor (not `.item()`, and without calling backward)?"
        )
    if found.numel() != 1:
        return ValueError(
            f"{owner}: the objective returned a tensor of shape {tuple(found.shape)}; only a "
            "scalar has a gradient. Did you forget `.mean()`?"
        )
    return ValueError(
        f"{owner}: the objective returned a loss without a graph, so its gradient would be "
        "missing. Was it detached, or are all parameters frozen?"
    )


def _number(value: object, owner: str) -> Tensor:
    """Convert the measured value of a pair to a 0-dim tensor."""
    exact = torch.float64 if isinstance(value, float) else None  # float32 would move it
    number = torch.as_tensor(value, dtype=exact)
    if number.numel() != 1:
        raise ValueError(
            f"{owner}: the objective returned a value of shape {tuple(number.shape)} beside its "
            "loss; a constraint here sees one number. Did you forget `.mean()`?"
        )
    return number
