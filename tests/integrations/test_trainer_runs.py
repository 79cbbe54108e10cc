"""Surroundings of the steps: resumes, logs, stops, the best checkpoint, and what is refused."""

import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import Trainer, TrainerCallback
from transformers.training_args import OptimizerNames

from tests import by_hand
from tests.core.distributed.ranks import Ranks
from tests.core.table import assert_same
from tests.integrations import toy
from tests.integrations.test_trainers import in_a_group
from tests.models import word_tokenizer
from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM
from torch_alm.integrations.transformers import (
    ALMTrainer,
    AskingCallback,
    PairedCollator,
    SAMTrainer,
    SAULTrainer,
    StopOnStatus,
    _stop,
)
from torch_alm.integrations.transformers._objectives import refuse_optimizers
from torch_alm.language import encode
from torch_alm.measures import npo

# transformers 4 says so by a warning, on file systems that keep whole seconds
pytestmark = pytest.mark.filterwarnings("ignore:mtime may not be reliable")

SAVING = {"save_strategy": "steps", "save_steps": 5, "save_total_limit": 9}
KINDS = {
    ALMTrainer: lambda: {"constraint": toy.constraint(alpha=2.6)},
    SAMTrainer: lambda: {"rho": 0.05, "train_dataset": toy.rows(20, 3)},
    SAULTrainer: lambda: {"constraint": toy.constraint(alpha=2.6), "rho": 0.05},
}


def trained(kind: Any, folder: Path, resume: str | None = None, **args: Any) -> tuple[Any, list]:
    logs = toy.Logs()
    given = {**KINDS[kind](), "callbacks": [logs]}
    trainer = toy.trainer(kind, folder, toy.toy(dropout=0.3), args={**SAVING, **args}, **given)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, [
        {k: v for k, v in line.items() if "_per_second" not in k} for line in logs.seen
    ]


@pytest.mark.parametrize(
    ("kind", "step"), [(ALMTrainer, 5), (SAULTrainer, 5), (SAULTrainer, 6), (SAMTrainer, 6)]
)
def test_a_resume_in_the_middle_is_bit_exact(kind: Any, step: int, tmp_path: Path) -> None:
    """With dropout; an epoch of pairs has 3 steps, one of single rows 5."""
    if step % (5 if kind is SAMTrainer else 3) and transformers.__version__ < "5":
        pytest.skip("in the middle of an epoch the Trainer of 4.56.0 goes on with other batches")
    through, logs = trained(kind, tmp_path, save_steps=step)
    resumed, later = trained(kind, tmp_path, str(tmp_path / f"checkpoint-{step}"), save_steps=step)
    found, expected = toy.values(resumed.model), toy.values(through.model)
    assert all(torch.equal(found[name], p) for name, p in expected.items())
    assert later[:-1] == logs[step:-1], "the last line has the run's time"
    if kind is not SAMTrainer:
        assert {line["constraint/gate"] for line in logs[:-1]} == {0.0, 1.0}
        assert_same(resumed.constraint.state_dict(), through.constraint.state_dict())


@pytest.mark.skipif(
    transformers.__version__ < "5",
    reason="on several CPU ranks the Trainer of transformers 4 loads no optimizer state at all",
)
def test_two_ranks_resume_bit_exactly(ranks: Ranks, tmp_path: Path) -> None:
    args = {**SAVING, "num_train_epochs": 6}
    through = ranks(in_a_group, SAULTrainer, str(tmp_path), args)
    args["resume"] = str(tmp_path / "checkpoint-5")
    resumed = ranks(in_a_group, SAULTrainer, str(tmp_path), args)
    for found, expected in zip(resumed, through, strict=True):
        assert found.multipliers == expected.multipliers[5:]
        assert all(torch.equal(found.theta[name], p) for name, p in expected.theta.items())


def test_the_retain_loss_is_the_mean_since_the_last_log(tmp_path: Path) -> None:
    args = {"gradient_accumulation_steps": 1, "save_strategy": "no"}
    each = trained(ALMTrainer, tmp_path, **args)[1]
    some = trained(ALMTrainer, tmp_path, **args, logging_steps=4)[1]
    mean = sum(line["retain_loss"] for line in each[:4]) / 4
    assert some[0]["retain_loss"] == pytest.approx(mean, rel=1e-12)


# Stops


