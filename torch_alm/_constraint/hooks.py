"""Hooks on an optimizer: one update per step that it really takes, and a word if none ever comes.

Micro-batches pile up measurements at one theta, however many; what tells a forgotten step from
those is that theta moves on, or some optimizer steps, between them. It is looked for until the
first step only.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from torch_alm import _skips as skips
from torch_alm._constraint.observations import Observations
from torch_alm._optim.gradients import local, some

MOVES = 16  # times that theta was seen to have moved on, or steps without any measurement
PILE = 512  # measurements where nothing can be watched


class Removable(Protocol):
    """A hook, or something that stands for one."""

    def remove(self) -> None:
        """Take it off."""
        ...


class Calls(NamedTuple):
    """The functions of a constraint that hooks call.

    Attributes:
        follow: with the optimizer that is attached to; returns more hooks.
        prepare: with it before each of its steps.
        step: after each that had something observed.
        idle: with its name after each that had not.
        drop: for a step that is skipped.
    """

    follow: Callable[[Optimizer], Iterable[Removable]]
    prepare: Callable[[Optimizer], Any]
    step: Callable[[], Any]
    idle: Callable[[str], Any]
    drop: Callable[[], Any]


class Attachment:
    """A constraint's hooks on an optimizer; `remove()` takes them off.

    Attributes:
        step: called after each step that had something observed.
        stepping: the optimizer whose steps these are.

    The optimizer keeps it alive, through its step's hook. Hooks on parameters are kept by C++, out
    of sight of the garbage collector: those know it weakly, or no model would ever be freed.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        observed: Observations,
        waiting: "Waiting",
        calls: Calls,
    ) -> None:
        """Call `step` after each step of the optimizer that had something observed, else `idle`."""
        self._observed, self._waiting, self._calls = observed, waiting, calls
        self.step = calls.step
        self._optimizers = down_to_hooks(optimizer)
        for each in self._optimizers:
            skips.follow(each, self)
        self.stepping = stepping = self._optimizers[-1]
        handles = [
            stepping.register_step_pre_hook(self._before_step),
            stepping.register_step_post_hook(self._after_step),
            *calls.follow(stepping),
        ]
        leaves = [p for group in stepping.param_groups for p in group["params"] if p.is_leaf]
        trained = [p for p in leaves if p.requires_grad]
        if trained:
            # The smallest: large ones may have idle rows.
            waiting.follow(min(trained, key=torch.numel), type(optimizer).__name__)
        self._unhook = weakref.finalize(self, _remove, handles)
        self._unhook.atexit = False

    def remove(self) -> None:
        """Take all hooks off."""
        self._unhook()
        for each in self._optimizers:
            skips.unfollow(each, self)

    def step_was_skipped(self) -> None:
        """Drop what was observed: a wrapper has left this optimizer's step out."""
        self._calls.drop()

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        self._waiting.step_begins()
        self._calls.prepare(optimizer)

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if _was_skipped(optimizer):
            self._calls.drop()
            return
        if self._observed:
            self.step()
        else:
            self._calls.idle(type(optimizer).__name__)


class Attachments:
    """The attachments of several constraints, which step together; `remove()` takes all off."""

    def __init__(self, members: Mapping[str, Attachment], step: Callable[[list[str]], Any]) -> None:
        """Call `step` after each step of the optimizer with the names of those that are due."""
        self._members, self._step = members, step
        self._due: list[str] = []
        for name, each in members.items():
            each.step = partial(self._due.append, name)
        stepping = next(iter(members.values())).stepping
        self._handle = stepping.register_step_post_hook(self._after_step)

    def remove(self) -> None:
        """Take all hooks off."""
        self._handle.remove()
        for each in self._members.values():
            each.remove()

    def _after_step(self, *_: Any) -> None:
        due = self._due[:]
        self._due.clear()
        if due:
            self._step(due)


def down_to_hooks(optimizer: Optimizer) -> list[Optimizer]:
    """List the optimizer and those inside it, down to the first whose step runs hooks.

    A shell such as accelerate's is an `Optimizer` by its class alone: it was never initialised as
    one, and hands each step that is really taken on to its attribute `optimizer`.

    Raises:
        TypeError: if there is none.
    """
    found: Any = optimizer
    chain: list[Optimizer] = []
    while isinstance(found, Optimizer):
        chain.append(found)
        if "_optimizer_step_post_hooks" in vars(found):
            return chain
        found = vars(found).get("optimizer")
    raise TypeError(
        f"ALMConstraint.attach takes a torch.optim.Optimizer and found {type(optimizer).__name__}, "
        "which has no hooks for its steps. Did you mean the optimizer inside it?"
    )


