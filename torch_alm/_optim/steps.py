"""The next step of an optimizer, taken by a copy, and its response to a weight."""

import copy
import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RMSprop

from torch_alm._optim.gradients import parameters
from torch_alm._optim.objective import make_replay
from torch_alm._optim.wrapper import find_stateful

Gradient: TypeAlias = Mapping[Tensor, Tensor]
Response: TypeAlias = tuple[float, float, bool]  # G, rho, and whether none of it is adaptive

KNOWN = (SGD, Adam, AdamW, NAdam, Adamax, RMSprop, Adagrad)  # those whose divisor is read
SQUARES = ("max_exp_avg_sq", "exp_avg_sq", "square_avg", "sum")  # in an optimizer's state
TRIES, CLOSE, FLAT = 6, 0.02, 0.2  # steps of a copy, a change that is met, a rate's least power
TINY = 1e-38  # added to a divisor that may be 0


def displacement(optimizer: Optimizer, gradient: Gradient, times: float) -> Gradient:
    """Return by how much the next step moves each parameter with this gradient, rates times that.

    A copy of parameters and state takes it, in float32 or wider; nothing of the optimizer, and no
    random number, is used up. Cost: a copy of weights, gradient and state.
    """
    memo = dict[int, Any]()
    for p in parameters(optimizer):
        memo[id(p)] = p.detach()  # without a gradient it is not moved
        if p in gradient:
            memo[id(p)] = torch.nn.Parameter(p.detach().to(_wide(p), copy=True))
            memo[id(p)].grad = gradient[p].to(_wide(p), copy=True)
    for state in optimizer.state.values():
        narrow = [x for x in state.values() if isinstance(x, Tensor) and _wide(x) != x.dtype]
        memo.update({id(x): x.detach().to(_wide(x)) for x in narrow})
    again = make_replay([*gradient])
    try:
        twin = _copy_optimizer(optimizer, memo)
        for group in twin.param_groups:
            group["lr"] = group["lr"] * times
        step: Any = type(twin).step
        (step.__wrapped__ if getattr(step, "hooked", False) else step)(twin)  # no global hooks
    finally:
        again()
    return {p: memo[id(p)].detach() - p.detach() for p in gradient}


def rate_of_step(optimizer: Optimizer, gradient: Gradient, change: float) -> float:
    """Return the first group's rate at which the next step changes a loss by `change`.

    The gradient is that of the loss. A step goes about as a power of its rate; a copy is asked for
    steps until one has met the change to a fiftieth.

    Raises:
        ValueError: if there is no such rate.
    """
    base, times, power = find_stateful(optimizer), 1.0, 1.0
    group, name = base.param_groups[0], type(base).__name__
    sign = 1 if group.get("maximize", vars(base).get("maximize")) else -1
    seen = list[tuple[float, float]]()
    while len(seen) < TRIES:
        try:
            rate = float(group["lr"]) * times
            found = sign * inner(gradient, displacement(base, gradient, times))
        except Exception as error:
            raise ValueError(
                f"rate_for: a copy of {name} takes no step with a gradient: {error}. Does it need "
                "a closure (LBFGS), sparse gradients, or a rate (Adafactor: "
                "`relative_step=False`)? Did you mean a fresh AdamW?"
            ) from error
        if seen and seen[-1][1] > 0 and found > 0:
            power = math.log(found / seen[-1][1]) / math.log(rate / seen[-1][0])
        if abs(found - change) <= CLOSE * change:
            return rate * (change / found) ** (1 / power)
        seen.append((rate, found))
        if not 0 <= found < math.inf or power < FLAT:
            break
        times *= (change / found) ** (1 / power) if found else 1000.0
    tried = ", ".join(f"{found:.3g} at lr={rate:.3g}" for rate, found in seen)
    raise ValueError(
        f"rate_for: at no rate that was tried does the next step of {name} change the loss by "
        f"{change:g}, but by {tried}. Is a step not proportional to its rate (relative steps, "
        "sizes kept from before), does it go against the gradient (momentum), or is the rate "
        "warmed up from 0? Did you mean a fresh AdamW, or to ask before the schedule?"
    )


def _copy_optimizer(optimizer: Optimizer, memo: dict[int, Any]) -> Optimizer:
    """Copy an optimizer with what its class keeps beside the state, which torch does not copy."""
    twin = memo[id(optimizer)] = object.__new__(type(optimizer))
    for name, value in vars(optimizer).items():
        if isinstance(value, Optimizer):
            vars(twin)[name] = _copy_optimizer(value, memo)
        else:  # without those who watch this one
            is_kept = not name.endswith("_hooks")
            vars(twin)[name] = copy.deepcopy(value, memo) if is_kept else type(value)()
    return twin


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32) if x.is_floating_point() else x.dtype


