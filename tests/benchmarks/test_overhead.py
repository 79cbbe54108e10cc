"""Counted operations are those of the passes that a step takes."""

import pytest

from benchmarks.studies.overhead import KINDS, Kind, operations

PASSES = {  # a forward pass is 1 and a backward pass 2, for each side; Dual AdamW has 6
    "Dual AdamW": 6,
    "Dual AdamW + ALM, gate closed, last=True": 3 + 1,
    "SAUL, gate open": 12,
    "SAUL, gate closed, last=True": 6 + 4,
    "SAUL, released, probe_every=8": 6 + 4 / 8,
    "SAUL, gate open, SAM(every=3)": 2 * (6 + 3 + 3) / 3,
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_step_costs_its_passes(kind: Kind) -> None:
    rhythm = kind.every * kind.probe_every
    if kind.name in PASSES:
        relative = operations(kind, rhythm) / operations(KINDS[0], 1)
        assert relative == pytest.approx(PASSES[kind.name] / 6, rel=1e-2)
    elif kind.opened:
        assert operations(kind) / operations(KINDS[0], 1) <= 1.35
