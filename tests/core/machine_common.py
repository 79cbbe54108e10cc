"""Rules of a state machine for what is done to any optimizer between its steps."""

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import hypothesis.strategies as st
import torch
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from torch import nn
from torch.optim import Optimizer

from tests.core import machine_world as worlds
from tests.core.machine_dual import DualOracle
from tests.core.machine_oracle import BASES, LONG, Controller, Side
from tests.core.machine_world import DATA, FAULTS, Boom, Fault
from torch_alm import SAM, ALMConstraint, ReverseSAM
from torch_alm.filters import Mean

WEIGHTS = (1.0, 0.5, 0.25, 1 / 3)
RADII = (0.0, 0.05, 0.3)
SIGNS = {"plain": 0, "sam": +1, "reverse": -1}
xs = st.sampled_from(DATA)
weights = st.sampled_from(WEIGHTS)
kinds = st.sampled_from((*FAULTS, "raise", "backward"))
late = [Fault("raise", 2), Fault("backward", 2)]
faults = st.lists(st.builds(Fault, kinds, st.sampled_from((0, 1, 2))), min_size=1, max_size=3).map(
    lambda drawn: [*late, *drawn]
)
sides = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(("plain", "sam")),
        "base": st.sampled_from((*BASES, "adamw")),
        "decay": st.sampled_from((0.0, 0.02)),
        "rho": st.sampled_from(RADII),
        "adaptive": st.sampled_from((False, False, True)),
    }
)
terms = st.fixed_dictionaries(
    {
        "alpha": st.sampled_from((-2.5, -0.5, 0.5, 2.5)),
        "mu": st.sampled_from((0.2, 0.7, 0.7)),
        "every": st.sampled_from((1, 3)),
        "window": st.sampled_from((1, 1, 4)),
        "multiplier": st.sampled_from((0.0, 0.4, 0.4)),
    }
)


def over(side: dict[str, Any], theta: list[nn.Parameter]) -> Optimizer:
    """A base over the first three parameters and a group for each of the others."""
    base = BASES[side["base"]](theta[:3], side["decay"])
    for p in theta[3:]:
        base.add_param_group({"params": [p]})
    return base


def of_oracle(side: dict[str, Any], oracle: DualOracle) -> Side:
    rho = None if side["kind"] == "plain" else side["rho"]
    return Side(over(side, oracle.theta), rho, SIGNS[side["kind"]], adaptive=side["adaptive"])


def of_library(side: dict[str, Any], expected: Side, theta: list[nn.Parameter]) -> Any:
    base = over(side, theta)
    if expected.rho is None:
        return base
    kind = {"sam": SAM, "reverse": ReverseSAM}[side["kind"]]
    return kind(base, rho=expected.rho, adaptive=side["adaptive"])


def constraint_like(expected: Controller) -> ALMConstraint:
    """The settings of the oracle's; its state comes from a checkpoint."""
    names = ("alpha", "mu", "sense", "every", "multiplier")
    _, window, _ = expected.filter
    given = {name: getattr(expected, name) for name in names}
    return ALMConstraint(None, **given, filter=None if window == 1 else Mean(window))


