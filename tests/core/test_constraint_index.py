"""One multiplier per example, observed by index."""

from typing import Any

import pytest
import torch
from torch import Tensor

from torch_alm import ALMConstraint
from torch_alm.filters import Mean


def per_example(n: int = 5, **given: Any) -> ALMConstraint:
    return ALMConstraint(None, **{"alpha": torch.ones(n), "mu": 0.5, **given})


def test_duplicates_are_averaged_by_weight_within_and_between_observations() -> None:
    c = per_example()
    c.observe(torch.tensor([0.0, -4.0, 3.0]), index=[1, 1, 2])
    c.observe(torch.tensor([-8.0]), index=[1], weight=2.0)
    c.step()
    mean = (0.0 - 4.0 + 2 * -8.0) / 4
    assert c.multiplier.tolist() == [0.0, 0.5 * (1 - mean), 0.0, 0.0, 0.0]


def test_a_batch_without_examples_of_this_constraint_changes_nothing() -> None:
    c = per_example(multiplier=1.0)
    c.observe(torch.empty(0), index=torch.empty(0, dtype=torch.long))
    assert c.step().tolist() == [1.0] * 5
    assert c.metrics()["steps"] == 1


@pytest.mark.parametrize("given", [{}, {"filter": Mean(2)}], ids=str)
def test_the_penalty_of_an_index_is_that_of_its_entries_only(given: dict[str, Any]) -> None:
    alpha = torch.tensor([1.0, 2.0, 3.0])
    c = ALMConstraint(None, alpha=alpha, mu=0.5, multiplier=torch.tensor([0.1, 0.2, 0.3]), **given)
    x = torch.tensor([0.5, 9.0], requires_grad=True)
    price = c.penalty(x, index=[2, 0])
    (gradient,) = torch.autograd.grad(price, x)
    plus = 0.3 + 0.5 * (3.0 - 0.5)
    assert gradient.tolist() == pytest.approx([-plus, 0.0])
    assert price.item() == pytest.approx(plus**2 - 0.3**2 - 0.1**2)
    c.observe(x, index=[2, 0])
    assert c.step().tolist() == pytest.approx([0.0, 0.2, plus])


def test_an_alpha_of_one_number_needs_a_multiplier_that_says_how_many() -> None:
    c = ALMConstraint(None, alpha=1.0, mu=0.5, multiplier=torch.zeros(4))
    c.observe(torch.tensor([0.0]), index=[2])
    assert c.step().tolist() == [0.0, 0.0, 0.5, 0.0]
    with pytest.raises(ValueError, match=r"multipliers have shape \(\).*one entry per example"):
        ALMConstraint(None, alpha=1.0, mu=0.5).observe(torch.tensor([0.0]), index=[2])


@pytest.mark.parametrize(
    ("values", "index", "sentence"),
    [
        ([0.0], [5], "goes from 5 to 5, and there are 5 multipliers, 0 to 4"),
        ([0.0, 0.0], [-1, 2], "goes from -1 to 2"),
        ([0.0, 0.0], [1], r"shape \(1,\), and value has shape \(2,\)"),
        ([[0.0], [0.0]], [[1], [2]], "in a row"),
        ([0.0], [1.0], "index is of torch.float32"),
        ([0.0, 0.0], [True, False], "index is of torch.bool"),
    ],
)
def test_an_index_that_fits_nothing_is_refused(values: Any, index: Any, sentence: str) -> None:
    c = per_example()
    with pytest.raises(ValueError, match=sentence):
        c.observe(torch.tensor(values), index=index)
    assert c.observed == 0


def test_metrics_ignore_entries_that_were_never_seen() -> None:
    c = per_example(3)
    c.observe(torch.tensor([2.0]), index=[1])
    c.step()
    metrics = c.metrics()
    assert metrics["value"] == 2.0 and metrics["violation"] == -1.0
    assert metrics["status"] == "unmeasured"
    c.observe(torch.tensor([0.0]), index=[0])
    c.step()
    assert c.metrics()["status"] == "violated"


@pytest.mark.parametrize("shape", [(2, 3), (2,), (1, 2)], ids=str)
def test_multipliers_may_have_any_shape(shape: tuple[int, ...]) -> None:
    c = ALMConstraint(lambda v: v, alpha=torch.ones(shape), mu=0.5)
    x = torch.zeros(shape, requires_grad=True)
    c(x).backward()
    assert torch.equal(c.step(), torch.full(shape, 0.5, dtype=torch.float64))
    assert torch.equal(x.grad, torch.full(shape, -0.5))


def test_a_number_of_one_entry_may_have_dimensions() -> None:
    c = ALMConstraint(lambda v: v, alpha=1.0, mu=0.5)
    for value in (torch.zeros(1), torch.zeros(1, 1), torch.zeros(())):
        c(value.requires_grad_())
    assert c.step() == 0.5 and isinstance(c.multiplier, float)
    first = ALMConstraint(None, alpha=1.0, mu=0.5)
    first.observe(torch.zeros(1))
    assert first.step() == 0.5 and isinstance(first.multiplier, float)


def test_a_measure_without_a_tensor_is_named() -> None:
    with pytest.raises(TypeError, match="the measure returned float"):
        ALMConstraint(lambda: 1.0, alpha=1.0, mu=0.5)()


def test_what_is_observed_is_a_copy() -> None:
    def total(value: Tensor) -> Any:
        c = ALMConstraint(None, alpha=1.0, mu=0.5, multiplier=value * 0)
        c.observe(value)
        value.mul_(100.0)
        return c.step()

    assert total(torch.tensor(0.0)) == 0.5
    assert total(torch.tensor([0.0, -1.0])).tolist() == [0.5, 1.0]


