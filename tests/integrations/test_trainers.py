"""The trainers are what they say, step by step, in one process and in two."""

import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from accelerate import DistributedType, PartialState
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor
from transformers import Trainer

from tests import by_hand, oracle
from tests.core.distributed.ranks import Ranks
from tests.integrations import toy
from torch_alm.integrations.transformers import ALMTrainer, SAMTrainer, SAULTrainer

ALPHA, MU, RHO, DECAY, CLIP = 2.9, 1.0, 0.05, 0.0, 0.6
TERMS = {"alpha": ALPHA, "mu": MU, "rho": RHO, "decay": DECAY}
Hand = Callable[..., list[float]]


class Run(NamedTuple):
    """The result of a run."""

    theta: dict[str, Tensor]
    multipliers: list[float]
    gates: list[float]
    rates: list[float]
    steps: list[Any]
    retained: list[float]
    forget_norms: list[float]


def run(kind: Any, folder: str, args: dict[str, Any], **given: Any) -> Run:
    logs = toy.Logs()
    if issubclass(kind, SAULTrainer | ALMTrainer):
        given["constraint"] = toy.constraint(alpha=ALPHA, mu=MU)
    if issubclass(kind, SAULTrainer | SAMTrainer):
        given.setdefault("rho", RHO)
    if issubclass(kind, SAULTrainer):
        given["probe_every"] = 1
    resume = args.pop("resume", None)
    trainer = toy.trainer(
        toy.recording(kind), folder, args={"max_grad_norm": CLIP, **args}, callbacks=[logs], **given
    )
    trainer.train(resume_from_checkpoint=resume)
    seen = [line for line in logs.seen if "loss" in line]
    return Run(
        toy.values(trainer.model),
        [line.get("constraint/multiplier", 0.0) for line in seen],
        [line.get("constraint/gate", 0.0) for line in seen],
        _rates(trainer.state.max_steps),
        trainer.steps[:-1],
        [line["retain_loss"] for line in seen if "retain_loss" in line],
        [line["forget_grad_norm"] for line in seen if "forget_grad_norm" in line],
    )


def _rates(total: int) -> list[float]:
    """The linear schedule."""
    return [0.05 * (1 - step / total) for step in range(total)]


def merged(runs: list[Run]) -> list[Any]:
    """Steps of micro-batches of one batch per rank."""
    each = zip(*(one.steps for one in runs), strict=True)
    return [list(zip(*step, strict=True)) for step in each]


def assert_is(found: list[Run], hand: Hand, **terms: float) -> None:
    model = toy.toy()
    weights = hand(model, merged(found), found[0].rates, CLIP, **{**TERMS, **terms})
    torch.testing.assert_close(found[0].theta, toy.values(model), rtol=0, atol=1e-12)
    torch.testing.assert_close(found[0].multipliers, weights, rtol=0, atol=1e-12)
    assert [gate > 0 for gate in found[0].gates] == [weight > 0 for weight in weights]


def assert_gate_opens_and_closes(found: Run) -> None:
    assert {*found.gates} == {0.0, 1.0}, "the gate must open and close in this test"


def assert_pairs_are_those_of_their_epochs(steps: list[Any], epochs: int, rows: int = 10) -> None:
    pairs = toy.pairs(rows)
    places = {tuple(row["input_ids"]): i for i, row in enumerate(pairs.forget)}
    for n, step in enumerate(steps):
        pairs.set_epoch(n * epochs // len(steps))
        for batch in (batch for micro in step for batch in micro):
            forget, retain = (batch[side]["input_ids"].tolist() for side in ("forget", "retain"))
            for row, beside in zip(forget, retain, strict=True):
                place = places[tuple(token for token in row if token != toy.PAD)]
                drawn = pairs[place]["retain"]["input_ids"]
                assert [token for token in beside if token != toy.PAD] == drawn


@pytest.fixture(scope="module")
def alone(forks: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """A group of one process."""
    one = Ranks(tmp_path_factory.mktemp("group"), world=1)
    yield one
    one.stop()


HANDS: dict[Any, Hand] = {SAULTrainer: by_hand.saul, ALMTrainer: by_hand.alm}


@pytest.mark.parametrize(
    ("kind", "parts", "rows"),
    [(SAULTrainer, 1, 10), (SAULTrainer, 2, 10), (ALMTrainer, 2, 10), (ALMTrainer, 3, 12)],
)
def test_it_is_the_algorithm_with_schedule_clipping_and_accumulation(
    kind: Any, parts: int, rows: int, tmp_path: Path
) -> None:
    """Of ten rows in steps of two batches, the last step of an epoch has one."""
    args = {"gradient_accumulation_steps": parts, "num_train_epochs": 8}
    found = run(kind, str(tmp_path), args, train_dataset=toy.pairs(rows))
    assert {len(step) for step in found.steps} == ({1, 2} if parts == 2 else {parts})
    assert_is([found], HANDS[kind])
    assert_gate_opens_and_closes(found)
    assert_pairs_are_those_of_their_epochs(merged([found]), epochs=8, rows=rows)


def in_a_group(
    rank: int, kind: Any, folder: str, args: dict[str, Any], given: Any = None, world: int = 2
) -> Run:
    """A training as a launcher starts it; the process group is there already."""
    for state in (AcceleratorState, GradientState):
        state._reset_state()
    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="1", ACCELERATE_USE_CPU="true")
    rows = flat() if issubclass(kind, SAMTrainer) else {}
    return run(kind, folder, args, **rows, **given or {})


LAUNCHED = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}  # by `accelerate launch`
CONFIGURED = {"fsdp": True, "fsdp_config": {"version": 2, "min_num_params": 70}}
CONFIGURED["fsdp_config"]["auto_wrap_policy"] = "SIZE_BASED_WRAP"  # so that two units share it


