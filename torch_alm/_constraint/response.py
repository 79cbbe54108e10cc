"""The answer of theta to a gradient, read from whatever optimizer moves it, to first order."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_alm._constraint.auto import TINY, Response
from torch_alm._constraint.foretold import Mover, Step, blocks, exact, flat, movers, tiny, wide
from torch_alm._optim.gradients import is_sharded
from torch_alm._optim.shards import reduced

Gradient: TypeAlias = Mapping[Tensor, Tensor]


class Block(NamedTuple):
    """Some entries of one parameter in one step.

    Attributes:
        a: the constraint's gradient.
        g: the gradient that is stepped on.
        rest: what of that is not the penalty's.
        step: what moves them.
    """

    a: Tensor
    g: Tensor
    rest: Tensor
    step: Step

    def squares(self) -> Tensor:
        """Their shares of |a|^2, |r|^2 and |g|^2."""
        return torch.stack([x.dot(x) for x in map(exact, (self.a, self.rest, self.g))])

    def gain(self, balance: float) -> Tensor:
        """Their share of G.

        An adaptive step divides by sqrt(v), which vanishes with the gradient where objective and
        penalty cancel; what either of them would be alone, |r_i| and rho |a_i|, does not.
        """
        rate, root = self.step
        a = exact(self.a)
        if root is None:
            return rate * a.dot(a)
        divisor = torch.maximum(self.rest.abs(), balance * self.a.abs()).add_(root)
        return rate * a.dot(exact(self.a / divisor.add_(tiny(root))))


class Pull(NamedTuple):
    """One parameter in one step; its blocks are read when they are needed, and not kept.

    Attributes:
        like: the parameter, which says what other ranks hold of it.
        whole: a tensor with an entry for each that there is to read.
        read: gives a block of them.
    """

    like: Tensor
    whole: Tensor
    read: Callable[[slice], Block]

    def total(self, of: Callable[[Block], Tensor]) -> tuple[Tensor, Tensor]:
        """Add up over the blocks, for `_summed`."""
        return torch.stack([of(self.read(at)) for at in blocks(self.whole)]).sum(0), self.like


def response(pulls: Sequence[Pull]) -> Response:
    """Sum up over parameters.

    Cost: two device synchronisations, of sharded parameters two reductions over ranks.
    """
    squares = _summed(pull.total(Block.squares) for pull in pulls)
    a, rest, total = (float(x) ** 0.5 for x in squares)
    balance = rest / max(a, TINY)
    gain = _summed(pull.total(lambda block: block.gain(balance)) for pull in pulls)
    return Response(float(gain), a, rest, total)


def pulls(
    optimizer: Optimizer,
    a: Gradient,
    acting: Gradient,
    share: float,
    kept: float,
) -> list[Pull]:
    """Read what the optimizer is about to do, of the parameters that have a gradient.

    Args:
        optimizer: whose step is about to be taken.
        a: the constraint's gradient, times `share`; nothing where it does not reach.
        acting: what the penalty has left of it in `.grad`, over `kept`.
        share: what `a` has been multiplied by.
        kept: what `acting` has yet to be multiplied by.
    """
    scale, found = loss_scale(optimizer), list[Pull]()
    for p, mover in movers(optimizer).items():
        if p.grad is not None:
            whole, factors = flat(p.grad), (scale, share, kept)
            read = partial(_penalised, mover, whole, _flat(a, p), _flat(acting, p), factors)
            found.append(Pull(p, whole, read))
    return found


def loss_scale(optimizer: Optimizer) -> float:
    """Read what a GradScaler has left to the optimizer to divide by."""
    lent = vars(optimizer).get("grad_scale")
    return 1.0 if lent is None else float(lent)


def _penalised(
    mover: Mover,
    whole: Tensor,
    slope: Tensor | None,
    acting: Tensor | None,
    factors: tuple[float, float, float],
    at: slice,
) -> Block:
    """Read a block where `.grad` holds the penalty's gradient, too."""
    scale, share, kept = factors
    g = wide(whole[at]) / scale
    a = torch.zeros_like(g) if slope is None else wide(slope[at]) / share
    rest = g if acting is None else g - wide(acting[at]) * (kept / scale)
    return Block(a, g, rest, mover.step(g, at))


def one_weight(forget: Optimizer, r: Gradient, f: Gradient, sign: int, weight: float) -> Response:
    """G and rho where the weight multiplies the forget side's gradient.

    Args:
        forget: the optimizer of that side.
        r: the retain side's gradient.
        f: the forget side's; grad c is sign * f.
        sign: +1 if the forget side descends f, -1 if it climbs.
        weight: lambda+ of this step.
    """
    there = movers(forget)
    found: list[Pull] = []
    for p, g in {**r, **f}.items():
        read = partial(_weighted, there[p], _flat(f, p), _flat(r, p), sign, weight)
        found.append(Pull(p, flat(g), read))
    return response(found)


def _weighted(
    mover: Mover,
    slope: Tensor | None,
    rest: Tensor | None,
    sign: int,
    weight: float,
    at: slice,
) -> Block:
    """Read a block where the penalty's gradient lies apart."""
    a, r = (None if x is None else wide(x[at]) for x in (slope, rest))
    none = torch.zeros_like(next(x for x in (a, r) if x is not None))
    a, r = none if a is None else sign * a, none if r is None else r
    return Block(a, r + weight * a, r, mover.step(weight * a, at))


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
        """Return the share of the forget step with which c falls by this much, within the limit.

        None of a step that would raise c, as one whose momentum still points back.
        """
        due = fall + self.drift
        return min(max(due / self.gain, 0.0), limit) if self.gain > 0 else 0.0

    def fall(self, share: float) -> float:
        """Foretell by how much c falls."""
        return share * self.gain - self.drift


def sides(retain: Optimizer, forget: Optimizer, r: Gradient, f: Gradient, sign: int) -> Sides:
    """Foretell both steps, to first order, from the arguments of `one_weight`.

    Cost: no copy of the parameters; the time of about three steps of AdamW; one device
    synchronisation, of sharded parameters one reduction over ranks.
    """
    here, there = movers(retain), movers(forget)
    parts: list[tuple[Tensor, Tensor]] = []
    for p in {**f, **r}:
        slope, rest = _flat(f, p), _flat(r, p)
        whole = rest if slope is None else slope
        assert whole is not None
        found: list[Tensor] = []
        for at in blocks(whole):
            none = torch.zeros_like(wide(whole[at]))
            a = none if slope is None else sign * wide(slope[at])
            d_f = none if slope is None else there[p].next(a, at)
            d_r = none if rest is None else here[p].next(wide(rest[at]), at)
            a, d_f, d_r = map(exact, (a, d_f, d_r))
            found.append(torch.stack([a.dot(d_f), a.dot(d_r), d_f.dot(d_f), d_r.dot(d_r)]))
        parts.append((torch.stack(found).sum(0), p))
    gain, drift, forgets, retains = (float(x) for x in _summed(parts))
    return Sides(gain, -drift, forgets**0.5, retains**0.5)


def _flat(gradient: Gradient, p: Tensor) -> Tensor | None:
    return flat(gradient[p]) if p in gradient else None


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
