"""Run an objective and add its gradient; record whether the pass counts.

An objective under SAM runs twice: in a first pass that only finds delta, and in a perturbed one
that counts. Side effects (measurements, dropout) need to know.
"""

import ctypes
import functools
import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeAlias, TypeVar
from weakref import ref

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states

from torch_alm._optim import gradients
from torch_alm._optim.gradients import Backward, Register

P = ParamSpec("P")
T = TypeVar("T")
Objective: TypeAlias = Callable[[], Any]
Ask: TypeAlias = Callable[[Tensor], bool]

_states: dict[str, tuple[Any, dict[str, Any]]] = {"numpy": (None, {})}  # by counter, a state
_passes: dict[int, bool] = {}  # by thread, whether the pass that it runs counts


@contextmanager
def mark_running(*, counts: bool) -> Iterator[None]:
    """Mark everything inside as a pass; one within a pass that does not count does not either."""
    here = get_ident()
    outer = _passes.get(here)
    _passes[here] = counts and outer is not False
    try:
        yield
    finally:
        if outer is None:
            del _passes[here]
        else:
            _passes[here] = outer


def is_first_pass() -> bool:
    """Return whether this thread runs a pass that does not count."""
    return _passes.get(get_ident()) is False


def is_running() -> bool:
    """Return whether this thread runs a pass at all."""
    return get_ident() in _passes


def eager(method: Callable[P, T]) -> Callable[P, T]:
    """Run a method as it is written, also inside a function that is compiled.

    Traced, its changes to `.grad`, theta and Python's own objects are replayed between the pieces
    of a graph, not always in the order they are written in. A compiled model stays compiled inside.
    """

    @functools.wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_compiling():
            untraced: Any = torch.compiler.disable(method)
            return untraced(*args, **kwargs)
        return method(*args, **kwargs)

    return run


class Evaluation(NamedTuple):
    """One run of an objective.

    Attributes:
        loss: what is differentiated.
        value: what a constraint sees.
        paired: whether these were given apart.
        times: how many times the gradient of the loss was added to `.grad`.
    """

    loss: Tensor
    value: Tensor
    paired: bool
    times: float | Tensor = 0.0


class Passes:
    """The passes over an objective, at one or several weights, for the gradient of one `backward`.

    Args:
        objective, weight, backward, params: as given to an optimizer.
        owner: named in errors.
        pair: whether the objective may return `(loss, value)`.
    """

    def __init__(
        self,
        objective: Objective,
        weight: float,
        backward: Backward,
        params: list[Tensor],
        owner: str,
        *,
        pair: bool = False,
    ) -> None:
        if not 0 <= weight < math.inf:
            raise ValueError(
                f"{owner}: weight is {weight}, which would turn gradients round or end them. Did "
                "you mean 1/K, for one of K micro-batches?"
            )
        self._objective, self._weight, self._backward = objective, weight, backward
        self.params, self._owner, self._pair = params, owner, pair
        self._first: Callable[[], Tensor | None] = lambda: None  # the loss of the first pass
        self._statistics = list[Tensor]()

    def find_direction(self, pair_sign: int) -> None:
        """`.grad` = grad L, that of a pair's loss multiplied by `pair_sign`.

        The pass only finds delta: nobody observes what it measures.
        """
        with mark_running(counts=False):
            found = _evaluate(self._objective, self._owner, self._pair)
            self._first, graph = ref(found.loss), walk(found.loss)
            self._statistics = statistics(graph)
            weight = pair_sign if found.paired else 1.0
            self._differentiate(found.loss, weight, graph)

    def accumulate(self, so_far: Register, wanted: Ask | None = None) -> Evaluation:
        """`.grad` = so_far + weight * grad L.

        `wanted` looks at the value and decides whether the gradient is needed. The running
        statistics of BatchNorm stay as the pass before has left them.
        """
        kept = [t.clone() for t in self._statistics]
        with mark_running(counts=True):
            found = _evaluate(self._objective, self._owner, self._pair)
            if self._first() is found.loss:
                refuse_stale(self._owner)
            gradients.put(self.params, gradients.copy_all(so_far))
            if wanted is None or wanted(found.value):
                graph = walk(found.loss) if self._pair else []
                times = self._differentiate(found.loss, self._weight, graph)
                found = found._replace(times=times)
        with torch.no_grad():
            for t, value in zip(self._statistics, kept, strict=True):
                t.copy_(value)
        return found._replace(loss=found.loss.detach())

    def _differentiate(self, loss: Tensor, weight: float, graph: Iterable[Any]) -> float | Tensor:
        """`.grad += weight * grad loss`; returns the factor, with what `backward` has put into it.

        The weight is a hook on the loss: `backward` receives it unscaled and owns all other
        scaling. Weights of others in the graph are left nothing: they know of no delta and no gate.
        """
        others, times = find_outside(graph, self.params), list[Tensor]()
        theirs = gradients.take(others) if others else []

        def weigh(gradient: Tensor) -> Tensor:
            times.append(gradient.detach())
            return gradient * weight

        is_plain = self._backward is Tensor.backward and weight == 1.0
        handle = None if is_plain else loss.register_hook(weigh)
        params = [p for p in self.params if p.requires_grad]
        before = [p._version for p in params]
        try:
            self._backward(loss)
        except RuntimeError as error:
            if "graph a second time" in str(error):
                refuse_stale(self._owner, error)
            raise
        finally:
            if others:
                gradients.put(others, theirs)
            if handle is not None:
                handle.remove()
        if before != [p._version for p in params] or [p for p in params if p.grad is None]:
            moved = [p for p, version in zip(params, before, strict=True) if p._version != version]
            _check_arrived(params, moved, self._owner)
        return times[-1] * weight if times else weight


