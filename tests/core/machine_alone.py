"""SAM and ReverseSAM by themselves, with a constraint in the objective and under a GradScaler."""

import math
from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis.stateful import initialize, precondition, rule
from torch import Tensor, nn

from tests.core import machine_common as common
from tests.core import machine_world as worlds
from tests.core.machine_common import Common, of_library, of_oracle, weights, xs
from tests.core.machine_objectives import (
    NOT_FINITE,
    Boom,
    Fault,
    Objective,
    forget_loss,
    retain_loss,
    start,
)
from tests.core.machine_oracle import Controller, Register, clipped, is_finite, length
from tests.core.machine_sam import GROWTH, AloneOracle

measured = st.sampled_from((0.37, -1.13, 2.29, math.nan))
steps = st.lists(st.lists(st.tuples(xs, measured), min_size=1, max_size=3), min_size=2, max_size=5)


class AloneWorld(worlds.World):
    """A SAM with its constraint and scaler."""

    scaler: Any = None
    attached: bool = False

    def outer_sides(self) -> dict[str, Any]:
        return {"base": self.optimizer}

    def parts(self) -> dict[str, Any]:
        extra = {"constraint": self.constraint, "scaler": self.scaler}
        return (
            {"optimizer": self.optimizer}
            | {k: v for k, v in extra.items() if v}
            | {"model": self.model}
        )

    def equip(self) -> None:
        """Set what neither checkpoints nor copies hold."""
        if self.scaler is not None:
            self.optimizer.backward_fn = lambda loss: self.scaler.scale(loss).backward()
        self.attachment = self.constraint.attach(self.optimizer) if self.attached else None

    def duplicate(self, *, pickled: bool) -> None:
        self.optimizer.backward_fn = torch.Tensor.backward
        if self.attachment:
            self.attachment.remove()
        super().duplicate(pickled=pickled)
        self.equip()

    def zero_grad(self, set_to_none: bool) -> None:
        super().zero_grad(set_to_none)
        if self.constraint is not None:
            self.constraint.discard()

    def step(self, *, unscaled: bool) -> None:
        """A step, and that of the constraint where no hook takes it."""
        if self.scaler is None:
            self.optimizer.step()
            is_fine = True
        else:
            if unscaled:
                self.scaler.unscale_(self.optimizer)
            before = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            is_fine = self.scaler.get_scale() >= before
        if self.constraint is None or self.attached:
            return
        if not is_fine:
            self.constraint.discard()
        elif self.constraint.observed:
            self.constraint.step()


