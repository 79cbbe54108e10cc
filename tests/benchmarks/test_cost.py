"""The cost benchmark counts what it says it counts."""

import json

import pytest

from benchmarks import cost, cost_run


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    folder = tmp_path_factory.mktemp("cost")
    assert cost.main(["--quick", "--sections", "flops", "--output", str(folder)]) == 0
    assert "| tiny |" in (folder / "cost.md").read_text()
    rows = json.loads((folder / "cost.json").read_text())["flops"]["rows"]
    return {row["method"]: row for row in rows}


def test_a_forward_is_a_third_of_a_pass_and_sam_takes_two(counted: dict[str, dict]) -> None:
    """Dual AdamW has 2 forward and 2 backward passes of twice the operations: 6 units.

    A little is missing: the first layer's inputs need no gradient.
    """
    expected = {
        "SAUL, gate open": 12 / 6,
        "SAUL, gate closed": 12 / 6,
        "SAUL, gate closed, last=True": 10 / 6,
        "SAUL, gate closed, last=True, probe_every=8": (7 * 6 + 10) / 8 / 6,
        "Dual AdamW + ALM, gate closed, last=True": 4 / 6,
    }
    for name, ratio in expected.items():
        assert counted[name]["ratio"] == pytest.approx(ratio, rel=0.01), name
    assert counted["Dual AdamW"]["extra copies"] == 0


def line(method: str, seconds: float, gate_open: float | None) -> dict:
    return {"method": method, "seconds": seconds, "gate_open": gate_open}


@pytest.mark.parametrize(("gate_open", "target"), [(0.1, 1.25), (0.4, None)])
def test_a_whole_run_is_compared_seed_by_seed(gate_open: float, target: float | None) -> None:
    """The machine is twice as slow for the second seed, and for no ratio."""
    lines = [line("original", 0.0, None)]
    for slow in (1.0, 2.0, 1.0):
        lines += [line("dual_adamw", 10 * slow, None), line("saul", 12 * slow, gate_open)]
    found = cost_run.row("SAUL", lines)
    assert found["ratio"] == pytest.approx(1.2) and found["seconds"] == 12
    assert found["gate open"] == pytest.approx(gate_open) and found["target"] == target
