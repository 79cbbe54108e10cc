"""ConstraintGroup: several constraints as one."""

import copy
import io
import math
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from torch_alm import ALMConstraint, ConstraintGroup


def group(**given: Any) -> ConstraintGroup:
    members = {
        "topics": ALMConstraint(None, alpha=torch.ones(2), mu=0.5),
        "drift": ALMConstraint(None, alpha=0.5, mu=1.0, sense="<="),
        "level": ALMConstraint(None, alpha=2.0, mu=0.25, sense="==", every=2),
    }
    return ConstraintGroup(members, **given)


VALUES = [
    {"topics": torch.tensor([0.0, 3.0]), "drift": 0.75, "level": 1.0},
    {"topics": torch.tensor([0.5, 0.5]), "drift": 0.25, "level": 3.0},
    {"topics": torch.tensor([2.0, 2.0]), "drift": 0.0, "level": 2.0},
]


def test_it_steps_each_as_if_it_were_alone() -> None:
    together, apart = group(), group()
    for values in VALUES:
        together.observe(values)
        weights = together.step()
        for name, c in apart.items():
            c.observe(values[name])
            assert torch.equal(torch.as_tensor(weights[name]), torch.as_tensor(c.step()))
    for name in apart:
        assert str(together[name].state_dict()) == str(apart[name].state_dict())


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))])
def test_its_members_stay_what_they_were_checked_to_be(how: Any) -> None:
    g, changeable = how(group()), set(dir({})) - set(dir(Mapping))
    assert [*g] == ["drift", "level", "topics"] and g["drift"].sense == "<="
    assert {"update", "pop", "setdefault", "__setitem__", "__ior__"} <= changeable
    assert not changeable & {*dir(g)}


def test_the_call_is_the_sum_of_the_penalties() -> None:
    x = torch.tensor(0.25, requires_grad=True)
    pair = ConstraintGroup(
        {
            "double": ALMConstraint(lambda v, k: 2 * v * k, alpha=1.0, mu=1.0),
            "square": ALMConstraint(lambda v, k: (v * k) ** 2, alpha=0.0, mu=1.0, sense="<="),
        }
    )
    price = pair(x, k=1.0)
    assert price.item() == pytest.approx(0.5 * 0.5**2 + 0.5 * 0.0625**2)
    assert {name: c.observed for name, c in pair.items()} == {"double": 1, "square": 1}
    assert pair.step() == {"double": 0.5, "square": 0.0625}


def test_nothing_is_stepped_if_one_saw_nothing_nor_observed_if_one_is_misspelt() -> None:
    g = group()
    g.observe({"drift": 1.0, "level": 0.0})
    with pytest.raises(RuntimeError, match=r"no measurement of \['topics'\]"):
        g.step()
    assert g["drift"].observed == 1 and g["drift"].multiplier == 0.0
    g.discard()
    assert g["drift"].observed == 0
    with pytest.raises(ValueError, match=r"^ConstraintGroup\.observe: \['drfit'\] is in one alone"):
        g.observe({"level": 1.0, "drfit": 0.0})
    assert g["level"].observed == 0


def test_a_member_that_raises_leaves_none_observed() -> None:
    g = group()
    for values in ({**VALUES[0], "topics": torch.zeros(3)}, {**VALUES[0], "level": None}):
        with pytest.raises(ValueError, match=r"and the multipliers|value is None"):
            g.observe({**values, "drift": 0.0})
        assert [c.observed for c in g.values()] == [0, 0, 0]
    members = {"a": ALMConstraint(lambda x: x, 1.0, 1.0), "b": ALMConstraint(abs, 1.0, 1.0)}
    pair = ConstraintGroup(members)
    pair["b"].measure = lambda x: x / None
    with pytest.raises(TypeError):
        pair(torch.ones((), requires_grad=True))
    assert pair["a"].observed == 0


def test_a_checkpoint_goes_by_name_in_any_order() -> None:
    g = group()
    for values in VALUES[:2]:
        g.observe(values)
        g.step()
    buffer = io.BytesIO()
    torch.save(g.state_dict(), buffer)
    buffer.seek(0)
    other = ConstraintGroup(dict(reversed(list(group().items()))))
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert str(other.state_dict()) == str(g.state_dict())
    for each in (g, other):
        each.observe(VALUES[2])
        each.step()
    assert str(g.state_dict()) == str(other.state_dict())
    assert other.metrics()["steps"] == 3


def test_members_are_checked() -> None:
    c = ALMConstraint(None, 1.0, 1.0)
    with pytest.raises(ValueError, match="each of another"):
        ConstraintGroup({"a": c, "b": c})
    with pytest.raises(ValueError, match='or with a "/"'):
        ConstraintGroup({"a/b": c})
    with pytest.raises(ValueError, match="one at least"):
        ConstraintGroup({})
    for wrong in ({"a": 1.0}, [c]):
        with pytest.raises(TypeError, match=r"constraints is .* Did you mean a dict"):
            ConstraintGroup(wrong)


@pytest.mark.parametrize("bad", [math.nan, -9e307], ids=["not finite", "overflows"])
def test_either_all_are_stepped_or_none(bad: float) -> None:
    g = ConstraintGroup(
        {
            "a": ALMConstraint(None, 1.0, 0.5),
            "b": ALMConstraint(None, 1.0, 9.0, nonfinite="raise"),
            "c": ALMConstraint(None, 1.0, 0.5),
        }
    )
    g.observe({"a": 0.0, "b": 0.0, "c": 0.0})
    g.step()
    before = str(g.state_dict())
    g.observe({"a": 0.0, "b": bad, "c": 0.0})
    with pytest.raises(FloatingPointError, match="not finite"):
        g.step()
    assert str(g.state_dict()) == before and [c.observed for c in g.values()] == [0, 0, 0]
    g.observe({"a": 0.0, "b": 0.0, "c": 0.0})
    assert g.step() == {"a": 1.0, "b": 18.0, "c": 1.0}


def test_metrics_carry_names_and_the_worst_of_all() -> None:
    g = group()
    assert g.metrics()["status"] == "unmeasured"
    g.observe(VALUES[0])
    g.step()
    metrics = g.metrics()
    assert metrics["drift/violation"] == 0.25 and metrics["topics/multiplier"] == 0.25
    assert metrics["status"] == "violated" and metrics["steps"] == 1
    g.observe(VALUES[2])
    g.step()
    assert g.metrics()["drift/status"] == g.metrics()["status"] == "released"
    g.observe({**VALUES[0], "drift": math.nan})
    with pytest.warns(UserWarning, match="not finite"):
        g.step()
    assert g.metrics()["topics/status"] == "violated" and g.metrics()["status"] == "non_finite"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: {"drfit": s.pop("drift"), **s}, r"load_state_dict: \['drfit', 'drift'\]"),
        (lambda s: {**s, "topics": {**s["topics"], "sense": "<="}}, "push the wrong way"),
        (lambda s: s["topics"], r"load_state_dict: .*'weight'.* and the group"),
    ],
)
def test_another_groups_checkpoint_is_refused_and_nothing_loaded(
    change: Any, sentence: str
) -> None:
    g, trained = group(), group()
    trained.observe(VALUES[0])
    trained.step()
    before = str(g.state_dict())
    with pytest.raises(ValueError, match=sentence):
        g.load_state_dict(change(trained.state_dict()))
    assert str(g.state_dict()) == before
