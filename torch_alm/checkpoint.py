"""Checkpoints of a DualOptimizer, or of constraints, through `torch.distributed.checkpoint`.

Not imported by `torch_alm`: the machinery behind it is heavy.
"""

# pyright: reportPrivateUsage=false

import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer

from torch_alm._optim import gradients
from torch_alm._optim.gradients import parameters
from torch_alm._optim.objective import make_replay
from torch_alm._optim.wrapper import find_stateful
from torch_alm.constraint import ALMConstraint
from torch_alm.dual import DualOptimizer
from torch_alm.group import ConstraintGroup


class DualState(Stateful):
    """The state of a `DualOptimizer` that `torch.distributed.checkpoint` saves and loads.

    It keys state by parameter name, so that a checkpoint fits any number of ranks; given together,
    one side would get the other's moments, so they are saved apart. Parameters that never took a
    step are saved as such, with the state that a step of a copy makes. Groups are found by
    the names in them, whatever their order.

    Args:
        model: the model, wrapped as it is trained (DDP, `fully_shard`, plain).
        optimizer: the optimizer over its parameters.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> sides = [torch.optim.AdamW(model.parameters()) for _ in range(2)]
        >>> optimizer = DualState(model, DualOptimizer(*sides))
        >>> state = {"model": model, "optimizer": optimizer}  # what `save` takes
        >>> sorted(optimizer.state_dict())
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
        return {name: find_stateful(side) for name, side in sides.items()}

    def state_dict(self) -> dict[str, Any]:
        """Collect both sides by parameter name, and the rest as bytes.

        Raises:
            RuntimeError: the optimizer of parameters that never took a step cannot be asked what
                their state would be, or holds another one.

        Cost: for parameters that never took a step, the memory their moments would have, and a step
        of a copy of each.
        """
        named = {name: _state_by_name(self.model, side) for name, side in self._sides.items()}
        stepped = {  # those with a state; an empty one may come of having been looked at
            name: {
                fqn: [*named[name]["state"].get(fqn, ())]
                for fqn, p in _names(named[name], side)
                if side.state.get(p)
            }
            for name, side in self._sides.items()
        }
        rest = {"control": self.optimizer._control_state_dict(), "stepped": stepped}
        return {**named, "rest": _pack(rest)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore both sides, and the constraint where there is one.

        Raises:
            ValueError: if only one of the two has a constraint, parameters that share a group here
                did not where this was saved, or some state was saved that could not be foreseen,
                and so was not read. Nothing is loaded then.
        """
        rest = _unpack(state_dict["rest"])
        names, ordered = dict[str, Any](), dict[str, Any]()
        for name, side in self._sides.items():
            named = get_optimizer_state_dict(self.model, _StaticOptimizer(side))
            names[name] = _names(named, side)
            ordered[name] = _reorder(state_dict[name], names[name], side)
            _check_read(rest["stepped"][name], state_dict[name]["state"])
        self.optimizer._load_control_state_dict(rest["control"])
        for name, side in self._sides.items():
            with _thaw(side):
                set_optimizer_state_dict(self.model, _StaticOptimizer(side), ordered[name])
            for fqn, p in names[name]:
                if fqn not in rest["stepped"][name]:
                    side.state.pop(p, None)


