"""The margin certificate never exceeds the failure rate it certifies."""

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from torch_alm import measures
from torch_alm.measures._answers import predict_answers
from torch_alm.measures._certificate import margins_of, surrogate

AGGREGATES = ["max", "mean"]


def random_case(
    seed: int, scale: float = 3.0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Logits that favour the target about half of the time, with unequal answers."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(5, (4, 6), generator=generator)
    labels[:, :2] = -100
    labels[1, 4:] = -100
    logits = torch.randn(4, 6, 5, generator=generator, dtype=torch.float64) * scale
    bonus = torch.nn.functional.one_hot(labels.roll(-1, 1).clamp(min=0), 5) * scale * 1.5
    return (logits + bonus).to(dtype), labels


def oracle_margins(logits: Tensor, labels: Tensor) -> list[list[float]]:
    """Token margins of each sequence, from probabilities with the target left out."""
    margins = []
    for rows, ids in zip(logits.tolist(), labels.tolist(), strict=True):
        margins.append([])
        for t in range(1, len(ids)):
            if ids[t] == -100:
                continue
            top = max(rows[t - 1])
            weights = [math.exp(z - top) for z in rows[t - 1]]
            p = [weight / sum(weights) for weight in weights]
            margins[-1].append(p[ids[t]] - max(q for v, q in enumerate(p) if v != ids[t]))
    return margins


def oracle_phi(margin: float, tau: float) -> float:
    x = margin / tau + 1
    return 1 - (x + math.log1p(math.exp(-x)) if x > 0 else math.log1p(math.exp(x)))


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def phi(margin: float, tau: float) -> float:
    return surrogate(torch.tensor(margin, dtype=torch.float64), tau).item()


# --- the surrogate -------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [1.0, 0.2, 0.1, 0.05, 0.01, 0.001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_surrogate_stays_below_the_step(tau: float, dtype: torch.dtype) -> None:
    margins = torch.linspace(-1, 1, 2001, dtype=dtype)
    step = (margins <= 0).to(dtype)
    values = surrogate(margins, tau)
    assert (values <= step).all()
    assert (values.diff() <= 0).all()
    expected = [oracle_phi(margin, tau) for margin in margins.tolist()]
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert values.tolist() == pytest.approx(expected, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize(
    ("alpha", "tau"), [(0.0, 2.18), (0.90, 0.308), (0.95, 0.252), (0.99, 0.179)]
)
def test_largest_tau(alpha: float, tau: float) -> None:
    largest = measures.largest_tau(alpha)
    assert largest == pytest.approx(tau, abs=6e-3 if alpha == 0 else 6e-4)
    assert phi(-1.0, largest) == pytest.approx(alpha, rel=1e-12)
    measures.require_attainable(alpha, tau=largest)
    with pytest.raises(ValueError, match="cannot be certified") as error:
        measures.require_attainable(alpha, tau=largest * 1.001)
    advice = float(str(error.value).split()[-1].rstrip("?"))
    assert largest - 0.001 < advice <= largest
    measures.require_attainable(alpha, advice)


def test_thresholds_no_tau_or_every_tau_attains() -> None:
    assert measures.largest_tau(-0.4) == math.inf
    measures.require_attainable(-0.4, tau=1e6)
    assert phi(-1.0, 1e6) > -0.4
    for alpha in (1.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="stays below 1"):
            measures.largest_tau(alpha)


@pytest.mark.parametrize("alpha", [-1e308, -1000.0, -709.0, -1.0, -0.313, 0.2, 1 - 2**-53])
def test_largest_tau_of_any_alpha_is_the_equations(alpha: float) -> None:
    with mpmath.workdps(60):
        wanted = mpmath.mpf(alpha)
        # below -700 the exponential alone decides, and has no place for its own digits
        reciprocal = 1 - (mpmath.log(mpmath.expm1(1 - wanted)) if alpha > -1e5 else 1 - wanted)
        expected = math.inf if reciprocal <= 0 else float(1 / reciprocal)
    assert measures.largest_tau(alpha) == pytest.approx(expected, rel=1e-9)
    assert (expected == math.inf) == (alpha < -0.3133)


@pytest.mark.parametrize("number", [np.float64, np.float32, np.array, torch.tensor])
def test_settings_may_be_numbers_of_any_kind(number: Any) -> None:
    logits, labels = random_case(0)
    found = measures.certified_failure(lambda: logits, {"labels": labels}, number(0.25))
    assert type(found) is Tensor and found.dtype == logits.dtype
    assert_close(found, measures.certified_failure(lambda: logits, {"labels": labels}, 0.25))
    assert measures.largest_tau(number(0.5)) == measures.largest_tau(0.5)
    assert type(measures.largest_tau(number(0.5))) is float
    with pytest.raises(ValueError, match=r"`alpha` = 0\.5 cannot be certified with `tau` = 2\.0:"):
        measures.require_attainable(number(0.5), number(2.0))


@pytest.mark.parametrize("tau", [0.0, -0.1, math.nan, math.inf])
def test_tau_must_be_positive(tau: float) -> None:
    logits, labels = random_case(0)
    sentence = "`tau` is .*: the surrogate would rise with the margin and bound nothing. "
    with pytest.raises(ValueError, match=sentence):
        measures.certified_failure(lambda: logits, {"labels": labels}, tau)
    with pytest.raises(ValueError, match=sentence):
        measures.require_attainable(0.5, tau)


# --- margins -------------------------------------------------------------------------------------


def test_a_large_logit_of_the_target_hides_no_rival() -> None:
    """Leaving the target out by subtracting something from it fails once it towers."""
    logits = torch.tensor([[[6e4, 0.0, -6e4], [0.0, 0.0, 0.0]]], dtype=torch.float16)
    assert margins_of(predict_answers(lambda: logits, {"labels": torch.tensor([[-100, 0]])})) == 1.0


# --- the certificate -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("tau", [0.1, 0.5])
def test_certificate_is_the_loops(seed: int, tau: float) -> None:
    logits, labels = random_case(seed)
    tokens = [[oracle_phi(m, tau) for m in margins] for margins in oracle_margins(logits, labels)]
    most = mean([max(*values, 0.0) for values in tokens])
    share = mean([mean([max(value, 0.0) for value in values]) for values in tokens])
    found = measures.certified_failure(lambda: logits, {"labels": labels}, tau)
    by_token = measures.certified_failure(lambda: logits, {"labels": labels}, tau, aggregate="mean")
    assert found.item() == pytest.approx(most, rel=1e-12)
    assert by_token.item() == pytest.approx(share, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_failure_is_the_loops(seed: int) -> None:
    logits, labels = random_case(seed)
    wrong = [[m <= 0 for m in margins] for margins in oracle_margins(logits, labels)]
    batch = {"labels": labels}
    by_sequence = measures.exact_match_failure(lambda: logits, batch)
    by_token = measures.exact_match_failure(lambda: logits, batch, aggregate="mean")
    assert by_sequence.item() == pytest.approx(mean([any(w) for w in wrong]), rel=1e-14)
    assert by_token.item() == pytest.approx(mean([mean(w) for w in wrong]), rel=1e-14)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    scale=st.floats(0.01, 300),
    tau=st.floats(1e-3, 10),
    aggregate=st.sampled_from(AGGREGATES),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
)
def test_certificate_never_exceeds_the_failure_rate(
    seed: int, scale: float, tau: float, aggregate: str, dtype: torch.dtype
) -> None:
    logits, labels = random_case(seed, scale, dtype)
    said = (lambda: logits), {"labels": labels}
    failure = measures.exact_match_failure(*said, aggregate=aggregate)
    found = measures.certified_failure(*said, tau, aggregate=aggregate)
    assert 0 <= found <= failure
    if aggregate == "mean":
        bound = measures.token_nll(*said) / math.log(2)
        assert failure <= bound * (1 + 1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_tie_is_a_failure(dtype: torch.dtype) -> None:
    logits = torch.tensor([[[3.0, 3.0, 0.0], [0, 0, 0]]], dtype=dtype)
    for target in (0, 1):
        labels = torch.tensor([[-100, target]])
        assert margins_of(predict_answers(lambda: logits, {"labels": labels})) == 0
        assert measures.exact_match_failure(lambda: logits, {"labels": labels}) == 1


def test_logits_decide_where_probabilities_round_to_a_tie() -> None:
    above = torch.nextafter(torch.tensor(0.01), torch.tensor(1.0)).item()
    logits = torch.tensor([[[above, 0.01], [0, 0]]])
    labels = torch.tensor([[-100, 0]])
    assert logits[0, 0, 0] > logits[0, 0, 1]
    assert measures.exact_match_failure(lambda: logits, {"labels": labels}) == 0


def test_nan_logits_prove_nothing() -> None:
    logits, labels = random_case(0)
    logits[0, 2] = math.nan
    said = (lambda: logits), {"labels": labels}
    for aggregate in AGGREGATES:
        failure = measures.exact_match_failure(*said, aggregate=aggregate)
        assert failure.isnan()
    assert measures.certified_failure(*said).isnan()


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_certified_failure_is_gated_by_one_and_trained_on_the_other(aggregate: str) -> None:
    """The gradient, by differences, is that of the mean over phi where it is below 0, too."""
    logits, labels = random_case(0)
    both = logits.clone().requires_grad_()
    measures.certified_failure(
        lambda: both, {"labels": labels}, aggregate=aggregate, tau=0.3
    ).backward()
    over = max if aggregate == "max" else mean

    def trained(z: Tensor) -> float:
        margins = oracle_margins(z, labels)
        return mean([over([oracle_phi(m, 0.3) for m in row]) for row in margins])

    assert min(over([oracle_phi(m, 0.3) for m in r]) for r in oracle_margins(logits, labels)) < 0
    nudge = torch.zeros_like(logits)
    for at in range(logits.numel()):
        nudge.zero_().view(-1)[at] = 1e-6
        slope = (trained(logits + nudge) - trained(logits - nudge)) / 2e-6
        assert both.grad.view(-1)[at].item() == pytest.approx(slope, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_tie_of_infinities_proves_nothing(sign: float) -> None:
    logits = torch.tensor([[[sign * math.inf, sign * math.inf], [0.0, 0.0]]])
    failure = measures.exact_match_failure(lambda: logits, {"labels": torch.tensor([[-100, 1]])})
    assert math.isnan(failure.item())
