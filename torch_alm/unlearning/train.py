"""The Trainer of a run, the cost of its steps, and its stop by a signal."""

import math
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW
from transformers import PrinterCallback, TrainerCallback, TrainingArguments
from transformers.integrations import get_reporting_integration_callbacks

from torch_alm import ALMConstraint
from torch_alm.integrations.transformers import PairedCollator, PairedDataset, SAULTrainer
from torch_alm.language import IGNORE, Batch, Row, answer_ids, collate, pad_id
from torch_alm.measures import log_odds, token_nll
from torch_alm.thresholds import radius_for, rate_for
from torch_alm.unlearning.errors import Refusal, first_line
from torch_alm.unlearning.goal import Goal
from torch_alm.unlearning.layer_cache import (
    LayerCache,
    Original,
    Weights,
    answer_logits,
    pad_logits,
)
from torch_alm.unlearning.loading import Setup
from torch_alm.unlearning.ranks import add_up, count_ranks, divide, gather, share

STEPS, EPOCHS = 1000, 10  # default length of a run: the larger of the two
CHANGE = 0.6  # nats that a step takes off the log-odds of a batch, where no rate was given
RADIUS = 0.5  # nats by which the log-odds differ at SAM's point


def measure_rows(logits: Tensor, batch: Batch, aim: float) -> tuple[Tensor, Tensor]:
    """Return per row the log-odds to lower, and the value that the constraint sees, (B,) each.

    The value is min(loss, aim): a row that has reached the aim is pushed no further, and cannot
    stand in for another; one that is still said, being the likeliest of many unlikely ones, has
    reached nothing. The loss is that of the text, of whose probability a row in other tokens has a
    `share`, in nats per token of the usual spelling, of which there are `count`. What is lowered is
    the log-odds of the tokens of rows below the aim: the gradient of the loss of a row known by
    heart would be next to none, and AdamW would take small steps for the last rows.
    """
    labels, few = batch["labels"][:, 1:], {"labels": batch["labels"]}
    scale = (labels != IGNORE).sum(1) / batch["count"]
    found = token_nll(lambda: logits.detach(), few, reduction="none") * scale
    found = found + batch["share"].log() / batch["count"]
    is_said = ((logits.detach()[:, :-1].argmax(2) == labels) | (labels == IGNORE)).all(1)
    found = torch.where(is_said & (found >= aim), 0.0, found)
    odds = log_odds(lambda: logits, few, reduction="none") * scale
    return torch.where(found < aim, odds, 0.0), found.clamp(max=aim)


def pad_spellings(rows: Sequence[Any], pad: int) -> Batch:
    """Make a batch of rows in all of their `spellings`, with the share of each in their text."""
    every = [each for row in rows for each in row.get("spellings", [row])]
    shares = [each.get("share", 1.0) for each in every]
    counts = [each.get("count", len(answer_ids(each))) for each in every]
    more = {"share": torch.tensor(shares), "count": torch.tensor(counts)}
    return collate(every, pad) | more


def measure_odds(model: Any, batch: Any) -> Tensor:
    """Return log-odds of the answers, which have a gradient for rows known by heart, too."""
    logits, _ = answer_logits(model, batch)
    logits, labels = pad_logits(logits, batch["labels"])
    odds = log_odds(lambda: logits, {"labels": labels}, reduction="none")
    return (odds * (labels[:, 1:] != -100).sum(1)).mean()