class AloneMachine(Common):
    """`SAM` or `ReverseSAM`."""

    oracle: AloneOracle
    world: AloneWorld

    @initialize(
        side=common.sides,
        kind=st.sampled_from(("sam", "reverse")),
        adaptive=st.booleans(),
        terms=common.terms,
        sense=st.sampled_from((">=", "<=", "==", None)),
        scale=st.sampled_from((None, 8.0)),
        attached=st.booleans(),
        steps=steps,
    )
    def begin(
        self,
        side: dict[str, Any],
        kind: str,
        adaptive: bool,
        terms: dict[str, Any],
        sense: str | None,
        scale: float | None,
        attached: bool,
        steps: list[list[tuple[float, float]]],
    ) -> None:
        self.sides = {"base": {**side, "kind": kind}}
        self.schedules_sides, self.adaptive = False, adaptive
        self.oracle = AloneOracle(start(), scale=scale)
        self.oracle.sides = {"base": of_oracle(self.sides["base"], self.oracle)}
        self.oracle.sides["base"].adaptive = adaptive
        self.attached = attached and sense is not None
        if sense is not None:
            self.oracle.controller = Controller(sense=sense, **terms)
        self.world = self.build(self.oracle)
        self.train(steps[:1], None)
        self.save()
        self.train(steps[1:], None)

    def build(self, oracle: AloneOracle) -> AloneWorld:
        def optimizer(theta: list[nn.Parameter]) -> Any:
            expected = oracle.sides["base"]
            return of_library(self.sides["base"], expected, theta, adaptive=self.adaptive)

        world = AloneWorld(oracle, optimizer)
        if oracle.controller is not None:
            world.constraint = common.constraint_like(oracle.controller, forget_loss)
        if oracle.scale is not None:
            world.scaler = torch.amp.GradScaler(
                "cpu", init_scale=oracle.scale, growth_interval=GROWTH, backoff_factor=0.5
            )
        world.attached = self.attached
        world.equip()
        return world

    def check(self) -> None:
        super().check()
        if self.world.scaler is not None:
            assert self.world.scaler.get_scale() == self.oracle.scale

    def objectives(self, x: float, z: float, fault: Fault | None) -> tuple[Objective, Objective]:
        """An objective for the library, one for the oracle, which counts the second run only."""

        def ours(theta: list[nn.Parameter], x: float) -> Tensor:
            loss = retain_loss(theta, x)
            return loss if self.world.constraint is None else loss + self.world.constraint(theta, z)

        def theirs(theta: list[nn.Parameter], x: float) -> Tensor:
            loss = retain_loss(theta, x)
            if self.oracle.controller is None:
                return loss
            counts = expected.runs == 2
            return loss + self.oracle.penalty(forget_loss(theta, z), counts=counts)

        expected = Objective(theirs, self.oracle.theta, x, fault)
        return Objective(ours, self.world.theta, x, fault), expected

    def backward(self, x: float, z: float, weight: float, fault: Fault | None = None) -> Any:
        ours, theirs = self.objectives(x, z, fault)
        return self.both(
            lambda: self.world.optimizer.backward(ours, weight=weight),
            lambda: self.oracle.take(theirs, weight),
        )

    @rule(x=xs, z=measured, weight=weights)
    def take_gradient(self, x: float, z: float, weight: float) -> None:
        self.backward(x, z, weight)

    @rule(x=xs, z=measured, faults=common.faults)
    def fail(self, x: float, z: float, faults: list[Fault]) -> None:
        for fault in faults:
            self.count_fault("alone", fault, self.backward(x, z, 1.0, fault))
            self.check()

    def can_step(self) -> bool:
        """Without a scaler a gradient that is not finite would end the run."""
        if self.has_run_long():
            return False
        if self.oracle.scale is not None:
            return any(g is not None for g in self.oracle.grads())
        return is_finite(self.oracle.grads())

    @precondition(can_step)
    @rule(unscaled=st.booleans())
    def step(self, unscaled: bool) -> None:
        was_fine: list[bool] = []
        self.both(
            lambda: self.world.step(unscaled=unscaled),
            lambda: was_fine.append(self.oracle.step(unscaled=unscaled)),
            moves=True,
        )
        if self.oracle.scale is not None:
            self.seen[f"{'stepped' if was_fine[0] else 'skipped'} by the scaler"] += 1
        if self.oracle.controller is not None and self.oracle.controller.steps:
            is_open = self.oracle.controller.weight != 0
            self.seen["penalty open" if is_open else "penalty closed"] += 1

    @rule(
        steps=steps,
        fault=st.sampled_from((None, *map(Fault, NOT_FINITE))),
    )
    def train(self, steps: list[list[tuple[float, float]]], fault: Fault | None) -> None:
        """A loop's step, with gradients accumulated; under a scaler, the last one overflows."""
        for batches in steps:
            self.zero_grad(True)
            is_hit = self.oracle.scale is not None and batches is steps[-1]
            for x, z in batches:
                self.backward(x, z, 1 / len(batches), fault if is_hit else None)
            self.check()
            if self.can_step():
                self.step(False)
            self.check()

    def has_graph(self) -> bool:
        """Without a scaler, and with something to differentiate by."""
        is_trainable = any(p.requires_grad for p in self.oracle.theta)
        return self.oracle.scale is None and is_trainable and not self.has_run_long(2)

    @precondition(has_graph)
    @rule(
        x=xs,
        z=measured,
        faults=st.permutations((None, Fault("raise", 1), Fault("raise", 2), Fault("nan", 1))),
    )
    def step_with_closures(self, x: float, z: float, faults: list[Fault | None]) -> None:
        for fault in faults[:2]:
            self.step_with_a_closure(x, z, fault)
            self.check()

    def step_with_a_closure(self, x: float, z: float, fault: Fault | None) -> None:
        """Step with a closure as in `torch.optim`, once at theta and once nearby."""
        self.zero_grad(True)
        ours, theirs = self.objectives(x, z, fault)

        def closure() -> Tensor:
            self.world.optimizer.zero_grad()
            loss = ours()
            loss.backward()
            return loss.detach()

        def by_hand() -> Tensor:
            first: list[Tensor] = []

            def noted() -> Tensor:
                loss = theirs()
                first.append(loss.detach())
                return loss

            self.oracle.take(noted, 1.0)
            self.oracle.step()
            return first[0]

        def stepped() -> Any:
            loss = self.world.optimizer.step(closure)
            if self.world.constraint is not None and not self.attached:
                self.world.constraint.step()
            return loss

        result = self.both(stepped, by_hand, moves=True)
        self.seen["closure raised" if result is Boom else "closure"] += 1

    @precondition(has_graph)
    @rule(x=xs, raises=st.booleans())
    def perturb_by_hand(self, x: float, raises: bool) -> None:
        """`with sam.perturbed()` around a second backward pass."""
        self.zero_grad(True)
        ours, theirs = (
            Objective(retain_loss, half.theta, x, Fault("raise", 2) if raises else None)
            for half in (self.world, self.oracle)
        )

        def by_hand() -> None:
            ours().backward()
            with self.world.optimizer.perturbed():
                ours().backward()

        self.both(by_hand, lambda: self.oracle.take(theirs, 1.0) and None)
        self.seen["perturbed by hand"] += 1

    @precondition(lambda self: self.oracle.scale is None and self.can_step())
    @rule(limit=st.sampled_from((0.1, 1.0, 100.0)))
    def clip(self, limit: float) -> None:
        self.seen["clipped"] += 1

        def theirs() -> Tensor:
            before: Register = self.oracle.grads()
            self.oracle.put(clipped(before, limit))
            return torch.tensor(length(before), dtype=torch.float64)

        clip = torch.nn.utils.clip_grad_norm_
        self.both(lambda: clip(self.world.theta, limit).double(), theirs)
