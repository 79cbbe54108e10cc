"""States an optimizer would make, asked of a twin: the optimizer itself takes no step.

A step is the only way to learn them, and nothing of it can be taken back with certainty: step
counts may stand in groups or attributes, and weight decay need not depend on the rate.
"""

import copy
import random
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torch_alm import _gradients as gradients
from torch_alm import _wrapper as wrapper
from torch_alm._passes import RandomState
from torch_alm._steps import step_of


def fresh_state(
    optimizer: Optimizer, p: Tensor, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The state after a first step with a gradient of 0, taken by a twin with a copy of p alone.

    Args:
        optimizer: the one to ask, or one around it; neither it nor the random state changes.
        p: one of its parameters.
        settings: takes the place of those of p's group, but for the parameters.

    Raises:
        Exception: whatever such a step or a copy of the optimizer's attributes raises.

    Cost: that of a step of p alone; a copy of p, its gradient and its state.
    """
    optimizer = wrapper.innermost(optimizer)
    stand_in = nn.Parameter(p.detach().clone())
    gradients.put([stand_in], [torch.zeros_like(stand_in)])
    twin = _twin(optimizer, p, stand_in, settings or {})
    with _random_state_kept(p):
        for call in step_of(twin):
            call()
    return twin.state[stand_in]


@contextmanager
def _random_state_kept(p: Tensor) -> Iterator[None]:
    """torch's, Python's, and NumPy's where somebody has imported it."""
    numpy = sys.modules.get("numpy")
    drawn, python_drawn = RandomState([p]), random.getstate()
    numpy_drawn = None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        drawn.replay()
        random.setstate(python_drawn)
        if numpy is not None:
            numpy.random.set_state(numpy_drawn)


def _twin(
    optimizer: Optimizer, p: Tensor, stand_in: Tensor, settings: Mapping[str, Any]
) -> Optimizer:
    """A copy that has one group of one parameter, no states, and no reference to what moves."""
    # What is in the memo already is not copied: other parameters become empty ones.
    memo: dict[int, Any] = {
        id(q): nn.Parameter(torch.empty(0)) for q in wrapper.parameters(optimizer)
    }
    memo[id(p)] = stand_in
    group = next(g for g in optimizer.param_groups if any(q is p for q in g["params"]))
    alone = copy.deepcopy({**group, **settings, "params": [p]}, memo)
    memo |= {id(group): alone, id(optimizer.param_groups): [alone]}
    return _copied(optimizer, memo)


def _copied(optimizer: Optimizer, memo: dict[int, Any]) -> Optimizer:
    """All attributes (torch's own copies drop most) but hooks and a scheduler's patch of `step`."""
    twin = memo[id(optimizer)] = object.__new__(type(optimizer))
    memo[id(optimizer.state)] = defaultdict(dict)
    attributes = vars(optimizer)
    for part in attributes.values():
        if isinstance(part, Optimizer):  # optimizers around others
            _copied(part, memo)
    for name, value in attributes.items():
        if name.endswith("_hooks"):
            vars(twin)[name] = OrderedDict()
        elif name != "step":
            vars(twin)[name] = copy.deepcopy(value, memo)
    return twin