class KLRetainTrainer(SAULTrainer):
    """The Trainer whose retain loss is the divergence from the original model, in nats per token.

    It is 0 at the original model, so there is nothing to learn by heart.
    """

    original: Original
    lower: LayerCache
    steps_per_pass: int = 1
    divergence: Tensor | None = None
    is_low = False  # whether a row since the last step was below the aim, the constraint's alpha
    rested = 0  # steps in a row without such a row
    is_resting = False  # whether nothing is to be forgotten for now

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.heard, self.stop = list[int](), list[int]()  # signals: of this rank, and of any
        super().__init__(*args, **kwargs)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train, with the frozen layers computed once for each row."""
        self.add_callback(_Agreement)
        with self.lower.enable():
            return super().train(*args, **kwargs)

    def get_train_dataloader(self) -> Any:
        """Load whole batches on every rank, which takes its rows of each."""
        loader = super().get_train_dataloader()
        if count_ranks() > 1:
            shard: Any = loader.batch_sampler
            shard.num_processes, shard.process_index, shard.even_batches = 1, 0, False
        return loader

    def _prepare_pass(self, model: Any, inputs: Any) -> Any:
        """Prepare a pass without dropout, whose noise would be divergence from the original."""
        found = super()._prepare_pass(model, inputs)
        model.eval()
        for module in model.modules():
            module.training = getattr(module, "gradient_checkpointing", False)  # which asks for it
        return found

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Take both gradients, and hear which rank was asked to stop.

        Where a whole pass has met no row below the aim, the forget side stands still: its gradient
        is 0 then, and AdamW's momentum alone would push all rows nine steps further. Within a pass
        it stays: a last row that is in one batch of three would else be pushed by a tenth.
        """
        found = super().training_step(*args, **kwargs)
        self.stop += next(filter(None, gather(self.heard)), []) if not self.stop else []
        if self.accelerator.sync_gradients:
            self.rested = 0 if self.is_low else self.rested + 1
            is_still = self.is_resting or self.rested >= self.steps_per_pass
            for state in self._optimizer.forget.state.values() if is_still else ():
                state["exp_avg"].zero_()
            self.is_low = False
        return found

    def forget_objective(self, model: Any, batch: Any) -> Any:
        """Return the loss that is lowered to raise the constrained value, and that value.

        The value is that of the whole batch, the mean over rows; the loss is so in the mean over
        ranks, each time the mean over rows below the aim.
        """
        aim: Any = self.constraint.alpha
        own, weight = divide(batch)
        logits, labels = pad_logits(answer_logits(model, own)[0], own["labels"])
        odds, values = measure_rows(logits, {**own, "labels": labels}, aim)
        shares = own["share"].to(values) * bool(weight)
        parts = shares * (values < aim), shares * values, shares
        low, value, rows = add_up(*(part.sum() for part in parts))
        lowered = (shares * odds).sum() * count_ranks() / low.clamp(min=1)
        self.is_low = self.is_low or (bool(low > 0) and not self.is_resting)
        return lowered * (not self.is_resting), value / rows

    def retain_objective(self, model: Any, batch: Any) -> Tensor:
        """Return KL(original || model) over the tokens of the answers."""
        own, weight = divide(batch)
        found = weight * self.original.divergence(model, own)
        self.divergence = add_up(found)[0] / count_ranks()
        return found


class WeightSnapshot(Weights):
    """The trained weights of the last good check, or of the cheapest state that met the goal.

    A model can be taken back to them. The optimizers begin anew there: their moments are those of
    the steps that spoiled it.
    """

    def __init__(self, model: Any, step: int = 0) -> None:
        super().__init__(model)
        self.step = step

    @torch.no_grad()
    def keep(self, step: int) -> None:
        """Take the weights as they are."""
        self.step = step
        for p, kept in self.pairs:
            kept.copy_(p)

    def take_back(self, optimizer: Any) -> None:
        """Put them back; `optimizer` has the two sides, within accelerate's wrapper or not."""
        self.put_back()
        both = getattr(optimizer, "optimizer", optimizer)
        for side in (both.retain, both.forget):
            side.state.clear()


class _Agreement(TrainerCallback):
    """A callback, the last one, by which all ranks save and stop where the first does."""

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        found = control.should_save, control.should_training_stop
        control.should_save, control.should_training_stop = share(found)


