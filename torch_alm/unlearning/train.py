"""The Trainer of a run, what a step of it takes, and how it is stopped."""

import math
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW
from transformers import PrinterCallback, TrainingArguments
from transformers.integrations import get_reporting_integration_callbacks

from torch_alm import ALMConstraint
from torch_alm.integrations.transformers import PairedCollator, PairedDataset, SAULTrainer
from torch_alm.language import Row, collate, pad_id
from torch_alm.language._models import LanguageModel
from torch_alm.measures import log_odds
from torch_alm.thresholds import radius_for, rate_for
from torch_alm.unlearning.errors import Refusal, first_line
from torch_alm.unlearning.goal import Goal
from torch_alm.unlearning.layer_cache import LayerCache, Original, answer_logits, pad_logits
from torch_alm.unlearning.loading import Setup

STEPS, EPOCHS = 1000, 10  # of a run whose length was not given, whichever is more
CHANGE = 0.6  # nats that a step takes off the log-odds of a batch, where no rate was given
RADIUS = 0.5  # nats by which they differ at SAM's point


class Objective:
    """The measure of a constraint over forget batches, up to the aim that the checks set."""

    def __init__(self, goal: Goal) -> None:
        self.goal, self.aim = goal, goal.alpha

    def __call__(self, model: Any, batch: Any) -> tuple[Tensor, Tensor]:
        """The loss that is lowered to raise the value that is constrained, and that value."""
        logits, _ = answer_logits(model, batch)
        return self.goal.measure(*pad_logits(logits, batch["labels"]), self.aim)

    def odds(self, model: Any, batch: Any) -> Tensor:
        """Log-odds of the answers: of a row known by heart they have a gradient, too."""
        logits, _ = answer_logits(model, batch)
        logits, labels = pad_logits(logits, batch["labels"])
        odds = log_odds(lambda: logits, {"labels": labels}, reduction="none")
        return (odds * (labels[:, 1:] != -100).sum(1)).mean()


class KLRetainTrainer(SAULTrainer):
    """The Trainer whose retain loss is the divergence from the original model, in nats per token.

    There is nothing to be learned by heart: at the original model it is 0.
    """

    original: Original
    lower: LayerCache
    divergence: Tensor | None = None

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train, with the layers below those that are trained computed once for each row."""
        with self.lower.enable():
            return super().train(*args, **kwargs)

    def _prepare_pass(self, model: Any, inputs: Any) -> Any:
        """Nothing is dropped in training: the divergence from the original would be the noise's."""
        found = super()._prepare_pass(model, inputs)
        model.eval()
        for module in model.modules():
            module.training = getattr(module, "gradient_checkpointing", False)  # which asks for it
        return found

    def retain_objective(self, model: Any, batch: Any) -> Tensor:
        """KL(original || model) over the tokens of the answers."""
        found = self.original.divergence(model, batch)
        self.divergence = found.detach()
        return found


def make_trainer(
    loaded: Setup,
    goal: Goal,
    rows: tuple[list[Row], list[Row]],
    folder: Path,
    original: LanguageModel | None = None,
) -> Any:
    """The Trainer of a method, before its first step; `rows` to forget and to keep, not copied.

    The rows to keep are kept as `original` answers them, or else the model as it is.
    """
    given = loaded.given
    measure: Any = Objective(goal)
    # No leak: rows at the aim have no gradient, and a batch of these says nothing of the others
    constraint = ALMConstraint(measure, alpha=goal.alpha, mu=given.mu)
    forget, retain = rows
    rate, rho = _find_rates(loaded, measure, forget)
    trainer: Any = KLRetainTrainer(
        model=loaded.model,
        args=_arguments(loaded, len(forget), folder, rate),
        train_dataset=PairedDataset(forget, retain, seed=given.seed),
        data_collator=PairedCollator(loaded.tokenizer),
        constraint=constraint,
        rho=rho,
    )
    trainer.lower = LayerCache(loaded.model)
    with loaded.place.context(), trainer.lower.enable():
        asked = loaded.model if original is None else original
        trainer.original = Original(asked, retain, pad_id(loaded.tokenizer))
    trainer.remove_callback(PrinterCallback)
    return trainer


