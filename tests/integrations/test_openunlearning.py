"""The launcher and the trainers that it registers, without a checkout."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import Trainer, TrainerCallback

from tests.core.table import assert_same
from tests.integrations import toy
from torch_alm.filters import Mean
from torch_alm.integrations.openunlearning.__main__ import CONFIGS, complete_overrides, main
from torch_alm.integrations.openunlearning._controlled import constrain
from torch_alm.integrations.openunlearning._trainers import make_trainers
from torch_alm.integrations.transformers import StopOnStatus
from torch_alm.measures import token_nll
from torch_alm.rules import Leak


def test_overrides_are_completed_and_nothing_given_is_lost() -> None:
    start = ["--config-name=unlearn.yaml", f"--config-dir={CONFIGS}"]
    assert complete_overrides(["a=1"]) == [*start, "trainer=SAUL", "a=1"]
    assert complete_overrides(["trainer=ALM"]) == [*start, "trainer=ALM"]
    for named in (["--config-name=x"], ["--config-name", "x"], ["-cn=x"], ["-cn", "x"]):
        assert complete_overrides(named) == [start[1], "trainer=SAUL", *named]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_says_how_it_is_used(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"^usage: .* CHECKOUT \[overrides\]"):
        main(arguments)


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no src/train\.py"):
        main([str(tmp_path)])


class Theirs(Trainer):
    """The arguments that OpenUnlearning's trainers take."""

    def __init__(
        self, *args: Any, evaluators: Any = None, template_args: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)


REGISTER = """
from trainer.unlearn.base import GradAscent, GradDiff
from transformers import Trainer
TRAINER_REGISTRY = {}
def _register_trainer(kind): TRAINER_REGISTRY[kind.__name__] = kind
for kind in (Trainer, GradAscent, GradDiff): _register_trainer(kind)
"""
BASE = """
from transformers import Trainer
class UnlearnTrainer(Trainer): pass
class GradAscent(UnlearnTrainer): pass
class GradDiff(UnlearnTrainer):
    def __init__(self, gamma=1.0, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.gamma = gamma
    def compute_loss(self, model, inputs, return_outputs=False):
        forget, retain = (model(**inputs[side]).loss for side in ("forget", "retain"))
        return retain - self.gamma * forget
"""
TRAIN = """
import json, os, sys
from trainer import TRAINER_REGISTRY
from trainer.unlearn.base import UnlearnTrainer
made = {name: issubclass(kind, UnlearnTrainer) for name, kind in TRAINER_REGISTRY.items()}
names = TRAINER_REGISTRY["GradDiff"].__init__.__code__.co_varnames
made["takes a constraint"] = "constraint" in names
with open("seen.json", "w") as file:
    json.dump([__name__, os.getcwd(), sys.argv, sys.path[0], made], file)
"""


def checkout(folder: Path) -> Path:
    """The part of OpenUnlearning that the launcher touches; its script writes what it finds."""
    files = {"trainer/__init__.py": REGISTER, "trainer/unlearn/__init__.py": ""}
    files |= {"trainer/unlearn/base.py": BASE, "train.py": TRAIN}
    for name, text in files.items():
        path = folder / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder.resolve()


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home; folder, arguments, path and modules return to what they were."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name, value in (("argv", ["pytest"]), ("path", [*sys.path])):
        monkeypatch.setattr(sys, name, value)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "trainer"]:
        del sys.modules[name]


@pytest.mark.parametrize("given", ["~/theirs", "theirs"])
def test_their_script_runs_as_it_would_on_its_own_and_knows_our_trainers(
    given: str, at_home: Path
) -> None:
    theirs = checkout(at_home / "theirs")
    main([given, "a=1"])
    name, folder, arguments, first, made = json.loads((theirs / "seen.json").read_text())
    assert (name, folder) == ("__main__", str(theirs))
    assert arguments[0] == str(theirs / "src" / "train.py")
    assert first == str(theirs / "src"), "as Python would, so that no other `trainer` is found"
    assert {*arguments[1:]} >= {"a=1", "trainer=SAUL"}
    assert made == {
        **dict.fromkeys(("GradAscent", "GradDiff", "SAUL", "ALM", "takes a constraint"), True),
        "Trainer": False,
    }


@pytest.mark.parametrize("name", ["SAUL", "ALM"])
def test_a_configuration_becomes_a_trainer_that_stops_once_released(
    name: str, tmp_path: Path
) -> None:
    kinds = {kind.__name__: kind for kind in make_trainers(Theirs)}
    trainer = toy.trainer(
        kinds[name],
        tmp_path,
        train_dataset=toy.pairs(12),
        evaluators=None,
        template_args={},
        tokenizer=None,
        args={"num_train_epochs": 16},
        alpha=2.6,
        mu=0.5,
        constraint={"filter": {"Mean": {"window": 3}}, "rules": [{"Leak": {"share": 0.5}}]},
        stop_when_released=2,
    )
    trainer.train()
    assert trainer.constraint.filter == Mean(3) and trainer.constraint.mu == 0.5
    assert trainer.constraint.rules == (Leak(0.5),)
    assert trainer.constraint.metrics()["status"] == "released"
    assert trainer.state.global_step < trainer.state.max_steps


class Started(TrainerCallback):
    """A callback of theirs."""