def _evaluate(objective: Objective, owner: str, pair: bool) -> Evaluation:
    """Run an objective with gradients enabled and check what it returns."""
    if not callable(objective):
        raise TypeError(
            f"{owner} takes an objective, a function that runs the forward pass, and found "
            f"{type(objective).__name__}: it could not be run again at other weights. Did you mean "
            "`lambda: loss(model, batch)`?"
        )
    with torch.enable_grad():
        result = objective()
    paired = pair and isinstance(result, tuple) and len(result) == 2
    loss, value = result if paired else (result, result)
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"{owner}: the objective returned {type(loss).__name__}, which has no gradient. "
            "Did you mean to return the loss tensor (not `.item()`, and without calling backward)?"
        )
    # A float in float32 would be another number.
    if not isinstance(value, Tensor):
        wide = torch.float64 if isinstance(value, float) else None
        value = torch.as_tensor(value, dtype=wide, device="cpu")
    for found in (loss, value):
        if found.numel() != 1:
            raise ValueError(
                f"{owner}: the objective returned a tensor of shape {tuple(found.shape)}; only a "
                "scalar has a gradient, or a place beside alpha. Did you forget `.mean()`?"
            )
    if not loss.requires_grad:
        raise ValueError(
            f"{owner}: the objective returned a loss without a graph, so its gradient would be "
            "missing. Was it detached, are all parameters frozen, or is it run inside "
            "`torch.inference_mode()`?"
        )
    return Evaluation(loss, value.detach(), paired)


def walk(loss: Tensor) -> list[Any]:
    """List the nodes of the graph behind a loss."""
    found = [] if loss.grad_fn is None else [loss.grad_fn]
    seen = {*found}
    for node in found:  # it grows
        for each, _ in node.next_functions:
            if each is not None and each not in seen:
                seen.add(each)
                found.append(each)
    return found


def find_outside(graph: Iterable[Any], params: Sequence[Tensor]) -> list[Tensor]:
    """List the other leaves of a graph, such as weights of another optimizer."""
    leaves = [node.variable for node in graph if type(node).__name__ == "AccumulateGrad"]
    own = {*map(id, params)} if leaves else set()
    return [leaf for leaf in leaves if id(leaf) not in own]


