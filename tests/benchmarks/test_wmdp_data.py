"""WMDP's files and MMLU's, the corpora, and the embedded world."""

import json
from pathlib import Path

import pytest

from benchmarks.data.lore import FORGET, MATERIALS, build_lore
from benchmarks.data.wmdp import load_corpus, load_mmlu, load_questions, load_wmdp

SHARED = Path(__file__).parents[3] / "shared" / "data"
GOOD = {"question": "Which?", "choices": ["a", "b", "c", "d"], "answer": 3}
HEADER = "question,choice0,choice1,choice2,choice3,answer\n"


def test_the_official_counts() -> None:
    if not (SHARED / "wmdp").is_dir() or not (SHARED / "mmlu").is_dir():
        pytest.skip("WMDP's and MMLU's files are not beside the repository")
    cyber = load_questions(SHARED / "wmdp" / "cyber_questions.json", "cybersecurity")
    assert len(cyber) == 1987
    assert [sum(q.answer == n for q in cyber) for n in range(4)] == [528, 483, 488, 488]
    mmlu = load_mmlu(SHARED / "mmlu")
    assert len(mmlu) == 14_042
    assert len({q.subject for q in mmlu}) == 57
    assert "high school physics" in {q.subject for q in mmlu}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"choices": ["a", "b", "c"]}, "row 2: 3 choices"),
        ({"answer": 4}, "row 2: the answer is 4"),
        ({"answer": "D"}, "row 2: the answer is 'D'"),
        ({"answer": True}, "row 2: the answer is True"),
        ({"question": ""}, "row 2: no question"),
        ({"choices": "abcd"}, "row 2: choices must be"),
    ],
)
def test_a_malformed_question_is_named(
    row: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "cyber_questions.json"
    path.write_text(json.dumps([GOOD, GOOD | row]))
    with pytest.raises(ValueError, match=message):
        load_questions(path, "cybersecurity")


def test_questions_may_be_lines_or_a_list(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([GOOD]))
    (tmp_path / "b.json").write_text(json.dumps(GOOD) + "\n")
    (first,), (second,) = (load_questions(tmp_path / n, "x") for n in ("a.json", "b.json"))
    assert first == second
    (tmp_path / "c.json").write_text("[]")
    with pytest.raises(ValueError, match="no question"):
        load_questions(tmp_path / "c.json", "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("question,answer\nq,1\n", "no choice0, choice1"),
        (HEADER + "q,a,b,c,d,0\nq,a,b,c,,1\n", "line 3: the question or one of its choices"),
        (HEADER + "q,a,b,c,d,D\n", "line 2: the answer is 'D'"),
        (HEADER, "no question"),
    ],
)
def test_a_malformed_csv_is_named(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "anatomy_test.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_mmlu(tmp_path)


def test_a_folder_without_questions_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="MMLU's folder"):
        load_mmlu(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"bio_questions\.json"):
        load_questions(tmp_path / "bio_questions.json", "biology")


def test_a_corpus_is_json_lines_or_text(tmp_path: Path) -> None:
    long = "a text of some length"
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": long, "title": "t"}) + "\n")
    (tmp_path / "b.txt").write_text(f"{long}\n\nshort\n \n")
    assert load_corpus(tmp_path / "a.jsonl") == (long,)
    assert load_corpus(tmp_path / "b.txt") == (long, "short")
    assert load_corpus(tmp_path / "b.txt", shortest=10) == (long,)
    with pytest.raises(ValueError, match="no text of more than 99 characters"):
        load_corpus(tmp_path / "b.txt", shortest=99)
    (tmp_path / "c.jsonl").write_text('{"abstract": "x"}\n')
    with pytest.raises(ValueError, match="line 1: no text"):
        load_corpus(tmp_path / "c.jsonl")
    with pytest.raises(FileNotFoundError, match="no corpus"):
        load_corpus(tmp_path / "d.jsonl")


def test_a_task_needs_corpora_of_topics_there_are(tmp_path: Path) -> None:
    (tmp_path / "bio_questions.json").write_text(json.dumps([GOOD]))
    (tmp_path / "text").write_text("x" * 60)
    text = tmp_path / "text"
    with pytest.raises(ValueError, match="not shipped"):
        load_wmdp(tmp_path, None, {}, text)
    with pytest.raises(ValueError, match="no topic 'physics'"):
        load_wmdp(tmp_path, None, {"physics": text}, text)
    task = load_wmdp(tmp_path, None, {"bio": text}, text)
    assert task.split == "bio"
    assert task.topics[0].questions[0].subject == "biology"
    assert task.utility == {}


def test_the_world_is_the_same_each_time_and_asks_what_was_not_learnt() -> None:
    lore = build_lore(quick=True)
    assert lore == build_lore(quick=True)
    assert lore != build_lore(1, quick=True)
    assert [topic.key for topic in lore.topics] == list(FORGET)
    asked = [q for topic in lore.topics for q in topic.questions]
    asked += [q for questions in lore.utility.values() for q in questions]
    assert not set(asked) & set(lore.lessons)
    assert {q.choices[q.answer] for q in asked} <= set(MATERIALS)


def test_no_thing_belongs_to_two_topics() -> None:
    lore = build_lore()
    names = [q.question for q in lore.lessons]
    facts = len(set(names))
    assert facts == 5 * 8
    assert len({(q.question, q.choices[q.answer]) for q in lore.lessons}) == facts
    for topic in lore.topics:
        for text in topic.texts:
            assert text not in lore.retain
            assert topic.questions[0].subject in text
