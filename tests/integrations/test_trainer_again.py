"""A second training, evaluations in between, and classes behind: nothing of them is left over."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from transformers import Trainer

from tests.integrations import toy
from tests.integrations.test_trainer_runs import per_token
from torch_alm import ALMConstraint
from torch_alm.integrations.transformers import ALMTrainer, SAMTrainer, SAULTrainer, StopOnStatus
from torch_alm.measures import token_nll

EACH = {"eval_strategy": "steps", "eval_steps": 1}


class Averaged(SGD):
    """Has an average of the weights in `eval`, as schedule-free optimizers do."""

    is_training = True

    def train(self) -> None:
        self.is_training = True

    def eval(self) -> None:
        self.is_training = False

    def step(self, closure: Any = None) -> Any:
        assert self.is_training, "the gradients are those of the average"
        return super().step(closure)


@pytest.mark.parametrize("accelerated", [True, False])
def test_an_optimizer_trains_on_after_an_evaluation(accelerated: bool, tmp_path: Path) -> None:
    model = toy.toy()
    rows = {"train_dataset": toy.rows(20, 3), "eval_dataset": toy.rows(6, 2)}
    optimizers = (Averaged(model.parameters(), 0.1), None)
    trainer = toy.trainer(SAMTrainer, tmp_path, model, optimizers=optimizers, args=EACH, **rows)
    if not accelerated:  # nobody in between hands the call on
        trainer.create_optimizer()
    trainer.train()
    assert trainer.state.global_step > 1


@pytest.mark.parametrize("schedule", ["linear", "constant"])
def test_a_schedule_that_ends_before_the_goal_is_told_once(schedule: str, tmp_path: Path) -> None:
    args = {"max_steps": 3, "lr_scheduler_type": schedule}
    for alpha in (99.0, 0.5):
        trainer = toy.trainer(
            ALMTrainer, tmp_path, constraint=toy.constraint(alpha=alpha), args=args
        )
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            trainer.train()
        said = [each for each in told if 'type="linear"` came to 0' in str(each.message)]
        assert len(said) == (schedule == "linear" and alpha == 99.0)


@pytest.mark.parametrize(
    ("sense", "met"),
    [(">=", [1.9, 2.0, 2.1, 9.0]), ("<=", [1.0, 1.9, 2.0, 2.1]), ("==", [1.9, 2.0, 2.1])],
)
def test_a_forget_set_meets_a_constraint_within_its_tolerance(
    sense: str, met: list[float], tmp_path: Path
) -> None:
    given = {"sense": sense, "alpha": 2.0, "tolerance": 0.101}
    trainer = toy.trainer(ALMTrainer, tmp_path, constraint=toy.constraint(**given))
    found = [x for x in (1.0, 1.9, 2.0, 2.1, 9.0) if trainer._is_met({"eval_forget_loss": x})]
    assert found == met and not trainer._is_met({"eval_forget_loss": torch.nan})


def worst_first(model: nn.Module, batch: Any) -> Tensor:
    """Two entries: what is to be forgotten, and something that is met by far."""
    return torch.stack([token_nll(model, batch), torch.tensor(9.0, dtype=torch.float64)])


def test_of_a_vector_every_entry_has_to_be_met_by_the_best(tmp_path: Path) -> None:
    """The mean of both, 5.5 or more, is above that of the levels, 5."""
    best = {"load_best_model_at_end": True, "metric_for_best_model": "retain_loss"}
    args = {**EACH, **best, "save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    trainer = toy.trainer(
        ALMTrainer,
        tmp_path,
        args=args,
        constraint=ALMConstraint(worst_first, torch.tensor([9.0, 1.0]), 0.1),
        eval_dataset={"forget": toy.rows(10, 1), "retain": toy.rows(23, 2)},
    )
    with pytest.warns(UserWarning, match="no evaluation met the constraint"):
        trainer.train()
    assert trainer.state.best_model_checkpoint is None


def test_two_stops_count_apart(tmp_path: Path) -> None:
    constraint = toy.constraint(alpha=-1.0)  # met from the start
    never = StopOnStatus(constraint, "suspected_infeasible", times=3)
    stops = [never, StopOnStatus(constraint, "never_active", times=3)]
    given = {"constraint": constraint, "callbacks": stops, "probe_every": 1}
    trainer = toy.trainer(SAULTrainer, tmp_path, args={"num_train_epochs": 4}, **given)
    trainer.train()
    assert trainer.state.global_step == 3


def test_a_constraint_that_never_acted_ends_nothing_and_is_told(tmp_path: Path) -> None:
    held = toy.constraint(alpha=-1.0)
    stop = StopOnStatus(held, times=2)
    given = {"constraint": held, "callbacks": [stop], "args": {"max_steps": 4}}
    trainer = toy.trainer(ALMTrainer, tmp_path, **given)
    with pytest.warns(UserWarning, match=r"`token_nll >= -1.0` has held from its first") as told:
        trainer.train()
    assert trainer.state.global_step == 4 and len(told) == 1
    with pytest.raises(ValueError, match=r"no constraint has the status 'relesed'.* released"):
        StopOnStatus(held, "relesed")


class Own(Trainer):
    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        self.counted = True
        return super().training_step(*args, **kwargs)


class Behind(SAMTrainer, Own):
    pass


class Losing(SAULTrainer):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs)


@pytest.mark.parametrize(
    ("kind", "given", "name"),
    [
        (Behind, {"train_dataset": toy.rows(4, 3)}, "Own.training_step"),
        (Losing, {"constraint": toy.constraint()}, "Losing.compute_loss"),
    ],
)
def test_a_method_that_never_runs_is_told(kind: Any, given: Any, name: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=f"and {name} is never called in a training"):
        toy.trainer(kind, tmp_path, **given)


def test_the_forget_side_decays_what_the_trainer_lets_decay(tmp_path: Path) -> None:
    trainer = toy.trainer(
        SAULTrainer, tmp_path, constraint=toy.constraint(), forget_weight_decay=0.1
    )
    trainer.create_optimizer()
    biases = {id(p) for name, p in trainer.model.named_parameters() if "bias" in name}
    groups = trainer.optimizer.forget.param_groups
    assert {g["weight_decay"] for g in groups if biases & {*map(id, g["params"])}} == {0.0}
    assert {g["weight_decay"] for g in groups} == {0.0, 0.1}


@pytest.mark.parametrize("kind", [ALMTrainer, SAULTrainer])
def test_a_first_label_that_no_model_predicts_is_not_counted(kind: Any, tmp_path: Path) -> None:
    """Transformers 5 counts those behind it for a model that shifts its labels."""
    rows = [{**row, "labels": row["input_ids"]} for row in toy.rows(8, 3)]
    losses = []
    for own in (None, per_token):
        trainer = toy.trainer(kind, tmp_path, constraint=toy.constraint(), compute_loss_func=own)
        trainer._loss_shifts_labels = True
        losses.append(trainer.evaluate(rows)["eval_loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


class Sharp(SAMTrainer, ALMTrainer):
    pass


def test_the_retain_loss_is_that_of_the_pass_that_counts(tmp_path: Path) -> None:
    """At theta + delta, as in the loss beside it; and of this training alone."""
    given = {"constraint": toy.constraint(alpha=-99.0), "rho": 0.5}
    trainer = toy.trainer(Sharp, tmp_path, args={"max_steps": 1}, **given)
    trainer._retain_losses.append(torch.tensor(99.0))  # of a training that failed
    trainer.train()
    line = trainer.state.log_history[0]
    assert line["retain_loss"] == pytest.approx(line["loss"], rel=1e-3)


def test_another_training_s_optimizer_is_no_checkpoint(tmp_path: Path) -> None:
    given = {"constraint": toy.constraint(), "args": {"save_strategy": "steps", "save_steps": 2}}
    trainer = toy.trainer(SAULTrainer, tmp_path, **given)
    trainer.train()
    (tmp_path / "checkpoint-2" / "optimizer.pt").unlink()
    with pytest.raises(ValueError, match=r"lacks one of \['optimizer.pt', "):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
