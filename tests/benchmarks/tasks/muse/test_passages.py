"""The embedded world of MUSE: what its sets share, and where the answers stand."""

import pytest

from benchmarks.tasks.muse.data import MuseData
from benchmarks.tasks.muse.passages import build_passages

WORLDS = [build_passages(quick=True), build_passages()]


def names(data: MuseData) -> list[str]:
    """Whom the questions about the forget and the retain set are about."""
    quizzes = (data.forget_quiz, data.retain_quiz)
    asked = [p.question for quiz in quizzes for p in quiz.pairs if "trade of" in p.question]
    return [question.removeprefix("What is the trade of ").rstrip("?") for question in asked]


def test_the_same_seed_gives_the_same_world_and_another_another() -> None:
    assert build_passages(quick=True) == WORLDS[0]
    assert build_passages(1, quick=True).forget != WORLDS[0].forget


@pytest.mark.parametrize("data", WORLDS, ids=lambda data: data.name)
class TestWorld:
    def test_every_answer_stands_in_a_text_and_in_no_other_set(self, data: MuseData) -> None:
        for texts, others, quiz in (
            (data.forget, data.retain + data.strangers, data.forget_quiz),
            (data.retain, data.forget + data.strangers, data.retain_quiz),
        ):
            for pair in quiz.pairs + quiz.shots:
                (name,) = [n for n in names(data) if n in pair.question]
                told, asked = (
                    [text for text in texts if name in text and "?" not in text],
                    [text for text in texts if f"{pair.question}\nAnswer: {pair.answer}" in text],
                )
                assert len(told) == len(asked) == 1
                assert pair.answer in told[0]
                assert not any(name in other for other in others)

    def test_extracts_are_the_texts_to_forget(self, data: MuseData) -> None:
        told = tuple(text for text in data.forget if "?" not in text)
        assert tuple(f"{e.prompt} {e.continuation}" for e in data.verbatim) == told
        assert data.members == told

    def test_shots_are_never_asked(self, data: MuseData) -> None:
        for quiz in (data.forget_quiz, data.retain_quiz):
            assert not set(quiz.shots) & set(quiz.pairs)

    def test_the_sets_share_their_words(self, data: MuseData) -> None:
        """But for the names: what is forgotten has to be told apart from what is kept."""
        forget, retain = (set(" ".join(texts).split()) for texts in (data.forget, data.retain))
        assert len(forget & retain) > 0.6 * len(forget)


def test_the_full_world_is_measured_as_muse_measures() -> None:
    data = WORLDS[1]
    assert len(data.forget_quiz.shots) == len(data.retain_quiz.shots) == 10
    assert min(len(extract.continuation.split()) for extract in data.verbatim) > 100
