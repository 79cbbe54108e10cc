"""The gate between the two sides of a `DualOptimizer`, and both sides as one optimizer."""

# pyright: reportPrivateUsage=false

import warnings
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn, SupportsIndex

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_alm._optim import gradients
from torch_alm._optim.gradients import Register, parameters
from torch_alm._optim.rounding import DROPPED
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


class Gate:
    """lambda+ of one step, decided once; and whether a released constraint is worth measuring.

    Attributes:
        idle: steps since the released constraint was measured; `None` while it is not released.
        known: what that measurement is about.
        measures: whether the step that was begun measures, in all of its micro-batches.
        is_decided: whether its latest backward was said to be the last.
        is_skipped: whether that left its gradient out, for lambda+ was 0.
        has_mu: whether there was a mu when it began; "auto" has none before the first gradient.
    """

    def __init__(self) -> None:
        self.idle: int | None = None
        self.known: list[Any] = []
        self.measures, self.is_decided, self.is_skipped, self.has_mu = True, False, False, True

    def begin(self, constraint: ALMConstraint | None, probe_every: int) -> None:
        """Begin a step; a pause ends if what was measured is not the constraint of now."""
        if self.idle is not None and signature(constraint) != self.known:
            self.idle = None
        self.measures = self.idle is None or self.idle + 1 >= probe_every
        self.is_decided = self.is_skipped = False
        self.has_mu = constraint is None or float(constraint._state.mu) > 0

    def commit(self, constraint: ALMConstraint | None) -> float:
        """lambda <- lambda+ of the step that was begun; returns it, 0 if nothing was measured."""
        if not self.measures:
            self.idle = (self.idle or 0) + 1
            return 0.0
        if constraint is None:
            return 1.0
        if self.is_skipped and float(constraint.preview()) != 0:
            constraint.discard()
            raise RuntimeError(
                "DualOptimizer.step: lambda+ was 0 in `backward(last=True)`, which skipped the "
                "forget gradient, and is not 0 any more. Were alpha, mu or lambda assigned in "
                "between? Assign them before the step; this one can be begun again (`zero_grad()`)."
            )
        weight = float(constraint.step())
        is_released = weight == 0 and float(constraint.multiplier) == 0 and self.has_mu
        self.idle, self.known = (0, signature(constraint)) if is_released else (None, [])
        return weight

    def state(self) -> dict[str, Any]:
        """Collect what a resumed run needs."""
        return {"idle": self.idle, "known": self.known[1:]}

    def load(self, state: dict[str, Any], constraint: ALMConstraint | None) -> None:
        """Restore `state()`; a checkpoint without it measures at once."""
        self.idle, self.known = state.get("idle"), [constraint, *state.get("known", [])]


def signature(constraint: ALMConstraint | None) -> list[Any]:
    """Collect what makes a released constraint another one, or one that is not released."""
    if constraint is None:
        return []
    numbers = map(float, (constraint.alpha, constraint.mu, constraint.multiplier))
    return [constraint, *numbers, constraint.sense, constraint.steps]


