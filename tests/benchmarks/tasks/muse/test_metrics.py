"""VerbMem, KnowMem and PrivLeak against MUSE's procedure, done one text at a time."""

import copy
import math
from typing import Any

import pytest
import torch
from rouge_score.rouge_scorer import RougeScorer
from tokenizers.processors import TemplateProcessing

from benchmarks.engine.scratch import build_tokenizer, small_llama
from benchmarks.tasks.muse import metrics as muse
from benchmarks.tasks.muse.data import Quiz
from benchmarks.tasks.muse.models import COURSES, muse_lesson
from benchmarks.tasks.muse.passages import build_passages

WORLD = build_passages(quick=True)
COURSE = COURSES["passages-quick"]
LESSON = muse_lesson(WORLD, COURSE, 128)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer(LESSON.texts, LESSON.whole)


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    """Random weights: greedy text of many kinds, and unequal probabilities."""
    return small_llama(tokenizer, COURSE.recipe).eval()


def written(model: Any, ids: list[int], tokens: int, tokenizer: Any) -> str:
    """Greedy decoding of one prompt, as MUSE does it."""
    out = model.generate(
        torch.tensor([ids]), max_new_tokens=tokens, do_sample=False, pad_token_id=0
    )[0, len(ids) :]
    return tokenizer.decode(out, skip_special_tokens=True, clean_up_tokenization_spaces=True)


def rouge(reference: str, text: str) -> float:
    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    return scorer.score(reference, text)["rougeL"].fmeasure


def test_verbmem_is_the_official_procedure(model: Any, tokenizer: Any) -> None:
    found = muse.verbatim_memory(model, tokenizer, WORLD.verbatim, batch_size=3)
    for extract, answer in zip(WORLD.verbatim, found, strict=True):
        text = written(model, tokenizer(extract.prompt)["input_ids"], 128, tokenizer)
        assert answer["generation"] == text
        assert answer["rouge"] == rouge(extract.continuation, text)
    expected = 100 * sum(a["rouge"] for a in found) / len(found)
    assert muse.mean_rouge(found) == pytest.approx(expected, rel=1e-12)
    assert len({a["generation"] for a in found}) > 1


def test_knowmem_is_the_official_procedure(model: Any, tokenizer: Any) -> None:
    quiz = WORLD.forget_quiz
    found = muse.knowledge_memory(model, tokenizer, quiz, batch_size=5)
    shown = ""
    for shot in quiz.shots:
        shown += f"Question: {shot.question}\nAnswer: {shot.answer}\n\n"
    for pair, answer in zip(quiz.pairs, found, strict=True):
        prompt = shown + f"Question: {pair.question}\nAnswer: "
        text = written(model, tokenizer(prompt)["input_ids"], 32, tokenizer)
        for word in ("\n\n", "\nQuestion", "Question:"):
            text = text.split(word)[0]
        assert answer["generation"] == text
        assert answer["rouge"] == rouge(pair.answer, text)


def test_a_closing_token_of_the_tokenizer_changes_nothing(model: Any, tokenizer: Any) -> None:
    """Behind it the model would write another text, and its own score would count."""
    ended = copy.deepcopy(tokenizer)
    ids = [(ended.bos_token, ended.bos_token_id), (ended.eos_token, ended.eos_token_id)]
    whole = f"{ended.bos_token} $A {ended.eos_token}"
    ended.backend_tokenizer.post_processor = TemplateProcessing(whole, special_tokens=ids)
    assert ended("In")["input_ids"][-1] == ended.eos_token_id
    quiz = Quiz(WORLD.forget_quiz.pairs[:4], WORLD.forget_quiz.shots)
    for measure, asked in (
        (muse.verbatim_memory, WORLD.verbatim[:2]),
        (muse.knowledge_memory, quiz),
        (muse.text_scores, WORLD.members[:2]),
    ):
        assert measure(model, ended, asked) == measure(model, tokenizer, asked)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (" Ada \n\nQuestion: x", " Ada "),
        ("Ada\nQuestion: x", "Ada"),
        ("Ada Question: x\n\ny", "Ada "),
        ("Ada\nQuestions", "Ada"),
        ("\n\nAda", ""),
        ("Ada\nBea", "Ada\nBea"),
    ],
)
def test_an_answer_ends_at_the_first_stop(text: str, kept: str) -> None:
    assert muse.cut(text) == kept


def test_scores_are_of_all_tokens_but_the_first(model: Any, tokenizer: Any) -> None:
    texts = [*WORLD.members[:3], " ".join(WORLD.members[3].split()[:9])]
    found = muse.text_scores(model, tokenizer, texts)
    for text, score in zip(texts, found, strict=True):
        ids = torch.tensor(tokenizer(text)["input_ids"])
        with torch.no_grad():
            table = model(ids[None]).logits[0].double().log_softmax(-1)
        seen = sorted(table[i, ids[i + 1]].item() for i in range(len(ids) - 1))
        count = math.floor(0.4 * len(seen))
        assert score.min_k == pytest.approx(-sum(seen[:count]) / count, rel=1e-5)
        assert score.loss == pytest.approx(-sum(seen) / len(seen), rel=1e-5)
    product = math.prod(math.exp(score.loss) for score in found)
    assert muse.perplexity(found) == pytest.approx(product ** (1 / len(found)), rel=1e-9)


@pytest.mark.parametrize(
    ("auc", "corpus", "expected"),
    [(0.25, "news", -47.6), (0.9, "news", 88.6), (0.0, "news", -100.0), (1.0, "news", 109.6),
     (0.0, "books", -100.0), (1.0, "books", 85.4)],
)  # fmt: skip
def test_privleak_with_the_published_constants(auc: float, corpus: str, expected: float) -> None:
    assert muse.privleak(auc, muse.RETRAINED_AUC[corpus]) == pytest.approx(expected, abs=0.05)


def test_min_k_of_a_text_too_short_to_have_one_is_refused(model: Any, tokenizer: Any) -> None:
    assert muse.text_scores(model, tokenizer, ["In April of"])[0].min_k > 0
    with pytest.raises(ValueError, match="'In April' has 3 tokens"):
        muse.text_scores(model, tokenizer, [*WORLD.members, "In April"])
