"""A dry run writes nothing; batches in parts, and layers computed twice, change nothing."""

import copy
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.cli.conftest import FINISHED, FORGET, RETAIN, Command, report
from tests.cli.test_methods import ALPHA, BETA, LR, MU, RHO
from torch_alm.cli.goal import Goal
from torch_alm.cli.methods import METHODS, Rates
from torch_alm.cli.parts import part_of
from torch_alm.cli.plan import clock, kept_by
from torch_alm.cli.training import Training
from torch_alm.language import collate, encode


@pytest.fixture
def rows(tokenizer: Any) -> tuple[list[Any], list[Any]]:
    """Of many lengths, so that parts are of other widths than the whole."""
    short = [{**row, "answer": row["answer"].split()[0]} for row in RETAIN[:3]]
    sets = (FORGET, [*short, *RETAIN[3:]])
    return tuple([encode(tokenizer, **row) for row in found] for found in sets)  # pyright: ignore


def weights(model: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("kind", ["loss", "rate"])
@pytest.mark.parametrize("key", METHODS)
def test_accumulated_steps_are_those_of_the_larger_batch(
    key: str, kind: Any, model: Any, rows: Any
) -> None:
    """In double precision and without dropout; the last part of a batch is a smaller one."""
    found, order = [], None
    for size, accumulate in ((6, 1), (4, 2)):
        own = copy.deepcopy(model).double()
        for layer in own.model.layers:
            layer.self_attn.attention_dropout = 0.0
        goal = Goal(kind, ALPHA if kind == "loss" else 0.9, "")
        method = METHODS[key](own, goal, Rates(LR, RHO, MU, BETA), nullcontext)
        run = Training(method, rows[0], rows[1], 0, epochs=1, batch_size=size, seed=0,
                       accumulate=accumulate, steps=3)  # fmt: skip
        run.order = order = order or run.order
        seen: list[int] = []
        own.register_forward_pre_hook(
            lambda _, __, given, seen=seen: seen.append(len(given["input_ids"])), with_kwargs=True
        )
        run.run("", lambda: None, 15.0)
        assert max(seen) == size
        found.append((weights(own), [row["forget"] for row in run.trace]))
    assert len(set(found[0][1])) == 3
    for moved, values in found[1:]:
        torch.testing.assert_close(moved, found[0][0], rtol=0, atol=1e-9)
        assert values == pytest.approx(found[0][1], abs=1e-9)


def test_a_part_is_as_wide_as_its_longest_row(rows: Any) -> None:
    batch = collate(rows[1], 0)
    part = part_of(batch, 0, 3)
    assert part["input_ids"].shape[1] < batch["input_ids"].shape[1]
    for name, tensor in collate(rows[1][:3], 0).items():
        assert torch.equal(part[name], tensor)


def test_layers_computed_twice_are_the_same_run_with_less_in_memory(
    command: Command, tmp_path: Path, capsys: Any
) -> None:
    kept = []
    for name, more in (("once", ()), ("twice", ("--gradient-checkpointing",))):
        words = ("--steps", 3, "--lr", "1e-2", "--quiet", *more)
        assert command("unlearn", *words, output=name) in FINISHED
        capsys.readouterr()
        assert command("unlearn", *words, "--dry-run", "--json", output=f"dry-{name}") == 0
        kept.append(json.loads(capsys.readouterr().out)["plan"]["memory"]["activations"])
    once, twice = (
        (tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("once", "twice")
    )
    assert once == twice
    assert 0 < kept[1] < kept[0]


@pytest.mark.parametrize(
    ("words", "states", "gradients", "copies"),
    [((), 4, 2, 1), (("--method", "dual"), 4, 2, 0), (("--method", "npo"), 2, 1, 0),
     (("--lora", "--lora-rank", 2, "--accumulate", 2, "--batch-size", 2), 4, 2, 1)],
)  # fmt: skip
def test_a_dry_run_counts_memory_and_writes_nothing(
    command: Command, tmp_path: Path, capsys: Any, model: Any, words: Any, states: int,
    gradients: int, copies: int,
) -> None:  # fmt: skip
    assert command("unlearn", *words, "--dry-run", "--json", "--steps", 7) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["outcome"], found["code"]) == ("planned", 0)
    assert not (tmp_path / "out").exists()
    plan = found["plan"]
    moved = whole = 4 * sum(p.numel() for p in model.parameters())
    if "--lora" in words:
        linear = [m for m in model.modules() if isinstance(m, nn.Linear) and m is not model.lm_head]
        moved = 4 * sum(2 * sum(layer.weight.shape) for layer in linear)
        whole += moved
    activations = plan["memory"].pop("activations")
    assert plan["memory"] == {
        "weights": whole, "gradients": gradients * moved, "optimizers": states * moved,
        "copy": copies * moved, "all": whole + moved * (gradients + states + copies) + activations,
    }  # fmt: skip
    assert activations > 0
    assert plan["disk"] == {"state": (1 + states) * moved, "saved": moved}
    assert (plan["rows"], plan["steps"]) == ({"forget": 6, "retain": 8}, 7)
    assert plan["rows_per_step"] == (4 if "--accumulate" in words else 6)
    assert plan["seconds"] == pytest.approx(7 * plan["seconds_per_step"])


def test_a_dry_run_refuses_what_a_run_refuses_and_tells_the_rest_in_words(
    command: Command, tmp_path: Path, capsys: Any
) -> None:
    assert command("unlearn", "--dry-run", forget=tmp_path / "none") == 2
    assert command("unlearn", "--dry-run", "--alpha", -1) == 2
    assert command("unlearn", "--dry-run", "--merge") == 2
    capsys.readouterr()
    assert command("unlearn", "--dry-run", "--certify", 0.5) == 0
    told = capsys.readouterr().out
    lines = ("6 to forget, 8 to keep", "at most 1000; ", "0.5 of answers, certified (--certify)")
    for line in (*lines, "A dry run: nothing was written."):
        assert line in told
    assert command("unlearn", "--steps", 1) in FINISHED
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert command("unlearn", "--steps", 2, "--dry-run") == 0
    assert "The run that stands there would go on." in " ".join(capsys.readouterr().out.split())
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert report(tmp_path / "out")["settings"]["accumulate"] == 1


def test_what_autograd_keeps_is_counted_once_and_without_the_weights() -> None:
    weight = torch.ones(4, 8, requires_grad=True)
    x = torch.ones(8, 3)
    assert kept_by(lambda: (weight @ x).sum(), [weight]) == 4 * 24
    assert kept_by(lambda: (weight @ x).relu().square().sum(), [weight]) == 4 * (24 + 12)
    assert clock(3725.4) == "1:02:05"