def statistics(graph: Iterable[Any]) -> list[Tensor]:
    """List the running statistics that BatchNorm layers in a graph have moved."""
    norms = [node for node in graph if "BatchNorm" in type(node).__name__]
    moved = [node for node in norms if getattr(node, "_saved_training", False)]
    found = [t for node in moved for t in (node._saved_running_mean, node._saved_running_var)]
    return [t for t in found if t is not None]


def refuse_stale(owner: str, error: Exception | None = None) -> NoReturn:
    """Raise for a loss whose graph another pass has used up."""
    raise RuntimeError(
        f"{owner}: the objective returned a loss that was computed before, at other weights. Did "
        "you mean `lambda: loss(model, batch)`, with the whole forward pass inside?"
    ) from error


def _check_arrived(params: list[Tensor], moved: list[Tensor], owner: str) -> None:
    """Raise if the backward pass has moved weights, or left nothing for any of them."""
    sharded: list[Tensor] = [p for p in params if gradients.is_sharded(p)]
    if count := sum(not gradients.is_sharded(p) for p in moved):
        raise RuntimeError(
            f"{owner}: the backward pass has moved {count} parameters; the next would be about "
            "others. Does an optimizer step inside backward (layerwise GaLore, LOMO), or does a "
            "checkpointed layer write to its weights (`Embedding(max_norm=)`)?"
        )
    if any(p.grad is not None for p in sharded or params):
        return
    if sharded:
        raise RuntimeError(
            f"{owner}: the backward pass left no gradient on {len(sharded)} sharded parameters; "
            "FSDP2 would have added up what belongs apart. Is gradient sync off? Every micro-batch "
            "needs it: `model.set_requires_gradient_sync(True)`, or under accelerate "
            "`GradientAccumulationPlugin(sync_each_batch=True)`."
        )
    raise RuntimeError(
        f"{owner}: the backward pass left no gradient on any of {len(params)} parameters, which "
        "would stay where they are. Is it the loss of another model (a copy, or the one before it "
        "was wrapped), or does an optimizer step inside backward and clear them by hooks?"
    )


def _replay_numpy(numpy: Any) -> Callable[[], object]:  # noqa: ANN401  # its `random`
    """Return what sets NumPy's generator back.

    Its state takes longer to copy than ten layers to run, so a copy serves until the generator's
    own counter moves.
    """
    generator, mark, (known, state) = numpy.mtrand._rand._bit_generator, None, _states["numpy"]
    if type(generator).__name__ == "MT19937":  # the counter, and one of the words that it counts
        words = (ctypes.c_uint32 * 625).from_address(generator.ctypes.state_address)
        mark = generator, words[624], words[0]
    if mark is None or mark != known or state["has_gauss"]:  # half a pair of draws moves nothing
        state = numpy.get_state(legacy=False)
        if "key" in state["state"]:  # of the usual generator: a list is set twenty times faster
            state["state"]["key"] = state["state"]["key"].tolist()
        _states["numpy"] = mark, state
    return partial(numpy.set_state, state)


def make_replay(tensors: list[Tensor]) -> Callable[[], object]:
    """Return a function after which a pass draws the same random numbers as one that begins now.

    On the CPU, on all GPUs, and on other devices that some of the tensors are on; Python's, and
    NumPy's where somebody has imported its module of random numbers.
    """
    calls: list[Callable[[], object]] = [
        partial(torch.set_rng_state, torch.get_rng_state()),
        partial(random.setstate, random.getstate()),
    ]
    if (numpy := sys.modules.get("numpy.random")) is not None:
        calls.append(_replay_numpy(numpy))
    if torch.cuda.is_initialized():  # weights may be offloaded, and dropout be drawn on a GPU
        calls.append(partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    others = {t.device: t for t in tensors if not (t.is_cpu or t.is_cuda or t.is_meta)}
    if others:
        devices, states = get_device_states(*others.values())
        kind = next(iter(others)).type
        calls.append(partial(set_device_states, devices, states, device_type=kind))
    return lambda: [call() for call in calls]
