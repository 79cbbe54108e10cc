"""Models of TOFU: pretrained ones, or small ones that have learnt its questions and answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.engine.models import trained
from benchmarks.engine.scratch import Lesson, Recipe
from benchmarks.engine.training import Schedule
from benchmarks.tasks.tofu.batches import encode_all
from benchmarks.tasks.tofu.data import TofuData
from torch_alm.unlearning.models import load_model

RECIPES = {
    "world": Recipe("word", 0, 2, 192, 4, Schedule(epochs=25, batch_size=16, lr=1.5e-3)),
    "world-quick": Recipe("word", 0, 2, 64, 4, Schedule(epochs=40, batch_size=24, lr=5e-3)),
    # at this width bf16 autocast saves a quarter of the time, where the processor has it
    "tofu": Recipe(
        "bpe", 6000, 2, 384, 6, Schedule(20, batch_size=8, lr=1e-3, target=0.99, bfloat16=True)
    ),
}

FINE_TUNING = Schedule(20, batch_size=8, lr=5e-4, target=0.99, bfloat16=True)
"""Of a pretrained model on TOFU: until it knows the answers by heart."""


def load_or_train(
    data: TofuData,
    model_name: str | Path | None = None,
    cache_dir: str | Path | None = None,
    seed: int = 0,
    *,
    without_forget: bool = False,
    recipe: Recipe | None = None,
    progress: bool = True,
    convention: str = "ours",
    base: Path | None = None,
    replay: Sequence[str] = (),
) -> tuple[Any, Any]:
    """The model to unlearn from, or the one that never saw the forget set, and the tokenizer.

    Args:
        data: The task; its name picks the recipe.
        model_name: A folder or hub name to load instead of training.
        cache_dir: Where trained models are kept; `default_cache()` if None.
        seed: Of weights and batch order.
        without_forget: Train on everything but the forget set.
        recipe: Replaces the recipe of the data.
        progress: Show a progress bar while training.
        convention: How a model trained here is asked, see `batches.encode`.
        base: Folder of a pretrained model that is taught in place of random weights.
        replay: Texts that it goes on reading while it is taught.

    Returns:
        Model (fp32, on the CPU, in evaluation mode) and tokenizer. A model trained here tells in
        `model.config.training` how: recipe, seed, rows, epochs, seconds, loss, and `exact_match`,
        the share of its training questions that it answers word for word.

    Raises:
        ValueError: `model_name` with `without_forget`, or a model that cannot be used.
    """
    if model_name is not None:
        if without_forget:
            raise ValueError(
                f"load_or_train: {str(model_name)!r} with without_forget=True would be the "
                "original model once more. Did you mean load_model with the name of a model "
                "trained on the retain set?"
            )
        return load_model(model_name)
    recipe = recipe or RECIPES[data.name]
    lesson = questions_and_answers(data, recipe, convention, without_forget=without_forget)
    if base is not None:
        lesson = replace(lesson, base=base, replay=tuple(replay))
        recipe = replace(recipe, schedule=FINE_TUNING)
    return trained(lesson, recipe, cache_dir, seed, progress=progress)


def questions_and_answers(
    data: TofuData, recipe: Recipe, convention: str = "ours", *, without_forget: bool = False
) -> Lesson:
    """Make the lesson of TOFU's original model, or of the one that never sees the forget set."""
    examples = data.without_forget if without_forget else data.full
    return Lesson(
        name=f"{data.name}-{'retrained' if without_forget else 'original'}",
        texts=tuple(texts(data, recipe)),
        # "ours" leaves no mark: a model made without the choice is that model
        content=[*([] if convention == "ours" else [convention]), *(e.pair for e in examples)],
        rows=lambda tokenizer: encode_all(tokenizer, examples, convention=convention),
    )


def texts(data: TofuData, recipe: Recipe) -> Iterator[str]:
    """Yield the texts of the tokenizer, which the original and the retrained model share.

    Byte pairs can spell anything: the training pairs will do, and the original model is the same
    for every split. Words must be listed, those of the evaluation too.
    """
    evaluation = (data.forget_eval, data.retain_eval, data.real_authors, data.world_facts)
    sets = (data.full, *evaluation, data.holdout) if recipe.tokens == "word" else (data.full,)
    for example in (example for examples in sets for example in examples):
        for question in filter(None, (example.question, example.paraphrased_question)):
            yield f"Question: {question}\nAnswer:"
        answers = (example.answer, example.paraphrased_answer, *example.perturbed_answers)
        for answer in filter(None, answers):
            yield f" {answer}"
