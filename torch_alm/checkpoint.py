"""Checkpoints of a DualOptimizer through `torch.distributed.checkpoint`.

Not imported by `torch_alm`: the machinery behind it is heavy.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer

from torch_alm import _gradients as gradients
from torch_alm import _wrapper as wrapper
from torch_alm.dual import DualOptimizer
from torch_alm.sam import SAM, ReverseSAM


class DualState(Stateful):
    """What `torch.distributed.checkpoint` saves and loads of a `DualOptimizer`.

    It keys state by parameter name, so that a checkpoint fits any number of ranks; both sides of a
    `DualOptimizer` have the same names, and given together one would get the other's moments. Here
    they are saved apart. Parameters that never took a step are saved as such: saving changes
    nothing in the training that follows, and neither does loading.

    Args:
        model: the model, wrapped as it is trained (DDP, `fully_shard`, plain).
        optimizer: the optimizer over its parameters.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> sides = [torch.optim.AdamW(model.parameters()) for _ in range(2)]
        >>> state = {"model": model, "optimizer": DualState(model, DualOptimizer(*sides))}
        >>> sorted(state["optimizer"].state_dict())  # for torch.distributed.checkpoint.save
        ['forget', 'rest', 'retain']
        >>> sides[0].state  # still without a step
        defaultdict(<class 'dict'>, {})
    """

    def __init__(self, model: nn.Module, optimizer: DualOptimizer) -> None:
        """Bind the two; nothing is read yet."""
        self.model, self.optimizer = model, optimizer

    @property
    def _sides(self) -> dict[str, Optimizer]:
        sides = {"retain": self.optimizer.retain, "forget": self.optimizer.forget}
        return {name: _innermost(side) for name, side in sides.items()}

    def state_dict(self) -> dict[str, Any]:
        """Both sides by parameter name, and the rest as bytes.

        Cost: for parameters that never took a step, the memory their moments would have.
        """
        stepped = {name: {*side.state} for name, side in self._sides.items()}
        named: dict[str, Any] = {}
        for name, side in self._sides.items():
            with _complete(side):
                named[name] = get_optimizer_state_dict(self.model, side)
        rest = {
            "control": self.optimizer.control_state_dict(),
            "stepped": {
                name: [fqn for fqn, p in _names(named[name], side) if p in stepped[name]]
                for name, side in self._sides.items()
            },
        }
        return {**named, "rest": _packed(rest)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore both sides, and the constraint where there is one."""
        rest = _unpacked(state_dict["rest"])
        self.optimizer.load_control_state_dict(rest["control"])
        for name, side in self._sides.items():
            named = state_dict[name]
            with _complete(side, keep=True):
                set_optimizer_state_dict(self.model, side, named)
            for fqn, p in _names(named, side):
                if fqn not in rest["stepped"][name]:
                    side.state.pop(p, None)


def _innermost(side: Optimizer) -> Optimizer:
    """The optimizer that has the state, whose `step` needs no perturbed gradient."""
    while isinstance(side, (SAM, ReverseSAM)):
        side = side.base
    return side


def _names(named: dict[str, Any], side: Optimizer) -> list[tuple[str, Tensor]]:
    """Parameter names beside parameters."""
    groups = zip(named["param_groups"], side.param_groups, strict=True)
    return [pair for a, b in groups for pair in zip(a["params"], b["params"], strict=True)]


@contextmanager
def _complete(side: Optimizer, *, keep: bool = False) -> Iterator[None]:
    """Inside, every trainable parameter has a state, a fresh one if it never took a step.

    A name that one run has and another lacks cannot be loaded. torch itself would take this step
    for an optimizer that never stepped, and leave it behind, counted.
    """
    missing = [p for p in wrapper.parameters(side) if p.requires_grad and p not in side.state]
    if missing:
        _initialise(side, missing)
    try:
        yield
    finally:
        for p in [] if keep else missing:
            side.state.pop(p, None)


def _initialise(side: Optimizer, missing: list[Tensor]) -> None:
    """A step of length 0 with gradients of 0, for parameters without a state; hooks do not run."""
    params = wrapper.parameters(side)
    grads, rates = gradients.read(params), [group.get("lr") for group in side.param_groups]
    chosen = {*missing}
    gradients.put(params, [torch.zeros_like(p) if p in chosen else None for p in params])
    for group, rate in zip(side.param_groups, rates, strict=True):
        if rate is not None:
            group["lr"] = torch.zeros_like(rate) if isinstance(rate, Tensor) else 0.0
    try:
        side.step()
    finally:
        gradients.put(params, grads)
        for group, rate in zip(side.param_groups, rates, strict=True):
            if rate is not None:
                group["lr"] = rate


def _packed(rest: dict[str, Any]) -> bytes:
    """One leaf, whatever is in it: lists that grow would not match those of a fresh run."""
    buffer = io.BytesIO()
    torch.save(rest, buffer)
    return buffer.getvalue()


def _unpacked(packed: bytes) -> dict[str, Any]:
    return torch.load(io.BytesIO(packed), weights_only=True)