def test_stops_once_released_for_so_many_steps(tmp_path: Path) -> None:
    _, logs = trained(SAULTrainer, tmp_path, num_train_epochs=12, save_strategy="no")
    released = [
        line["constraint/gate"] == 0 and line["constraint/multiplier"] == 0 for line in logs[:-1]
    ]
    first = next(i for i in range(len(released)) if all(released[i : i + 2]))
    given = KINDS[SAULTrainer]()
    stop = StopOnStatus(given["constraint"], times=2)
    given |= {"callbacks": [stop], "args": {"num_train_epochs": 12}}
    trainer = toy.trainer(SAULTrainer, tmp_path, toy.toy(0.3), **given)
    with pytest.warns(UserWarning, match="released as measured under dropout, whose noise"):
        trainer.train()
    assert trainer.state.global_step == first + 2 < len(released)


def test_a_count_survives_a_resume(tmp_path: Path) -> None:
    constraint = toy.constraint(alpha=-1.0)  # met from the start
    given = {"constraint": constraint, "args": {**SAVING, "save_steps": 2}, "probe_every": 1}
    for resume in (None, str(tmp_path / "checkpoint-2")):
        stop = StopOnStatus(constraint, "never_active", times=5)
        trainer = toy.trainer(SAULTrainer, tmp_path, callbacks=[stop], **given)
        trainer.train(resume_from_checkpoint=resume)
        assert trainer.state.global_step == 5
    saved = json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())
    name = "torch_alm.StopOnStatus token_nll >= -1.0 never_active 5"
    assert saved["stateful_callbacks"][name] == 2


def test_a_step_that_does_not_measure_is_no_evidence_for_a_stop(tmp_path: Path) -> None:
    constraint = toy.constraint(alpha=-9.0)  # met by far from the start
    stop = StopOnStatus(constraint, "never_active", times=3)
    given = {"constraint": constraint, "args": {"num_train_epochs": 12}, "callbacks": [stop]}
    trainer = toy.trainer(SAULTrainer, tmp_path, probe_every=4, **given)
    trainer.train()
    assert constraint.metrics()["steps"] == 3 < trainer.state.global_step < 36


def test_the_rows_to_forget_are_asked_until_none_is_said(tmp_path: Path) -> None:
    words = ["<pad>", "<eos>", "Where", "A", "B", "C", "Oslo", "Rome", "Bern"]
    tokenizer = word_tokenizer(words, pad_token="<pad>", eos_token="<eos>", unk_token="<pad>")
    rows = [encode(tokenizer, f"Where {n}", a) for n, a in zip("ABC", words[6:], strict=True)]
    texts = [["Oslo", "x", "rome?"], ["", "Rome", ""], ["", "Bern", ""]]
    seen: list[Any] = []

    def read(model: Any, tokenizer: Any, rows: Any, **_: Any) -> list[Any]:
        seen.append(model)
        return [SimpleNamespace(text=text) for text in texts[len(seen) - 1]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_stop, "read_answers", read)
        asking = AskingCallback(tokenizer, rows, every=2)
        trainer = toy.trainer(ALMTrainer, tmp_path, callbacks=[asking], **KINDS[ALMTrainer]())
        trainer.train()
    lines = [x for x in trainer.state.log_history if "loss" in x]
    assert trainer.state.global_step == 6 and seen == [trainer.model] * 3
    assert [line.get("asked/said") for line in lines] == [None, 1, 1, 1, 1, 0]


# The best checkpoint


class Scripted(TrainerCallback):
    """Puts weights of known worth into the model before each evaluation."""

    def __init__(self, scales: list[float]) -> None:
        self.scales = list(scales)

    def on_step_end(self, *_: Any, model: nn.Module, **__: Any) -> None:
        with torch.no_grad():
            model.head.weight.copy_(self.scales.pop(0) * torch.ones_like(model.head.weight))
            model.head.bias.copy_(torch.arange(toy.VOCABULARY) * model.head.weight[0, 0])


def evaluated(folder: Path, alpha: float, scales: list[float], **args: Any) -> Any:
    """One evaluation per step; the further from 0 a scale, the higher both losses."""
    saving = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "retain_loss"}
    best["greater_is_better"] = False
    return toy.trainer(
        SAULTrainer,
        folder,
        args={**saving, **best, "max_steps": len(scales), **args},
        constraint=toy.constraint(alpha=alpha),
        eval_dataset={"forget": toy.rows(10, 1), "retain": toy.rows(23, 2)},
        callbacks=[Scripted(scales)],
    )