def make_trainer(
    loaded: Setup,
    goal: Goal,
    rows: tuple[list[Row], list[Row]],
    folder: Path,
    original: Weights | None = None,
) -> Any:
    """Make the Trainer of a method; `rows` to forget and to keep are not copied.

    The rows to keep are kept as the model answers them with the weights of `original`, or its own.
    """
    given = loaded.given
    # no Leak: rows at the aim have no gradient, and a batch of these says nothing of others
    constraint = ALMConstraint(None, alpha=goal.alpha, mu=given.mu)
    forget, retain = rows
    rate, rho, has_unused = _find_rates(loaded, forget)
    trainer: Any = KLRetainTrainer(
        model=loaded.model,
        args=_make_arguments(loaded, len(forget), folder, rate, has_unused),
        train_dataset=PairedDataset(forget, retain, seed=given.seed),
        data_collator=PairedCollator(partial(pad_spellings, pad=pad_id(loaded.tokenizer))),
        constraint=constraint,
        rho=rho,
    )
    trainer.lower = LayerCache(loaded.model)
    trainer.steps_per_pass = ceil(len(forget) / (given.batch_size * given.accumulate))
    weights = nullcontext() if original is None else original.lend()
    with loaded.place.context(), weights, trainer.lower.enable():
        trainer.original = Original(loaded.model, retain, pad_id(loaded.tokenizer))
    trainer.remove_callback(PrinterCallback)
    return trainer


def _find_rates(loaded: Setup, rows: Sequence[Row]) -> tuple[float, float, bool]:
    """Find the rate, unless it is given, and the radius by their effect on a batch of rows.

    With several ranks also whether a pass may leave out weights that train, which DDP has to know.
    """
    given, params = loaded.given, [p for p in loaded.model.parameters() if p.requires_grad]
    size = min(given.batch_size, len(rows))
    batch = collate([rows[i * len(rows) // size] for i in range(size)], pad_id(loaded.tokenizer))
    batch = {k: v.to(params[0].device) for k, v in batch.items()}

    def odds() -> Tensor:
        with loaded.place.context():
            return measure_odds(loaded.model, batch)

    rate = given.lr or rate_for(AdamW(params), odds, change=CHANGE)
    radius = radius_for(params, odds, change=RADIUS).value if given.method == "saul" else 0.0
    has_unused = any("experts." in name for name, _ in loaded.model.named_parameters())
    if count_ranks() > 1 and not has_unused:
        found: Any = torch.autograd.grad(odds(), params, allow_unused=True)
        has_unused = any(grad is None for grad in found)
    return share((rate, radius, has_unused))


def _make_arguments(
    loaded: Setup, rows: int, folder: Path, rate: float, has_unused: bool
) -> TrainingArguments:
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
        ddp_find_unused_parameters=has_unused,
    )
    found._n_gpu = min(found.n_gpu, 1)  # DataParallel has no output layer to ask
    return found


def check_reporter(name: str) -> None:
    """Raise `Refusal` for a `report_to` that is unknown or not installed."""
    try:
        for reporter in get_reporting_integration_callbacks([] if name == "none" else [name]):
            reporter()
    except (ImportError, RuntimeError, ValueError) as error:
        raise Refusal(f"`report_to` is {name}: {first_line(error)} Did you mean none?") from error


def cost_of(loaded: Setup, trainer: Any) -> tuple[float, float]:
    """Return seconds and bytes of a step: both passes are run once, optimizers are added."""
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
    peak = torch.cuda.max_memory_allocated() if loaded.place.device == "cuda" else peak_memory()
    return (perf_counter() - begun) * passes, float(peak + moments)


def peak_memory() -> int:
    """Return the most bytes that this process has taken of the machine's memory so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)


def trace_of(history: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """Return a row of numbers per step from the Trainer's log."""
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
def catch_stop(heard: list[int]) -> Iterator[None]:
    """Note Ctrl-C and SIGTERM: a run ends between two steps, or at the second at once."""

    def note(number: int, frame: object) -> None:
        if heard:
            raise KeyboardInterrupt
        heard.append(number)

    names = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(name, note) for name in names]
    try:
        yield
    finally:
        for name, handler in zip(names, before, strict=True):
            signal.signal(name, handler)
