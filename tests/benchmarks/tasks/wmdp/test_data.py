"""WMDP's files and MMLU's, the corpora, and the embedded world."""

import json
from pathlib import Path

import pytest

from benchmarks.tasks.wmdp.data import load_corpus, load_mmlu, load_questions, load_wmdp
from benchmarks.tasks.wmdp.lore import FORGET, build_lore
from benchmarks.tasks.wmdp.questions import Question

GOOD = {"question": "Which?", "choices": ["a", "b", "c", "d"], "answer": 3}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"choices": ["a", "b", "c"]}, "row 2, .*: 3 choices"),
        ({"answer": 4}, "row 2, with the answer 4: "),
        ({"answer": "D"}, "row 2, with the answer 'D'"),
        ({"answer": True}, "row 2, with the answer True"),
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


def test_mmlu_is_a_file_a_subject_and_every_cell_is_text(tmp_path: Path) -> None:
    header = "question,choice0,choice1,choice2,choice3,answer\n"
    (tmp_path / "test").mkdir()
    file = tmp_path / "test" / "kite_making_test.csv"
    file.write_text(f'{header}"Which, then?",None,NA,1,x,2\n')
    (found,) = load_mmlu(tmp_path)
    assert found == Question("kite making", "Which, then?", ("None", "NA", "1", "x"), 2)
    file.write_text(f"{header}Which?,a,b,c,d,4\n")
    with pytest.raises(ValueError, match=r"kite_making_test\.csv, row 1, with the answer '4'"):
        load_mmlu(tmp_path)
    file.write_text("question,answer\n")
    with pytest.raises(ValueError, match="the header has no choice0"):
        load_mmlu(tmp_path)
    with pytest.raises(FileNotFoundError, match="Is it MMLU's folder"):
        load_mmlu(tmp_path / "test" / "no")


def test_a_corpus_is_json_lines_with_texts_that_are_long_enough(tmp_path: Path) -> None:
    file, long = tmp_path / "a.jsonl", "a text of more than fifty characters, which is long enough"
    file.write_text(json.dumps({"text": long, "title": "t"}) + '\n{"text": "short"}\n')
    assert load_corpus(file) == (long,)
    file.write_text('{"text": "short"}\n')
    with pytest.raises(ValueError, match="no text of more than 50 characters"):
        load_corpus(file)
    file.write_text('{"abstract": "x"}\n')
    with pytest.raises(ValueError, match="line 1: no text"):
        load_corpus(file)
    with pytest.raises(FileNotFoundError, match=r"b\.jsonl"):
        load_corpus(tmp_path / "b.jsonl")


def test_a_task_needs_corpora_of_topics_there_are(tmp_path: Path) -> None:
    (tmp_path / "bio_questions.json").write_text(json.dumps([GOOD]))
    text = tmp_path / "text.jsonl"
    text.write_text(json.dumps({"text": "x" * 60}) + "\n")
    with pytest.raises(ValueError, match="not shipped"):
        load_wmdp(tmp_path, None, {}, text)
    with pytest.raises(ValueError, match="--forget physics: WMDP has no topic"):
        load_wmdp(tmp_path, None, {"physics": text}, text)
    task = load_wmdp(tmp_path, None, {"bio": text}, text)
    assert task.split == "bio"
    assert task.topics[0].questions[0].subject == "biology"
    assert task.utility == {}
    mmlu = "question,choice0,choice1,choice2,choice3,answer\n"
    (tmp_path / "a_kite_test.csv").write_text(f"{mmlu}Q?,a,b,c,d,1\n")
    (tmp_path / "a_kite_dev.csv").write_text(f"{mmlu}One?,a,b,c,d,1\nTwo?,a,b,c,d,2\n")
    task = load_wmdp(tmp_path, tmp_path, {"bio": text}, text, shots=1)
    assert [q.question for q in task.examples["a kite"]] == ["One?"]
    with pytest.raises(ValueError, match="--shots 3: there are fewer examples of a kite"):
        load_wmdp(tmp_path, tmp_path, {"bio": text}, text, shots=3)


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
