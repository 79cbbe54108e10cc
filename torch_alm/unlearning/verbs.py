"""Unlearn, evaluate and attack a model in memory."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import datetime, timezone
from logging import getLogger
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import current_thread, main_thread
from typing import Any

import torch
from peft import PeftModel
from tqdm.auto import tqdm
from transformers import TrainerCallback

from torch_alm.language._models import LanguageModel, Tokenizer
from torch_alm.unlearning import report
from torch_alm.unlearning.asking import measure, measure_for_report
from torch_alm.unlearning.attacks import run_attacks
from torch_alm.unlearning.errors import Refusal
from torch_alm.unlearning.layer_cache import Weights
from torch_alm.unlearning.loading import Setup, make_setup
from torch_alm.unlearning.model import (
    borrow,
    check_given,
    check_trained,
    check_whole,
    find_place,
    fingerprint,
    freeze_below,
    silence,
    widen,
    with_adapters,
)
from torch_alm.unlearning.options import Options, by_name
from torch_alm.unlearning.outcome import Outcome
from torch_alm.unlearning.ranks import (
    agree,
    check_group,
    check_shared,
    is_first,
    join_group,
    share,
)
from torch_alm.unlearning.rows import Entry, Rows, set_aside, sets_of
from torch_alm.unlearning.run import Run, begin_run, make_checks, make_trainable
from torch_alm.unlearning.train import catch_stop, check_reporter

log = getLogger("torch_alm.unlearning")


@torch.inference_mode(False)  # within which gradients are taken, whatever is around it
def unlearn(
    model: LanguageModel,
    tokenizer: Tokenizer,
    forget: Rows,
    retain: Rows,
    probe: Rows | None = None,
    holdout: Rows | None = None,
    *,
    callbacks: Sequence[TrainerCallback] = (),
    **options: Any,
) -> Outcome:
    """Make a model forget rows and keep others, in place.

    It trains where it is; weights of half precision are held in float32 meanwhile. `layers` says
    which train, not `requires_grad`. Modes, dtypes and flags return as they were. An error, or a
    second Ctrl-C, puts the weights back; the first Ctrl-C, or a callback, ends the run between two
    steps, and `resume` goes on.
    The processes that `torchrun` started all call it with the same rows, and share each batch.

    Args:
        model: a causal language model of transformers; of one with adapters of peft these train.
        tokenizer: its tokenizer; without a pad token EOS fills rows.
        forget: mappings with `question` and `answer`, or `prompt` and `completion`, or `messages`,
            or `text`; maybe `paraphrased_question`. A `datasets.Dataset` will do.
        retain: rows to keep.
        probe: rows that shall stay known and are never trained on; a fifth of `retain` if `None`.
        holdout: rows of the same kind, never trained on, of which the goal is measured.
        callbacks: of transformers.
        **options: those of the command under the same names: see `Options`.

    Raises:
        ValueError: an option, a row or a model that cannot be; the model does not say what it shall
            forget; the goal is reached before the first step.

    Cost: two copies of the weights that train, AdamW's moments of both sides.
    """
    given = by_name("unlearn", options)
    join_group(getattr(model, "device", torch.device("cpu")).type)
    check_group()
    with agree():
        check_reporter(given.report_to)
        found = sets_of(forget=forget, retain=retain, probe=probe, holdout=holdout)
    if probe is None:
        set_aside(found)
    quiet = given.quiet or not is_first()
    given = replace(given, quiet=quiet, lora=given.lora or isinstance(model, PeftModel))
    with silence(), _add_adapters(model, given) as adapted:
        with borrow(adapted):
            with agree():
                loaded = _set_up(adapted, tokenizer, given, found)
            loaded = replace(loaded, is_divided=True)
            check_shared(_describe(loaded), loaded)
            run = begin_run(loaded, log.info if is_first() else lambda text: None)
        for note in run.start.notes if is_first() else ():
            log.warning(note)
        return _train(run, callbacks)


@torch.inference_mode(False)
def resume(outcome: Outcome, callbacks: Sequence[TrainerCallback] = (), **options: Any) -> Outcome:
    """Continue a run that was stopped or has ended, for example with more `steps`.

    The verdict compares with the first original. Steps, trace and AdamW's moments begin anew:
    `steps` are additional ones.

    Raises:
        ValueError: nothing was trained; an option that cannot be.
    """
    if outcome.run is None:
        raise Refusal("resume: the outcome is of no run. Did you mean the outcome of unlearn?")
    by_name("unlearn", options)
    given = replace(outcome.run.loaded.given, **options)
    loaded = replace(outcome.run.loaded, given=given)
    with silence():
        return _train(replace(outcome.run, loaded=loaded), callbacks, outcome.original)


def _set_up(
    model: LanguageModel, tokenizer: Tokenizer, given: Options, found: Mapping[str, list[Entry]]
) -> Setup:
    """Return the model with encoded rows, where it is; raise `Refusal` for a broken one."""
    place = find_place(next(model.parameters()).device.type, given.precision)
    check_whole("the model", model, tokenizer)
    return make_setup(model, tokenizer, place, given, found)


def _describe(loaded: Setup) -> dict[str, Any]:
    """Collect what has to be the same on all ranks."""
    rows = {name: loaded.rows(name) for name in loaded.sets}
    options = asdict(replace(loaded.given, quiet=True))
    return {**rows, **options, "weights": fingerprint(loaded.model)}


@contextmanager
def _add_adapters(model: LanguageModel, given: Options) -> Iterator[LanguageModel]:
    """Yield the model with new adapters if `lora` asks for them; an error removes them."""
    check_given(model)  # before peft changes it
    if not given.lora or isinstance(model, PeftModel):
        yield model
        return
    if hasattr(model, "peft_config"):
        raise Refusal("the model has adapters inside. Did you mean the PeftModel around it?")
    flags = [(p, p.requires_grad) for p in model.parameters()]
    adapted = with_adapters(model, given.seed)
    try:
        yield adapted
    except BaseException:
        adapted.unload()
        for p, is_trained in flags:
            p.requires_grad_(is_trained)
        raise


def _train(
    run: Run, callbacks: Sequence[TrainerCallback], original: Weights | None = None
) -> Outcome:
    """Train and judge; an error restores the model."""
    began, model, given = datetime.now(timezone.utc), run.loaded.model, run.loaded.given
    with borrow(model), TemporaryDirectory() as nowhere:
        if not isinstance(model, PeftModel):
            freeze_below(model, given.layers)
        elif not any(p.requires_grad for p in model.parameters()):
            model.set_adapter(model.active_adapters[0])
        widen(model)
        run = replace(run, loaded=make_trainable(run.loaded))
        original = Weights(model) if original is None else original
        checks = make_checks(run, Path(nowhere), original)
        for each in (*callbacks, _Progress(given.quiet)):
            checks.trainer.add_callback(each)
        is_main = current_thread() is main_thread()  # others cannot hear signals
        try:
            with catch_stop(checks.trainer.heard) if is_main else nullcontext():
                checks.trainer.train()
            check_trained(model, run.loaded.rows("forget")[0])
        except BaseException:
            original.put_back()
            raise
    run.say(checks.ending)
    after = measure(run.loaded, "after")
    content = share(run.content("Unlearning", asdict(given), checks, after))
    device = run.loaded.place.description()
    return Outcome(model, run.loaded.tokenizer, content, began, device, original, run)


class _Progress(TrainerCallback):
    """A bar of steps on a terminal, and no checkpoints."""

    def __init__(self, hidden: bool) -> None:
        self.hidden = hidden

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.bar = tqdm(total=state.max_steps, desc="unlearn", disable=self.hidden or None)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        control.should_save = False
        self.bar.update()

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.bar.close()


@torch.inference_mode(False)
def evaluate(
    model: LanguageModel,
    tokenizer: Tokenizer,
    forget: Rows,
    retain: Rows,
    probe: Rows | None = None,
    holdout: Rows | None = None,
    *,
    original: LanguageModel | None = None,
    **options: Any,
) -> Outcome:
    """Measure what a model, and maybe the original, knows of rows; arguments: see `unlearn`."""
    given, began = by_name("evaluate", options), datetime.now(timezone.utc)
    found = sets_of(forget=forget, retain=retain, probe=probe, holdout=holdout)
    both = {} if original is None else {"original": original}
    models, device = list[dict[str, Any]](), ""
    for name, each in {**both, "model": model}.items():
        with silence(), borrow(each):
            loaded = _set_up(each, tokenizer, given, found)
            models.append(measure_for_report(loaded, name))
        device = loaded.place.description()
    content = report.content_of("What it knows", "", asdict(given), models=models)
    return Outcome(model, tokenizer, content, began, device)


@torch.inference_mode(False)
def attack(
    model: LanguageModel,
    tokenizer: Tokenizer,
    forget: Rows,
    retain: Rows,
    *,
    compare: LanguageModel | None = None,
    **options: Any,
) -> Outcome:
    """Try to bring forgotten answers back; the weights return bit for bit.

    Args:
        model: the unlearned model.
        tokenizer: its tokenizer.
        forget: the rows that were to be forgotten.
        retain: rows that an attacker may relearn on, too.
        compare: a model that never saw the forget rows, of the same tokenizer.
        **options: those of the command under the same names: see `Options`.
    """
    given = by_name("attack", {"rows": None, **options})
    began, found = datetime.now(timezone.utc), sets_of(forget=forget, retain=retain)
    with silence(), borrow(model), nullcontext() if compare is None else borrow(compare):
        models = [(name, _set_up(each, tokenizer, given, found))
                  for name, each in {"model": model, "compared": compare}.items()
                  if each is not None]  # fmt: skip
        for _, each in models:
            each.model.requires_grad_(True)  # an attacker may train all of it
            widen(each.model)
        attacks = run_attacks(models, log.info)
    content = report.content_of("Attacks", "", asdict(given), **attacks)
    return Outcome(model, tokenizer, content, began, models[0][1].place.description())
