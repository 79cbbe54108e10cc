"""Costs of a piece of code, counted instead of timed: on tensors without data, too."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode


class Memory(TorchDispatchMode):
    """Bytes in the tensors made inside, now and at most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def restart(self) -> None:
        """Forget the peak, not what is alive."""
        self.peak = self.now

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            for t in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(t, Tensor):
                    self._watch(t.untyped_storage())
        return out

    def _watch(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


class Answers(TorchDispatchMode):
    """Answer what tensors without data do not know: numbers are 1.0, and all entries are true."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1.0 if args[0].is_floating_point() else 1
        if func is aten._to_copy.default and args[0].is_meta and goes_to_host(**(kwargs or {})):
            return torch.ones(args[0].shape, dtype=args[0].dtype)
        if func is torch.ops.aten.nonzero.default:
            return args[0].new_zeros((args[0].numel(), args[0].ndim), dtype=torch.long)
        if func.overloadpacket in INDEXED:
            args = (args[0], [i for index in args[1] for i in numbered(index)], *args[2:])
        return func(*args, **(kwargs or {}))


aten = torch.ops.aten
INDEXED = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)


def goes_to_host(device: torch.device | None = None, **_: Any) -> bool:
    """Tell whether a copy is made where numbers can be read."""
    return device is not None and device.type == "cpu"


def numbered(index: Tensor | None) -> list[Tensor | None]:
    """A mask as the indices of all its entries; other indices as they are."""
    if index is None or index.dtype is not torch.bool:
        return [index]
    return [index.new_zeros(index.numel(), dtype=torch.long) for _ in range(index.ndim)]


class Fake(FakeTensorMode):
    """Tensors without data, of which copies belong here too."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Fake:
        return self