def test_the_best_checkpoint_is_the_best_of_those_that_meet_the_constraint(tmp_path: Path) -> None:
    trainer = evaluated(tmp_path, 3.0, [0.0, 1.0, 0.5, -1.0, 0.1])
    trainer.train()
    seen = [line for line in trainer.state.log_history if "eval_forget_loss" in line]
    retained = [
        line["eval_retain_loss"] for line in trainer.state.log_history if "eval_retain_loss" in line
    ]
    met = [line["eval_forget_loss"] >= 3.0 for line in seen]
    assert any(met) and not all(met)
    best = min((loss, i) for i, (loss, ok) in enumerate(zip(retained, met, strict=True)) if ok)
    assert best[0] > min(retained), "a checkpoint that does not meet it has the lowest loss"
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best[1] + 1}")
    assert trainer.model.head.weight[0, 0].item() == [0.0, 1.0, 0.5, -1.0, 0.1][best[1]]


def test_an_evaluation_has_the_measure_of_the_forget_set(tmp_path: Path) -> None:
    trainer = evaluated(tmp_path, 3.0, [0.4])
    trainer.train()
    found = trainer.evaluate()
    model = trainer.model.eval()
    collate = PairedCollator(toy.Tokens())
    with torch.no_grad():
        forget = trainer.constraint.measure(model, collate(toy.rows(10, 1)))
        batches = [toy.rows(23, 2)[i : i + 8] for i in range(0, 23, 8)]
        retain = sum(len(b) * model(**collate(b)).loss for b in batches) / 23
    assert found["eval_forget_loss"] == pytest.approx(forget.item(), rel=1e-6)  # kept in float32
    assert found["eval_retain_loss"] == pytest.approx(retain.item(), rel=1e-6)
    alone = trainer.evaluate(toy.rows(10, 1), metric_key_prefix="forget")
    assert alone["forget_loss"] == found["eval_forget_loss"]
    predicted = trainer.predict(toy.rows(10, 1)).metrics["test_loss"]
    with torch.no_grad():
        batches = [toy.rows(10, 1)[i : i + 8] for i in (0, 8)]
        own = sum(len(b) * model(**collate(b)).loss for b in batches) / 10
    assert predicted == pytest.approx(own.item(), rel=1e-6) != alone["forget_loss"]


