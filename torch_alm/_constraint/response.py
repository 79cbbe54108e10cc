"""The answer of theta to a gradient, read from whatever optimizer moves it, to first order."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_alm._constraint.auto import TINY, Response
from torch_alm._optim.gradients import is_sharded, local
from torch_alm._optim.shards import reduced

# Where optimizers keep the squares they divide by the root of, the one that acts first.
SQUARES = ("max_exp_avg_sq", "exp_avg_sq", "square_avg", "sum")


class Step(NamedTuple):
    """The optimizer's step for one parameter.

    Attributes:
        rate: lr, over 1 - momentum for plain descent, whose steps add up to that much.
        root: what the optimizer divides by, as it is now; None for lr times the gradient.
        eps: what the optimizer adds to it.
    """

    rate: float
    root: Tensor | None
    eps: float


class Pull(NamedTuple):
    """One parameter in one step, in float64 where the device knows it.

    Attributes:
        like: the parameter, which says what other ranks hold of it.
        a: the constraint's gradient.
        g: the gradient that is stepped on.
        rest: what of that is not the penalty's.
        step: what moves the parameter.
    """

    like: Tensor
    a: Tensor
    g: Tensor
    rest: Tensor
    step: Step

    def norms(self) -> Tensor:
        """Squares of |a|, |r| and |g|, of this parameter."""
        return torch.stack([x.square().sum() for x in (self.a, self.rest, self.g)])

    def gain(self, balance: float) -> Tensor:
        """One parameter's share of G.

        An adaptive step divides by sqrt(v), which vanishes with the gradient where objective and
        penalty cancel; what either of them would be alone, |r_i| and rho |a_i|, does not.
        """
        rate, root, eps = self.step
        if root is None:
            return rate * self.a.square().sum()
        alone = torch.maximum(self.rest.abs(), balance * self.a.abs())
        return (rate * self.a.square() / (root + alone + eps + TINY)).sum()


def response(pulls: Sequence[Pull]) -> Response:
    """Sum up over parameters.

    Cost: two device synchronisations, of sharded parameters two reductions over ranks.
    """
    norms = _summed((pull.norms(), pull.like) for pull in pulls)
    a, rest, total = (float(x) ** 0.5 for x in norms)
    balance = rest / max(a, TINY)
    gain = _summed((pull.gain(balance), pull.like) for pull in pulls)
    return Response(float(gain), a, rest, total)


def pulls(
    optimizer: Optimizer, a: Mapping[Tensor, Tensor], acting: Mapping[Tensor, Tensor], scale: float
) -> list[Pull]:
    """Read what the optimizer is about to do, of the parameters that have a gradient.

    Args:
        optimizer: whose step is about to be taken.
        a: the constraint's gradient; nothing where it does not reach.
        acting: what the penalty has left of it in `.grad`.
        scale: a loss scale that is still in `.grad`.
    """
    found: list[Pull] = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is None:
                continue
            g = wide(p.grad) / scale
            none = torch.zeros_like(g)
            there = wide(a[p]) if p in a else none
            rest = g - (wide(acting[p]) / scale if p in acting else none)
            found.append(Pull(p, there, g, rest, _step(g, group, optimizer.state.get(p, {}))))
    return found


class Sides(NamedTuple):
    """The steps of two optimizers over one theta, as far as their states foretell them.

    Attributes:
        gain: -<a, D_f>, what the forget step takes off c.
        drift: <a, D_r>, what the retain step adds to it.
        forget: |D_f|.
        retain: |D_r|.
    """

    gain: float
    drift: float
    forget: float
    retain: float

    @property
    def response(self) -> Response:
        """G and rho where the weight multiplies the finished forget step."""
        return Response(self.gain, self.forget, self.retain, self.retain)

    def share(self, fall: float, limit: float) -> float:
        """Return the share of the forget step with which c falls by this much, within the limit."""
        return min(max((fall + self.drift) / max(self.gain, TINY), 0.0), limit)

    def fall(self, share: float) -> float:
        """Foretell by how much c falls."""
        return share * self.gain - self.drift


def sides(
    retain: Optimizer, forget: Optimizer, r: Mapping[Tensor, Tensor], a: Mapping[Tensor, Tensor]
) -> Sides:
    """Foretell both steps, to first order: r is the retain gradient, and forget descends a, grad c.

    Cost: one device synchronisation, of sharded parameters one reduction over ranks.
    """
    here, there = _held(retain), _held(forget)
    parts: list[tuple[Tensor, Tensor]] = []
    for p in {**a, **r}:
        slope = wide(a.get(p, torch.zeros_like(r.get(p, p))))
        d_f = _next(slope, *there[p])
        d_r = _next(wide(r[p]), *here[p]) if p in r else torch.zeros_like(d_f)
        products = ((slope, d_f), (slope, d_r), (d_f, d_f), (d_r, d_r))
        parts.append((torch.stack([(x * y).sum() for x, y in products]), p))
    gain, drift, forgets, retains = (float(x) for x in _summed(parts))
    return Sides(gain, -drift, forgets**0.5, retains**0.5)


def one_weight(
    forget: Optimizer, r: Mapping[Tensor, Tensor], a: Mapping[Tensor, Tensor], weight: float
) -> Response:
    """G and rho where the weight multiplies the forget side's gradient."""
    there = _held(forget)
    found: list[Pull] = []
    for p, slope in a.items():
        at = wide(slope)
        rest = wide(r[p]) if p in r else torch.zeros_like(at)
        found.append(Pull(p, at, rest + weight * at, rest, _step(weight * at, *there[p])))
    return response(found)


