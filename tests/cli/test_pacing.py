"""The rule by which a run finds its rate and its end: numbers in, numbers out."""

import json
import math
import random

import pytest

from torch_alm.cli.pacing import EVERY, PATIENCE, Decision, Pacing


def walk(seed: int, steps: int = 60) -> list[tuple[float, float]]:
    """Forget values and retain losses as a run might see them, good and bad by turns."""
    drawn = random.Random(seed)
    value, found = 0.0, []
    for _ in range(steps):
        value = max(0.0, value + drawn.uniform(-0.3, 0.8))
        found.append((value, drawn.choice((0.05, 0.05, 0.2, 0.3))))
    return found


def test_ten_steps_lie_between_two_checks() -> None:
    assert EVERY == 10


@pytest.mark.parametrize("seed", range(5))
def test_the_rate_halves_where_more_is_lost_and_never_rises_there(seed: int) -> None:
    pacing, last = Pacing(alpha=4.0, limit=0.1, rate=1e-5), 0.0
    for value, kept in walk(seed):
        before = pacing.rate
        pacing.check(value, kept)
        if kept > 0.1:
            assert pacing.rate == (1.0 if kept < last else 0.5) * before
        last = kept


@pytest.mark.parametrize("seed", range(5))
def test_the_rate_doubles_only_while_the_value_is_low_and_hardly_moves(seed: int) -> None:
    pacing, before, last = Pacing(alpha=4.0, limit=0.1, rate=1e-5), 1e-5, 0.0
    for value, kept in walk(seed):
        pacing.check(value, kept)
        if kept <= 0.1:
            stands = value < 4.0 and value - last < 0.2
            assert pacing.rate == min((2 if stands else 1) * before, 1e-2)
        before, last = pacing.rate, value


def test_a_value_that_never_moves_raises_the_rate_to_a_hundredth_and_no_further() -> None:
    pacing = Pacing(alpha=4.0, limit=0.1, rate=1e-5)
    rates = [pacing.rate for _ in range(20) if pacing.check(0.0, 0.0) == "go on"]
    assert rates[:3] == pytest.approx([2e-5, 4e-5, 8e-5])
    assert rates[-1] == max(rates) == 1e-2


def asked(pacing: Pacing, seen: list[tuple[float, float]]) -> list[Decision]:
    return [pacing.check(*each) for each in seen]


def test_the_model_is_asked_when_both_limits_have_held_at_two_checks_in_a_row() -> None:
    good, low, costly = (4.0, 0.1), (3.9, 0.1), (4.0, 0.2)
    for bad in (low, costly):
        found = asked(Pacing(4.0, 0.1, 1.0), [good, bad, good, good])
        assert found == ["go on", "go on", "go on", "ask"]


def test_a_model_that_failed_is_asked_half_as_often() -> None:
    pacing, waited = Pacing(4.0, 0.1, 1.0), []
    for _ in range(3):
        waited.append(1)
        while pacing.check(4.0, 0.1) != "ask":
            waited[-1] += 1
        pacing.failed()
    assert waited == [2, 4, 8]


def test_a_run_without_progress_is_given_up_and_one_with_a_given_rate_is_not() -> None:
    for fixed, last in ((False, "give up"), (True, "go on")):
        found = asked(Pacing(4.0, 0.1, 1.0, fixed=fixed), [(1.0, 0.3)] * (PATIENCE + 1))
        assert found == [*["go on"] * PATIENCE, last]
    slow = [(4.0 * i / 200, 0.05) for i in range(0, 180, 3)]
    assert set(asked(Pacing(4.0, 0.1, 1.0), slow)) == {"go on"}


@pytest.mark.parametrize("seen", [(math.nan, 0.1), (1.0, math.nan), (math.inf, 0.2)])
def test_numbers_that_are_none_end_a_run_and_never_raise_its_rate(
    seen: tuple[float, float],
) -> None:
    pacing = Pacing(4.0, 0.1, 1.0)
    assert pacing.check(*seen) == "give up"
    assert pacing.rate <= 1.0


def test_a_given_rate_stays() -> None:
    pacing = Pacing(4.0, 0.1, 0.25, fixed=True)
    for each in walk(0):
        pacing.check(*each)
        assert pacing.rate == 0.25


@pytest.mark.parametrize("stopped", range(0, 60, 7))
def test_a_rule_that_was_written_down_goes_on_as_if_it_had_not_been(stopped: int) -> None:
    whole, first, second = (Pacing(4.0, 0.1, 1e-5) for _ in range(3))
    expected = [(whole.check(*each), whole.rate) for each in walk(3)]
    found = [(first.check(*each), first.rate) for each in walk(3)[:stopped]]
    second.load(json.loads(json.dumps(first.state())))
    found += [(second.check(*each), second.rate) for each in walk(3)[stopped:]]
    assert found == expected
    assert second.state() == whole.state()


def test_a_rule_with_another_limit_counts_its_checks_anew() -> None:
    strict, loose = Pacing(4.0, 0.1, 1e-5), Pacing(4.0, 5.0, 1e-5)
    while strict.check(5.0, 1.0) != "give up":
        pass
    loose.load(strict.state())
    assert (loose.limit, loose.rate, loose.value) == (5.0, strict.rate, strict.value)
    assert [loose.check(5.0, 1.0) for _ in range(2)] == ["go on", "ask"]