def per_token(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """A loss of one's own, which is nothing without the number of its tokens."""
    rows = outputs.logits[:, :-1].flatten(0, 1)
    summed = nn.functional.cross_entropy(rows, labels[:, 1:].flatten(), reduction="sum")
    return summed / num_items_in_batch


@pytest.mark.parametrize("kind", [ALMTrainer, SAULTrainer])
def test_a_loss_of_ones_own_is_told_the_tokens_of_its_batch(kind: Any, tmp_path: Path) -> None:
    """The toy's rows have a first token without a label: both counts agree."""
    evaluated = {"eval_strategy": "steps", "eval_steps": 4, "max_steps": 8}
    runs = []
    for own in (None, per_token):
        given = {**KINDS[kind](), "compute_loss_func": own, "eval_dataset": toy.rows(8, 3)}
        trainer = toy.trainer(kind, tmp_path, toy.toy(), args=evaluated, **given)
        trainer.train()
        runs.append(trainer)
    found, expected = (toy.values(one.model) for one in reversed(runs))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    told = [[x["eval_loss"] for x in one.state.log_history if "eval_loss" in x] for one in runs]
    assert len(told[0]) == 2 and told[1] == pytest.approx(told[0], rel=1e-6)


def test_pairs_are_evaluated_as_all_rows_of_both_sides(tmp_path: Path) -> None:
    pairs, found = toy.pairs(6), []
    for eval_dataset in (pairs, {"forget": pairs.forget, "retain": pairs.retain}):
        given = {"constraint": toy.constraint(), "eval_dataset": eval_dataset}
        trainer = toy.trainer(SAULTrainer, tmp_path, **given)
        each = [trainer.evaluate(), trainer.evaluate(eval_dataset)]
        found += [{k: v for k, v in one.items() if k.endswith("_loss")} for one in each]
    assert found[0].keys() == {"eval_forget_loss", "eval_retain_loss"}
    assert all(one == found[0] for one in found)


def three(model: nn.Module, batch: Any, reference: Any) -> torch.Tensor:
    raise AssertionError


@pytest.mark.parametrize("measure", [npo, three, lambda: torch.ones(())])
@pytest.mark.parametrize("kind", [ALMTrainer, SAULTrainer])
def test_a_measure_that_needs_more_than_a_model_and_a_batch_is_refused_at_once(
    kind: Any, measure: Any, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"with \(model, batch\), which fails at the first step"):
        toy.trainer(kind, tmp_path, constraint=ALMConstraint(measure, alpha=1.0, mu=1.0))
    full = functools.partial(three, reference=None)
    for fitting in (full, lambda *args: torch.ones(()), lambda a, b=0: torch.ones(())):
        toy.trainer(kind, tmp_path, constraint=ALMConstraint(fitting, alpha=1.0, mu=1.0))


@pytest.mark.parametrize("kind", [ALMTrainer, SAULTrainer])
def test_outside_training_a_pair_has_the_loss_of_what_is_kept(kind: Any, tmp_path: Path) -> None:
    trainer = toy.trainer(kind, tmp_path, **KINDS[kind]())
    model = trainer.model.eval()
    pair = PairedCollator(toy.Tokens())([toy.pairs()[i] for i in range(4)])
    loss = by_hand.by_token(toy.toy(), pair["retain"])
    assert trainer.compute_loss(model, pair).item() == pytest.approx(loss.item(), abs=1e-12)
    found, outputs = trainer.compute_loss(model, pair, return_outputs=True)
    assert (found.item(), outputs) == (pytest.approx(loss.item(), abs=1e-12), {})
    found, outputs = trainer.compute_loss(model, pair["retain"], return_outputs=True)
    assert found.item() == pytest.approx(loss.item(), abs=1e-12)
    assert torch.equal(trainer.compute_loss(model, pair["retain"]), found)
    assert torch.equal(outputs.logits, model(pair["retain"]["input_ids"]).logits)


class Pricing(SAULTrainer):
    """A trainer that descends one quantity and measures another."""

    def forget_objective(self, model: nn.Module, batch: Any) -> Any:
        value = super().forget_objective(model, batch)
        return -2 * value, value


def test_what_is_measured_of_a_pair_is_its_second(tmp_path: Path) -> None:
    given = {**KINDS[SAULTrainer](), "eval_dataset": {"forget": toy.rows(4, 1)}, "rho": 0.0}
    usual, priced = (toy.trainer(kind, tmp_path, **given) for kind in (SAULTrainer, Pricing))
    assert priced.evaluate()["eval_forget_loss"] == usual.evaluate()["eval_forget_loss"]
    priced.train()
    first = priced.state.log_history[0]
    assert first["constraint/value"] == pytest.approx(2.6 - first["constraint/violation"])
    assert first["constraint/value"] > 0


def of_rows(model: nn.Module, batch: Any) -> torch.Tensor:
    """The loss of each row."""
    loss = nn.functional.cross_entropy
    logits, labels = model(batch["input_ids"]).logits[:, :-1], batch["labels"][:, 1:]
    each = loss(logits.transpose(1, 2), labels, reduction="none")
    return each.sum(1) / (labels != -100).sum(1)


def test_each_row_has_a_goal_and_a_multiplier_of_its_own(tmp_path: Path) -> None:
    """Frozen weights: after an epoch the multiplier of row i is mu times its own violation."""
    alpha = torch.linspace(2.0, 5.0, 10, dtype=torch.float64)
    given = {"constraint": ALMConstraint(of_rows, alpha, mu=0.5), "per_row": True}
    args = {"num_train_epochs": 1, "learning_rate": 0.0}
    trainer = toy.trainer(ALMTrainer, tmp_path, args=args, **given)
    trainer.train()
    rows = [PairedCollator(toy.Tokens())([row]) for row in toy.rows(10, 1)]
    with torch.no_grad():
        values = torch.cat([of_rows(toy.toy(), row) for row in rows])
    expected = (0.5 * (alpha - values)).clamp(min=0.0)
    assert {*(expected > 0).tolist()} == {True, False}
    torch.testing.assert_close(trainer.constraint.multiplier, expected, rtol=0, atol=1e-12)


# Refusals


@pytest.mark.parametrize("name", ["neftune_noise_alpha", "include_num_input_tokens_seen"])
def test_arguments_that_do_harm_to_pairs_are_refused(name: str, tmp_path: Path) -> None:
    for kind in (ALMTrainer, SAULTrainer):
        with pytest.raises(ValueError, match=rf"^{kind.__name__}: {name}=.* Did you mean"):
            toy.trainer(kind, tmp_path, args={name: 1}, **KINDS[kind]())


@pytest.mark.parametrize("left", [1, 0])
def test_rows_that_a_collator_leaves_out_are_counted(left: int, tmp_path: Path) -> None:
    def dropping(pairs: list[Any]) -> Any:
        batch = PairedCollator(toy.Tokens())(pairs)
        return {**batch, "forget": {key: t[:left] for key, t in batch["forget"].items()}}

    told = rf"{2 - left} of 2 rows to forget are gone after its `data_collator`"
    seen = pytest.warns(UserWarning, match=told) if left else pytest.raises(ValueError, match=told)
    given = {**KINDS[ALMTrainer](), "data_collator": dropping, "args": {"max_steps": 1}}
    with seen:
        toy.trainer(ALMTrainer, tmp_path, **given).train()


def test_batches_that_are_no_pairs_are_refused(tmp_path: Path) -> None:
    for kind in (ALMTrainer, SAULTrainer):
        given = {**KINDS[kind](), "train_dataset": toy.rows(4, 1)}
        words = rf"^{kind.__name__}: .* \['attention_mask', 'input_ids', 'labels'\]"
        with pytest.raises(ValueError, match=words):
            toy.trainer(kind, tmp_path, **given).train()


def test_a_constraint_that_measures_nothing_is_refused(tmp_path: Path) -> None:
    trainer = toy.trainer(SAULTrainer, tmp_path, constraint=ALMConstraint(None, 1.0, 1.0))
    with pytest.raises(TypeError, match="the constraint has no measure"):
        trainer.train()


ENGINES = {
    "is_deepspeed_enabled": "DeepSpeed steps inside its own backward",
    "is_fsdp_enabled": r"^SAULTrainer: FSDP1 gives norms of .* `fsdp_config=",
}


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_without_gradients_of_each_side_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Trainer.create_accelerator_and_postprocess

    def as_under_it(self: Any) -> None:
        make(self)
        setattr(self, name, True)

    monkeypatch.setattr(Trainer, "create_accelerator_and_postprocess", as_under_it)
    with pytest.raises(ValueError, match=ENGINES[name]):
        toy.trainer(SAULTrainer, tmp_path, **KINDS[SAULTrainer]())


def test_a_state_that_is_made_before_weights_are_sharded_is_refused(tmp_path: Path) -> None:
    trainer = toy.trainer(ALMTrainer, tmp_path, args={"optim": "adagrad"}, **KINDS[ALMTrainer]())
    trainer.is_fsdp_enabled = True
    with pytest.raises(ValueError, match=r'^ALMTrainer: `optim="adagrad"` makes its state before'):
        refuse_optimizers(trainer)


def test_float16_is_refused(tmp_path: Path) -> None:
    arguments = toy.arguments(tmp_path)
    arguments.fp16 = True
    with pytest.raises(ValueError, match=r"^SAULTrainer: `fp16=True` brings a GradScaler"):
        SAULTrainer(toy.toy(), arguments, **KINDS[SAULTrainer]())


LAYER_WISE = ("galore_adamw_layerwise", "galore_adamw_8bit_layerwise", "galore_adafactor_layerwise")
LAYER_WISE += ("apollo_adamw_layerwise", "lomo", "adalomo")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LAYER_WISE)
def test_an_optimizer_that_steps_within_a_backward_pass_is_refused(
    kind: Any, name: str, tmp_path: Path
) -> None:
    if name not in [*OptimizerNames]:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    with pytest.raises(ValueError, match=rf'^{kind.__name__}: `optim="{name}"` moves weights'):
        toy.trainer(kind, tmp_path, args={"optim": name}, **KINDS[kind]())