def response(optimizer: Optimizer, a: Gradient, rest: Gradient, g: Gradient) -> Response:
    """Sum up over parameters G and rho of a step along a; e is left to the caller.

    An adaptive step divides by sqrt(v), which vanishes with the gradient where objective and
    penalty cancel; what either of them would be alone, |r_i| and rho |a_i|, does not. Here a is
    grad c, the rest what else pulls at the parameters, and g what the optimizer steps on.

    Raises:
        RuntimeError: for an optimizer whose divisor is not known.
    """
    base = find_stateful(optimizer)
    if not isinstance(base, KNOWN):
        refuse(f"found {type(base).__name__}, and knows not what its steps divide by")
    pairs = [(group, p) for group in base.param_groups for p in group["params"] if p in g]
    norm, gain, is_plain = _norm(a.values()), 0.0, True
    pulls = (_pull(base, group, p, rest, g) for group, p in pairs)
    balance = _norm(pull for pull, *_ in pulls) / norm if norm else 0.0
    for group, p in pairs:
        if p in a:
            x, (pull, rate, root) = _flat(a[p]), _pull(base, group, p, rest, g)
            by = 1.0 if root is None else root + torch.maximum(abs(pull), balance * abs(x)) + TINY
            is_plain = is_plain and root is None
            gain += rate * float((x * x / by).sum())
    return gain, balance, is_plain


def _pull(
    optimizer: Optimizer, group: Mapping[str, Any], p: Tensor, rest: Gradient, g: Gradient
) -> tuple[Tensor, float, Tensor | None]:
    """Return what else pulls at a parameter, its L2 with it, and its preconditioner."""
    rate, root = preconditioner(group, optimizer.state.get(p, {}), _flat(g[p]))
    pull = _flat(rest[p]) if p in rest else torch.zeros_like(_flat(p))
    if not (isinstance(optimizer, AdamW) or group.get("decoupled_weight_decay")):
        pull = pull + group.get("weight_decay", 0.0) * _flat(p)
    return pull, rate, root


def preconditioner(
    group: Mapping[str, Any], state: Mapping[str, Any], g: Tensor
) -> tuple[float, Tensor | None]:
    """Return the rate of a step and what divides it entry by entry, None for lr times the gradient.

    With momentum the rate is that of all steps together that follow from a gradient. An adaptive
    optimizer that has not stepped yet is one of signs: its first step is about lr in every entry.
    """
    taken = float(state.get("step", 0))
    rate = float(group["lr"]) / (1 + taken * group.get("lr_decay", 0.0))
    rate *= (1 - group.get("dampening", 0.0)) / (1 - group.get("momentum", 0.0))
    if "eps" not in group:
        return rate, None
    if "exp_inf" in state:
        return rate, _flat(state["exp_inf"])
    square = next((_flat(state[n]) for n in SQUARES if isinstance(state.get(n), Tensor)), g * g)
    if "sum" in state:  # which this step's square is added to before it divides
        square = square + g * g
    if "betas" in group and taken:
        square = square / (1 - float(group["betas"][1]) ** taken)
    if "grad_avg" in state:  # centered
        square = (square - _flat(state["grad_avg"]).square()).clamp(min=0.0)
    return rate, square.sqrt() + group["eps"]


def _flat(tensor: Tensor) -> Tensor:
    """Make a dense row in float64, where the device knows it: squares do not underflow."""
    wide = torch.float32 if tensor.device.type == "mps" else torch.float64
    return tensor.detach().to_dense().reshape(-1).to(wide)


def inner(a: Gradient, b: Gradient) -> float:
    """Return the inner product, over the parameters of both."""
    return sum(float((_flat(x) * _flat(b[p])).sum()) for p, x in a.items() if p in b)


def _norm(tensors: Iterable[Tensor]) -> float:
    return sum(float(_flat(x).square().sum()) for x in tensors) ** 0.5


def refuse(found: str) -> NoReturn:
    """Raise for a mu that cannot be found."""
    raise RuntimeError(
        f'ALMConstraint: mu="auto" {found}; mu would be wrong by an unknown factor. Did you mean '
        "a number, such as mu=0.1?"
    )
