"""The next step of an optimizer for one parameter, read from its state, a block at a time."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_alm._optim.gradients import BLOCK, HOST, local

# Where optimizers keep the squares they divide by the root of, the one that acts first.
SQUARES = ("max_exp_avg_sq", "exp_avg_sq", "square_avg", "sum")
KNOWN = ("exp_avg", "momentum_buffer", *SQUARES)

FEWER = 64  # times as many entries in a block where every call is a launch


class Step(NamedTuple):
    """The optimizer's step for a block of one parameter.

    Attributes:
        rate: lr, over 1 - momentum for plain descent, whose steps add up to that much.
        root: what the optimizer divides by, as it is now, its eps included; None for lr times the
            gradient.
    """

    rate: float
    root: Tensor | None


class Mover(NamedTuple):
    """One parameter in the hands of an optimizer.

    Attributes:
        group: of the parameter, with lr as a number.
        taken: how many steps the optimizer has taken for it.
        state: what is known here of it and has an entry for each of the parameter's, flat.
    """

    group: Mapping[str, Any]
    taken: float
    state: Mapping[str, Tensor]

    def step(self, g: Tensor, at: slice) -> Step:
        """An adaptive optimizer that has not stepped yet, or whose v is unknown, is one of signs.

        Its first step is about lr in every entry.
        """
        group, state = self.group, self._at(at)
        rate, eps = group["lr"] / (1 + self.taken * group.get("lr_decay", 0.0)), eps_of(group)
        square = next((state[name] for name in SQUARES if name in state), None)
        if square is not None:
            is_biased = "betas" in group and self.taken > 0
            unbias = 1 - float(group["betas"][1]) ** self.taken if is_biased else 1.0
            return Step(rate, (square / unbias).sqrt_().add_(eps))
        if group.get("eps") or "betas" in group:
            return Step(rate, g.abs() + eps)
        return Step(rate / (1 - group.get("momentum", 0.0)), None)

    def next(self, g: Tensor, at: slice) -> Tensor:
        """Compute what the next step takes off these entries; its momentum's past is in it.

        Of an optimizer that is not known here it is what the gradient alone would take off.
        """
        group, state = self.group, self._at(at)
        g = -g if group.get("maximize") else g
        lr, eps = group["lr"], eps_of(group)
        m, v, buffer = map(state.get, ("exp_avg", "exp_avg_sq", "momentum_buffer"))
        if m is not None and v is not None and "betas" in group:
            (b1, b2), t = map(float, group["betas"][:2]), self.taken + 1
            v = torch.addcmul(b2 * v, g, g, value=1 - b2)
            if "max_exp_avg_sq" in state:
                v = torch.maximum(v, state["max_exp_avg_sq"], out=v)
            root = v.div_(1 - b2**t).sqrt_().add_(eps + tiny(g))
            return torch.lerp(m, g, 1 - b1).div_(root).mul_(lr / (1 - b1**t))
        if "dampening" in group:  # torch's SGD, whose first buffer is the gradient itself
            momentum = group["momentum"]
            step = g if buffer is None else momentum * buffer + (1 - group["dampening"]) * g
            return lr * (g + momentum * step if group.get("nesterov") else step)
        if "centered" in group and not group["centered"]:  # torch's RMSprop
            v = state.get("square_avg", torch.zeros_like(g))
            v = torch.addcmul(group["alpha"] * v, g, g, value=1 - group["alpha"])
            step = g / v.sqrt_().add_(eps + tiny(g))
            return lr * (step if buffer is None else group["momentum"] * buffer + step)
        if "lr_decay" in group and "sum" in state:  # torch's Adagrad
            root = torch.addcmul(state["sum"], g, g).sqrt_().add_(eps + tiny(g))
            return lr / (1 + self.taken * group["lr_decay"]) * g / root
        rate, root = self.step(g, at)
        return rate * g if root is None else rate * g / (root + tiny(g))

    def _at(self, at: slice) -> dict[str, Tensor]:
        return {name: wide(x[at]) for name, x in self.state.items()}


def rate_of(group: Mapping[str, Any]) -> float:
    """Read lr, or raise a `ValueError`."""
    if group.get("lr") is None:
        raise ValueError(
            'mu="auto" reads from lr what a step will do, and a parameter group of the optimizer '
            f"has {'lr=None' if 'lr' in group else 'no lr'}. Did you mean a fixed one (Adafactor: "
            "`relative_step=False`), or a number for mu?"
        )
    return float(group["lr"])


def eps_of(group: Mapping[str, Any]) -> float:
    """Read what is added to the root; 0 where there are several (Adafactor), of other things."""
    eps = group.get("eps") or 0.0
    return 0.0 if isinstance(eps, (tuple, list)) else float(eps)


def movers(optimizer: Optimizer) -> dict[Tensor, Mover]:
    """Read how an optimizer moves each of its parameters.

    Cost: a device synchronisation where it counts its steps on a device, and one for each group
    whose lr is there; else none.
    """
    groups: list[dict[str, Any]] = [
        {**group, "lr": rate_of(group)} for group in optimizer.param_groups
    ]
    every = [(p, group, optimizer.state.get(p, {})) for group in groups for p in group["params"]]
    counts = numbers([state.get("step", 0) for _, _, state in every])
    return {
        p: Mover(group, count, known(state, local(p).shape))
        for (p, group, state), count in zip(every, counts, strict=True)
    }


def known(state: Mapping[str, Any], shape: torch.Size) -> dict[str, Tensor]:
    """Find what is known here of a state and has an entry for each of the parameter's."""
    found = {name: state[name] for name in KNOWN if isinstance(state.get(name), Tensor)}
    return {name: flat(x) for name, x in found.items() if local(x).shape == shape}


def numbers(given: list[Any]) -> list[float]:
    """Read numbers and tensors of one entry, those of a device all at once."""
    found = [0.0 if is_away(x) else float(x) for x in given]
    away = {x.device for x in given if is_away(x)}
    for device in away:
        places = [i for i, x in enumerate(given) if is_away(x) and x.device == device]
        together = torch.stack([given[i].reshape(()).float() for i in places]).cpu()
        for i, number in zip(places, together, strict=True):
            found[i] = float(number)
    return found


def is_away(x: object) -> bool:
    """Tell whether the host would have to wait for a number."""
    return isinstance(x, Tensor) and x.device.type not in HOST


def blocks(like: Tensor) -> Iterator[slice]:
    """Cut a flat tensor, into one part at least: copies stay in a cache, or launches are few."""
    length = BLOCK if like.device.type in HOST else FEWER * BLOCK
    for start in range(0, max(like.numel(), 1), length):
        yield slice(start, start + length)


def flat(tensor: Tensor) -> Tensor:
    """Make a dense real tensor of one dimension: of one that ranks share, this rank's part."""
    tensor = local(tensor.detach())
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    return real.reshape(-1)


def wide(block: Tensor) -> Tensor:
    """Compute in float32 or wider, as optimizers do; moments in fewer bits are unpacked."""
    if type(block).dequantize is not Tensor.dequantize:  # torchao's
        block = block.dequantize()
    return block.to(torch.promote_types(block.dtype, torch.float32))


def exact(block: Tensor) -> Tensor:
    """Add up in float64 where the device knows it: squares of small gradients do not underflow."""
    return block.to(torch.float32 if block.device.type == "mps" else torch.float64)


def tiny(like: Tensor) -> float:
    """Return what to add to a divisor that may be 0."""
    return torch.finfo(like.dtype).tiny
