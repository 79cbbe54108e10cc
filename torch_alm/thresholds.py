"""Numbers of a recipe that belong to a model, found from the model by what they do to a loss.

`level_of` says what comparable text that was never trained on costs: an alpha. `rate_for` says at
which learning rate a step changes the loss by so much, `radius_for` at which radius.
"""

import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer

from torch_alm._constraint.attachment import with_hooks
from torch_alm._constraint.observations import is_distributed, sum_over_ranks
from torch_alm._optim import gradients
from torch_alm._optim.gradients import is_sharded, parameters
from torch_alm._optim.objective import make_replay
from torch_alm._optim.steps import rate_of_step
from torch_alm.perturb import Excursion, Params, radii_of

__all__ = ["Level", "Radius", "level_of", "radius_for", "rate_for"]

Loss: TypeAlias = Callable[..., Tensor]
PASSES, STEP, CLOSE = 10, 4.0, 0.02  # most measurements of a search, its factor, what is met


class Level(NamedTuple):
    """A mean over n batches, its standard error sd / sqrt(n) (`nan` for a single batch), and n."""

    value: float
    error: float
    batches: int


def level_of(measure: Callable[[Any], Tensor], batches: Iterable[Any]) -> Level:
    """Measure data never trained on: with this as alpha, forgotten rows cost what unseen ones do.

    Args:
        measure: takes a batch and returns one number, such as
            `lambda batch: token_nll(model, batch)`. It runs without gradients; put the model into
            the mode (`eval`) you want it measured in.
        batches: comparable data that was never trained on, in batches of the size that the
            constraint will see: the mean over batches is then the mean it is compared with.

    Returns:
        The mean over batches, which is the alpha; its standard error says how well it is known.

    Raises:
        ValueError: there is no batch, or a measurement is not one finite number.

    Cost: one forward pass per batch.

    Example:
        >>> from torch_alm.thresholds import level_of
        >>> batches = torch.tensor([1.0, 2.0]), torch.tensor([2.5])
        >>> level_of(lambda batch: batch.mean(), batches)
        Level(value=2.0, error=0.5, batches=2)
    """
    with torch.no_grad(), _restored_buffers():
        measured = [measure(batch) for batch in batches]
    try:
        values = [float(value) for value in measured]
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            "level_of needs one number per batch, and the measure gave something else "
            f"({error}). Did you mean its mean?"
        ) from error
    if not values or not all(map(math.isfinite, values)):
        raise ValueError(
            f"level_of found {values or 'no batches'}; a threshold made of that would mean "
            "nothing. Is the iterator used up, or the loss not finite?"
        )
    count = len(values)
    error = statistics.stdev(values) / math.sqrt(count) if count > 1 else math.nan
    return Level(statistics.mean(values), error, count)


def rate_for(
    optimizer: Optimizer,
    loss: Loss,
    batches: Iterable[Any] | None = None,
    *,
    change: float = 0.1,
) -> float:
    """Find the learning rate at which the optimizer's next step changes a loss by `change`.

    A copy of weights and state takes that step with the gradient of the loss, at other rates until
    |g . (theta' - theta)| is `change` to a fiftieth, momentum and weight decay included. A fresh
    AdamW takes a step of signs: lr is about change / |g|_1. The steps of a fresh SGD with momentum
    grow to 1 / (1 - momentum) times the first. Rows known by heart (a loss near 0) have hardly a
    gradient, and lr is far too high: give their `measures.log_odds` as the loss.

    Args:
        optimizer: fresh or in use; its own rates count by their ratio alone. Of a `DualOptimizer`
            the retain side's step is taken, of `SAM` its base's.
        loss: gives the loss with its graph, of no argument or of a batch; see `level_of`.
        batches: those to take the mean over; not given, `loss` takes none.
        change: of the loss, in its unit: nats for `token_nll`.

    Returns:
        The rate of the first parameter group; those of the others are to keep their ratio to it.

    Raises:
        ValueError: the loss is not finite or has no gradient at the optimizer's parameters, these
            are sharded, or no rate has the step that is asked for (relative steps, line search).

    Warns:
        UserWarning: the change is more than the loss itself.

    Cost: a forward and a backward pass per batch, a copy of the gradients; two steps or more of a
    copy of weights and state. Weights, `.grad`, buffers of modules that train (BatchNorm's
    statistics), optimizer and random state are as before.

    Example:
        >>> from torch_alm.thresholds import rate_for
        >>> theta = torch.tensor([3.0, -4.0], requires_grad=True)
        >>> rate = rate_for(torch.optim.SGD([theta]), lambda: theta.square().sum() / 2, change=0.5)
        >>> round(rate, 4)
        0.02
    """
    optimizer = with_hooks(optimizer, "rate_for")
    params = [p for p in parameters(optimizer) if p.requires_grad]
    start, gradient = _gradient("rate_for", params, loss, batches, change)
    if abs(start) < change:
        warnings.warn(
            f"rate_for: a change of {change:g} is more than the loss has, {start:.2g}. Near 0 a "
            "loss has hardly a gradient, and the rate would wreck the model. Did you mean the "
            "rows' log-odds, `measures.log_odds(model, batch)`? (Log-odds near 0 are fine.)",
            stacklevel=2,
        )
    return rate_of_step(optimizer, gradient, change)