class Common(RuleBasedStateMachine):
    """A world and its oracle, and rules that need to know no more than that."""

    seen: ClassVar[Counter[str]] = Counter()
    world: worlds.World
    oracle: DualOracle
    sides: dict[str, dict[str, Any]]

    def __init__(self) -> None:
        super().__init__()
        self.seen["sequences"] += 1
        self.saved: tuple[bytes, Any] | None = None
        self.has_moved = False  # since it was saved or loaded
        self.exact = self.is_exact = False

    def build(self, oracle: DualOracle) -> worlds.World:
        """A world with the settings of the oracle, and none of its state."""
        raise NotImplementedError

    def both(
        self, ours: Callable[[], Any], theirs: Callable[[], Any], *, moves: bool = False
    ) -> Any:
        """Do it on both sides; results, errors and warnings are the same. Returns the result.

        Where it is no step, theta is where it was, bit for bit.
        """
        expected = worlds.outcome(theirs)
        self.has_moved |= moves
        said, self.oracle.said = self.oracle.said, []
        origin = [p.detach().clone() for p in self.world.theta]
        found, heard = worlds.heard(ours)
        assert moves or all(map(torch.equal, self.world.theta, origin))
        worlds.assert_same("result", found, expected, exact=self.exact)
        assert sorted(heard) == sorted(said), f"said {heard}, expected {said}"
        self.seen.update(said)
        return expected

    @invariant()
    def everything_is_equal(self) -> None:
        self.check()

    def check(self) -> None:
        worlds.assert_equal(self.world, self.oracle, exact=self.exact)
        worlds.align(self.world, self.oracle)

    def is_at_rest(self) -> bool:
        """Between steps: nothing measured or taken is waiting."""
        return not self.oracle.is_pending()

    def has_run_long(self) -> bool:
        """Longer, and the constraint may be suspected to be infeasible."""
        return self.oracle.controller is not None and self.oracle.controller.steps >= LONG - 1

    def is_sharp(self) -> bool:
        return any(side.rho is not None for side in self.oracle.sides.values())

    def may_grow(self) -> bool:
        """Adagrad makes its state at the start and has none for groups that come later."""
        names = [side["base"] for side in self.sides.values()]
        return self.oracle.extras < 2 and "adagrad" not in names

    @precondition(is_sharp)
    @rule(data=st.data(), rho=st.sampled_from(RADII))
    def set_radius(self, data: st.DataObject, rho: float) -> None:
        sharp = [name for name, side in self.oracle.sides.items() if side.rho is not None]
        name = data.draw(st.sampled_from(sharp))
        self.world.outer_sides()[name].rho = self.oracle.sides[name].rho = rho

    @precondition(is_sharp)
    @rule(data=st.data(), rho=st.sampled_from((None, *RADII)))
    def set_radius_of_a_group(self, data: st.DataObject, rho: float | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.oracle.sides)))
        i = data.draw(st.integers(0, self.oracle.extras))
        for base in (self.world.sides[name], self.oracle.sides[name].base):
            base.param_groups[i].pop("rho", None)
            if rho is not None:
                base.param_groups[i]["rho"] = rho
        self.seen["radius of a group"] += rho is not None

    @precondition(is_at_rest)
    @rule(i=st.integers(0, 2), frozen=st.booleans())
    def freeze(self, i: int, frozen: bool) -> None:
        for p in (self.world.theta[i], self.oracle.theta[i]):
            p.requires_grad_(not frozen).grad = None
        self.seen["frozen"] += frozen

    @precondition(may_grow)
    @rule(options=st.sampled_from(({}, {"lr": 0.02}, {"rho": 0.1})))
    def add_group(self, options: dict[str, float]) -> None:
        x = torch.tensor([0.7, -0.2], dtype=torch.float64)
        for half in (self.world, self.oracle):
            half.add_group(x, **options)
        self.seen["group added"] += 1
        self.seen["group added before a step"] += self.oracle.is_pending()
        if self.saved is not None and self.saved[1].extras != self.oracle.extras:
            self.refuse_other_groups(self.saved[0])

    @precondition(is_at_rest)
    @rule()
    def save(self) -> None:
        self.has_moved = False
        self.saved = self.world.save(), copy.deepcopy(self.oracle)

    @precondition(lambda self: self.saved is not None and self.has_moved)
    @rule()
    def go_back_in_place(self) -> None:
        assert self.saved is not None
        blob, then = self.saved
        if then.extras != self.oracle.extras:
            self.refuse_other_groups(blob)
            return
        self.seen["loaded before a step"] += self.oracle.is_pending()
        self.has_moved = False
        self.world.load(blob)
        self.oracle.load(then)
        self.seen["loaded in place"] += 1

    def refuse_other_groups(self, blob: bytes) -> None:
        assert worlds.outcome(lambda: self.world.load(blob)) is ValueError
        self.seen["checkpoint of other groups refused"] += 1

    @precondition(is_at_rest)
    @rule(now=st.booleans())
    def resume_in_a_new_process(self, now: bool) -> None:
        if now or self.saved is None:
            self.save()
        assert self.saved is not None
        self.has_moved = False
        blob, then = self.saved
        self.oracle = then.resumed()
        self.world = self.build(self.oracle)
        self.world.load(blob)
        self.seen["resumed"] += 1
        self.seen["resumed while released"] += bool(self.oracle.idle)

    @rule(pickled=st.booleans())
    def go_on_with_a_copy(self, pickled: bool) -> None:
        if not self.oracle.is_pending():  # torch's copies of parameters have no gradients
            self.zero_grad(True)
        self.seen["copied before a step"] += self.oracle.is_pending()
        self.world.duplicate(pickled=pickled)
        self.seen["pickled" if pickled else "copied"] += 1

    @rule(set_to_none=st.booleans())
    def zero_grad(self, set_to_none: bool) -> None:
        self.exact = self.is_exact
        self.oracle.zero_grad(set_to_none)
        self.world.zero_grad(set_to_none)

    def count_fault(self, side: str, fault: Fault, found: object) -> None:
        if found is Boom:
            self.seen[f"{side}: {fault.kind} in run {fault.run or 1}"] += 1
        elif not isinstance(found, type):
            self.seen[f"{side}: {fault.kind} survived"] += 1
