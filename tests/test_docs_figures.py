"""The drawings of the documentation show what they say, and are the same each time."""

from pathlib import Path

import pytest
import torch

from docs.figures import certificate, perturbations, run, stopping, themes
from docs.figures.drawings import DRAWINGS
from torch_alm.measures import margin_surrogate

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", ["perturbations", "certificate", "constrained-equality"])
def test_a_drawing_is_the_same_each_time_and_fits_its_page(name: str) -> None:
    light, again, dark = (themes.svg(DRAWINGS[name].figure, t) for t in ("light", "light", "dark"))
    assert light == again
    assert (
        themes.COLOURS["dark"]["forget"] in dark and themes.COLOURS["dark"]["forget"] not in light
    )
    assert "font-family" not in light, "letters are curves: no font is needed"


@pytest.mark.parametrize(
    ("loss", "sign"), [(perturbations.retain_loss, 1), (perturbations.forget_loss, -1)]
)
def test_perturbed_points_are_the_worst_and_the_most_forgiving_nearby(
    loss: perturbations.Loss, sign: int
) -> None:
    there, gradient = perturbations.nearby(loss, sign)
    start = perturbations.START
    torch.testing.assert_close((there - start).norm(), torch.tensor(perturbations.RHO))
    around = torch.linspace(0, 2 * torch.pi, 400)[:, None]
    circle = start + perturbations.RHO * torch.cat([around.cos(), around.sin()], dim=1)
    ranked = (sign * (loss(there) - loss(circle)) >= 0).float().mean()
    assert ranked > 0.85, "to first order: along the gradient, not along the true extreme"
    free = there.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(free), free)
    torch.testing.assert_close(gradient, expected)


def test_the_bound_that_is_drawn_lies_below_the_error() -> None:
    margin = torch.linspace(-1, 1, 401, dtype=torch.float64)
    for tau in certificate.TAUS:
        assert (margin_surrogate(margin, tau=tau) <= (margin <= 0)).all()


def test_the_text_of_the_run_tells_its_steps() -> None:
    assert run.open_steps([0.5, 0.0, 0.1]) == [1, 3]
    steps = run.recorded()["steps"]
    assert f"over {len(steps['weight'])} steps" in run.alt()
    assert f"open on {sum(w > 0 for w in steps['weight'])} steps" in run.alt()


def test_a_constraint_stops_where_a_fixed_weight_runs_away() -> None:
    free, held = (stopping.trained(constrained=constrained) for constrained in (False, True))
    assert free.forget[-1] > 10 > 2 * stopping.ALPHA > held.forget[-1] > stopping.ALPHA
    assert held.weight[0] > 0 == held.weight[-1] == held.multiplier[-1]
    assert held.retain[-1] < 0.1 < free.retain[-1]


def test_the_picture_of_readme_is_there_and_says_what_is_drawn() -> None:
    readme = (ROOT / "README.md").read_text()
    assert f'alt="{stopping.alt()}"' in readme
    for theme in themes.COLOURS:
        assert f"docs/images/stopping-{theme}.svg" in readme
        assert (stopping.IMAGES / f"stopping-{theme}.svg").read_text().startswith("<?xml")


def test_every_drawing_has_words() -> None:
    assert all(len(drawing.alt()) > 50 for drawing in DRAWINGS.values())