@pytest.mark.parametrize("sense", [">=", "<=", "=="])
@pytest.mark.parametrize("filter", [None, Mean(2)], ids=str)
def test_an_index_that_appears_twice_has_the_penalty_of_the_mean(sense: Any, filter: Any) -> None:
    index, given = [1, 1, 3], [0.5, 2.5, 0.25]

    def made() -> ALMConstraint:
        lambdas = torch.tensor([1.0, 2.0, 3.0, 4.0])
        return ALMConstraint(None, 1.0, 0.5, multiplier=lambdas, sense=sense, filter=filter)

    twice, once = (torch.tensor(v, requires_grad=True) for v in (given, [1.5, 0.25]))
    penalty, plain = made().penalty(twice, index=index), made().penalty(once, index=[1, 3])
    assert penalty.item() == pytest.approx(plain.item(), rel=1e-6)
    penalty.backward()
    plain.backward()
    assert torch.allclose(twice.grad, once.grad[[0, 0, 1]] / torch.tensor([2.0, 2.0, 1.0]))
    c = made()
    c.observe(given, index=index)
    assert twice.grad[:2].sum().abs().item() == pytest.approx(c.step()[1].item())


def test_a_list_of_floats_is_compared_in_float64() -> None:
    c = ALMConstraint(None, [1.0, 1.0], 1.0)
    c.observe([1 - 1e-9, 1.0])
    assert c.step().tolist() == [pytest.approx(1e-9, rel=1e-6), 0.0]
    c = ALMConstraint(None, [1.0], 1.0, multiplier=[0.0], tolerance=[0.0])
    c.observe([1 - 1e-9], weight=[0.5])
    assert c.step().tolist() == [pytest.approx(1e-9, rel=1e-6)] and c.alpha.tolist() == [1.0]


def test_one_row_is_a_vector_of_one_entry() -> None:
    x = torch.tensor([1.0], requires_grad=True)
    c = ALMConstraint(lambda v: v, alpha=torch.full((1,), 4.0), mu=0.5)
    for penalty in (c.penalty(x, index=[0]), c(x, index=torch.tensor([0]))):
        assert penalty.item() == 0.25 * 9.0
    assert c.step().tolist() == [1.5] == c.multiplier.tolist()
    c.observe(3.0)
    assert c.step().tolist() == [2.0]


@pytest.mark.parametrize("filter", [None, Mean(2)], ids=str)
def test_the_index_of_a_batch_goes_to_the_constraint(filter: Any) -> None:
    """A goal per row, shuffled batches: each row ends where a constraint of its own would."""
    goals = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    theta, given = torch.zeros(5, requires_grad=True), {"mu": 0.5, "filter": filter}
    rows = ALMConstraint(lambda x, batch: x[batch], goals, **given)
    alone = [ALMConstraint(lambda x, i: x[i], goal.item(), **given) for goal in goals]
    copied = torch.zeros(5, requires_grad=True)
    draw = torch.Generator().manual_seed(0)
    for _ in range(40):
        batch = torch.randperm(5, generator=draw)[: int(torch.randint(1, 4, (1,), generator=draw))]
        found = torch.autograd.grad(rows(theta, batch, index=batch), theta)[0]
        each = torch.autograd.grad(sum(alone[i](copied, i) for i in batch.tolist()), copied)[0]
        rows.step()
        for i in batch.tolist():
            alone[i].step()
        assert torch.equal(found, each)
        theta.data.sub_(0.1 * found)
        copied.data.sub_(0.1 * each)
    assert rows.multiplier.tolist() == [c.multiplier for c in alone] and rows.multiplier.any()


def test_without_an_index_another_size_is_refused() -> None:
    c = ALMConstraint(lambda v: v, 1.0, 0.5)
    c(torch.zeros(4, requires_grad=True))
    with pytest.raises(ValueError, match=r"\(3,\) and the multipliers \(4,\).*place in the batch"):
        c(torch.zeros(3, requires_grad=True))
    with pytest.raises(ValueError, match="takes no index"):
        ALMConstraint(None, [1.0, 2.0], "auto").observe([0.0], index=[1])


def test_an_entry_of_the_multiplier_may_be_assigned() -> None:
    c = per_example(2)
    c.observe([0.0, 0.0])
    weight = c.step()
    c.multiplier[1] = 0.0
    assert c.multiplier.tolist() == [0.5, 0.0] and c.weight.tolist() == weight.tolist() == [
        0.5,
        0.5,
    ]
    c.observe([0.0, 0.0])
    assert c.step().tolist() == [1.0, 0.5]
    with pytest.raises(ValueError, match="2 numbers where one"):
        scalar = ALMConstraint(None, 1.0, 0.5)
        scalar.observe(0.0)
        scalar.alpha = [1.0, 2.0]


def test_a_default_device_is_none_of_a_constraints() -> None:
    c = per_example(3, filter=Mean(2, deadband=1.0))
    with torch.device("meta"):
        for _ in range(3):
            c.observe([0.0, 0.5], index=[0, 2])
            c.observe([0.25], index=[1], weight=2.0)
            c.step()
        scalar = ALMConstraint(None, 1.0, 0.5, filter=Mean(3, deadband=1.0))
        for value in (0.0, 0.5, 0.25):
            scalar.observe(value)
            scalar.observe(value)
            scalar.step()
    assert (c.multiplier > 0).all() and scalar.multiplier > 0
