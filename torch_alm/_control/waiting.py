"""Whether a constraint waits for steps or measurements that never come.

Until its first step only. Micro-batches pile up measurements at one theta, however many; what tells
a forgotten step from those is that theta moves on between them.
"""

import weakref

import torch
from torch import Tensor

from torch_alm._optim.gradients import local

MOVES = 16  # times that theta was seen to have moved on, or steps without any measurement
ENTRIES = 64  # of a parameter, to look at
PILE = 512  # measurements where theta cannot be watched


class Waiting:
    """Watches one parameter: that of the attached optimizer, or one that a measurement led to."""

    def __init__(self) -> None:
        """Start with nothing to watch."""
        self.owner = ""
        self._leaf: weakref.ref[Tensor] | None = None
        self._seen: tuple[int, Tensor] = (0, torch.empty(0))
        self._moves = 0
        self._idle = 0
        self._is_stepping = False

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Let a copy watch anew: its parameters are others."""
        return Waiting, ()

    def follow(self, leaf: Tensor, owner: str = "") -> None:
        """Watch this parameter from now on."""
        self._leaf, self._seen, self.owner = weakref.ref(leaf), glimpse(leaf), owner

    def step_begins(self) -> None:
        """The attached optimizer does step; its closures may measure as often as they like."""
        self._is_stepping = True

    def step_was_blind(self) -> bool:
        """The attached optimizer took a step with nothing measured; whether to say so."""
        self._idle += 1
        return self._idle == MOVES

    def measured(self, value: Tensor | None, count: int, *, is_in_pass: bool) -> bool:
        """There are `count` measurements now; whether to say that no step takes them up.

        Args:
            value: the newest, with its graph if it has one.
            count: measurements since the last step.
            is_in_pass: whether a perturbation has moved theta, of which the gradient then tells
                more: it is `None` for the first micro-batch only.
        """
        if self._is_stepping:
            return False
        if self._leaf is None and value is not None and (leaf := leaf_of(value)) is not None:
            self.follow(leaf)
        leaf = None if self._leaf is None else self._leaf()
        if leaf is not None and (not is_in_pass or leaf.grad is None):
            self._moves += self._has_moved(leaf)
        return self._moves >= MOVES or count >= PILE

    def _has_moved(self, leaf: Tensor) -> bool:
        """Since the last look; not every optimizer that writes in place raises the version."""
        before, self._seen = self._seen, glimpse(leaf)
        return before[0] != self._seen[0] or not torch.equal(before[1], self._seen[1])


def glimpse(leaf: Tensor) -> tuple[int, Tensor]:
    """How often a tensor was changed in place, and some of its entries."""
    entries = local(leaf).reshape(-1)
    return leaf._version, entries[:: max(entries.numel() // ENTRIES, 1)].clone()


def leaf_of(value: Tensor) -> Tensor | None:
    """Some tensor without a history that the value depends on, such as a parameter."""
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
