"""States an optimizer would make, asked of a copy: the optimizer itself takes no step.

A step is the only way to learn them, and nothing of it can be taken back with certainty: step
counts may stand in groups or attributes, and weight decay need not depend on the rate.
"""

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torch_alm._optim import gradients
from torch_alm._optim.gradients import parameters
from torch_alm._optim.objective import innermost, replaying
from torch_alm._optim.steps import step_of


def fresh_state(
    optimizer: Optimizer, p: Tensor, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Find the state after a first step with a gradient of 0, taken by a copy that has p alone.

    Args:
        optimizer: the one to ask, or one around it; neither it nor the random state changes.
        p: one of its parameters.
        settings: takes the place of those of p's group, but for the parameters.

    Raises:
        Exception: whatever such a step or a copy of the optimizer's attributes raises.

    Cost: that of a step of p alone; a copy of p, its gradient and its state.
    """
    optimizer = innermost(optimizer)
    stand_in = nn.Parameter(p.detach().clone())
    gradients.put([stand_in], [torch.zeros_like(stand_in)])
    alone = _copied_with(optimizer, p, stand_in, settings or {})
    with _random_state_kept(p):
        for call in step_of(alone):
            call()
    return alone.state[stand_in]


@contextmanager
def _random_state_kept(p: Tensor) -> Iterator[None]:
    replay = replaying([p])
    try:
        yield
    finally:
        for call in replay:
            call()


def _copied_with(
    optimizer: Optimizer, p: Tensor, stand_in: Tensor, settings: Mapping[str, Any]
) -> Optimizer:
    """Copy with one group of one parameter, no states, and no reference to what moves."""
    # What is in the memo already is not copied: other parameters become empty ones.
    memo: dict[int, Any] = {id(q): nn.Parameter(torch.empty(0)) for q in parameters(optimizer)}
    memo[id(p)] = stand_in
    group = next(g for g in optimizer.param_groups if any(q is p for q in g["params"]))
    alone = copy.deepcopy({**group, **settings, "params": [p]}, memo)
    memo |= {id(group): alone, id(optimizer.param_groups): [alone]}
    return _copied(optimizer, memo)


def _copied(optimizer: Optimizer, memo: dict[int, Any]) -> Optimizer:
    """Copy all attributes (torch's own copies drop most) but hooks and a scheduler's patch."""
    copied = memo[id(optimizer)] = object.__new__(type(optimizer))
    memo[id(optimizer.state)] = defaultdict(dict)
    attributes = vars(optimizer)
    for part in attributes.values():
        if isinstance(part, Optimizer):  # optimizers around others
            _copied(part, memo)
    for name, value in attributes.items():
        if name.endswith("_hooks"):
            vars(copied)[name] = OrderedDict()
        elif name != "step":
            vars(copied)[name] = copy.deepcopy(value, memo)
    return copied