def in_shards(
    rank: int, kind: Any, folder: str, args: dict[str, Any], given: Any = None, world: int = 2
) -> Run:
    """The same under FSDP2, which accelerate has for GPUs alone: it is told that these are some."""

    class Sharded(kind):
        def create_accelerator_and_postprocess(self) -> None:
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
            super().create_accelerator_and_postprocess()
            self.whole = [weakref.ref(p) for p in self.model.parameters()]

        def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
            assert all(p() is None for p in self.whole), "weights that shards have replaced"
            return super().training_step(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        for name, value in LAUNCHED.items():
            patch.setenv(name, value if args.get("fsdp") is None else "")
        found = in_a_group(rank, Sharded, folder, args, given, world)
        assert AcceleratorState().is_fsdp2
    return found


def flat() -> dict[str, Any]:
    return {"train_dataset": toy.rows(20, 3)}


@pytest.mark.parametrize("kind", HANDS)
def test_two_ranks_are_the_algorithm(kind: Any, ranks: Ranks, tmp_path: Path) -> None:
    found = ranks(in_a_group, kind, str(tmp_path), {"num_train_epochs": 16})
    assert found[0].multipliers == found[1].multipliers
    assert all(torch.equal(found[1].theta[name], p) for name, p in found[0].theta.items())
    assert any(len(step) == 2 for step in found[0].steps), "no step had two micro-batches"
    assert_pairs_are_those_of_their_epochs(merged(found), epochs=16)
    model, rho = toy.toy(), RHO if kind is SAULTrainer else 0.0
    parts = by_hand.objectives(model, merged(found)[0], "retain", by_hand.by_token)
    _, retained = oracle.mean([oracle.grad_sam(f, [*model.parameters()], rho, +1.0) for f in parts])
    for one in found:
        assert one.retained[0] == pytest.approx(retained, abs=1e-12)
    assert_is(found, HANDS[kind])
    assert_gate_opens_and_closes(found[0])


SHARDED = pytest.mark.skipif(transformers.__version__ < "5", reason="has no version of FSDP")
RADII = [(RHO, 0.0), (0.0, RHO)]


@SHARDED
@pytest.mark.parametrize("radii", RADII)
def test_two_shards_are_the_algorithm(
    radii: tuple[float, float], ranks: Ranks, tmp_path: Path
) -> None:
    terms = dict(zip(("rho", "forget_rho"), radii, strict=True))
    args = {"num_train_epochs": 6, **CONFIGURED}
    found = ranks(in_shards, SAULTrainer, str(tmp_path), args, terms)
    assert_is(found, by_hand.saul, **terms)
    assert_gate_opens_and_closes(found[0])
    assert 0.0 in found[0].forget_norms, "a backward pass was left out at a closed gate"


@SHARDED
def test_two_shards_of_one_optimizer_are_the_algorithm(ranks: Ranks, tmp_path: Path) -> None:
    found = ranks(in_shards, ALMTrainer, str(tmp_path), {"num_train_epochs": 6})
    assert_is(found, by_hand.alm)
    found, model = ranks(in_shards, SAMTrainer, str(tmp_path), {"max_steps": 4}), toy.toy()
    by_hand.sam(model, merged(found), found[0].rates, CLIP, **TERMS)
    torch.testing.assert_close(found[0].theta, toy.values(model), rtol=0, atol=1e-12)


@SHARDED
@pytest.mark.parametrize("kind", [SAULTrainer, ALMTrainer, SAMTrainer])
def test_what_two_shards_saved_two_and_one_go_on_with(
    kind: Any, ranks: Ranks, alone: Ranks, tmp_path: Path
) -> None:
    """Without a radius and a penalty two micro-batches of one process are those of two ranks."""
    rows = {} if kind is SAMTrainer else {"train_dataset": toy.pairs(8)}
    given = {**rows, **({} if kind is ALMTrainer else {"rho": 0.0})}
    args = {**CONFIGURED, "save_strategy": "steps", "save_steps": 3, "max_steps": 8}
    args["gradient_accumulation_steps"] = 1
    through = ranks(in_shards, kind, str(tmp_path), args, given)[0]
    args["resume"] = str(tmp_path / "checkpoint-3")
    resumed = ranks(in_shards, kind, str(tmp_path), args, given)[0]
    assert resumed.multipliers == through.multipliers[3:]
    assert all(torch.equal(resumed.theta[name], p) for name, p in through.theta.items())
    if kind is ALMTrainer:
        return
    args["gradient_accumulation_steps"] = 2
    single = alone(in_shards, kind, str(tmp_path), args, given, 1)[0]
    torch.testing.assert_close(single.multipliers, resumed.multipliers, rtol=0, atol=1e-12)
    torch.testing.assert_close(single.theta, through.theta, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", HANDS)
def test_the_logs_of_a_step_are_its_losses_and_the_norms_of_both_sides(
    kind: Any, tmp_path: Path
) -> None:
    logs, constraint = toy.Logs(), toy.constraint(alpha=ALPHA, mu=MU)
    args = {"max_steps": 1, "max_grad_norm": 1e-3}
    given = {"rho": 0.0} if kind is SAULTrainer else {}
    trainer = toy.trainer(
        toy.recording(kind), tmp_path, args=args, callbacks=[logs], constraint=constraint, **given
    )
    trainer.train()
    model, step = toy.toy(), [[micro] for micro in trainer.steps[0]]
    assert len(step) == 2
    norms, values = {}, {}
    for side, loss in (("retain", by_hand.by_token), ("forget", by_hand.by_example)):
        parts = by_hand.objectives(model, step, side, loss)
        each = [oracle.gradient(part, list(model.parameters())) for part in parts]
        g, values[side] = oracle.mean(each)
        norms[side] = torch.stack([x.norm() for x in g if x is not None]).norm().item()
    line, told = logs.seen[0], ("constraint/value", "constraint/violation", "retain_loss")
    expected = [values["forget"], ALPHA - values["forget"], values["retain"]]
    assert [line[name] for name in told] == pytest.approx(expected, abs=1e-12)
    if kind is SAULTrainer:
        told = [line["grad_norm"], line["forget_grad_norm"]]
        assert told == pytest.approx([norms["retain"], norms["forget"]], rel=1e-6)
        # transformers before 5 logs four digits of the loss
        assert round(line["loss"], 4) == round(values["retain"], 4)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "two ranks"])
