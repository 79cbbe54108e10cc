"""Every difference in README and on the page of baselines is run, before and after."""

import copy
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import AdamW

import torch_alm
from tests.models import VOCABULARY, toy
from torch_alm import SAM, ALMConstraint, measures, rules

ROOT = Path(__file__).resolve().parent.parent
SECTION = re.compile(r"^## (.+?)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
DIFF = re.compile(r"```diff\n(.*?)```", re.DOTALL)
WEIGHT, RATE = 0.7, 1e-2


def differences() -> dict[str, str]:
    """The block of each section that has one."""
    texts = [(ROOT / "docs/compose.md").read_text(), (ROOT / "README.md").read_text()]
    sections = [s for text in texts for s in SECTION.findall(text)]
    return {title: DIFF.findall(body)[0] for title, body in sections if DIFF.search(body)}


DIFFERENCES = differences()


def words() -> dict[str, Tensor]:
    ids = torch.randint(VOCABULARY, (3, 5))
    return {"input_ids": ids, "labels": ids}


def names(constraint: Callable[..., ALMConstraint]) -> dict[str, Any]:
    """The names that the blocks use, alike each time: weights in float64, two batches."""
    model = toy()
    params = list(model.parameters())
    before = torch.full((3,), 9.0, dtype=torch.float64)
    public = {name: getattr(torch_alm, name) for name in torch_alm.__all__}
    return {
        **public,
        **{name: getattr(measures, name) for name in measures.__all__},
        **{name: getattr(rules, name) for name in rules.__all__},
        "ALMConstraint": constraint,
        "SAM": lambda base, rho: SAM(base, rho=0.0),  # where SAUL and Dual AdamW are the same
        "ReverseSAM": lambda base, rho: torch_alm.ReverseSAM(base, rho=0.0),
        "AdamW": AdamW,
        "torch": torch,
        "model": model,
        "params": params,
        "original": copy.deepcopy(model),
        "batches": [(words(), words()) for _ in range(3)],
        "before": before,
        "weight": WEIGHT,
        "rho": 0.01,
        "lr": 1e-2,
        "nu": 100.0,
        "layer": "embedding",
        "direction": measures.steering_vector(6, dtype=torch.float64),
        "optimizer": AdamW(params, lr=RATE),
        "alone": AdamW(params, lr=1e-2, weight_decay=0.0),  # the retain side of the recipe
        "retain_side": SAM(AdamW(params, lr=RATE), rho=0.01),
        "forget_side": AdamW(params, lr=RATE, weight_decay=0.0),
        "retain_loss": measures.token_nll,
    }


def lines(block: str, sign: str) -> str:
    """One side of a difference; what it imports is among the names that it is given."""
    kept = [line[2:] for line in block.splitlines() if line[:1] in ("", " ", sign)]
    return "\n".join(line for line in kept if not line.startswith("from "))


def run(block: str, sign: str, constraint: Callable[..., ALMConstraint]) -> Mapping[str, Tensor]:
    """The weights after one side of a difference."""
    found = names(constraint)
    exec(lines(block, sign), found)
    return found["model"].state_dict()


def fixed(weight: float) -> Callable[..., ALMConstraint]:
    """A maker of controllers with their dynamics off, at this weight; others stay as they are."""

    def make(measure: Any, alpha: float, mu: float, **options: Any) -> ALMConstraint:
        if options.get("multiplier"):
            return ALMConstraint(measure, alpha, mu, **options)
        return ALMConstraint(measure, alpha, mu=0.0, multiplier=weight, **options)

    return make


def closed(measure: Any, alpha: float, mu: float, **options: Any) -> ALMConstraint:
    """A controller that asks for nothing."""
    if options.get("multiplier"):
        return ALMConstraint(measure, alpha, mu, **options)
    least = 1e9 if options.get("sense") == "<=" else -1e9
    return ALMConstraint(measure, alpha=least, mu=mu, **options)


assert_equal = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


def test_every_baseline_is_there() -> None:
    assert len(DIFFERENCES) == 12  # eleven on the page, one in README


@pytest.mark.parametrize("title", DIFFERENCES)
def test_with_a_fixed_multiplier_the_controlled_loop_is_the_plain_one(title: str) -> None:
    block = DIFFERENCES[title]
    # Dual AdamW has no weight to replace: its forget step is the whole one.
    controller = fixed(1.0 if "DualOptimizer" in block else WEIGHT)
    assert_equal(run(block, "+", controller), run(block, "-", controller))


STEP = "optimizer.step(); optimizer.zero_grad()"
PLAIN = f"token_nll(model, retain).backward(); {STEP}"
ALONE = "token_nll(model, retain).backward(); alone.step(); alone.zero_grad()"
RETAIN_LOOPS = {
    "Dual AdamW": ALONE,
    "From there to SAUL": ALONE,
    "Gradient ascent": "pass",
    "Sharp Min-Max": "retain_side.backward(lambda: token_nll(model, retain)); retain_side.step(); "
    "retain_side.zero_grad()",
    "RMU": f"rmu_retain(model, retain, layer, original).backward(); {STEP}",
    "PDU": f"kept = token_nll(model, retain); (nu * kept).backward(); {STEP}; "
    "nu = max(nu + 5.0 * (kept.item() - 0.3), 0.0)",
}


@pytest.mark.parametrize("title", DIFFERENCES)
def test_with_a_closed_gate_only_the_retain_direction_is_left(title: str) -> None:
    loop = f"  for retain, forget in batches: {RETAIN_LOOPS.get(title, PLAIN)}"
    assert_equal(run(DIFFERENCES[title], "+", closed), run(loop, "+", closed))