class Radius(NamedTuple):
    """A radius and what was seen on the way to it.

    Attributes:
        value: rho, for `SAM` or `ReverseSAM`.
        loss: at theta.
        seen: pairs of a radius and the loss there, by radius.
    """

    value: float
    loss: float
    seen: tuple[tuple[float, float], ...]


def radius_for(
    params: Params | Optimizer,
    loss: Loss,
    batches: Iterable[Any] | None = None,
    *,
    change: float = 0.5,
    sign: int = 1,
    adaptive: bool = False,
) -> Radius:
    """Find the radius at which a loss differs by `change` from what it is at theta, by measuring.

    The direction is SAM's, or with `sign=-1` ReverseSAM's. First order is several times off where
    it matters, so the loss is measured at theta + delta: from a fourth of that radius on by factors
    of four, then the secant in logarithms. Of rows known by heart take the log-odds.

    Args:
        params: parameters, an optimizer or its groups; a group's own `"rho"` is a multiple of the
            result, and 0 leaves the group where it is.
        loss: see `rate_for`.
        batches: see `rate_for`.
        change: wanted, in the loss's unit, above 0; met to a fiftieth.
        sign: +1 for `SAM`, where the loss grows, -1 for `ReverseSAM`, where it falls.
        adaptive: see `SAM`.

    Raises:
        ValueError: the loss is not finite or has no gradient at the parameters; or no radius does,
            since the loss turns: the message says which one does most.

    Cost: a forward and a backward pass per batch, at most ten more forward passes, a copy of the
    weights and one of the gradients. Weights, `.grad`, buffers and random state are as before.

    Example:
        >>> from torch_alm.thresholds import radius_for
        >>> theta = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> found = radius_for([theta], lambda: theta.norm(), change=2.0, sign=-1)
        >>> round(found.value, 4), round(found.loss, 4)
        (2.0, 5.0)
    """
    groups = params.param_groups if isinstance(params, Optimizer) else params
    radii = radii_of(groups, 1.0, sign)
    moved = [p for p, share in radii.items() if share and p.requires_grad]
    batches = None if batches is None else list(batches)
    start, gradient = _gradient("radius_for", moved, loss, batches, change)
    kept, again = gradients.read(radii), make_replay(moved)
    direction = {p: p.detach().abs() * g if adaptive else g for p, g in gradient.items()}
    slope = sum(abs(radii[p]) * float(s.square().sum()) for p, s in direction.items())
    first = change * float(gradients.norm(direction.values())) / slope if slope else 1.0
    first /= STEP  # of rows known by heart the loss rises, and falls again, before that

    @torch.no_grad()
    def at(rho: float) -> float:
        """Measure by how much the loss differs as it should; nothing where it is not finite."""
        gradients.put(radii, [gradient.get(p) for p in radii])
        again()
        away = Excursion({p: r * rho for p, r in radii.items()}, 0.0, adaptive, "nearest", {})
        with away, _restored_buffers():
            found = _mean([each.item() for each in _losses(loss, batches)])
        return sign * (found - start) if math.isfinite(found) else -math.inf

    try:
        seen = _search_radius(at, first, change)
    finally:
        gradients.put(radii, kept)
        again()
    rho, most = min(seen.items(), key=lambda pair: abs(pair[1] - change))
    if abs(most - change) > CLOSE * change:
        rho, most = max(seen.items(), key=lambda pair: pair[1])
        raise ValueError(
            f"radius_for: no radius changes the loss by {change:g} in this direction. From "
            f"{start:.3g} it changes most at {rho:.3g}, by {most:.3g}, of the radii from "
            f"{min(seen):.3g} to {max(seen):.3g}. Did you mean a smaller change?"
        )
    return Radius(rho, start, tuple((r, start + sign * seen[r]) for r in sorted(seen)))