@pytest.mark.parametrize(
    ("name", "around"),
    [
        ("AdamW", lambda retain, _: retain),
        ("DualOptimizer", DualOptimizer),
        ("DualOptimizer", lambda *sides: DualOptimizer(*sides, toy.constraint())),
    ],
    ids=["one side", "no constraint", "another constraint"],
)
def test_an_optimizer_that_forgets_nothing_is_refused(
    name: str, around: Any, tmp_path: Path
) -> None:
    model = toy.toy()
    own = around(*(torch.optim.AdamW(model.parameters()) for _ in range(2)))
    given = {**KINDS[SAULTrainer](), "optimizers": (own, None)}
    with pytest.raises(TypeError, match=f"found an optimizer of type {name}"):
        toy.trainer(SAULTrainer, tmp_path, model, **given).train()


def test_a_dual_optimizer_of_ones_own_is_the_same(tmp_path: Path) -> None:
    given = KINDS[SAULTrainer]()
    usual = toy.trainer(SAULTrainer, tmp_path, **given)
    usual.train()
    model, constraint = toy.toy(), toy.constraint(alpha=2.6)
    sides = [torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.0) for _ in range(2)]
    around = SAM(sides[0], 0.05), ReverseSAM(sides[1], 0.05)
    own = DualOptimizer(*around, constraint, probe_every=1)
    given = {"constraint": constraint, "optimizers": (own, None)}
    trainer = toy.trainer(SAULTrainer, tmp_path, model, **given)
    trainer.train()
    assert trainer.optimizer.optimizer is own
    found = toy.values(trainer.model)
    torch.testing.assert_close(found, toy.values(usual.model), rtol=0, atol=1e-12)