class ConstraintState(Stateful):
    """The state of a constraint in the loss that `torch.distributed.checkpoint` saves and loads.

    It is the same on all ranks, and one leaf: what filters, rules and a vector's multipliers keep
    is not there yet in a fresh constraint, and what is not there is not loaded. The constraint of a
    `DualOptimizer` is in its `DualState`.

    Args:
        constraint: a constraint or a group of them.

    Example:
        >>> constraint = ALMConstraint(None, alpha=1.0, mu=0.5)
        >>> state = {"constraint": ConstraintState(constraint)}  # what `save` takes
    """

    def __init__(self, constraint: ALMConstraint | ConstraintGroup) -> None:
        """Bind it; nothing is read yet."""
        self.constraint = constraint

    def state_dict(self) -> dict[str, Any]:
        """Collect its state as bytes."""
        return {"packed": _pack(self.constraint.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it.

        Raises:
            ValueError: as `ALMConstraint.load_state_dict`; nothing is loaded then.
        """
        self.constraint.load_state_dict(_unpack(state_dict["packed"]))


def _pack(state: dict[str, Any]) -> bytes:
    """Put a state into one leaf: lists that grow would not match those of a fresh run."""
    packed = BytesIO()
    torch.save(state, packed)
    return packed.getvalue()


def _unpack(packed: bytes) -> dict[str, Any]:
    return torch.load(BytesIO(packed), weights_only=True)


class _StaticOptimizer(Optimizer):
    """An optimizer as torch's functions are shown it: with a state already, and never stepping.

    They step an optimizer that has no state yet, to make one.
    """

    def __init__(self, side: Optimizer) -> None:
        self.side, self.param_groups = side, side.param_groups
        self.state = defaultdict(dict, {torch.empty(0): {}})

    def state_dict(self) -> dict[str, Any]:
        return self.side.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.side.load_state_dict(state_dict)


@contextmanager
def _thaw(side: Optimizer) -> Iterator[None]:
    """Let frozen parameters require gradients: torch's functions load no state of others."""
    frozen = [p for p in parameters(side) if not p.requires_grad and p.is_floating_point()]
    try:
        for p in frozen:
            p.requires_grad_()
        yield
    finally:
        for p in frozen:
            p.requires_grad_(False)


def _state_by_name(model: nn.Module, side: Optimizer) -> dict[str, Any]:
    """Collect state by parameter name, that of a first step where there is none.

    Groups are one leaf: a name that one run has and another lacks cannot be loaded, and neither
    can a setting.
    """
    # Frozen ones, too: a run that goes on from here may have frozen them earlier or later.
    missing = [p for p in parameters(side) if not side.state.get(p)]
    before = {p: side.state[p] for p in missing if p in side.state}
    fresh = {p: _fresh_state(side, p) for p in missing}
    side.state.update({p: state for p, state in fresh.items() if state})
    try:
        named = get_optimizer_state_dict(model, _StaticOptimizer(side))
    finally:
        for p in missing:
            side.state.pop(p, None)
        side.state.update(before)
    return {**named, "param_groups": tuple(named["param_groups"])}


def _fresh_state(side: Optimizer, p: Tensor) -> dict[str, Any]:
    """Find the state after a first step with a gradient of 0, which a copy of the optimizer takes.

    The copy has one group of one parameter, and no hooks; other attributes are the optimizer's own.
    """
    stand_in = nn.Parameter(p.detach().clone())
    gradients.put([stand_in], [torch.zeros_like(stand_in)])
    group = next(g for g in side.param_groups if any(q is p for q in g["params"]))
    alone, replay = object.__new__(type(side)), make_replay([p])
    vars(alone).update(vars(side), state=defaultdict[Any, Any](dict))
    alone.param_groups = [{**group, "params": [stand_in]}]
    try:
        if any(isinstance(part, Optimizer) for part in vars(side).values()):
            raise TypeError("it holds another optimizer, which would take a step")
        with torch.no_grad():
            inspect.unwrap(type(side).step)(alone)  # without anybody's hooks
    except Exception as error:
        raise RuntimeError(
            f"DualState: a copy of {type(side).__name__} could not step a parameter of shape "
            f"{tuple(p.shape)} with a gradient of 0 ({error}), so what to save or load for it is "
            "unknown. Did you mean `torch.save(optimizer.state_dict())`, which asks nothing?"
        ) from error
    finally:
        replay()
    return alone.state[stand_in]


def _names(named: Mapping[str, Any], side: Optimizer) -> list[tuple[str, Tensor]]:
    """Put names beside parameters, from what torch's functions say of this very optimizer."""
    groups = zip(named["param_groups"], side.param_groups, strict=True)
    return [pair for a, b in groups for pair in zip(a["params"], b["params"], strict=True)]


def _reorder(
    named: Mapping[str, Any], names: list[tuple[str, Tensor]], side: Optimizer
) -> dict[str, Any]:
    """Arrange what was saved by the groups as they stand here, found by name."""
    of = {fqn: i for i, group in enumerate(named["param_groups"]) for fqn in group["params"]}
    fqns = iter([fqn for fqn, _ in names])
    groups: list[dict[str, Any]] = []
    for here in side.param_groups:
        params = [next(fqns) for _ in here["params"]]
        found = {of.get(fqn) for fqn in params}
        if len(found) > 1 or None in found:
            raise ValueError(
                f"DualState.load_state_dict: {params} share a group here and did not where this "
                "was saved; some would get the settings of others. Are the groups the same?"
            )
        saved = [named["param_groups"][i] for i in found if i is not None]
        groups.append({**(saved[0] if saved else here), "params": params})
    return {**named, "param_groups": groups}


def _check_read(saved: Mapping[str, list[str]], found: Mapping[str, Any]) -> None:
    """Raise if a checkpoint has more than was asked of it, which is what a copy's step made."""
    unread = {fqn: lost for fqn, keys in saved.items() if (lost := {*keys} - {*found.get(fqn, {})})}
    if unread:
        fqn, lost = next(iter(unread.items()))
        raise ValueError(
            f"DualState.load_state_dict: {sorted(lost)} of {fqn!r} was saved and not read, since "
            f"a first step makes none (so for {len(unread)} parameters); training would go on "
            "without. Did you mean `torch.save(optimizer.state_dict())`, which foresees nothing?"
        )
