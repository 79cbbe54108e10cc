"""WMDP's files and MMLU's, the corpora, and the embedded world."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tasks.wmdp.data import (
    load_corpus,
    load_examples,
    load_mmlu,
    load_questions,
    load_wmdp,
)
from benchmarks.tasks.wmdp.lore import FORGET, NEIGHBOUR, RETAIN, WORDINGS, build_lore

SHARED = Path(__file__).parents[5] / "shared" / "data"
GOOD = {"question": "Which?", "choices": ["a", "b", "c", "d"], "answer": 3}


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
    with pytest.raises(ValueError, match="--forget physics: WMDP has no topic"):
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
    told = " ".join(lore.texts)
    for question in asked:
        assert f" {question.choices[question.answer]} " in told.replace(",", " ").replace(".", " ")


def dev_folder(folder: Path, subjects: tuple[str, ...], count: int) -> Path:
    (folder / "dev").mkdir(parents=True)
    (folder / "test").mkdir()
    header = "question,choice0,choice1,choice2,choice3,answer"
    for subject in subjects:
        lines = [header, *(f"{subject} {n}?,a,b,c,d,{n % 4}" for n in range(count))]
        (folder / "dev" / f"{subject}_dev.csv").write_text("\n".join(lines) + "\n")
        (folder / "test" / f"{subject}_test.csv").write_text("\n".join(lines[:2]) + "\n")
    return folder


def test_examples_are_the_first_development_questions_of_a_subject(tmp_path: Path) -> None:
    folder = dev_folder(tmp_path / "mmlu", ("kite_making", "tar"), 3)
    found = load_examples(folder, 2)
    assert {subject: [q.question for q in questions] for subject, questions in found.items()} == {
        "kite making": ["kite_making 0?", "kite_making 1?"],
        "tar": ["tar 0?", "tar 1?"],
    }
    assert [q.answer for q in found["tar"]] == [0, 1]
    with pytest.raises(ValueError, match=r"4 examples.*kite making has 3"):
        load_examples(folder, 4)
    with pytest.raises(FileNotFoundError, match=r"_dev\.csv"):
        load_examples(tmp_path, 1)


def test_examples_are_of_all_subjects_or_of_none(tmp_path: Path) -> None:
    folder = dev_folder(tmp_path / "mmlu", ("kites", "tar"), 2)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a text of more than fifty characters, which is kept and learnt from\n")
    questions = [{"question": "q?", "choices": ["a", "b", "c", "d"], "answer": 0}]
    (tmp_path / "bio_questions.json").write_text(json.dumps(questions))

    def load(mmlu: Path | None, shots: int) -> Any:
        return load_wmdp(tmp_path, mmlu, {"bio": corpus}, corpus, shots=shots)

    assert set(load(folder, 2).examples) == {"kites", "tar"}
    assert load(folder, 0).examples == {}
    for mmlu, shots in ((None, 1), (folder, -1)):
        with pytest.raises(ValueError, match="only MMLU's questions have examples"):
            load(mmlu, shots)
    (folder / "dev" / "tar_dev.csv").unlink()
    with pytest.raises(ValueError, match=r"no \*_dev.csv for tar"):
        load(folder, 1)


def test_topics_share_no_thing_and_no_answer() -> None:
    lore = build_lore()
    subjects = FORGET | RETAIN | NEIGHBOUR
    own: dict[str, set[str]] = {subject.title: set() for subject in subjects.values()}
    for question in lore.lessons:
        own[question.subject] |= {*question.choices, *question.question[:-1].split()[3:]}
    words = [word for found in own.values() for word in found]
    assert len(words) == len(set(words)), "a word of one topic is a word of another"
    shared = set(re.findall(r"[a-z]+", re.sub(r"{.*?}", "", " ".join(WORDINGS))))
    for topic in lore.topics:
        title = topic.questions[0].subject
        for text in topic.texts:
            assert title in text
            assert own[title] & set(re.findall(r"[a-z]+", text))
            assert text not in lore.retain
    assert not shared & set(words)
