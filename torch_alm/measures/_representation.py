"""Representation misdirection (RMU): hidden states steered to a fixed random direction."""

from typing import Any

import torch
from torch import Tensor, nn

from torch_alm.measures._answers import (
    Places,
    labels_of,
    mean_over_tokens,
    places_of,
    spread,
    starts_of,
)
from torch_alm.measures._logits import Batch, compute_dtype, inputs_of


def steering_vector(
    size: int,
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Draw a random direction u: `size` entries from U[0, 1), scaled to length 1.

    It is drawn in float64 on the CPU, so a seed gives the same direction on every device, rank and
    dtype. The global random state is not used.

    >>> steering_vector(4).norm()
    tensor(1.)
    """
    generator = torch.Generator().manual_seed(seed)
    direction = torch.rand(size, generator=generator, dtype=torch.float64)
    return direction.div(direction.norm()).to(device=device, dtype=dtype)


def hidden_states(model: nn.Module, batch: Batch, layer: str | nn.Module) -> Tensor:
    """Return a layer's output, or its first element if it is a tuple: (B, T, d), with its graph."""
    module = dict(model.named_modules()).get(layer) if isinstance(layer, str) else layer
    if module is None:
        raise ValueError(
            f"`layer` is {layer!r}, but {type(model).__name__} has no module of that name, so "
            "there are no hidden states. Did a wrapper put a prefix before it, such as `module.`?"
        )
    outputs: list[Any] = []
    handle = module.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
    try:
        model(**inputs_of(batch))
    finally:
        handle.remove()
    if not outputs:
        name = layer if isinstance(layer, str) else type(layer).__name__
        raise ValueError(
            f"The forward never ran layer `{name}`, so there are no hidden states to steer. "
            "Did you take the layer from another copy of the model?"
        )
    return outputs[-1] if isinstance(outputs[-1], Tensor) else outputs[-1][0]


def distance(hidden: Tensor, target: Tensor, places: Places) -> Tensor:
    """Compute `mean_i mean_t (1/d) |h_it - target|^2`; target (d,) or (B, T, d), detached."""
    difference = hidden.to(compute_dtype(hidden)) - target.detach().to(hidden.device)
    squares = difference.square().mean(dim=-1)[places.mask.to(hidden.device)]
    answers = places.answers.to(hidden.device)
    return mean_over_tokens(spread(squares, answers), answers, "example")


def find_labelled(batch: Batch) -> Places:
    """Find the positions of labelled tokens: a hidden state belongs to its own token."""
    labels = labels_of(batch)
    return places_of(labels, starts_of(batch, labels), shifted=False)


def rmu(
    model: nn.Module,
    batch: Batch,
    layer: str | nn.Module,
    direction: Tensor,
    coefficient: float = 6.5,
) -> Tensor:
    """Smaller = more forgotten: RMU's forget loss `U = mean (h - c u)^2`, to be minimised.

    The mean over sequences of means over labelled tokens of means over the d hidden units; label
    all tokens to steer all of them.

    Args:
        model: a module called with the batch except its `labels`.
        batch: as in `token_nll`.
        layer: the decoder layer, or its name in `model.named_modules()` ("model.layers.7"); the
            authors take number 7, counted from 0.
        direction: u, (d,), as `steering_vector(d)` draws it.
        coefficient: c, the length of the target in units of the hidden states; U starts near
            c^2/d where those are short. 6.5 is the authors' value for Zephyr-7B.

    Returns:
        Scalar in fp32 or wider, in squared units of the hidden states.

    Raises:
        ValueError: no labelled token, no layer of that name, or the layer did not run.

    Cost: one whole forward: engines that shard or synchronise must see it end. Source: Li et al.
    2024 (WMDP); SAUL's WMDP experiments.
    """
    places = find_labelled(batch)
    return distance(hidden_states(model, batch, layer), float(coefficient) * direction, places)


def rmu_retain(model: nn.Module, batch: Batch, layer: str, reference: nn.Module) -> Tensor:
    """Smaller = closer to the reference: RMU's retain loss `R = mean (h - h_0)^2`.

    Args:
        model: as in `rmu`.
        batch: as in `rmu`.
        layer: the name of the decoder layer, in both models.
        reference: the frozen model from before unlearning, run without gradients.

    Errors are those of `rmu`. Cost: two forwards, one without gradients.
    """
    places = find_labelled(batch)
    with torch.no_grad():
        target = hidden_states(reference, batch, layer)
    return distance(hidden_states(model, batch, layer), target, places)
