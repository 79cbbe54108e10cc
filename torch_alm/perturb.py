"""Move theta to a nearby point and bring it back, bit for bit.

Source: the procedure Grad_SAM of Algorithm 1 in SAUL (section 4.2), after Foret et al. 2021.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch_alm._optim.moves import Excursion, Memory, Params, check_radius, radii_of
from torch_alm._optim.realised import Perturbation
from torch_alm._optim.rounding import Rounding, check_rounding
from torch_alm._optim.swaps import Swap


@contextmanager
def perturbed(
    params: Params,
    rho: float,
    *,
    sign: int = 1,
    eps: float = 1e-12,
    adaptive: bool = False,
    rounding: Rounding = "nearest",
    swap: bool = False,
    diagnose: bool = False,
    memory: Memory | None = None,
) -> Iterator[Perturbation]:
    r"""Put theta at theta + delta inside the `with` block; on exit it is back, bit for bit.

    With g the `.grad` at entry, over all parameters jointly,

        delta = sign * rho * g / (||g||_2 + eps).

    `.grad` is `None` inside. On exit only theta returns (the same values in the same storage, also
    after an exception or Ctrl-C); `.grad` is whatever the block left there. A zero or non-finite
    `||g||` moves nothing. Two parameters on the same memory move as the one they are, along the sum
    of their gradients. The autocast cache, which would go on serving the old weights, is cleared on
    the way in and out.

    Args:
        params: parameters, or an optimizer's `param_groups`. A group's own `"rho"` takes the place
            of `rho`; parameters with radius 0 stay where they are and do not count in the norm.
            Of an optimizer with a `"rho"` of its own in its groups (Adadelta) pass the parameters.
        rho: the length of delta, in the units of theta. At least 0.
        sign: +1 moves where the differentiated quantity grows, -1 where it falls.
        eps: added to the norm, as the paper's epsilon_pert.
        adaptive: measure and move in units of each weight (ASAM, Kwon et al. 2021):
            delta = sign * rho * theta^2 g / (|| |theta| g ||_2 + eps).
        rounding: "nearest" or, for bfloat16 and float16 weights, "stochastic": right on average
            where delta is shorter than the distance between neighbouring numbers.
        swap: point the parameters at new memory instead of writing into theirs. Cheaper; only for
            plain tensors nobody else looks into (no FSDP2, no views, no CUDA graph).
        diagnose: report in `realised` how much of delta the weights' dtype held.
        memory: where copies of theta may be kept for the next call. On a CPU fresh memory costs
            several times the copy itself.

    Raises:
        ValueError: if a radius or `eps` is negative or not finite, `sign` is not +1 or -1,
            `rounding` is unknown, a parameter cannot be swapped, or two lie partly in the same
            memory. theta and `.grad` are then as before.

    Cost: no backward pass; one copy of the perturbed parameters inside the block. Passes over their
    memory, on a CPU: seven in all, four with `swap`; `rounding="stochastic"` takes one and a half
    to two times as long. One synchronisation on a CPU, none on an accelerator; `diagnose` adds one.

    Example:
        >>> theta = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> theta.square().sum().backward()  # the gradient is (6, 8)
        >>> with perturbed([theta], rho=1.0):
        ...     print(theta.detach())
        tensor([3.6000, 4.8000])
        >>> theta.detach()
        tensor([3., 4.])
    """
    if sign not in (1, -1):
        raise ValueError(f"perturbed: sign is {sign!r}; +1 climbs, -1 descends. Which is it?")
    excursion = (Swap if swap else Excursion)(
        radii_of(params, check_radius(rho, "perturbed: rho"), sign),
        check_radius(eps, "perturbed: eps"),
        adaptive,
        check_rounding(rounding, "perturbed: rounding"),
        diagnose,
        {} if memory is None else memory,
    )
    try:
        try:
            yield excursion.go()
        finally:
            excursion.back()
    finally:
        excursion.back()  # an interrupt may have cut the first one short
