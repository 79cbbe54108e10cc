"""Small models that have learnt the questions and answers of the embedded world."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.engine.models import load_taught
from benchmarks.engine.scratch import Lesson, Recipe
from benchmarks.engine.training import Schedule
from benchmarks.tasks.tofu.batches import encode_all
from benchmarks.tasks.tofu.data import TofuData

RECIPES = {
    "world": Recipe(2, 192, 4, Schedule(epochs=25, batch_size=16, lr=1.5e-3)),
    "world-quick": Recipe(2, 64, 4, Schedule(epochs=40, batch_size=24, lr=5e-3)),
}


def load_or_train(
    data: TofuData,
    cache: str | Path | None = None,
    *,
    without_forget: bool = False,
    recipe: Recipe | None = None,
) -> tuple[Any, Any]:
    """Return the small model to unlearn from, or the retrained one, and the tokenizer.

    The name of the data picks the default recipe. `model.config.training` has the training, and
    `exact_match`, the share of its questions that it answers word for word.
    """
    recipe = recipe or RECIPES[data.name]
    examples = data.without_forget if without_forget else data.full
    lesson = Lesson(
        name=f"{data.name}-{'retrained' if without_forget else 'original'}",
        texts=tuple(texts(data)),
        content=[example.pair for example in examples],
        rows=lambda tokenizer: encode_all(tokenizer, examples),
    )
    return load_taught(lesson, recipe, cache)


def texts(data: TofuData) -> Iterator[str]:
    """Yield the texts whose words the tokenizer of both models must have."""
    evaluation = (data.forget_eval, data.retain_eval, data.real_authors, data.world_facts)
    sets = (data.full, *evaluation, data.holdout)
    for example in (example for examples in sets for example in examples):
        for question in filter(None, (example.question, example.paraphrased_question)):
            yield f"Question: {question}\nAnswer:"
        answers = (example.answer, example.paraphrased_answer, *example.perturbed_answers)
        for answer in filter(None, answers):
            yield f" {answer}"