class GroupSettings(MutableMapping[str, Any]):
    """The live settings of a group, whose tensors another group lists."""

    def __init__(self, group: dict[str, Any]) -> None:
        self._group = group

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401  # as in a group
        return [] if name == "params" else self._group[name]

    def __setitem__(self, name: str, value: object) -> None:
        if name != "params":  # see `Sides._follow`
            self._group[name] = value

    def __delitem__(self, name: str) -> None:
        del self._group[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._group)

    def __len__(self) -> int:
        return len(self._group)

    def __repr__(self) -> str:
        return repr(dict(self))


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
    _retain_times: float | Tensor = 0.0  # how many times grad L_r is in `.grad`
    _listed: Sequence[Tensor] = ()  # the parameters of the retain side when they were checked

    def __init__(self, retain: Optimizer, forget: Optimizer, probe_every: SupportsIndex) -> None:
        self.retain = check_base(retain, "DualOptimizer", (SharpnessAware,))
        self.forget = check_base(forget, "DualOptimizer", (SharpnessAware,))
        both = (self.retain, self.forget)
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
        before, now = self._listed, parameters(self.retain)
        old, new = ([p for p in a if p not in b] for a, b in ((before, {*now}), (now, {*before})))
        if len(old) == len(new) > 0:
            replaced = dict(zip(old, new, strict=True))
            for group in self.forget.param_groups:
                group["params"] = [replaced.get(p, p) for p in group["params"]]
        self._listed = now

    def _check(self) -> None:
        self._follow()
        for side in self._bases.values():
            check_groups(side, "DualOptimizer")
            check_descends(side, "DualOptimizer")
        check_sides(self.retain, self.forget)
        super()._check()

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

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear both gradients, and what the constraint observed while they were taken."""
        if set_to_none:
            gradients.clear(parameters(self.retain))
        else:
            super().zero_grad(set_to_none=False)
        if self._forget_register is not None and self.constraint is not None:
            self.constraint.discard()
        self._forget_register = None

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
        self._retain_times = self._retain_times * factors[0]
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

    def _keep_sign(self, sign: int) -> None:
        if self._forget_register is not None and sign != self._forget_sign:
            raise ValueError(
                "DualOptimizer.backward: within one step the forget objective returned a pair "
                "`(loss, value)` once and a single value once, whose gradients have opposite "
                "signs. Did you mean the same form for every micro-batch?"
            )
        self._forget_sign = sign

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
        share = falls / (float(self._times) or 1.0)
        gradient = {p: g * share for p, g in zip(params, g_f, strict=True) if g is not None}
        scale = float(self._retain_times) or 1.0
        rest = {p: p.grad / scale for p in params if p.grad is not None}
        constraint._calibrate(self.forget, gradient, rest)

    def _awaits_step(self) -> bool:
        return self._forget_register is not None

    def __repr__(self) -> str:
        return (
            f"DualOptimizer(scale={self.scale!r}, constraint={self.constraint!r},\n"
            f"retain={self.retain!r},\nforget={self.forget!r})"
        )

    def _refuse(self, closure: object) -> None:
        if closure is not None:
            raise TypeError(
                "DualOptimizer.step takes no closure: it could not say which side it "
                "differentiates. Did you mean `backward(retain=..., forget=...)` and then `step()`?"
            )
        del self.grad_scale, self.found_inf
        raise RuntimeError(
            "DualOptimizer.step was called by a GradScaler, which unscales the retain gradient "
            "only; the forget gradient would keep its loss scale. Did you mean bfloat16 autocast, "
            "which needs no scaler?"
        )

    def _refuse_observed(self) -> NoReturn:
        raise ValueError(
            "DualOptimizer.backward: an objective called the constraint, which the optimizer does: "
            "lambda+ would act twice, or on its own penalty. Did you mean `forget=lambda: "
            "measure(model, batch)`?"
        )

    def _watch_swallowed(self, theta: list[Tensor], start: list[Tensor]) -> None:
        """Warn, once, if narrow weights hold nothing of a multiplied step; until one moves."""
        if self._has_moved or not any(t.dtype in DROPPED for t in theta):
            return
        if all(map(torch.equal, theta, start)):
            warnings.warn(
                'DualOptimizer.step: the weights\' dtype swallows the forget step (scale="step"). '
                "Did you mean float32 weights under bfloat16 autocast, or a higher rate?",
                stacklevel=7,
            )
        self._has_moved = True

    def _warn_skipped(self) -> None:
        """Warn after the step, so that a warning that is an error finds it whole."""
        self.skipped += 1
        warnings.warn(
            "DualOptimizer.step: the forget gradient is not finite, or is not once lambda+ "
            "multiplies it, and would have reached theta; the forget step is skipped "
            f"({self.skipped} so far). Is the forget loss unbounded, or mu too large?",
            stacklevel=6,
        )

    def _warn_no_backward(self) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            "DualOptimizer.step() without a backward since the last step is a plain "
            f"{type(self.retain).__name__} step; the constraint is left alone. Did you call "
            "`backward(retain=..., forget=...)` first?",
            stacklevel=7,
        )
        if isinstance(self.retain, Wrapper):
            self.retain._has_warned = True  # SAM has nothing to add to this


def check_sides(retain: Optimizer, forget: Optimizer) -> None:
    """Raise if they are one optimizer, would move different weights, or the wrong way."""
    if isinstance(retain, SharpnessAware) and retain._sign < 0:
        raise ValueError(
            "DualOptimizer: the retain side is ReverseSAM, which would look where the retain loss "
            "is lowest. Did you mean `retain=SAM(...)`, and ReverseSAM for the forget side?"
        )
    if find_stateful(retain) is find_stateful(forget):
        raise ValueError(
            "DualOptimizer: retain and forget are one optimizer, whose moments would mix both "
            "gradients. Did you mean a second one over the same parameters?"
        )
    first, second = (parameters(side) for side in (retain, forget))
    if {*first} != {*second}:
        raise ValueError(
            f"DualOptimizer: retain has {len(first)} parameters and forget {len(second)}, of "
            f"which {len({*first} & {*second})} are the same; the two sides would move different "
            "weights. Did you pass the same parameters to both (a generator is empty the second "
            "time)?"
        )


def check_constraint(constraint: object, forget: Optimizer, scale: str) -> None:
    """Raise if it is none, or not for this scale, or the forget side helps it to be met."""
    if constraint is not None and not isinstance(constraint, ALMConstraint):
        raise TypeError(
            f"DualOptimizer: the constraint is {type(constraint).__name__}, which has no one "
            "multiplier to weigh the forget gradient with. Did you mean one `ALMConstraint`? (A "
            "group acts in the loss: `retain=lambda: loss() + group(...)`.)"
        )
    if constraint is not None and constraint._shape.numel() > 1:
        raise ValueError(
            f"DualOptimizer: the constraint has {constraint._shape.numel()} multipliers, and one "
            "weighs the forget gradient. Did you mean one number for alpha? (A vector acts in the "
            "loss: `retain=lambda: loss() + constraint(...)`.)"
        )
    if constraint is not None and constraint._state.auto is not None and scale == "step":
        raise ValueError(
            'DualOptimizer: mu="auto" finds what a gradient is multiplied by, and scale="step" '
            "multiplies a finished step. Did you mean a number, such as mu=0.1?"
        )
    sense = ">=" if constraint is None else constraint._sense
    fitting = {">=": -1, "<=": +1, "==": 0}[sense]
    if isinstance(forget, SharpnessAware) and forget._sign != fitting:
        side = {-1: "ReverseSAM or a plain optimizer", +1: "SAM or a plain optimizer"}
        raise ValueError(
            f'DualOptimizer: the constraint\'s sense is "{sense}" and the forget side is '
            f"{type(forget).__name__}, which would look where the constraint is easiest "
            f"to meet. Did you mean {side.get(fitting, 'a plain optimizer')}?"
        )