def test_sam_is_sam_on_the_loss_over_all_batches_of_a_step(
    alone: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    given = SAMTrainer, str(tmp_path), {"average_tokens_across_devices": True}
    if alone:
        found = [run(*given, **flat())]
    else:
        found = request.getfixturevalue("ranks")(in_a_group, *given)
    model = toy.toy()
    by_hand.sam(model, merged(found), found[0].rates, CLIP, **TERMS)
    torch.testing.assert_close(found[0].theta, toy.values(model), rtol=0, atol=1e-12)


def summed(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """Somebody's loss function."""
    return outputs.logits.logsumexp(-1)[labels >= 0].sum() / (num_items_in_batch or 7)


WAYS = [(True, None, None), (False, None, None), (True, summed, None), (False, summed, None)]
if hasattr(Trainer, "loss_is_scaled_for_ga"):  # before 5 nobody asks whether a loss is scaled
    WAYS += [(True, None, False), (False, None, True)]


@pytest.mark.parametrize(("accepts", "own", "scaled"), WAYS)
def test_without_a_radius_sam_is_the_trainer_behind_it(
    accepts: bool, own: Any, scaled: bool | None, tmp_path: Path
) -> None:
    thetas, losses = [], []
    for kind, given in ((SAMTrainer, {"rho": 0.0}), (Trainer, {})):
        given |= {"compute_loss_func": own}
        short = {"num_train_epochs": 2}
        trainer = toy.trainer(kind, tmp_path, toy.toy(0.2), args=short, **flat(), **given)
        trainer.model_accepts_loss_kwargs = accepts
        if scaled is not None:
            trainer.loss_is_scaled_for_ga = scaled
        trainer.train()
        thetas.append(toy.values(trainer.model))
        losses.append([line["loss"] for line in trainer.state.log_history if "loss" in line])
    assert all(torch.equal(thetas[1][name], p) for name, p in thetas[0].items())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


class Doubling(Trainer):
    """Somebody else's Trainer, with a loss of its own."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        found = super().compute_loss(*args, **kwargs)
        return (2 * found[0], *found[1:]) if isinstance(found, tuple) else 2 * found


@pytest.mark.parametrize("kind", HANDS)
def test_as_a_mixin_the_retain_loss_is_that_of_the_other_trainer(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = type("Mixed", (kind, Doubling), {})
    found = run(mixed, str(tmp_path), {})
    single, example = by_hand.by_token, by_hand.by_example
    monkeypatch.setattr(by_hand, "by_token", lambda *a: 2 * single(*a))
    monkeypatch.setattr(by_hand, "by_example", lambda *a: example(*a) / 2)  # it calls by_token
    assert_is([found], HANDS[kind])
