"""A Trainer that nobody wrote for us, tuples for batches, with one callback more."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn
from torch.amp import GradScaler
from transformers import (
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)

from tests import by_hand, oracle
from tests.core.table import assert_same
from tests.integrations import toy
from torch_alm import ALMConstraint
from torch_alm.group import ConstraintGroup
from torch_alm.integrations.transformers import ALMTrainer, ConstraintCallback

pytestmark = pytest.mark.filterwarnings("ignore:mtime may not be reliable")

ALPHA, MU = 2.6, 1.0
Batch = tuple[Tensor, Tensor]


def collate(rows: list[Any]) -> tuple[Batch, Batch]:
    """Nothing has a name, as in the code of TOFU and what was made of it."""
    sides = []
    for side in ("forget", "retain"):
        found = [
            [row[side][name] + [fill] * (6 - len(row[side][name])) for row in rows]
            for name, fill in (("input_ids", toy.PAD), ("labels", -100))
        ]
        sides.append(tuple(torch.tensor(each) for each in found))
    return sides[0], sides[1]


class Theirs(Trainer):
    """Both losses in one `compute_loss`, as published; `constraint` is what a user adds."""

    constraint: ALMConstraint | None = None
    weigh = False

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, **_: Any
    ) -> Any:
        (ids_f, labels_f), (ids_r, labels_r) = inputs
        outputs = model(ids_f, labels=labels_f)
        loss = model(ids_r, labels=labels_r).loss
        if self.constraint is None:
            loss = loss - outputs.loss
        elif self.weigh:
            self.constraint.observe(outputs.loss)
            loss = loss - self.constraint.preview() * outputs.loss
        else:
            loss = loss + self.constraint(outputs.loss)
        return (loss, outputs) if return_outputs else loss

    def prediction_step(self, model: nn.Module, inputs: Any, *_: Any, **__: Any) -> Any:
        with torch.no_grad():
            return self.compute_loss(model, inputs).detach(), None, None


def constraint(**settings: Any) -> ALMConstraint:
    return ALMConstraint(lambda loss: loss, **{"alpha": ALPHA, "mu": MU, **settings})


def trainer(folder: Path, controlled: ALMConstraint | None = None, **given: Any) -> Any:
    callbacks, keeping = given.pop("callbacks", []), Keeping()
    if controlled is not None:
        callbacks = [keeping, *callbacks]
    given.setdefault("train_dataset", toy.pairs(12))
    given["args"] = {"remove_unused_columns": False, **given.get("args", {})}
    # A Trainer of transformers 5 leaves the share of a micro-batch to whoever writes the loss.
    made = toy.trainer(
        toy.recording(Theirs),
        folder,
        toy.toy(given.pop("dropout", 0.0)),
        data_collator=collate,
        callbacks=callbacks,
        **given,
    )
    made.model_accepts_loss_kwargs = False
    made.constraint = controlled
    keeping.trainer = made
    if controlled is not None:
        ConstraintCallback(controlled).add_to(made)
    return made


def run(folder: Path, controlled: ALMConstraint, resume: str | None = None, **given: Any) -> Any:
    made = trainer(folder, controlled, **given)
    made.train(resume_from_checkpoint=resume)
    return made


def by_hand_weights(model: nn.Module, steps: list[Any], rates: list[float], *, weigh: bool) -> Any:
    """Lambda+ per step: in the loss of a micro-batch by itself, as a weight of all so far."""
    loss = lambda net, b: by_hand.by_token(net, {"input_ids": b[0], "labels": b[1]})  # noqa: E731
    s, weights = oracle.AdamW(0.0), list[float]()
    alm = oracle.Alm(list(model.parameters()), s, ALPHA, MU, so_far=weigh)
    for step, s.lr in zip(steps, rates, strict=True):
        sides = zip(*step, strict=True)
        forget, retain = ([lambda b=b: loss(model, b) for b in side] for side in sides)
        weights.append(alm.step(retain, forget))
    return weights


@pytest.mark.parametrize("weigh", [False, True], ids=["in the loss", "as a weight"])
@pytest.mark.parametrize("parts", [1, 2])
def test_the_loss_of_a_foreign_trainer_is_the_algorithm(
    parts: int, weigh: bool, tmp_path: Path
) -> None:
    args = {"gradient_accumulation_steps": parts, "num_train_epochs": 6}
    found = trainer(tmp_path, constraint(), args=args)
    found.weigh = weigh
    found.train()
    steps, model = found.steps[:-1], toy.toy()
    assert len(steps) == found.state.global_step == found.constraint.metrics()["steps"]
    rates = [0.05 * (1 - step / len(steps)) for step in range(len(steps))]
    weights = by_hand_weights(model, steps, rates, weigh=weigh)
    torch.testing.assert_close(toy.values(found.model), toy.values(model), rtol=0, atol=1e-12)
    lines = [line for line in found.state.log_history if "loss" in line]
    seen = [line["constraint/weight"] for line in lines]
    torch.testing.assert_close(seen, weights, rtol=0, atol=1e-12)
    assert [line["constraint/gate"] for line in lines] == [float(w > 0) for w in weights]
    assert 0.0 in weights and max(weights) > 0, "the gate must open and close"


class Keeping(TrainerCallback):
    """The states of the constraint when training begins, and at every save."""

    def __init__(self) -> None:
        self.trainer: Any = None

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.trainer.started = self.trainer.constraint.state_dict()

    def on_save(self, args: Any, state: TrainerState, *_: Any, **__: Any) -> None:
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / "expected.pt"
        torch.save(self.trainer.constraint.state_dict(), path)


SAVING = {"save_strategy": "steps", "save_steps": 6, "save_total_limit": 9}


def vector() -> ALMConstraint:
    """Its state has tensors, entries that are infinite, and one multiplier that is pushed."""
    share = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
    return ALMConstraint(
        lambda loss: share * loss, alpha=torch.tensor([2.6, 0.1, torch.pi]), mu=0.3
    )


@pytest.mark.parametrize("only_model", [False, True])
def test_the_state_of_the_constraint_is_in_the_checkpoint_to_the_last_bit(
    only_model: bool, tmp_path: Path
) -> None:
    args = {**SAVING, "save_only_model": only_model}
    resume = str(tmp_path / "checkpoint-6")
    through = run(tmp_path, vector(), args=args, dropout=0.3)
    assert through.state.global_step == 12
    saved = torch.load(tmp_path / "checkpoint-6" / "expected.pt", weights_only=True)
    resumed = trainer(tmp_path, vector(), args=args, dropout=0.3)
    resumed.constraint.observe(torch.full((3,), 9.0))  # before training: no step follows from it
    resumed.train(resume_from_checkpoint=resume)
    assert_same(resumed.started, saved)
    if not only_model:  # with it the Trainer starts its own optimizer anew
        assert_same(resumed.constraint.state_dict(), through.constraint.state_dict())


def test_a_checkpoint_without_the_state_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path, args=SAVING).train()
    with pytest.raises(ValueError, match=r"^ConstraintCallback: .* no 'torch_alm.constraint', and"):
        run(tmp_path, constraint(), str(tmp_path / "checkpoint-6"))


def test_another_model_begins_with_another_multiplier(tmp_path: Path) -> None:
    """And the same one, trained again, goes on."""
    for init, steps in ((lambda: toy.toy(), (3, 3)), (None, (3, 6))):
        made, found = trainer(tmp_path, constraint(), args={"max_steps": 3}), []
        made.model_init = init
        for _ in range(2):
            made.train()
            found.append((made.constraint.multiplier, made.constraint.metrics()["steps"]))
        assert tuple(n for _, n in found) == steps and found[0][0] > 0
        assert (found[0] == found[1]) == (init is not None)


def test_a_loss_that_never_measures_is_told_at_the_first_step(tmp_path: Path) -> None:
    made = trainer(tmp_path, callbacks=[ConstraintCallback(constraint())])
    with pytest.raises(RuntimeError, match="found no measurement since the last step"):
        made.train()


def test_an_evaluation_leaves_no_measurement_to_the_next_step(tmp_path: Path) -> None:
    evaluated = {"eval_strategy": "steps", "eval_steps": 1}
    plain = run(tmp_path, constraint())
    other = run(tmp_path, constraint(), args=evaluated, eval_dataset=toy.pairs(7))
    assert sum("eval_loss" in line for line in other.state.log_history) == 12
    found, expected = toy.values(other.model), toy.values(plain.model)
    assert all(torch.equal(found[name], p) for name, p in expected.items())
    assert_same(other.constraint.state_dict(), plain.constraint.state_dict())


@pytest.mark.parametrize("greater", [False, True])
def test_only_a_step_that_met_the_constraint_is_the_best(greater: bool, tmp_path: Path) -> None:
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss"}
    args = {**best, "greater_is_better": greater, "eval_strategy": "steps", "eval_steps": 1}
    args |= {"save_strategy": "steps", "save_steps": 1, "num_train_epochs": 3}
    given = {"eval_dataset": toy.pairs(7)}
    early = {"sense": "<=", "alpha": 2.57, "mu": 0.0}  # the last step is not
    made = run(tmp_path, constraint(**({} if greater else early)), args=args, **given)
    lines = made.state.log_history
    met = [line["constraint/violation"] <= 0 for line in lines if "constraint/violation" in line]
    sign = -1 if greater else 1
    losses = [sign * line["eval_loss"] for line in lines if "eval_loss" in line]
    assert len(met) == len(losses) and {*met} == {True, False}
    loss, step = min((loss, i) for i, loss in enumerate(losses, 1) if met[i - 1])
    assert loss > min(losses), "a step that does not meet it has the best loss"
    assert made.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{step}")
    assert made.evaluate()["eval_loss"] == pytest.approx(sign * loss, abs=0.5), "as it is"


def test_nothing_is_the_best_if_no_step_met_the_constraint(tmp_path: Path) -> None:
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "max_steps": 2}
    args = {**best, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps"}
    made = trainer(
        tmp_path, constraint(alpha=99.0), args={**args, "save_steps": 1}, eval_dataset=toy.pairs(7)
    )
    with pytest.warns(UserWarning, match="no evaluation met the constraint"):
        made.train()
    assert made.state.best_model_checkpoint is None


def test_a_callback_that_cannot_keep_a_missed_goal_from_the_best_is_refused(tmp_path: Path) -> None:
    args = {"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps"}
    callbacks = [ConstraintCallback(constraint())]
    made = trainer(tmp_path, args=args, callbacks=callbacks, eval_dataset=toy.pairs(7))
    with pytest.raises(ValueError, match=r"Did you mean `callback.add_to\(trainer\)` in place"):
        made.train()


@pytest.mark.parametrize("best", ["steps", "best"])
def test_schedules_and_other_callbacks_read_the_metric_of_a_missed_goal(
    best: str, tmp_path: Path
) -> None:
    """The retain loss falls in every evaluation, and nothing but it is there to be read."""
    args = {"lr_scheduler_type": "reduce_lr_on_plateau", "metric_for_best_model": "loss"}
    args |= {"greater_is_better": False, "eval_strategy": "steps", "eval_steps": 1}
    args |= {"lr_scheduler_kwargs": {"patience": 0, "factor": 0.5}, "save_strategy": best}
    args |= {"load_best_model_at_end": best == "steps", "save_steps": 1, "num_train_epochs": 2}
    callbacks = [EarlyStoppingCallback(early_stopping_patience=2)]
    given = {"callbacks": callbacks, "eval_dataset": toy.pairs(7)}
    made = trainer(tmp_path, constraint(alpha=99.0, mu=0.0), args=args, **given)
    with pytest.warns(UserWarning) if best == "steps" else nullcontext():  # that none met it
        made.train()
    lines = made.state.log_history
    assert {line["learning_rate"] for line in lines if "learning_rate" in line} == {0.05}
    losses = [line["eval_loss"] for line in lines if "eval_loss" in line]
    assert len(losses) == 6 and losses == sorted(losses, reverse=True)
    assert made.state.best_model_checkpoint is None
    assert bool([*tmp_path.glob("checkpoint-*")]) == (best == "steps")


def test_noise_that_would_pass_for_forgetting_is_told(tmp_path: Path) -> None:
    made = trainer(tmp_path, constraint(), args={"neftune_noise_alpha": 5.0})
    with pytest.warns(UserWarning, match="neftune_noise_alpha=5 adds noise"):
        made.callback_handler.on_train_begin(made.args, made.state, made.control)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_skips_is_none_of_the_constraint(fused: bool, tmp_path: Path) -> None:
    x, scaler = nn.Parameter(torch.ones(1)), GradScaler("cpu", init_scale=4.0)
    args = toy.arguments(tmp_path)  # which resets what accelerate knows
    Accelerator(cpu=True)
    base = torch.optim.AdamW([x], fused=fused)
    skipping = AcceleratedOptimizer(base, scaler=scaler)
    state, control = TrainerState(), TrainerControl()
    controlled = constraint()
    callback = ConstraintCallback(controlled)
    callback.on_train_begin(args, state, control, optimizer=skipping)
    for value, slope in ((9.0, torch.inf), (1.0, 1.0)):
        controlled.observe(value)
        x.grad = scaler.scale(torch.full_like(x, slope))
        skipping.step()
        callback.on_optimizer_step(args, state, control, optimizer=skipping)
    assert controlled.metrics()["steps"] == 1
    assert controlled.multiplier == pytest.approx(MU * (ALPHA - 1.0))


def test_two_constraints_and_a_group_have_entries_of_their_own(tmp_path: Path) -> None:
    low, high = constraint(alpha=1.0), constraint(alpha=9.0)
    group = ConstraintGroup({"low": low, "high": high})
    other = constraint(alpha=5.0)

    class Both(Theirs):
        def compute_loss(self, model: nn.Module, inputs: Any, *_: Any, **__: Any) -> Any:
            loss = model(inputs[0][0], labels=inputs[0][1]).loss
            return loss + group(loss) + other(loss)

    args = {"max_steps": 2, "remove_unused_columns": False}
    made = toy.trainer(Both, tmp_path, data_collator=collate, args=args)
    for each, name in ((group, "both"), (other, "other")):
        ConstraintCallback(each, name=name).add_to(made)
    logs = toy.Logs()
    made.callback_handler.callbacks.insert(2, logs)  # where TensorBoard would be
    made.train()
    line = logs.seen[0]
    assert line["both/low/gate"] == 0.0 and line["both/high/gate"] == line["other/gate"] == 1.0
    first = line["both/high/value"]
    assert line["both/high/weight"] == pytest.approx(MU * (9.0 - first))
    assert logs.seen[0].keys().isdisjoint({"both/low/status"}), "TensorBoard takes numbers alone"
    kept = made.state.log_history[0]
    assert (kept["both/low/status"], kept["other/status"]) == ("never_active", "violated")
    assert line["other/multiplier"] == pytest.approx(MU * (5.0 - first))
    assert {"torch_alm.both", "torch_alm.other"} <= made.state.stateful_callbacks.keys()


def test_two_callbacks_of_one_name_are_refused(tmp_path: Path) -> None:
    one = constraint()
    made = trainer(tmp_path, one, callbacks=[ConstraintCallback(one)])
    with pytest.raises(ValueError, match=r"another callback keeps its state under 'torch_alm"):
        made.train()
    for kind in (ConstraintCallback, ALMTrainer):
        with pytest.raises(TypeError, match="`constraint` is None: nothing says where"):
            kind(constraint=None)


@pytest.mark.parametrize("attached_too", [False, True])
def test_a_mu_that_is_found_is_that_of_an_attached_constraint(
    attached_too: bool, tmp_path: Path
) -> None:
    plain = trainer(tmp_path)
    plain.constraint = constraint(mu="auto")
    plain.create_optimizer()
    plain.constraint.attach(plain.optimizer)
    plain.train()
    assert plain.constraint.metrics()["steps"] == plain.state.global_step
    assert isinstance(plain.constraint.mu, float) and plain.constraint.mu > 0
    found = trainer(tmp_path, constraint(mu="auto"))
    if attached_too:
        found.create_optimizer()
        found.constraint.attach(found.optimizer)
    found.train()
    assert_same(found.constraint.state_dict(), plain.constraint.state_dict())
    assert_same(toy.values(found.model), toy.values(plain.model))


def test_a_mu_that_is_found_is_refused_beside_clipping(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"max_grad_norm=1 clips.*mean 0"):
        run(tmp_path, constraint(mu="auto"), args={"max_grad_norm": 1.0})


def test_a_mu_that_is_found_is_found_again_after_a_stop(tmp_path: Path) -> None:
    through = run(tmp_path, constraint(mu="auto"), args=SAVING, dropout=0.3)
    again = constraint(mu="auto")
    run(tmp_path, again, str(tmp_path / "checkpoint-6"), args=SAVING, dropout=0.3)
    assert_same(again.state_dict(), through.constraint.state_dict())


@pytest.mark.skipif(
    transformers.__version__ < "5",
    reason="in the middle of an epoch the Trainer of 4.56.0 goes on with other batches",
)
def test_a_resume_within_an_epoch_goes_on_with_the_pairs_of_that_epoch(tmp_path: Path) -> None:
    """Two steps an epoch, resumed after the third of ten."""
    args = {"save_strategy": "steps", "save_steps": 3, "num_train_epochs": 5}

    def told(resume: str | None) -> Any:
        pairs = toy.pairs(8)
        found = run(tmp_path, constraint(), resume, args=args, train_dataset=pairs)
        assert pairs.epoch == 4
        return found, [retain[0] for step in found.steps[:-1] for _, retain in step]

    through, whole = told(None)
    resumed, rest = told(str(tmp_path / "checkpoint-3"))
    assert len(whole) == 20
    assert all(torch.equal(one, other) for one, other in zip(rest, whole[6:], strict=True))
    assert_same(toy.values(resumed.model), toy.values(through.model))
