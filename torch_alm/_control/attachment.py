"""One update per step that an optimizer really takes."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torch_alm import _skips as skips
from torch_alm._control.observations import Observations


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
        step: Callable[[], Any],
        idle: Callable[[str], Any],
    ) -> None:
        """Call `step` after each step of the optimizer that had something observed, else `idle`."""
        self._observed, self.step, self._idle = observed, step, idle
        self._is_fresh = False
        self._optimizers = down_to_hooks(optimizer)
        for each in self._optimizers:
            skips.follow(each, self)
        self.stepping = stepping = self._optimizers[-1]
        handles = [
            stepping.register_step_pre_hook(self._before_step),
            stepping.register_step_post_hook(self._after_step),
        ]
        leaves = [p for group in stepping.param_groups for p in group["params"] if p.is_leaf]
        trained = [p for p in leaves if p.requires_grad]
        if trained:
            handles += _listen(trained[0], self)
            if observed.waiting is not None:  # the smallest: large ones may have idle rows
                observed.waiting.follow(min(trained, key=torch.numel), type(optimizer).__name__)
        self._unhook = weakref.finalize(self, _remove, handles)
        self._unhook.atexit = False

    def remove(self) -> None:
        """Take all hooks off."""
        self._unhook()
        for each in self._optimizers:
            skips.unfollow(each, self)

    def step_was_skipped(self) -> None:
        """A wrapper has left this optimizer's step out; so is the constraint's."""
        self._observed.drop()

    def before_gradient(self, parameter: Tensor) -> None:
        """A gradient is on its way."""
        self._is_fresh = parameter.grad is None

    def after_gradient(self) -> None:
        """It has arrived, unless `torch.autograd.grad` took it elsewhere."""
        if not any(map(skips.is_promised, self._optimizers)):
            self._observed.gradient_arrived(afresh=self._is_fresh)

    def _before_step(self, *_: Any) -> None:
        if self._observed.waiting is not None:
            self._observed.waiting.step_begins()

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if _was_skipped(optimizer):
            self._observed.drop()
            return
        self._observed.step_was_taken()
        if self._observed:
            self.step()
        else:
            self._idle(type(optimizer).__name__)


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
    """The optimizer and those inside it, down to the first whose step runs hooks.

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


def _listen(parameter: Tensor, attachment: Attachment) -> list[RemovableHandle]:
    """Notice gradients that start from nothing: see `Observations`.

    The first hook alone would also run in `torch.autograd.grad`, which leaves no gradient.
    """
    to, there = weakref.ref(attachment), weakref.ref(parameter)

    def before(_: Tensor) -> None:
        attached, leaf = to(), there()
        if attached is not None and leaf is not None:
            attached.before_gradient(leaf)

    def after(_: Tensor) -> None:
        attached = to()
        if attached is not None:
            attached.after_gradient()

    return [
        parameter.register_hook(before),
        parameter.register_post_accumulate_grad_hook(after),
    ]


def _remove(handles: Iterable[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def _was_skipped(optimizer: Optimizer) -> bool:
    """A loss scaler lets fused optimizers and wrappers skip a step themselves."""
    found_inf = getattr(optimizer, "found_inf", None)
    return isinstance(found_inf, Tensor) and found_inf.item() != 0