def _remove(handles: Iterable[Removable]) -> None:
    for handle in handles:
        handle.remove()


def _was_skipped(optimizer: Optimizer) -> bool:
    """Tell whether a fused optimizer or a wrapper has left its step out for a loss scaler."""
    found_inf = getattr(optimizer, "found_inf", None)
    return isinstance(found_inf, Tensor) and found_inf.item() != 0


class Waiting:
    """A watch on a parameter, that of the attached optimizer or one that a measurement led to.

    And the steps of all optimizers in this thread, which may be of SAM, or of a measurement without
    a graph.
    """

    def __init__(self) -> None:
        self.owner = ""
        self._leaf: weakref.ref[Tensor] | None = None
        self._seen: tuple[int, Tensor] = (0, torch.empty(0))
        self._moves = 0
        self._idle = 0
        self._is_stepping = False
        self._steps: Steps | None = None
        self.is_over = False

    def __reduce__(self) -> tuple[type, tuple[()], dict[str, Any]]:
        """Let a copy watch anew: its parameters are others."""
        return Waiting, (), {"is_over": self.is_over}

    def follow(self, leaf: Tensor, owner: str = "") -> None:
        """Watch this parameter from now on."""
        if self.is_over:
            return
        self._leaf, self._seen, self.owner = weakref.ref(leaf), glimpse(leaf), owner

    def end(self) -> None:
        """Watch no longer: it is stepped, or it has been said."""
        self.is_over, self._steps = True, None

    def step_begins(self) -> None:
        """Note that the attached optimizer does step: its closures may measure at will."""
        self._is_stepping = True

    def step_was_blind(self) -> bool:
        """Count a step with nothing measured; tell whether it is time to say so."""
        self._idle += 1
        return self._idle == MOVES

    def measured(self, value: Tensor | None, count: int, *, is_in_pass: bool) -> bool:
        """Take in the newest of `count` measurements; tell whether to say that no step comes.

        Args:
            value: the newest, with its graph if it has one.
            count: measurements since the last step.
            is_in_pass: whether a perturbation has moved theta, of which the gradient then tells
                more: it is `None` for the first micro-batch only.
        """
        if self._is_stepping or self.is_over:
            return False
        if self._leaf is None and value is not None and (leaf := leaf_of(value)) is not None:
            self.follow(leaf)
        self._steps = self._steps or Steps()
        has_moved = self._steps.came()
        leaf = None if self._leaf is None else self._leaf()
        if leaf is not None and (not is_in_pass or leaf.grad is None):
            has_moved |= self._has_moved(leaf)
        self._moves += has_moved
        return self._moves >= MOVES or count >= PILE

    def _has_moved(self, leaf: Tensor) -> bool:
        """Compare with the last look; not every write in place raises the version."""
        before, self._seen = self._seen, glimpse(leaf)
        return before[0] != self._seen[0] or not torch.equal(before[1], self._seen[1])


class Steps:
    """Hears of optimizers' steps in the thread that made it, as long as it lives."""

    def __init__(self) -> None:
        here, heard = get_ident(), list[None]()

        def hear(*_: object) -> None:
            if get_ident() == here:
                heard.append(None)

        self._heard = heard
        weakref.finalize(self, register_optimizer_step_post_hook(hear).remove)

    def came(self) -> bool:
        """Tell whether there was one since the last time."""
        found = bool(self._heard)
        self._heard.clear()
        return found


def glimpse(leaf: Tensor) -> tuple[int, Tensor]:
    """Return how often a tensor was changed in place, and some of its entries."""
    return leaf._version, some(local(leaf))


def leaf_of(value: Tensor) -> Tensor | None:
    """Find a tensor without a history that the value depends on, such as a parameter."""
    nodes, seen = [value.grad_fn], set[object]()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        found = getattr(node, "variable", None)
        if isinstance(found, torch.Tensor):
            return found
        seen.add(node)
        nodes += [each for each, _ in node.next_functions]
    return None
