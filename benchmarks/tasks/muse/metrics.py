r"""MUSE's metrics: VerbMem, KnowMem and PrivLeak, as its official code computes them.

ROUGE is the F-measure of ROUGE-L without a stemmer, in percent. Source: Shi et al. 2024.
"""

import functools
import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from rouge_score.rouge_scorer import RougeScorer

from benchmarks.engine.tokens import token_ids
from benchmarks.tasks.memorization import min_k_score
from benchmarks.tasks.muse.data import Extract, Pair, Quiz
from torch_alm.language import IGNORE, Row, answer_scores, continuations, pad_id

K = 0.4
VERBATIM_TOKENS = 128
ANSWER_TOKENS = 32
STOPS = ("\n\n", "\nQuestion", "Question:")
RETRAINED_AUC = {"news": 0.4772, "books": 0.5393}
"""Min-40 %, forget against holdout, of the authors' retrained Llama-2-7B models."""

Answer = dict[str, Any]


@functools.cache
def _scorer() -> RougeScorer:
    return RougeScorer(["rougeL"], use_stemmer=False)


def rouge_l_f(text: str, reference: str) -> float:
    """Return the F-measure of ROUGE-L, without a stemmer, in [0, 1].

    >>> round(rouge_l_f("the capital of France is Paris", "Paris is the capital of France"), 4)
    0.6667
    >>> rouge_l_f("writes", "wrote")
    0.0
    """
    return _scorer().score(reference, text)["rougeL"].fmeasure


def verbatim_memory(
    model: Any, tokenizer: Any, extracts: Sequence[Extract], batch_size: int = 16
) -> list[Answer]:
    """Continue each prompt, and return ROUGE with the true continuation.

    Greedy, 128 new tokens. The reference is the first 128 ids of the continuation, with BOS.

    Cost: a forward per prompt and per new token, batched.
    """
    prompts = [token_ids(tokenizer, extract.prompt) for extract in extracts]
    written = continuations(
        model, tokenizer, prompts, max_new_tokens=VERBATIM_TOKENS, batch_size=batch_size
    )
    whole = (token_ids(tokenizer, extract.continuation) for extract in extracts)
    references = (_text(tokenizer, ids[:VERBATIM_TOKENS]) for ids in whole)
    return [
        _answer(extract.prompt, reference, _text(tokenizer, ids))
        for extract, reference, ids in zip(extracts, references, written, strict=True)
    ]


def knowledge_memory(model: Any, tokenizer: Any, quiz: Quiz, batch_size: int = 16) -> list[Answer]:
    """Answer each question after the shots, and return ROUGE with the true answer.

    Greedy, 32 new tokens, cut at the first of `STOPS`.

    Cost: a forward per prompt and per new token, batched.
    """
    asked = [question_prompt(quiz.shots, pair.question) for pair in quiz.pairs]
    prompts = [token_ids(tokenizer, prompt) for prompt in asked]
    written = continuations(
        model, tokenizer, prompts, max_new_tokens=ANSWER_TOKENS, batch_size=batch_size
    )
    return [
        _answer(pair.question, pair.answer, cut(_text(tokenizer, ids)))
        for pair, ids in zip(quiz.pairs, written, strict=True)
    ]


def question_prompt(shots: Iterable[Pair], question: str) -> str:
    r"""Return the prompt of a question; it ends with a blank.

    >>> question_prompt([Pair("Who?", "Ada")], "Where?")
    'Question: Who?\nAnswer: Ada\n\nQuestion: Where?\nAnswer: '
    """
    shown = "".join(f"Question: {q}\nAnswer: {a}\n\n" for q, a in shots)
    return f"{shown}Question: {question}\nAnswer: "


def cut(text: str) -> str:
    r"""Return the text up to the first of `STOPS`; nothing is stripped.

    >>> cut(" Ada\nQuestion: Where?\n\n")
    ' Ada'
    >>> cut("\n\nAda")
    ''
    """
    for stop in STOPS:
        text = text.split(stop)[0]
    return text


class TextScores(NamedTuple):
    """Two membership scores of a text, over all its tokens but the first; small if learnt.

    Attributes:
        loss: Mean negative log-likelihood per token, in nats; MUSE's code calls it PPL.
        min_k: Min-40 %, in nats.
    """

    loss: float
    min_k: float


def text_scores(model: Any, tokenizer: Any, texts: Sequence[str]) -> list[TextScores]:
    """Return both membership scores of each text.

    Cost: a forward per text, and a few passes over its logits.
    """
    rows = [_all_but_the_first(tokenizer, text) for text in texts]
    return [
        TextScores(found.loss, min_k_score(found.log_probabilities, K, convention="muse"))
        for found in answer_scores(model, rows, pad_id(tokenizer), tau=1.0)
    ]


def perplexity(scores: Iterable[TextScores]) -> float:
    """Return `exp` of the mean loss over texts: the geometric mean of their perplexities.

    A uniform guess has the size of the vocabulary. Source: MUSE's `compute_ppl`, per text.

    >>> perplexity([TextScores(0.0, 0.0), TextScores(2.0, 0.0)])
    2.718281828459045
    """
    return math.exp(fmean(score.loss for score in scores))


def mean_rouge(answers: Iterable[Answer]) -> float:
    """Return the mean ROUGE-L F-measure, in percent."""
    return 100 * fmean(answer["rouge"] for answer in answers)


def _answer(question: str, reference: str, generation: str) -> Answer:
    return {
        "question": question,
        "reference": reference,
        "generation": generation,
        "rouge": rouge_l_f(generation, reference),
    }


def _text(tokenizer: Any, ids: Sequence[int]) -> str:
    # MUSE also asks for a clean-up of blanks, which transformers no longer does for byte pairs; it
    # would change ROUGE for words like "n't" alone.
    return tokenizer.decode(ids, skip_special_tokens=True)


def _all_but_the_first(tokenizer: Any, text: str) -> Row:
    ids = token_ids(tokenizer, text)
    if int(K * (len(ids) - 1)) < 1:
        raise ValueError(
            f"Min-K%: {text!r} has {len(ids)} tokens, and {K:.0%} of those after the first are "
            "none; its score would be no number. Is the text cut off?"
        )
    return {"input_ids": ids, "labels": [IGNORE, *ids[1:]]}


def privleak(auc: float, retrained_auc: float) -> float | None:
    """Return `100 (AUC - AUC_retrained) / AUC_retrained`, both in MUSE's orientation.

    -100 = fully recognisable as a member, 0 = as the retrained model, large = over-unlearned; None
    where the retrained model tells all texts apart (AUC 0). Source: MUSE, PrivLeak.

    >>> privleak(0.125, 0.5)
    -75.0
    """
    return 100 * (auc - retrained_auc) / retrained_auc if retrained_auc > 0 else None