def _find_rates(loaded: Setup, measure: Objective, rows: Sequence[Row]) -> tuple[float, float]:
    """Find the rate, unless one was given, and the radius from what they do to a batch of rows."""
    given, params = loaded.given, [p for p in loaded.model.parameters() if p.requires_grad]
    size = min(given.batch_size, len(rows))
    batch = collate([rows[i * len(rows) // size] for i in range(size)], pad_id(loaded.tokenizer))
    batch = {k: v.to(params[0].device) for k, v in batch.items()}

    def odds() -> Tensor:
        with loaded.place.context():
            return measure.odds(loaded.model, batch)

    rate = given.lr or rate_for(AdamW(params), odds, change=CHANGE)
    is_sharp = given.method == "saul"
    return rate, radius_for(params, odds, change=RADIUS).value if is_sharp else 0.0


def _arguments(loaded: Setup, rows: int, folder: Path, rate: float) -> TrainingArguments:
    given = loaded.given
    per_epoch = ceil(ceil(rows / given.batch_size) / given.accumulate)
    steps = given.steps or per_epoch * (given.epochs or 0) or max(STEPS, EPOCHS * per_epoch)
    found: Any = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=given.batch_size,
        gradient_accumulation_steps=given.accumulate,
        max_steps=steps,
        learning_rate=rate,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=0.0,
        seed=given.seed,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        save_total_limit=1,
        report_to=given.report_to,
        use_cpu=loaded.place.device == "cpu",
        bf16=loaded.place.autocast,
        disable_tqdm=True,
        dataloader_pin_memory=loaded.place.device == "cuda",
        remove_unused_columns=False,
    )
    found._n_gpu = min(found.n_gpu, 1)  # DataParallel has no output layer to ask
    return found


def check_reporter(name: str) -> None:
    """Refuse a `report_to` that the Trainer does not know, or that is not installed."""
    try:
        for reporter in get_reporting_integration_callbacks([] if name == "none" else [name]):
            reporter()
    except (ImportError, RuntimeError, ValueError) as error:
        raise Refusal(f"`report_to` is {name}: {first_line(error)} Did you mean none?") from error


def cost_of(loaded: Setup, trainer: Any) -> tuple[float, float]:
    """Seconds and bytes of a step: both passes are tried once, and the optimizers are added."""
    size = trainer.args.per_device_train_batch_size
    pairs = [trainer.train_dataset[i] for i in range(min(size, len(trainer.train_dataset)))]
    batch = trainer._prepare_inputs(trainer.data_collator(pairs))
    begun, state = perf_counter(), torch.get_rng_state()
    with loaded.place.context(), trainer.lower.enable():
        trainer.retain_objective(loaded.model, batch["retain"]).backward()
        trainer.forget_objective(loaded.model, batch["forget"])[0].backward()
    loaded.model.zero_grad()
    torch.set_rng_state(state)
    passes = trainer.args.gradient_accumulation_steps * (2 if trainer.rho else 1)
    moments = 4 * 4 * sum(p.numel() for p in loaded.model.parameters() if p.requires_grad)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak *= 1 if sys.platform == "darwin" else 1024
    if loaded.place.device == "cuda":
        peak = torch.cuda.max_memory_allocated()
    return (perf_counter() - begun) * passes, float(peak + moments)


def trace_of(history: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """A row of numbers per step, from the log of the Trainer."""
    names = {
        "lr": "learning_rate",
        "retain_loss": "retain_loss",
        "forget": "constraint/value",
        "lambda": "constraint/multiplier",
        "weight": "constraint/weight",
    }
    rows = [row for row in history if "loss" in row]
    return [{ours: row.get(theirs, math.nan) for ours, theirs in names.items()} for row in rows]


@contextmanager
def catch_stop(stop: list[int]) -> Iterator[None]:
    """Note Ctrl-C and SIGTERM in `stop`: a run ends between two steps, or at the second at once."""

    def note(number: int, frame: object) -> None:
        if stop:
            raise KeyboardInterrupt
        stop.append(number)

    names = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(name, note) for name in names]
    try:
        yield
    finally:
        for name, handler in zip(names, before, strict=True):
            signal.signal(name, handler)
