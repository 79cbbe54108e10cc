"""Both sides of a `DualOptimizer` as one optimizer: groups, states and checkpoints."""

# pyright: reportPrivateUsage=false

from collections import UserDict
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, SupportsIndex

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_alm._dual.checks import check_constraint, check_sides
from torch_alm._dual.gate import Gate
from torch_alm._optim import gradients
from torch_alm._optim.gradients import Register, parameters
from torch_alm._optim.wrapper import (
    Wrapper,
    check_base,
    check_count,
    check_descends,
    check_groups,
    check_sizes,
    find_stateful,
)
from torch_alm.constraint import ALMConstraint
from torch_alm.perturb import Direction
from torch_alm.sam import SharpnessAware


class GroupSettings(UserDict[str, Any]):
    """The live settings of a group, whose tensors another group lists."""

    def __init__(self, group: dict[str, Any]) -> None:
        self.data = group

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401  # as in a group
        return [] if name == "params" else self.data[name]

    def __setitem__(self, name: str, value: object) -> None:
        if name != "params":  # see `PairedWrapper._follow`
            self.data[name] = value


class Norms(NamedTuple):
    """Gradient norms of both sides before clipping."""

    retain: Tensor
    forget: Tensor


class PairedWrapper(Wrapper):
    """Two optimizers over one theta as the world sees them: groups, states and checkpoints."""

    constraint: ALMConstraint | None
    scale: Literal["gradient", "step"]
    _forget_register: dict[Tensor, Tensor | None] | None = None
    _forget_sign = 0  # +1 if it is descended, -1 if it is climbed
    _times: float | Tensor = 0.0  # how many times grad F is in that register
    _has_moved = False  # whether narrow weights were seen to hold a multiplied step
    _listed: list[Tensor]  # the parameters, as they were when they were checked

    def __init__(self, retain: Optimizer, forget: Optimizer, probe_every: SupportsIndex) -> None:
        self.retain = check_base(retain, "DualOptimizer", (SharpnessAware,))
        self.forget = check_base(forget, "DualOptimizer", (SharpnessAware,))
        both = (self.retain, self.forget)
        self._stateful, self._listed = [*map(find_stateful, both)], list[Tensor]()
        self._sharp = [side for side in both if isinstance(side, SharpnessAware)]
        self._check()
        self.skipped = 0
        self.probe_every = check_count(probe_every, "DualOptimizer: probe_every")
        self._gate = Gate()
        self._adopt()

    @property
    def _bases(self) -> Mapping[str, Optimizer]:
        return {"retain": self.retain, "forget": self.forget}

    @property
    def defaults(self) -> dict[str, Any]:
        """Defaults of the retain side that the forget side has, too: schedules set both."""
        first, second = self.retain.defaults, self.forget.defaults
        if first.keys() <= second.keys():
            return first
        return {name: value for name, value in first.items() if name in second}

    def _follow(self) -> None:
        """Give the forget side the tensors that took the place of the retain side's in its groups.

        accelerate puts sharded ones there (FSDP2, tensor parallelism).
        """
        before, now = self._listed, parameters(self._stateful[0])
        old, new = ([p for p in a if p not in b] for a, b in ((before, {*now}), (now, {*before})))
        if len(old) == len(new) > 0:
            replaced = dict(zip(old, new, strict=True))
            for group in self._stateful[1].param_groups:
                group["params"] = [replaced.get(p, p) for p in group["params"]]
        self._listed = now

    def _check(self) -> None:
        self._follow()
        for side in self._bases.values():
            check_groups(side, "DualOptimizer")
            check_descends(side, "DualOptimizer")
        check_sides(self.retain, self.forget)
        super()._check()

    def _check_constraint(self) -> None:
        check_constraint(self.constraint, self.forget, self.scale)
        self._fitting = constraint, _ = self.constraint, self.scale
        self._is_lowered = constraint is not None and constraint.sense == "<="
        self._finds_mu = constraint is not None and "auto" in constraint.state_dict()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of both sides, retain first, in a new list; each tensor is in one of them.

        The forget side's show its settings, which may be assigned, and none of its tensors: whoever
        clips, unscales, decays or counts over groups meets each once, with the retain gradient.
        """
        settings: list[Any] = [GroupSettings(group) for group in self.forget.param_groups]
        return [*self.retain.param_groups, *settings]

    @property
    def state(self) -> dict[str, Any]:
        """The states of both sides by name, those that have any."""
        return {name: base.state for name, base in self._bases.items() if base.state}

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> Norms:
        """Clip each side to `max_norm` on its own; returns both norms before clipping.

        `torch.nn.utils.clip_grad_norm_` (and a Trainer's `max_grad_norm`) reaches the retain side
        only. The forget side is clipped before lambda+ multiplies it.
        """
        g_r = gradients.read(parameters(self.retain))
        sides = (g_r, [*(self._forget_register or {}).values()])
        norms = Norms(*map(gradients.norm, sides))
        factors = [(max_norm / (norm + 1e-6)).clamp(max=1.0) for norm in norms]
        for register, factor in zip(sides, factors, strict=True):
            gradients.scale_(register, factor)
        self._times = self._times * factors[1]
        return norms

    def _control_state_dict(self) -> dict[str, Any]:
        """Collect all but the states of the two sides: the constraint's, the gate's, the count."""
        constraint = None if self.constraint is None else self.constraint.state_dict()
        gate = {} if self.probe_every == 1 else self._gate.state()
        other = {"gate": gate, "skipped": self.skipped}
        return {"constraint": constraint, **{key: found for key, found in other.items() if found}}

    def _load_control_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore `_control_state_dict()`; a step that was begun is dropped on the forget side."""
        if (state_dict["constraint"] is None) != (self.constraint is None):
            raise ValueError(
                "DualOptimizer.load_state_dict: only one of the checkpoint and this optimizer has "
                "a constraint; the multiplier would be lost. Was it saved by Dual AdamW?"
            )
        if self.constraint is not None:
            self.constraint.load_state_dict(state_dict["constraint"])
        for side in self._sharp:
            side.direction = Direction()  # a delta found along another way
        self._gate.load(state_dict.get("gate", {}), self.constraint)
        self._forget_register = None  # nobody could step on it: its measurement is dropped, too
        self.skipped = state_dict.get("skipped", 0)

    def _state_dict(self) -> dict[str, Any]:
        sides = {name: base.state_dict() for name, base in self._bases.items()}
        return {**sides, **self._control_state_dict()}

    def _load_state_dict(self, state_dict: dict[str, Any]) -> None:
        expected = {*self._bases, "constraint"}
        if {*state_dict} - {"gate", "skipped"} != expected:
            raise ValueError(
                f"DualOptimizer.load_state_dict found the keys {sorted(state_dict)} and needs "
                f"{sorted(expected)}; one side's moments would be lost. Is it the checkpoint of a "
                "single optimizer?"
            )
        for name, base in self._bases.items():
            check_sizes(base, state_dict[name], f"DualOptimizer.load_state_dict: {name}")
        self._load_control_state_dict(state_dict)
        for name, base in self._bases.items():
            base.load_state_dict(state_dict[name])

    def _calibrate(self, constraint: ALMConstraint, g_f: Register) -> None:
        """Show a constraint that finds its mu grad F, and the retain gradient beside it."""
        params = parameters(self.retain)
        if any(map(gradients.is_sharded, params)):
            raise RuntimeError(
                'DualOptimizer: mu="auto" found sharded parameters, of which each rank sees a '
                "part. Did you mean a number, such as mu=0.1?"
            )
        # A pair's loss stands for the violation, which falls where F rises.
        falls = -self._forget_sign if constraint.sense == ">=" else self._forget_sign
        times = float(self._times) or 1.0
        gradient = {p: g * falls / times for p, g in zip(params, g_f, strict=True) if g is not None}
        rest = {p: p.grad for p in params if p.grad is not None}
        constraint._calibrate(self.forget, gradient, rest, times)

    def _awaits_step(self) -> bool:
        return self._forget_register is not None

    def __repr__(self) -> str:
        return (
            f"DualOptimizer(scale={self.scale!r}, constraint={self.constraint!r},\n"
            f"retain={self.retain!r},\nforget={self.forget!r})"
        )
