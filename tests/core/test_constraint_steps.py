"""State left by a step that fails or never comes, and by a filter when alpha moves."""

import warnings

import pytest

from torch_alm import ALMConstraint


def test_measured_a_hundred_times_and_never_stepped_it_says_so_once() -> None:
    c = ALMConstraint(None, 1.0, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(99):
            c.observe(0.0)
    with pytest.warns(UserWarning, match=r"100 measurements wait.*`constraint.step\(\)`"):
        c.observe(0.0)
    for _ in range(200):
        c.observe(0.0)  # warnings are errors
    assert c.step() == 0.5
