"""Representation misdirection (RMU): hidden states steered to a fixed random direction."""

from typing import Any

import torch
from torch import Tensor, nn

from torch_alm.measures._answers import (
    Batch,
    inputs_of,
    labelled,
    labels_of,
    mean_over_tokens,
    require_option,
    require_positions,
    wide,
)


def steering_vector(
    size: int,
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """A random direction u: `size` entries drawn from U[0, 1), then scaled to length 1.

    Drawn in float64 on the CPU, so one seed gives one direction on every device, rank and dtype.
    The global random state is left alone.

    >>> steering_vector(4).norm()
    tensor(1.)
    """
    generator = torch.Generator().manual_seed(seed)
    direction = torch.rand(size, generator=generator, dtype=torch.float64)
    unit: Tensor = direction / direction.norm()
    return unit.to(device=device, dtype=dtype)


def find_layer(model: nn.Module, name: str) -> nn.Module:
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if name not in modules:
        raise ValueError(
            f"`layer` is {name!r}, but {type(model).__name__} has no module of that name, so there "
            "are no hidden states. Did a wrapper put a prefix before it, such as `module.`?"
        )
    return modules[name]


def hidden_states(model: nn.Module, batch: Batch, layer: str | nn.Module) -> Tensor:
    """The output of one layer, (B, T, d) in the model's dtype, attached to its graph.

    Args:
        model: called with the batch except its `labels`.
        batch: as in `token_nll`; labels are not needed here.
        layer: the decoder layer, or its name in `model.named_modules()` ("model.layers.7").

    Returns:
        The layer's output; the first element if it is a tuple.

    Raises:
        ValueError: the model has no module of that name, or the layer did not run.

    Cost: one whole forward: engines that shard or synchronise must see it end.
    """
    module = find_layer(model, layer) if isinstance(layer, str) else layer
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


def hidden_distance(hidden: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Smaller = closer to the target: mean square distance per hidden unit.

    `mean_i mean_t (1/d) |h_it - target|^2`. With the target c u it is RMU's forget term U, with
    the states of the original model its retain term R.

    Args:
        hidden: (B, T, d).
        target: broadcasts to it: (d,) or (B, T, d). Receives no gradient.
        mask: (B, T) bool, the positions that count; None for all. Averaged per sequence first.

    Returns:
        Scalar in fp32 or wider, in squared units of the hidden states.

    Raises:
        ValueError: the mask leaves no position.

    Source: Li et al. 2024 (WMDP); SAUL's WMDP experiments.

    >>> import torch
    >>> hidden_distance(torch.full((1, 2, 3), 2.0), torch.zeros(3))
    tensor(4.)
    """
    difference = hidden.to(wide(hidden)) - target.detach().to(hidden.device)
    squares = difference.square().mean(dim=-1)
    if mask is None:
        mask = torch.ones_like(squares, dtype=torch.bool)
    mask = require_positions(mask.to(hidden.device))
    return mean_over_tokens(squares.masked_fill(~mask, 0.0), mask, "example")


def position_mask(batch: Batch, mask: str) -> Tensor | None:
    """Positions that hold a labelled token themselves (a state belongs to its token), or None."""
    require_option("mask", mask, ("tokens", "all"))
    return None if mask == "all" else labelled(labels_of(batch))


def rmu(
    model: nn.Module,
    batch: Batch,
    layer: str | nn.Module,
    direction: Tensor,
    coefficient: float = 6.5,
    *,
    mask: str = "tokens",
) -> Tensor:
    """Smaller = more forgotten: RMU's forget loss `U = mean (h - c u)^2`, to be minimised.

    Args:
        model: a module called with the batch except its `labels`.
        batch: as in `token_nll`; labels are needed for `mask="tokens"` only.
        layer: the decoder layer or its name; the authors take number 7, counted from 0.
        direction: u, (d,), as `steering_vector(d)` draws it.
        coefficient: c, the length of the target in units of the hidden states; U starts near
            c^2/d where those are short. 6.5 is the authors' value for Zephyr-7B.
        mask: "tokens", the mean over sequences of means over labelled tokens; or "all", every
            position with padding and prompt, as in the authors' code.

    Raises:
        ValueError: no labelled token for `mask="tokens"`, unknown mask or layer, or the layer
            did not run.

    Cost: one forward. Source: Li et al. 2024 (WMDP); SAUL's WMDP experiments.
    """
    chosen = position_mask(batch, mask)
    return hidden_distance(
        hidden_states(model, batch, layer), float(coefficient) * direction, chosen
    )


def rmu_retain(
    model: nn.Module, batch: Batch, layer: str, reference: nn.Module, *, mask: str = "tokens"
) -> Tensor:
    """Smaller = closer to the reference: RMU's retain loss `R = mean (h - h_0)^2`.

    Args:
        model: as in `rmu`.
        batch: as in `rmu`.
        layer: the name of the decoder layer, in both models.
        reference: the frozen model from before unlearning, run without gradients.
        mask: as in `rmu`; so are the errors.

    Cost: two forwards, one without gradients.
    """
    chosen = position_mask(batch, mask)
    with torch.no_grad():
        target = hidden_states(reference, batch, layer)
    return hidden_distance(hidden_states(model, batch, layer), target, chosen)