def _search_radius(at: Callable[[float], float], rho: float, change: float) -> dict[float, float]:
    """Measure at most ten radii, towards the smallest known one at which enough changes."""
    seen = {rho: at(rho)}
    while len(seen) < PASSES and min(abs(c - change) for c in seen.values()) > CLOSE * change:
        enough = min((r for r, c in seen.items() if c >= change), default=None)
        less = max((r for r in seen if enough is None or r < enough), default=None)
        if enough is None and seen[max(seen)] < max(seen.values()):  # the loss has turned
            top = max(seen, key=lambda r: seen[r])
            beside = max((r for r in seen if r < top), default=top / STEP)
            above = min(r for r in seen if r > top)
            rho = math.sqrt(top * (above if above / top > top / beside else beside))
        elif enough is None:
            rho = max(seen) * STEP
        elif less is None:
            rho = enough / STEP
        else:
            rho = _interpolate((less, seen[less]), (enough, seen[enough]), change)
        seen[rho] = at(rho)
    return seen


def _interpolate(less: tuple[float, float], more: tuple[float, float], change: float) -> float:
    """Return the radius where a power of it through both points changes as much; inside them."""
    (a, low), (b, high) = less, more
    share = 0.5
    if low > 0 and math.isfinite(high):
        share = min(max(math.log(change / low) / math.log(high / low), 0.05), 0.95)
    return a * (b / a) ** share


def _gradient(
    owner: str, params: list[Tensor], loss: Loss, batches: Iterable[Any] | None, change: float
) -> tuple[float, dict[Tensor, Tensor]]:
    """Return the mean loss and its gradient over batches and ranks; everything else stays."""
    if not 0 < change < math.inf:
        raise ValueError(f"{owner}: change is {change}; it has to be above 0, such as 0.1.")
    if not callable(loss):
        raise TypeError(f"{owner}: loss is run here. Did you mean `lambda: loss(model, batch)`?")
    if any(is_sharded(p) for p in params):
        raise ValueError(f"{owner} found sharded parameters, of which each rank sees a part.")
    again, values, found = make_replay(params), list[float](), dict[Tensor, Tensor]()
    try:
        with torch.enable_grad(), _restored_buffers():
            for value in _losses(loss, batches):
                if not getattr(value, "requires_grad", False) or value.numel() != 1:
                    raise ValueError(f"{owner} needs a loss with its graph, one number: {value}.")
                values.append(value.item())
                each = torch.autograd.grad(value.reshape(()), params, allow_unused=True)
                for p, g in zip(params, each, strict=True):
                    if g is not None:  # pyright: ignore[reportUnnecessaryComparison]
                        found[p] = found.get(p, 0.0) + g.to_dense()
    finally:
        again()
    start = _mean(values)
    used = params if is_distributed() else found  # in one order on all ranks
    mean = {p: _average_over_ranks(found.get(p, torch.zeros_like(p)) / len(values)) for p in used}
    norm = float(gradients.norm(mean.values())) if mean else 0.0
    if not (math.isfinite(start) and math.isfinite(norm) and norm > 0):
        raise ValueError(
            f"{owner} found a loss of {start:g} over {len(values)} batches, with a gradient of "
            f"length {norm:g} at the parameters; nothing follows from that. Are they the ones "
            "that the loss depends on, and is the iterator not used up?"
        )
    return start, mean


@contextmanager
def _restored_buffers() -> Iterator[None]:
    """Put back what a pass moves in training, such as the statistics of any BatchNorm layer."""
    seen = dict[torch.nn.Module, list[tuple[Tensor, Tensor]]]()

    def keep(module: torch.nn.Module, _: object) -> None:
        if module.training and module not in seen:
            seen[module] = [(x, x.clone()) for x in module.buffers(recurse=False)]

    handle = register_module_forward_pre_hook(keep)
    try:
        yield
    finally:
        handle.remove()
        for x, before in (pair for pairs in seen.values() for pair in pairs):
            if not torch.equal(x, before):
                x.copy_(before)


def _losses(loss: Loss, batches: Iterable[Any] | None) -> Iterator[Tensor]:
    return iter([loss()]) if batches is None else map(loss, batches)


def _mean(values: list[float]) -> float:
    mine = statistics.fmean(values) if values else math.nan
    return _average_over_ranks(torch.tensor(mine, dtype=torch.float64, device="cpu")).item()


def _average_over_ranks(mine: Tensor) -> Tensor:
    return sum_over_ranks(mine) / dist.get_world_size() if is_distributed() else mine
