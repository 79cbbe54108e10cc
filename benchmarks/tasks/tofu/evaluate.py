"""Evaluate a model by TOFU's protocol: a row per question, and one flat row of numbers."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks.engine.benchmark import Evaluation
from benchmarks.tasks.memorization import min_k_score
from benchmarks.tasks.tofu import metrics
from benchmarks.tasks.tofu.batches import encode
from benchmarks.tasks.tofu.data import Example, TofuData
from benchmarks.tasks.tofu.summary import LogRatios, summarise
from torch_alm.language import (
    AnswerScores,
    answer_ids,
    answer_scores,
    extraction_strength,
    greedy_answers,
    losses,
    pad_id,
)

K = 0.4  # share of tokens in Min-K%
MAX_LENGTH = 512  # tokens of prompt and answer; a longer answer is cut
SPARE_TOKENS = 8  # beyond the longest answer, to see whether an answer goes on


class _Item(NamedTuple):
    subset: str
    index: int
    example: Example
    question: str


def evaluate(
    model: Any,
    tokenizer: Any,
    data: TofuData,
    *,
    retrained: LogRatios | None = None,
    max_new_tokens: int | None = 200,
    generations: bool = True,
    paraphrased_questions: bool = False,
    tau: float = 0.1,
) -> Evaluation:
    """Score a causal language model on the forget, retain and neighbour questions.

    The keys of `numbers` are those of `summary.summarise`; holdout rows have no generation.
    Margins, losses and exact match include the end of sequence; numbers per token do not, as in
    OpenUnlearning. The random state and the model's mode stay.

    Cost: a forward pass per answer (also paraphrased and perturbed ones), and greedy generation
    for the questions whose answer that pass does not show (see `greedy_answers`).

    Args:
        retrained: `reference(rows)` of the retrained model, for forget quality.
        max_new_tokens: longest generation; `None` derives it from the longest answer.
        generations: `False` skips generation; ROUGE and model utility are `None`.
        tau: sharpness of the margin certificate, in probability.

    Raises:
        ValueError: paraphrased questions asked for, and no forget example has one.
    """
    items = list(_items(data, paraphrased_questions))
    encoded = [encode(tokenizer, item.question, item.example.answer, MAX_LENGTH) for item in items]
    scores = answer_scores(model, encoded, pad_id(tokenizer), tau)
    alternatives = _alternative_losses(model, tokenizer, items)
    texts: list[str | None] = [None] * len(items)
    if generations:
        tokens = max_new_tokens
        if tokens is None:
            tokens = max(len(answer_ids(row)) for row in encoded) + SPARE_TOKENS
        asked = [i for i, item in enumerate(items) if item.subset != "holdout"]
        rows, known = [encoded[i] for i in asked], [scores[i] for i in asked]
        for i, text in zip(
            asked, greedy_answers(model, tokenizer, rows, known, tokens), strict=True
        ):
            texts[i] = text
    found = [_row(*part) for part in zip(items, scores, alternatives, texts, strict=True)]
    return Evaluation(summarise(found, retrained), found)


def _items(data: TofuData, paraphrased: bool) -> Iterator[_Item]:
    subsets = {
        "forget": data.forget_eval,
        "retain": data.retain_eval,
        "real_authors": data.real_authors,
        "world_facts": data.world_facts,
        "holdout": data.holdout,
    }
    if paraphrased and not any(example.paraphrased_question for example in data.forget_eval):
        raise ValueError(
            f"evaluate(paraphrased_questions=True) found no paraphrased question in the "
            f"{len(data.forget_eval)} forget examples of {data.name}; the original questions would "
            "be asked again. Did you read the paraphrases from their file?"
        )
    for subset, examples in subsets.items():
        for index, example in enumerate(examples):
            reworded = example.paraphrased_question if paraphrased else None
            yield _Item(subset, index, example, reworded or example.question)


def _alternative_losses(
    model: Any, tokenizer: Any, items: Sequence[_Item]
) -> list[tuple[float | None, list[float]]]:
    """Return per item the losses of its paraphrased answer (or `None`) and its wrong answers."""
    answers = [
        [item.example.paraphrased_answer or "", *item.example.perturbed_answers] for item in items
    ]
    rows = [
        encode(tokenizer, item.question, answer, MAX_LENGTH)
        for item, group in zip(items, answers, strict=True)
        for answer in group
        if answer
    ]
    found = iter(losses(model, rows, pad_id(tokenizer)))
    return [
        (next(found) if group[0] else None, [next(found) for _ in group[1:]]) for group in answers
    ]


def _row(
    item: _Item,
    score: AnswerScores,
    alternatives: tuple[float | None, list[float]],
    text: str | None,
) -> dict[str, Any]:
    paraphrased_loss, perturbed_losses = alternatives
    answer = item.example.answer
    return {
        "subset": item.subset,
        "index": item.index,
        "question": item.question,
        "reference": answer,
        "generation": text,
        "rouge": None if text is None else metrics.rouge_l_recall(text, answer),
        "loss": score.loss,
        "probability": float(metrics.probability(score.loss)),
        "paraphrased_loss": paraphrased_loss,
        "perturbed_losses": perturbed_losses,
        "exact_match": score.exact_match,
        "certificate": score.certificate,
        "extraction_strength": extraction_strength(score.matches[:-1]),
        "min_k": min_k_score(score.log_probabilities[:-1], K),
    }