def _held(optimizer: Optimizer) -> dict[Tensor, tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Find each parameter's group and state."""
    return {
        p: (group, optimizer.state.get(p, {}))
        for group in optimizer.param_groups
        for p in group["params"]
    }


def _step(g: Tensor, group: Mapping[str, Any], state: Mapping[str, Any]) -> Step:
    """An adaptive optimizer that has not stepped yet, or whose v is unknown, is taken for a sign.

    Its first step is about lr in every entry.
    """
    rate, eps = float(group["lr"]), float(group.get("eps") or 0.0)
    v = next((state[name] for name in SQUARES if name in state), None)
    square = wide(v) if isinstance(v, Tensor) else None
    if square is not None and square.shape == g.shape:
        is_biased = "betas" in group and float(state.get("step", 0)) > 0
        unbias = 1 - group["betas"][1] ** float(state["step"]) if is_biased else 1.0
        return Step(rate, (square / unbias).sqrt(), eps)
    if eps or "betas" in group:
        return Step(rate, g.abs(), eps)
    return Step(rate / (1 - group.get("momentum", 0.0)), None, 0.0)


def _next(g: Tensor, group: Mapping[str, Any], state: Mapping[str, Any]) -> Tensor:
    """Compute what the next step takes off the parameter; its momentum's past is in it.

    Of an optimizer that is not known here it is what the gradient alone would take off.
    """
    g = -g if group.get("maximize") else g
    rate, root, eps = _step(g, group, state)
    lr = float(group["lr"])
    names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")
    found = (wide(x) if isinstance(x, Tensor) else None for x in map(state.get, names))
    m, v, most, buffer = (x if x is None or x.shape == g.shape else None for x in found)
    if m is not None and v is not None and "betas" in group:
        (b1, b2, *_), t = group["betas"], float(state.get("step", 0)) + 1
        v = b2 * v + (1 - b2) * g * g
        root = ((v if most is None else torch.maximum(v, most)) / (1 - b2**t)).sqrt()
        return lr / (1 - b1**t) * (b1 * m + (1 - b1) * g) / (root + eps + TINY)
    if buffer is not None and "dampening" in group:  # torch's SGD
        buffer = group["momentum"] * buffer + (1 - group["dampening"]) * g
        return lr * (g + group["momentum"] * buffer if group.get("nesterov") else buffer)
    return rate * g if root is None else rate * g / (root + eps + TINY)


def wide(tensor: Tensor) -> Tensor:
    """Make a dense real copy, in which the squares of small gradients do not underflow.

    Of a tensor that ranks hold a part each of, it is this rank's part.
    """
    tensor = local(tensor.detach())
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    return real.to(torch.float32 if real.device.type == "mps" else torch.float64)


def _summed(parts: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Add up sums over one parameter each: over devices, and over the ranks that share it."""
    alike: dict[object, list[tuple[Tensor, Tensor]]] = {}
    for part, p in parts:
        where = (p.device_mesh, p.placements) if is_sharded(p) else part.device
        alike.setdefault(where, []).append((part, p))
    sums: list[Tensor] = []
    for found in alike.values():
        like = found[0][1]
        total = torch.stack([part for part, _ in found]).sum(0)
        sums.append((reduced(total, like) if is_sharded(like) else total).cpu())
    return torch.stack(sums).sum(0)
