"""Filters and rules that users write: they act, look ahead, resume, and fail as ours do."""

import io
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.core.following import constraint, follow
from torch_alm.filters import Filter, Mean, Reading
from torch_alm.rules import Leak, Rule, Update


@dataclass(frozen=True)
class Ramp(Rule):
    """A rule as a user writes one: up by so much per update at most; counts how often."""

    limit: float

    def init(self) -> int:
        return 0

    def update(self, update: Update, memory: int) -> tuple[Update, int]:
        ceiling = update.before + self.limit
        stored = min(update.stored, ceiling)
        return update._replace(stored=stored), memory + (update.stored > ceiling)


class Median(Filter):
    """A filter as a user writes one."""

    def init(self) -> list[float]:
        return []

    def update(self, reading: Reading, memory: list[float]) -> tuple[float, list[float]]:
        memory = [*memory, reading.violation][-3:]
        return sorted(memory)[len(memory) // 2], memory


def test_a_filter_and_a_rule_of_ones_own_act_look_ahead_and_resume() -> None:
    given: dict[str, Any] = {"filter": Median(), "rules": [Ramp(0.25), Leak(0.5)]}
    c, resumed = constraint(alpha=0.0, **given), constraint(alpha=0.0, **given)
    for violation, weight, stored in ((1.0, 0.5, 0.25), (9.0, 4.75, 0.5), (-2.0, 1.0, 0.75)):
        c.observe(-violation)
        assert c.preview() == c.preview() == c.step() == weight
        assert c.multiplier == stored
    assert c.state_dict()["filter"] == [["Median", [1.0, 9.0, -2.0]]]
    buffer = io.BytesIO()
    torch.save(c.state_dict(), buffer)
    buffer.seek(0)
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    assert follow(resumed, [1.0, 1.0]) == follow(c, [1.0, 1.0])
    assert str(resumed.state_dict()) == str(c.state_dict())


def test_a_rule_that_fails_leaves_the_step_undone() -> None:
    class Broken(Rule):
        def update(self, update: Update, memory: Any) -> tuple[Update, Any]:
            raise RuntimeError("no rule")

    c = constraint(filter=Mean(3), rules=[Ramp(1.0)])
    follow(c, [0.5])
    before = str(c.state_dict())
    c.rules = [*c.rules, Broken()]
    c.observe(0.0)
    with pytest.raises(RuntimeError, match="no rule"):
        c.step()
    c.rules = c.rules[:1]
    assert str(c.state_dict()) == before and c.observed == 0
