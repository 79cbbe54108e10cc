"""A dry run: what a run would do, and the memory, disk and time that it would take."""

from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from torch_alm.cli.methods import SAUL, Dual
from torch_alm.cli.space import megabytes, state_bytes, trained_bytes
from torch_alm.cli.training import Training
from torch_alm.language import Batch


def memory_of(training: Training) -> dict[str, int]:
    """Count the bytes that a step keeps, and measure the activations of its longest rows.

    The gradients of two sides are kept apart; SAM keeps the weights that it moved away from.

    Cost: one forward pass.
    """
    method = training.method
    moved = trained_bytes(method.model)
    return {
        "weights": sum(p.numel() * p.element_size() for p in method.model.parameters()),
        "gradients": (2 if isinstance(method, Dual) else 1) * moved,
        "optimizers": state_bytes(method.model, type(method)) - moved,
        "copy": moved if isinstance(method, SAUL) else 0,
        "activations": activations_of(training),
    }


def activations_of(training: Training) -> int:
    """Bytes that a forward pass keeps for its backward pass, on the longest rows."""
    method, rows = training.method, training.retain
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]["input_ids"]))
    size = method.rows_at_once or len(rows)
    (batch,) = training.batches(rows, order[:size], size)
    method.model.train()
    return kept_by(lambda: method.retain_loss(batch), method.params)


def kept_by(forward: Any, params: list[Tensor]) -> int:  # noqa: ANN401
    """Bytes of the tensors that autograd keeps of a forward pass, each storage once."""
    own = {p.untyped_storage().data_ptr() for p in params}
    found: dict[int, int] = {}

    def noted(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(noted, lambda tensor: tensor):
        loss = forward()  # in a name: what a graph keeps goes with it
    del loss
    return sum(found.values())


def seconds_of(training: Training) -> float:
    """Time of one step: the second of two, since the first makes what later ones find.

    Cost: two steps, which move the weights.
    """
    pair: tuple[Batch, Batch] = training.pair(*training.order[0])
    training.method.model.train()
    training.method.step(*pair)
    before = perf_counter()
    training.method.step(*pair)
    return perf_counter() - before


def plan_of(training: Training, saved: int) -> dict[str, Any]:
    """The numbers of a plan."""
    memory = memory_of(training)
    state = state_bytes(training.method.model, type(training.method))
    seconds = seconds_of(training)
    return {
        "rows": {"forget": len(training.forget), "retain": len(training.retain)},
        "steps": training.steps,
        "rows_per_step": len(training.order[0][1]),
        "goal": training.method.goal.alpha,
        "memory": {**memory, "all": sum(memory.values())},
        "disk": {"state": state, "saved": saved},
        "seconds_per_step": seconds,
        "seconds": seconds * training.steps,
    }


def told(plan: dict[str, Any], method: str, lr: float | None, goal: str) -> str:
    """The plan in lines."""
    memory, disk, rows = plan["memory"], plan["disk"], plan["rows"]
    rate = "a rate that is looked for" if lr is None else f"a rate of {lr:g}"
    lines = {
        "rows": f"{rows['forget']} to forget, {rows['retain']} to keep",
        "method": f"{method}, {plan['rows_per_step']} rows of either kind per step, {rate}",
        "goal": goal,
        "steps": f"at most {plan['steps']}; the run ends when the goal is met",
        "memory": f"{megabytes(memory['all'])} and what libraries take:",
        "  weights": megabytes(memory["weights"]),
        "  gradients": megabytes(memory["gradients"]),
        "  optimizers": megabytes(memory["optimizers"]),
        "  SAM's copy": megabytes(memory["copy"]),
        "  activations": f"{megabytes(memory['activations'])}, measured on the longest rows",
        "disk": f"{megabytes(disk['saved'])} for the model, {megabytes(disk['state'])} for a state",
        "time": f"{plan['seconds_per_step']:.3g} s per step, measured: at most "
        f"{clock(plan['seconds'])}, and that of asking the model",
    }
    return "\n".join(f"{name:<14}{text}" for name, text in lines.items())


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
