"""The cost benchmark counts what it says it counts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from benchmarks.studies.cost import __main__ as cost
from benchmarks.studies.cost import runs as cost_run
from benchmarks.studies.cost import steps as cost_steps
from torch_alm._constraint import foretold


def counted(method: cost_steps.Method) -> dict[str, Any]:
    return cost.counted(cost_steps.TINY, method, (2, 16))


@pytest.fixture(scope="module")
def base() -> dict[str, Any]:
    return counted(cost_steps.BASELINE)


@pytest.mark.skipif(
    int(transformers.__version__.split(".")[0]) < 5,
    reason="before 5 its Llama does not run without data",
)
@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("Dual AdamW + ALM, gate closed, last=True", 4),
        ("SAUL, gate open", 12),
        ("SAUL, gate closed, last=True", 10),
        ("SAUL, gate open, SAM(every=3)", 8),
        ("SAUL, aimed", 12),
    ],
)
def test_a_forward_is_a_third_of_a_pass_and_sam_takes_two(
    name: str, passes: int, base: dict[str, Any]
) -> None:
    """Dual AdamW has 2 forward passes and 2 backward passes of twice the operations: 6.

    A little is missing: the first layer's inputs need no gradient.
    """
    mine = counted(next(method for method in cost_steps.METHODS if method.name == name))
    assert mine["flops"] / base["flops"] == pytest.approx(passes / 6, rel=0.01)
    assert (mine["peak bytes"] > base["peak bytes"]) == ("closed" not in name)


@pytest.mark.skipif(
    int(transformers.__version__.split(".")[0]) < 5,
    reason="before 5 its Llama does not run without data",
)
def test_an_aimed_step_holds_one_copy_of_the_parameters_at_most(
    base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foretold, "BLOCK", 64)  # as small beside a weight as it usually is
    aimed = next(m for m in cost_steps.METHODS if m.name == "Dual AdamW + ALM, aimed")
    more = counted(aimed)["peak bytes"] - base["peak bytes"]
    assert more <= base["parameter bytes"]


def test_the_table_says_whether_a_target_is_met() -> None:
    rows = [
        {"method": name, "ratio": ratio, "target": 1.25} for name, ratio in (("a", 1), ("b", 2))
    ]
    found = cost.markdown({"run": {"machine": {"cores": 2, "gpu": None}, "rows": rows}})
    assert "| a | 1 | 1.25, met |" in found and "| b | 2 | 1.25, not met |" in found
    assert "cores 2\n" in found and "gpu" not in found


def line(method: str, seconds: float, gate_open: float | None) -> dict:
    return {"method": method, "seconds": seconds, "gate_open": gate_open}


@pytest.mark.parametrize(("gate_open", "target"), [(0.1, 1.20), (0.4, None)])
def test_a_whole_run_is_compared_seed_by_seed(gate_open: float, target: float | None) -> None:
    """The machine is twice as slow for the second seed, and for no ratio."""
    lines = [line("original", 0.0, None)]
    for slow in (1.0, 2.0, 1.0):
        lines += [line("dual_adamw", 10 * slow, None), line("saul", 12 * slow, gate_open)]
    found = cost_run.row("SAUL", lines)
    assert found["ratio"] == pytest.approx(1.2) and found["seconds"] == 12
    assert found["gate open"] == pytest.approx(gate_open) and found["target"] == target


def test_a_trace_names_both_passes_of_a_step(tmp_path: Path) -> None:
    ids = torch.zeros(1, 8, dtype=torch.long)
    training = cost_steps.Training(cost_steps.llama(cost_steps.TINY), cost_steps.METHODS[2], ids)
    path = cost_steps.trace(training, tmp_path / "traces")
    assert path.name == "saul-gate-open.json"
    names = [event.get("name") for event in json.loads(path.read_text())["traceEvents"]]
    assert names.count("aten::embedding") == 4, "four forward passes"