def test_both_sides_get_what_the_arguments_and_the_trainer_say(tmp_path: Path) -> None:
    args = {"weight_decay": 0.1, "optim": "adamw_torch", "adam_beta2": 0.9}
    sides = {"rho": 0.2, "forget_rho": 0.0, "sam": {"adaptive": True}, "forget_learning_rate": 0.01}
    given = {"constraint": toy.constraint(), "scale": "step", "probe_every": 3, **sides}
    trainer = toy.trainer(SAULTrainer, tmp_path, args=args, **given)
    dual = trainer.create_optimizer()
    assert isinstance(dual.retain, SAM) and dual.retain.rho == 0.2 and dual.retain.adaptive
    assert dual.scale == "step" and dual.probe_every == 3 and dual.constraint is trainer.constraint
    assert type(dual.forget) is type(dual.retain.base) is torch.optim.AdamW
    decays = [{g["weight_decay"] for g in side.param_groups} for side in (dual.retain, dual.forget)]
    assert decays == [{0.1, 0.0}, {0.0}]
    assert {g["lr"] for g in dual.forget.param_groups} == {0.01}
    assert {g["betas"][1] for g in dual.param_groups} == {0.9}


@pytest.mark.parametrize(("alpha", "passes"), [(99.0, 4), (-1.0, 3)], ids=["open", "closed"])
def test_at_a_closed_gate_the_last_backward_pass_is_saved(
    alpha: float, passes: int, tmp_path: Path
) -> None:
    """Of two micro-batches: before the last one nobody knows what the multiplier will be."""
    given = {"constraint": toy.constraint(alpha=alpha), "rho": 0.0, "args": {"max_steps": 1}}
    trainer = toy.trainer(SAULTrainer, tmp_path, **given)
    seen: list[Any] = []
    trainer.model.head.weight.register_hook(seen.append)
    trainer.train()
    assert len(seen) == passes


@pytest.mark.parametrize("kind", [SAMTrainer, SAULTrainer])
def test_gradients_are_taken_by_the_accelerator_undivided(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accelerate divides by its own count of micro-batches, which the shares contain already."""
    thetas = []
    for count in (1, 4):
        trainer = toy.trainer(kind, tmp_path, **KINDS[kind]())
        seen: list[Any] = []
        backward = trainer.accelerator.backward

        def noted(loss: Any, backward: Any = backward, seen: Any = seen) -> None:
            seen.append(loss)
            backward(loss)

        monkeypatch.setattr(trainer.accelerator, "backward", noted)
        trainer.accelerator.gradient_state.plugin_kwargs["num_steps"] = count
        trainer.train()
        assert seen
        thetas.append(toy.values(trainer.model))
    torch.testing.assert_close(thetas[1], thetas[0], rtol=0, atol=1e-12)


def test_a_constraint_from_above_is_met_by_lowering(tmp_path: Path) -> None:
    """`sense="<="`: the forget side descends, and looks where it is worst."""
    constraint = toy.constraint(sense="<=", alpha=1.0)
    given = {"constraint": constraint, "rho": 1e-3, "args": {"num_train_epochs": 8}}
    trainer = toy.trainer(SAULTrainer, tmp_path, **given)
    trainer.train()
    assert isinstance(trainer.create_optimizer().optimizer.forget, SAM)
    values = [line["constraint/value"] for line in trainer.state.log_history if "loss" in line]
    assert values[-1] < values[0] - 0.5
