"""The comparison of SAMs tells a library that is right from one that is not, in each way."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.optim import SGD

from benchmarks.report.results import RECORDED
from benchmarks.studies import sam_peers
from benchmarks.studies.sam_peers import CHECKS, Objective, Ours
from torch_alm import SAM

PAGE = RECORDED / "sam_peers.md"
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \|", re.MULTILINE)


class Flat(Ours):
    """An optimizer that does not look around."""

    def step(self, optimizer: Any, objective: Objective) -> None:
        objective().backward()
        optimizer.base.step()
        optimizer.zero_grad()


class Forgetful(Ours):
    """Forgets its moments in a checkpoint."""

    def make(self, params: Any) -> Any:
        optimizer = super().make(params)
        load = optimizer.load_state_dict
        optimizer.load_state_dict = lambda state: load({**state, "state": {}})
        return optimizer


class Refusing(Ours):
    def make(self, params: Any) -> Any:
        raise NotImplementedError


# torch fills a new optimizer's state by a step of its own, before it loads another into it
@pytest.mark.filterwarnings("ignore:SAM.step.. with a gradient taken at theta:UserWarning")
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("check", CHECKS.values(), ids=list(CHECKS))
def test_ours_is_sam_by_hand(check: Callable[[Any], float]) -> None:
    assert check(Ours()) < 1e-10


@pytest.mark.parametrize(
    ("library", "fails"), [(Flat(), "alone resumed"), (Forgetful(), "resumed")]
)
def test_what_is_wrong_is_apart(library: Any, fails: str) -> None:
    for check in (sam_peers.alone, sam_peers.resumed):
        assert (check(library) > 1e-3) == (check.__name__ in fails.split())


def test_a_base_of_another_kind_is_another_sam() -> None:
    """The other SAM's base has moments, so that a checkpoint has something to lose."""

    class Plain(Ours):
        def make(self, params: Any) -> Any:
            return SAM(SGD(params, lr=sam_peers.LR), rho=sam_peers.RHO)

    assert sam_peers.alone(Plain()) > 1e-3


def test_a_library_that_raises_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sam_peers, "CHECKS", {"some steps": sam_peers.alone})
    (tmp_path / "sam.py").write_text("class SAM:\n    def __init__(*_, **__): raise KeyError\n")
    assert sam_peers.main(["--davda54", str(tmp_path), "--output", str(tmp_path)]) == 0
    text = (tmp_path / "sam_peers.md").read_text()
    assert "|  | torch-alm | pytorch_optimizer | davda54/sam |" in text
    assert text.count("raises KeyError") == 1
    assert sam_peers.verdict(sam_peers.alone, Refusing()) == "raises NotImplementedError"


def test_the_recorded_table_has_all_checks_and_ours_is_right() -> None:
    rows = dict(ROW.findall(PAGE.read_text()))
    ours = {name: float(rows[name]) for name in CHECKS}
    assert all(value < 1e-10 for value in ours.values()), ours
    assert rows["lines of `make` and `step`"] == str(sam_peers.lines(Ours()))