@pytest.mark.parametrize("name", ["SAUL", "ALM"])
def test_what_a_configuration_leaves_out_is_as_its_file_says(name: str, tmp_path: Path) -> None:
    written = yaml.safe_load((CONFIGS / "trainer" / f"{name}.yaml").read_text())
    assert written["handler"] == name
    told = {key: value for key, value in written["method_args"].items() if value != "???"}
    kinds, tokens, made = {kind.__name__: kind for kind in make_trainers(Theirs)}, toy.Tokens(), []
    for given in ({}, told):
        trainer = toy.trainer(
            kinds[name], tmp_path, alpha=3.0, tokenizer=tokens, callbacks=[Started], **given
        )
        assert getattr(trainer, "processing_class", tokens) is trainer.tokenizer is tokens
        found = [type(callback) for callback in trainer.callback_handler.callbacks]
        assert Started in found and StopOnStatus not in found
        assert trainer.constraint.measure is token_nll
        made.append(f"{trainer.constraint!r} {trainer.create_optimizer()!r}")
    assert made[0] == made[1] and "mu=0.001" in made[0]


@pytest.mark.parametrize(
    ("measure", "told"),
    [("nll", "torch_alm.measures has no 'nll'. Did you"), ("npo", "takes .*'reference', 'beta'")],
)
def test_a_measure_that_is_none_of_a_model_and_a_batch_is_refused_at_once(
    measure: str, told: str, tmp_path: Path
) -> None:
    kinds = [*make_trainers(Theirs), constrain(GradDiff)]
    for kind in kinds:
        terms = {"alpha": 1.0, "measure": measure}
        with pytest.raises(ValueError, match=told):
            toy.trainer(kind, tmp_path, **(terms if kind in kinds[:2] else {"constraint": terms}))


class GradDiff(Theirs):
    """A trainer of OpenUnlearning's own: with a weight for the forget loss."""

    def __init__(self, *args: Any, gamma: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gamma = gamma

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
        forget, retain = (model(**inputs[side]).loss for side in ("forget", "retain"))
        return retain - self.gamma * forget


class Evaluating(Theirs):
    """Its evaluations have data of their own, as OpenUnlearning's have."""

    evaluated = 0

    def evaluate(self, eval_dataset: Any = None, *_: Any, **__: Any) -> dict[str, float]:
        assert eval_dataset is None
        self.evaluated += 1
        return {}


class Both(Evaluating, GradDiff):
    """And a loss of its own."""


@pytest.mark.parametrize("name", ["SAUL", "ALM", "Both"])
def test_evaluations_with_data_of_their_own_need_no_set(name: str, tmp_path: Path) -> None:
    terms = {"alpha": 2.6, "mu": 1.0}
    kinds = {kind.__name__: (kind, terms) for kind in make_trainers(Evaluating)}
    kinds["Both"] = (constrain(Both), {"constraint": terms})
    kind, given = kinds[name]
    args = {"eval_strategy": "epoch", "remove_unused_columns": False}
    trainer = toy.trainer(kind, tmp_path, args=args, train_dataset=toy.pairs(12), **given)
    trainer.train()
    assert trainer.evaluated == 4 and trainer.state.global_step == 12


@pytest.mark.parametrize("name", ["SAUL", "ALM", "GradDiff"])
def test_the_checkpoint_of_the_arguments_is_where_a_run_goes_on(name: str, tmp_path: Path) -> None:
    """Their script calls `train()`, whatever the arguments say."""
    terms = {"alpha": 3.0, "mu": 1.0}
    kinds = {kind.__name__: (kind, terms) for kind in make_trainers(Theirs)}
    kinds["GradDiff"] = (constrain(GradDiff), {"constraint": terms})
    kind, given = kinds[name]
    runs = []
    for resume in (None, str(tmp_path / "checkpoint-6")):
        args = {"save_strategy": "steps", "save_steps": 6, "remove_unused_columns": False}
        args["resume_from_checkpoint"] = resume
        data = toy.pairs(12)
        trainer = toy.trainer(toy.recording(kind), tmp_path, args=args, train_dataset=data, **given)
        trainer.train()
        runs.append(trainer)
    through, resumed = runs
    assert len(through.steps) - len(resumed.steps) == 6, "steps that were not taken again"
    assert resumed.state.global_step == 12 and through.constraint.multiplier > 0
    assert_same(resumed.constraint.state_dict(), through.constraint.state_dict())
    assert name != "GradDiff" or through.gamma == through.constraint.weight > 0
    found, expected = (toy.values(one.model) for one in (resumed, through))
    assert all(torch.equal(found[key], p) for key, p in expected.items())
    assert resumed.state.log_history[:-1] == through.state.log_history[:-1]


def of_their_own(folder: Path, **given: Any) -> Any:
    rows = {"train_dataset": toy.pairs(12), "args": {"remove_unused_columns": False}}
    trainer = toy.trainer(constrain(GradDiff), folder, tokenizer=toy.Tokens(), **rows, **given)
    trainer.train()
    return trainer


def test_their_own_trainer_with_a_weight_that_stays_is_itself(tmp_path: Path) -> None:
    still = {"alpha": 2.6, "mu": 0.0, "multiplier": 0.5}
    both = [of_their_own(tmp_path, **given) for given in ({"constraint": still}, {"gamma": 0.5})]
    found, expected = (toy.values(one.model) for one in both)
    assert all(torch.equal(found[name], p) for name, p in expected.items())
    assert both[0].constraint.metrics()["steps"] == both[0].state.global_step == 12
    assert both[1].constraint is None


def test_a_method_without_a_weight_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Theirs: its loss has no weight `gamma` for the forget"):
        toy.trainer(constrain(Theirs), tmp_path, constraint={"alpha": 1.0})
