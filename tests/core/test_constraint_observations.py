"""Measurements of micro-batches, devices and other ranks become one mean."""

import math
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from torch_alm import ALMConstraint
from torch_alm._constraint import observations
from torch_alm._constraint.observations import Mean, Observation, mean

ONE = torch.Size()


def test_numbers_on_a_device_are_fetched_together_with_those_of_the_host() -> None:
    """Tensors without dimensions stand for a device's: those of the host are numbers before."""
    values = [torch.tensor(0.5), 0.1, torch.tensor(-2.0, dtype=torch.float64)]
    parts = [Observation(v, weight) for v, weight in zip(values, (1, 2, 1), strict=True)]
    expected = (0.5 + 2 * 0.1 - 2.0) / 4
    assert mean(parts, ONE, 0.0) == Mean(expected, True, 0)
    bad = Observation(torch.tensor(math.nan), 5.0)
    assert mean([bad, Observation(0.1, 2.0)], ONE, 0.0) == Mean(0.1, True, 1)


def test_a_bad_entry_is_counted_where_another_micro_batch_makes_up_for_it() -> None:
    c = ALMConstraint(None, alpha=torch.zeros(2), mu=1.0)
    c.observe(torch.tensor([math.nan, -1.0]))
    c.observe(torch.tensor([-2.0, -3.0]))
    with pytest.warns(UserWarning, match=r"1 measurement.*\(1 so far\)"):
        assert c.step().tolist() == [2.0, 2.0]
    assert c.skipped == 1


@pytest.mark.parametrize("no_gradient", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("mu", [0.5, "auto"])
def test_a_validation_with_the_same_loss_leaves_training_as_it_is(
    no_gradient: Any, mu: float | Literal["auto"]
) -> None:
    """The validation set is far easier: averaged in, it would close the gate."""

    def train(*, validate: bool) -> list[Any]:
        theta = torch.zeros(2, requires_grad=True)
        optimizer = torch.optim.Adam([theta], lr=0.05)
        constraint = ALMConstraint(lambda shift: theta.sum() + shift, 1.0, mu)
        constraint.attach(optimizer)

        def loss(shift: float) -> torch.Tensor:
            return theta.square().sum() + constraint(shift)

        for _ in range(80):
            optimizer.zero_grad()
            loss(0.0).backward()
            optimizer.step()
            if validate:
                with no_gradient():
                    assert loss(5.0).isfinite()
        return [*theta.tolist(), str(constraint.state_dict())]

    with_it, without = train(validate=True), train(validate=False)
    assert with_it == without


def test_a_look_asks_no_other_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank may validate alone; the penalty is that of its own value."""

    def refuse(_: Tensor) -> Tensor:
        raise AssertionError("a reduction over ranks")

    monkeypatch.setattr(observations, "is_distributed", lambda: True)
    monkeypatch.setattr(observations, "sum_over_ranks", refuse)
    constraint = ALMConstraint(lambda x: x, 1.0, 0.5, multiplier=0.25)
    with torch.no_grad():
        found = constraint(torch.tensor(0.5))
    assert found.item() == ((0.25 + 0.5 * 0.5) ** 2 - 0.25**2) / (2 * 0.5)
    with pytest.raises(AssertionError, match="a reduction"):
        constraint(torch.tensor(0.5, requires_grad=True))
