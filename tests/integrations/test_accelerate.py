"""accelerate in a loop of one's own: prepare, accumulation, clipping, save_state, load_state."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import GradientAccumulationPlugin
from torch import Tensor
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from tests import by_hand
from tests.core.distributed.ranks import Ranks
from tests.integrations import toy
from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM
from torch_alm.integrations.transformers import PairedCollator
from torch_alm.measures import token_nll

PARTS, CLIP, STEPS, LR = 2, 0.6, 16, 0.05
TERMS = {"alpha": 2.9, "mu": 1.0, "rho": 0.05, "decay": 0.0}
Outcome = tuple[dict[str, Tensor], list[float], list[list[Any]]]


def loop(folder: str, *, load: bool = False, dropout: float = 0.0, stop: int = STEPS) -> Outcome:
    """Train and save after step 5; with `load`, go on from there."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    plugin = GradientAccumulationPlugin(num_steps=PARTS, sync_each_batch=True)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    model = toy.toy(dropout)
    sides = [AdamW(model.parameters(), lr=LR, weight_decay=0.0) for _ in range(2)]
    constraint = toy.constraint(alpha=TERMS["alpha"], mu=TERMS["mu"])
    dual = DualOptimizer(
        SAM(sides[0], TERMS["rho"]), ReverseSAM(sides[1], TERMS["rho"]), constraint
    )
    # accelerate divides by the number of micro-batches itself: the weight is left at 1
    dual.backward_fn = accelerator.backward
    pairs, own = toy.pairs(16), torch.Generator()  # iterators draw from torch's without one
    collate = PairedCollator(toy.Tokens())
    loader = DataLoader(pairs, batch_size=2, collate_fn=collate, generator=own)
    schedule = LambdaLR(dual, lambda step: 1 - step / STEPS)
    model, optimizer, loader = accelerator.prepare(model, dual, loader)
    accelerator.register_for_checkpointing(schedule)
    done, seen, weights = 0, [[]], []
    if load:
        accelerator.load_state(folder)
        done = 5
    while done < stop:
        epoch, skipped = divmod(done * PARTS, len(loader))
        batches = accelerator.skip_first_batches(loader, skipped)
        for announced in (batches, pairs):  # the one does not always reach the other
            announced.set_epoch(epoch)
        for batch in batches:
            seen[-1].append(batch)
            with accelerator.accumulate(model):
                dual.backward(
                    retain=lambda b=batch: model(**b["retain"]).loss,
                    forget=lambda b=batch: token_nll(model, b["forget"]),
                )
                if not accelerator.sync_gradients:
                    continue
                dual.clip_grad_norm_(CLIP)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            done += 1
            seen.append([])
            weights.append(constraint.weight)
            if done == 5 and not load:
                accelerator.save_state(folder)
            if done == stop:
                break
    return toy.values(accelerator.unwrap_model(model)), weights, seen[:-1]


def in_a_group(rank: int, *args: Any, **given: Any) -> Outcome:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="1", ACCELERATE_USE_CPU="true")
    return loop(*args, **given)


def assert_is_algorithm_1(found: list[Outcome]) -> None:
    thetas, weights, steps = zip(*found, strict=True)
    merged = [list(zip(*step, strict=True)) for step in zip(*steps, strict=True)]
    assert [len(step) for step in merged] == [PARTS] * STEPS
    model = toy.toy()
    rates = [LR * (1 - step / STEPS) for step in range(STEPS)]
    expected = by_hand.saul(model, merged, rates, CLIP, **TERMS)
    torch.testing.assert_close(thetas[0], toy.values(model), rtol=0, atol=1e-12)
    torch.testing.assert_close(weights[0], expected, rtol=0, atol=1e-12)
    assert 0.0 in weights[0] and max(weights[0]) > 0, "the gate must open and close"


def test_a_loop_of_ones_own_is_algorithm_1(tmp_path: Path) -> None:
    assert_is_algorithm_1([loop(str(tmp_path))])


def test_two_ranks_in_a_loop_of_ones_own_are_algorithm_1(ranks: Ranks, tmp_path: Path) -> None:
    found = ranks(in_a_group, str(tmp_path))
    assert found[0][1] == found[1][1]
    assert all(torch.equal(found[1][0][name], p) for name, p in found[0][0].items())
    assert_is_algorithm_1(found)


def test_a_saved_state_resumes_bit_exactly(tmp_path: Path) -> None:
    through, weights, _ = loop(str(tmp_path), dropout=0.3)
    resumed, later, _ = loop(str(tmp_path), dropout=0.3, load=True)
    assert later == weights[5:]
    assert all(torch.equal(resumed[name], p) for name, p in through.items())


def test_a_constraint_attached_to_a_prepared_optimizer_is_stepped_with_it() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=PARTS)
    x = torch.nn.Parameter(torch.zeros(1))
    prepared = accelerator.prepare_optimizer(SGD([x], lr=0.1))
    constraint = ALMConstraint(lambda shift: x[0] + shift, alpha=1.0, mu=0.5)
    handle = constraint.attach(prepared)
    module, values, at = torch.nn.Module(), [], []
    for shift in (-1.0, -3.0, 0.0, 2.0):
        at.append(x.item())
        with accelerator.accumulate(module):
            accelerator.backward(0.0 * x.sum() + constraint(shift))
            prepared.step()
            prepared.zero_grad()
        values.append(constraint.metrics()["value"])
    assert constraint.metrics()["steps"] == 2
    assert values[1] == values[2] == -2.0 and values[3] == pytest.approx(at[3] + 1.0)
    assert at[3] > 0, "a step was taken between"
    handle.remove()
    constraint.observe(0.0)
    prepared.step()
    assert constraint.observed == 1
