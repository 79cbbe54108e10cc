"""Thresholds people can state: what alpha has to be for what one wants.

A loss in nats means little to most people. `level_of` says what comparable text that was never
trained on costs; `loss_for_rate` says which loss goes with a wanted rate, from a recorded run.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Level", "level_of", "loss_for_rate"]


class Level(NamedTuple):
    """A mean over batches, its standard error (`nan` for a single batch), and how many there were.

    Source: the usual estimate, sd / sqrt(n) with the sample standard deviation.
    """

    value: float
    error: float
    batches: int


def level_of(measure: Callable[[Any], Tensor], batches: Iterable[Any]) -> Level:
    """The level of a measure on data never trained on: forgotten then looks like never seen.

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
    with torch.no_grad():
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


def loss_for_rate(losses: Sequence[float], rates: Sequence[float], rate: float) -> float:
    """The loss at which a wanted rate is reached, from pairs recorded along a run.

    The rate (a certificate, the share of failed exact matches) is taken to grow with the loss: the
    pairs are fitted by the nearest increasing function (isotonic regression), several at one loss
    by one value, and joined by straight lines. The answer is the smallest loss at which these reach
    `rate`: an alpha for that loss.

    Args:
        losses: the forget loss at some points of a run, in any order: a list, array or tensor.
        rates: the rate at the same points.
        rate: the rate wanted.

    Returns:
        alpha, within the range of `losses`.

    Raises:
        ValueError: there are fewer than two pairs, one of them or `rate` is not finite, or `rate`
            lies outside of what the fit goes through (the message says from where to where).

    Cost: a sort; no passes. Source: the pool-adjacent-violators algorithm (Ayer et al. 1955).

    Example:
        >>> from torch_alm.thresholds import loss_for_rate
        >>> loss_for_rate([0.1, 0.5, 1.0, 2.0], [0.0, 0.5, 0.4, 0.95], rate=0.7)
        1.5
    """
    rate = float(rate)
    pairs = [(float(loss), float(found)) for loss, found in zip(losses, rates, strict=True)]
    if len(pairs) < 2 or not all(math.isfinite(n) for n in (rate, *chain(*pairs))):
        raise ValueError(
            f"loss_for_rate found {len(pairs)} pairs and the rate {rate:g}: all have to be finite, "
            "and two pairs are the least that a fit can do with. Did you record loss and rate "
            "along a run?"
        )
    at: dict[float, list[float]] = {}
    for loss, found in sorted(pairs):
        at.setdefault(loss, []).append(found)
    xs, ys = [*at], _increasing([(statistics.mean(each), len(each)) for each in at.values()])
    if not ys[0] <= rate <= ys[-1]:
        raise ValueError(
            f"loss_for_rate: the rate wanted is {rate:g}, and the fit goes from {ys[0]:g} at a "
            f"loss of {xs[0]:g} to {ys[-1]:g} at {xs[-1]:g}; an alpha outside of these would be a "
            "guess. Could the recording begin earlier, or the run go on?"
        )
    i = next(i for i, y in enumerate(ys) if y >= rate)
    if ys[i] == rate:
        return xs[i]
    share = (rate - ys[i - 1]) / (ys[i] - ys[i - 1])
    return xs[i - 1] + share * (xs[i] - xs[i - 1])


def _increasing(points: list[tuple[float, int]]) -> list[float]:
    """The nearest sequence of values that never falls, in the sum of squares weighted by counts."""
    blocks: list[tuple[float, int, int]] = []  # mean, how many, at how many points
    for mean, count in points:
        width = 1
        while blocks and blocks[-1][0] > mean:
            other, size, more = blocks.pop()
            mean = (mean * count + other * size) / (count + size)
            count, width = count + size, width + more
        blocks.append((mean, count, width))
    return [mean for mean, _, width in blocks for _ in range(width)]
