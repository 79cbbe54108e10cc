"""The overhead benchmark measures what it says: loops that agree, and weights that come back."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.studies.cost import overhead


@pytest.mark.parametrize(
    ("hand", "ours"),
    [(overhead.ByHandLoss, overhead.OurLoss), (overhead.ByHandControl, overhead.OurControl)],
)
def test_both_loops_do_the_same(hand: type, ours: type) -> None:
    loops = [hand(), ours()]
    for _ in range(60):
        for loop in loops:
            loop.step()
    first, second = loops
    torch.testing.assert_close(first.theta, second.theta, rtol=0, atol=1e-6)
    assert first.multiplier == pytest.approx(second.multiplier, abs=1e-5)
    assert second.theta.item() == pytest.approx(1.0, abs=0.05)


def test_every_way_to_perturb_comes_back_bit_for_bit() -> None:
    weights = overhead.Weights(overhead.llama_shapes(1, 10, width=8, inner=12), torch.float32)
    table = overhead.perturbation(weights, count=2)
    assert {"copy_", "SAM.perturbed()", "perturbed(params, rho)"} <= {row.name for row in table}
    assert all(row.note == "bit-exact" for row in table)
    assert table[0].name == "copy_"
    assert all(row.median > 0 for row in table)


def test_writes_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overhead, "llama_shapes", lambda *_: [(4, 8), (8,)])
    threads = torch.get_num_threads()
    assert overhead.main(["--quick", "--rounds", "2", "--output", str(tmp_path / "a.json")]) == 0
    torch.set_num_threads(threads)
    found = json.loads((tmp_path / "a.json").read_text())
    printed = capsys.readouterr().out
    rows = found["controller_us"] + found["perturbation_ms"]
    assert len(rows) >= 6
    assert all(f"{row['name']:32}{row['median']:10.1f}" in printed for row in rows)
