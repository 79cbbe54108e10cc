"""Random sequences of everything a training loop may do, each compared with an oracle.

After every rule weights, gradients, moments, settings of groups, lambda, lambda+, status and counts
equal those of `machine_oracle.py` and `machine_dual.py`, which import nothing of torch_alm. In the
suite the sequences are always the same ones; a long run with new ones, here of 10,000, is

    python -m tests.test_machine 10000
"""

import sys
from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from tests import machine_common as common
from tests import machine_world as worlds
from tests.machine_alone import AloneMachine
from tests.machine_common import Common, of_library, of_oracle, weights, xs
from tests.machine_dual import DualOracle
from tests.machine_objectives import NOT_FINITE, Fault, Objective, forget_loss, retain_loss, start
from tests.machine_oracle import Controller, is_finite
from torch_alm import DualOptimizer

# The forget side looks where the constraint is hardest to meet, or stays where it is.
NEARBY = {">=": "reverse", "<=": "sam", "==": "plain", None: "reverse"}
LIMITS = (0.1, 1.0, 100.0)


class DualMachine(Common):
    """A `DualOptimizer`."""

    oracle: DualOracle

    @initialize(
        retain=common.sides,
        forget=common.sides,
        terms=common.terms,
        sense=st.sampled_from((">=", ">=", "<=", "==", None)),
        scale=st.sampled_from(("gradient", "step")),
        probe_every=st.sampled_from((1, 1, 3)),
        schedules_sides=st.booleans(),
    )
    def begin(
        self,
        retain: dict[str, Any],
        forget: dict[str, Any],
        terms: dict[str, Any],
        sense: str | None,
        scale: str,
        probe_every: int,
        schedules_sides: bool,
    ) -> None:
        kind = "plain" if forget["kind"] == "plain" else NEARBY[sense]
        self.sides = {"retain": retain, "forget": {**forget, "kind": kind}}
        self.schedules_sides = schedules_sides
        self.oracle = DualOracle(start(), scale=scale, probe_every=probe_every)
        self.oracle.sides = {k: of_oracle(side, self.oracle) for k, side in self.sides.items()}
        if sense is not None:
            self.oracle.controller = Controller(sense=sense, **terms)
        self.exact = not self.is_sharp() and scale == "gradient"
        self.world = self.build(self.oracle)

    def build(self, oracle: DualOracle) -> worlds.World:
        def optimizer(theta: list[Any]) -> DualOptimizer:
            given = {k: of_library(self.sides[k], side, theta) for k, side in oracle.sides.items()}
            constraint = oracle.controller and common.constraint_like(oracle.controller)
            return DualOptimizer(
                **given, constraint=constraint, scale=oracle.scale, probe_every=oracle.probe_every
            )

        world = worlds.World(oracle, optimizer)
        world.constraint = world.optimizer.constraint
        return world

    def check(self) -> None:
        super().check()
        assert self.world.optimizer.skipped == self.oracle.skipped

    def backward(
        self,
        data: tuple[float, float],
        weight: float = 1.0,
        *,
        last: bool = False,
        is_pair: bool = False,
        retain: Fault | None = None,
        forget: Fault | None = None,
    ) -> Any:
        """Both gradients from both halves; what came of it."""

        def objectives(theta: list[Any]) -> dict[str, Objective]:
            return {
                "retain": Objective(retain_loss, theta, data[0], retain),
                "forget": Objective(forget_loss, theta, data[1], forget, is_pair),
            }

        result = self.both(
            lambda: tuple(
                self.world.optimizer.backward(
                    **objectives(self.world.theta), weight=weight, last=last
                )
            ),
            lambda: self.oracle.backward(**objectives(self.oracle.theta), weight=weight, last=last),
        )
        if isinstance(result, type):
            self.seen[f"backward: {result.__name__}"] += 1
        else:
            self.seen["not measured"] += not self.oracle.measures()
            self.seen["pair"] += is_pair
        return result

    @rule(
        data=st.tuples(xs, xs),
        weight=weights,
        last=st.sampled_from((*[False] * 5, True)),
        is_pair=st.sampled_from((False, False, False, True)),
    )
    def take_gradients(
        self, data: tuple[float, float], weight: float, last: bool, is_pair: bool
    ) -> None:
        self.backward(data, weight, last=last, is_pair=is_pair)

    @rule(
        data=st.tuples(xs, xs),
        side=st.sampled_from(("retain", "forget")),
        fault=common.faults,
        last=st.booleans(),
        is_pair=st.booleans(),
    )
    def fail(
        self, data: tuple[float, float], side: str, fault: Fault, last: bool, is_pair: bool
    ) -> None:
        if side == "forget":
            result = self.backward(data, last=last, is_pair=is_pair, forget=fault)
        else:
            result = self.backward(data, last=last, retain=fault)
        self.count_fault(side, fault, result)

    def can_step(self) -> bool:
        """A retain gradient that is not finite would end the run: theta would be NaN."""
        return is_finite(self.oracle.grads())

    @precondition(can_step)
    @rule()
    def step(self) -> None:
        has_run = self.oracle.is_pending()
        self.both(self.world.optimizer.step, self.oracle.step)
        if has_run and self.oracle.controller is not None:
            is_open = self.oracle.controller.weight != 0
            self.seen["gate open" if is_open else "gate closed"] += 1

    @precondition(Common.is_at_rest)
    @rule(
        steps=st.lists(st.lists(st.tuples(xs, xs), min_size=1, max_size=3), min_size=2, max_size=5),
        last=st.booleans(),
        is_pair=st.sampled_from((False, False, True)),
        fault=st.sampled_from((None, None, *map(Fault, NOT_FINITE))),
    )
    def train(
        self,
        steps: list[list[tuple[float, float]]],
        last: bool,
        is_pair: bool,
        fault: Fault | None,
    ) -> None:
        """What a loop does, with gradients accumulated; the fault comes at the very end."""
        for batches in steps:
            self.zero_grad(True)
            for i, data in enumerate(batches):
                at_end = i == len(batches) - 1
                self.backward(
                    data,
                    1 / len(batches),
                    last=last and at_end,
                    is_pair=is_pair,
                    forget=fault if at_end and batches is steps[-1] else None,
                )
            self.check()
            self.step()
            self.check()

    @precondition(can_step)
    @rule(limit=st.sampled_from(LIMITS))
    def clip(self, limit: float) -> None:
        self.exact = False  # the norm is summed in another order
        self.both(
            lambda: tuple(self.world.optimizer.clip_grad_norm_(limit)),
            lambda: self.oracle.clip(limit),
        )

    @rule(scaled=st.booleans())
    def refuse(self, scaled: bool) -> None:
        """A closure, and a GradScaler, cannot know the forget gradient."""
        optimizer = self.world.optimizer
        if not scaled:
            assert worlds.outcome(lambda: optimizer.step(lambda: None)) is TypeError
            return
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(torch.zeros(()))
        assert worlds.outcome(lambda: scaler.step(optimizer)) is RuntimeError

    def may_change(self) -> bool:
        """`last=True` has promised that the step comes next."""
        return self.oracle.controller is not None and not self.oracle.is_decided

    @precondition(may_change)
    @rule(alpha=st.sampled_from((-2.5, -1.0, 0.2, 1.5, 3.0)))
    def set_alpha(self, alpha: float) -> None:
        self.world.constraint.alpha = self.oracle.controller.alpha = alpha

    @precondition(may_change)
    @rule(mu=st.sampled_from((0.0, 0.3, 2.0)))
    def set_mu(self, mu: float) -> None:
        self.world.constraint.mu = self.oracle.controller.mu = mu


def run(
    machine: type[Common], examples: int, *, steps: int, shrinks: bool = True, **kw: Any
) -> None:
    """Run sequences of a machine; what must happen in them is asked by the tests."""
    machine.seen.clear()
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink) if shrinks else (Phase.generate,),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            **kw,
        ),
    )


def test_a_dual_optimizer_equals_the_oracle_whatever_a_loop_does() -> None:
    run(DualMachine, 200, steps=30, derandomize=True)
    print(DualMachine.seen)


def test_sam_equals_the_oracle_whatever_a_loop_does() -> None:
    run(AloneMachine, 150, steps=30, derandomize=True)
    print(AloneMachine.seen)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for machine in (AloneMachine, DualMachine):
        if machine.__name__ in sys.argv[2:] or not sys.argv[2:]:
            try:
                run(machine, int(sys.argv[1]), steps=40, shrinks="--fast" not in sys.argv)
            finally:
                print(machine.__name__, machine.seen)
