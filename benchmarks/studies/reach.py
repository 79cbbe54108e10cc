"""What a nat of forgetting moves elsewhere, before any run: which weights and adapters to train.

    python -m benchmarks.studies.reach [--draws 5] [--model FOLDER] [--ways "LoRA, all layers" ...]

The facts to forget of a draw are pushed by AdamW alone, at the command's rate, until their telling
loss is 3 nats. What it then says to known facts that are in no file is compared with what the
published model says: divergence in nats per token, over the nats by which the telling loss rose.
Each is read at 3 nats, between two steps. A line per way and draw is added to OUTPUT/reach.jsonl.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import peft
import torch
from torch import Tensor
from torch.optim import AdamW
from transformers import AutoModelForCausalLM

from benchmarks.facts import load, make_parser, read_study
from benchmarks.report.results import append_line, read_lines
from benchmarks.tasks.facts import data
from benchmarks.tasks.facts.weights import make_published
from benchmarks.tasks.facts.world import train_from
from torch_alm.language import IGNORE, collate, pad_id
from torch_alm.measures import kl_divergence, log_odds, token_nll
from torch_alm.thresholds import rate_for

Batch: TypeAlias = dict[str, Tensor]

ENOUGH, MOST = 3.0, 30  # nats of telling loss, and steps at most
NEAR = 1.5  # nats, below which nothing is compared
UNSEEN = 24  # facts in no file that are compared
CHANGE, RANK = 0.6, 16  # nats of log-odds of a step, and rank of adapters: those of the command
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
DENSE = ["gate_proj", "up_proj", "down_proj"]
WAYS: dict[str, dict[str, Any]] = {
    "whole layers, upper half": {"whole": 0.5},
    "whole layers, all": {"whole": 0.0},
    "LoRA, all layers": {},
    "LoRA, all layers, rank 4": {"r": 4},
    "LoRA, all layers, rank 64": {"r": 64},
    "LoRA, upper half": {"upper": True},
    "LoRA, upper half, rank 4": {"upper": True, "r": 4},
    "LoRA, upper half, rank 64": {"upper": True, "r": 64},
    "attention alone": {"upper": True, "target_modules": ATTENTION},
    "MLP alone": {"upper": True, "target_modules": DENSE},
    "down_proj alone": {"upper": True, "target_modules": DENSE[2:]},
    "LoRA+": {"upper": True, "plus": 16.0},
    "rsLoRA": {"upper": True, "use_rslora": True},
    "DoRA": {"upper": True, "use_dora": True},
    "PiSSA": {"upper": True, "init_lora_weights": "pissa"},
    "OLoRA": {"upper": True, "init_lora_weights": "olora"},
    "EVA of the forget rows": {"upper": True, "init_lora_weights": "eva"},
}


def main(argv: Sequence[str] | None = None) -> None:
    """Push, compare, and append a line per way and draw."""
    made = make_parser(__doc__)
    made.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS], metavar="WAY")
    given = made.parse_args(argv)
    where, study = given.model or make_published(), read_study()
    lines, name = given.output / "reach.jsonl", Path(where).name
    done = [(line["model"], line["draw"], line["way"]) for line in read_lines(lines)]
    world = load(given, where, study)
    pad, known = pad_id(world.tokenizer), world.recall()
    for draw in given.draws:
        drawn = data.draw(known, draw, study["forget"])
        asked = [fact.question for fact in drawn.neighbours[:UNSEEN]]
        forget = collate([world.given[fact] for fact in drawn.forget], pad)
        unseen = collate([world.encode_said(each, world.said[each]) for each in asked], pad)
        said = find_said(world.model, unseen)
        for way in [way for way in given.ways if (name, draw, way) not in done]:
            model: Any = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32).eval()
            model, groups = prepare(model, forget, **WAYS[way])
            found = push(model, AdamW(groups, weight_decay=0.0), forget, unseen, said)
            append_line(lines, {"model": name, "draw": draw, "way": way} | found)


@torch.no_grad()
def find_said(model: Any, batch: Batch) -> Tensor:
    """The log-probabilities of the labelled tokens."""
    inputs = {k: v for k, v in batch.items() if k != "labels"}
    return model(**inputs).logits[:, :-1][batch["labels"][:, 1:] != IGNORE].log_softmax(-1)


def prepare(
    model: Any,
    forget: Batch,
    *,
    whole: float | None = None,
    upper: bool = False,
    plus: float = 1.0,
    **more: Any,
) -> tuple[Any, list[dict[str, Any]]]:
    """The model with what is to be trained, in groups of the optimizer; `plus` is LoRA+'s ratio."""
    layers = model.config.num_hidden_layers
    if whole is not None:
        train_from(model, int(whole * layers))
        return model, [{"params": [p for p in model.parameters() if p.requires_grad]}]
    config = {"r": RANK, "target_modules": ATTENTION + DENSE, "task_type": "CAUSAL_LM"} | more
    config["layers_to_transform"] = [*range(layers // 2 if upper else 0, layers)]
    torch.manual_seed(0)
    model = peft.get_peft_model(model, peft.LoraConfig(lora_alpha=2 * config["r"], **config))
    if more.get("init_lora_weights") == "eva":
        peft.initialize_lora_eva_weights(model, [forget], show_progress_bar=False)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    behind = [p for name, p in named if "lora_B" in name]
    others = [p for name, p in named if "lora_B" not in name]
    return model.eval(), [{"params": others}, {"params": behind, "lr": plus * 1e-3}]


def push(
    model: Any, optimizer: AdamW, forget: Batch, unseen: Batch, said: Tensor
) -> dict[str, float]:
    """Forget steps alone; the rate, the steps, and the divergence where the goal is reached."""
    odds = partial(log_odds, model, forget)
    rate = rate_for(optimizer, odds, change=CHANGE)
    ratio = rate / optimizer.param_groups[0]["lr"]
    for group in optimizer.param_groups:
        group["lr"] *= ratio
    trace = [(measure_loss(model, forget), 0.0)]
    while trace[-1][0] < ENOUGH and len(trace) <= MOST:
        odds().backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = measure_loss(model, forget)
        with torch.no_grad():
            far = kl_divergence(model, unseen, said).item() if loss > NEAR else 0.0
        trace.append((loss, far))
    (low, before), (high, after) = trace[-2:]
    moved = before + (after - before) * (ENOUGH - low) / (high - low)
    gained = ENOUGH - trace[0][0]
    found = {"rate": rate, "steps": len(trace) - 1, "divergence": moved, "per_nat": moved / gained}
    return {name: float(f"{value:.3g}") for name, value in found.items()}


@torch.no_grad()
def measure_loss(model: Any, batch: Batch) -> float:
    """Telling loss of the rows to forget, in nats per token."""
    return token_nll(model, batch).item()


if __name__ == "__main__":
    main()
