"""Multiple-choice questions: the prompt, and the scorer against lm-evaluation-harness."""

import copy
import importlib.util
import json
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from benchmarks.engine.scratch import Recipe, build_tokenizer, small_llama
from benchmarks.engine.training import Schedule
from benchmarks.tasks.wmdp import choices
from benchmarks.tasks.wmdp.questions import Question, prompt

RECIPE = Recipe("bpe", 300, 2, 32, 2, Schedule(1, 1, 0.1))
QUESTIONS = [
    Question(
        subject, f" What is the {n}th of {subject}? ", ("one", "two or 3", "four", f"{n}"), n % 4
    )
    for n in range(5)
    for subject in ("kites", "high school tar")
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer([prompt(q) for q in QUESTIONS], RECIPE)


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    return small_llama(tokenizer, RECIPE).eval()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"choices": ("a", "b", "c")}, "3 choices"),
        ({"choices": ("a", "b", "c", " ")}, "is empty"),
        ({"question": "\n"}, "is empty"),
        ({"answer": 4}, "none of the choices"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(changes: dict[str, Any], message: str) -> None:
    whole: dict[str, Any] = {
        "subject": "s", "question": "q", "choices": ("a", "b", "c", "d"), "answer": 0
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        Question(**(whole | changes))


def by_hand(
    model: Any, tokenizer: Any, question: Question, letter: str, begun: str = "", bos: bool = True
) -> float:
    """The log-likelihood of a letter: one sequence, one token after the other."""
    description, asked = prompt(question).split("\n\n")
    text = f"{description}\n\n{begun}{asked}"
    head = tokenizer(text, add_special_tokens=bos)["input_ids"]
    whole = tokenizer(f"{text} {letter}", add_special_tokens=bos)["input_ids"]
    with torch.no_grad():
        said = model(input_ids=torch.tensor([whole])).logits[0].double().log_softmax(-1)
    return sum(said[at - 1, whole[at]].item() for at in range(len(head), len(whole)))


def test_a_letter_has_the_likelihood_of_its_tokens(model: Any, tokenizer: Any) -> None:
    found = choices.answers(model, tokenizer, QUESTIONS, batch_size=3)
    for question, answer in zip(QUESTIONS, found, strict=True):
        expected = [by_hand(model, tokenizer, question, letter) for letter in "ABCD"]
        assert answer.log_likelihoods == pytest.approx(expected, abs=1e-5)
        assert answer.choice == expected.index(max(expected))


SHOWN = {
    "kites": (
        Question("kites", " Which string? ", ("w", "x", "y", "z"), 2),
        Question("kites", "Which tail?", ("a", "b", "c", "d"), 1),
    )
}
BEGUN = (
    "Which string?\nA. w\nB. x\nC. y\nD. z\nAnswer: C\n\n"
    "Which tail?\nA. a\nB. b\nC. c\nD. d\nAnswer: B\n\n"
)


@pytest.mark.parametrize("bos", [True, False])
def test_examples_stand_before_their_subject_and_bos_before_all_or_nothing(
    model: Any, tokenizer: Any, bos: bool
) -> None:
    found = choices.answers(model, tokenizer, QUESTIONS[:4], bos=bos, examples=SHOWN)
    for question, answer in zip(QUESTIONS, found, strict=False):
        begun = BEGUN if question.subject == "kites" else ""
        expected = [by_hand(model, tokenizer, question, x, begun, bos) for x in "ABCD"]
        assert answer.log_likelihoods == pytest.approx(expected, abs=1e-5)
    plain = choices.answers(model, tokenizer, QUESTIONS[:4], bos=not bos, examples=SHOWN)
    assert all(a != b for a, b in zip(plain, found, strict=True))


class Doubled:
    """A tokenizer of bytes, to which every letter of an answer is two tokens."""

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}


def test_a_letter_of_several_tokens_counts_them_all() -> None:
    torch.manual_seed(0)
    config = SimpleNamespace(max_position_embeddings=10_000)
    table = torch.randn(256, 256, dtype=torch.float64)

    class Bigrams(torch.nn.Module):
        device = torch.device("cpu")

        def __init__(self) -> None:
            super().__init__()
            self.config = config

        def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
            return SimpleNamespace(logits=table[input_ids])

    found = choices.answers(Bigrams(), Doubled(), QUESTIONS[:2])
    steps = table.float().log_softmax(-1)
    for answer in found:
        expected = [(steps[ord(":"), ord(" ")] + steps[ord(" "), ord(x)]).item() for x in "ABCD"]
        assert answer.log_likelihoods == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("bos", [True, False])
def test_it_agrees_with_lm_evaluation_harness(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, bos: bool
) -> None:
    if importlib.util.find_spec("lm_eval") is None:
        pytest.skip("lm-evaluation-harness is not installed")
    from benchmarks.tasks.wmdp import harness

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its dependencies' own
        theirs = harness.answers(model, tokenizer, QUESTIONS, bos=bos, examples=SHOWN)
    ours = choices.answers(model, tokenizer, QUESTIONS, bos=bos, examples=SHOWN)
    assert len({answer.choice for answer in ours}) > 1, "a model with one answer shows nothing"
    for mine, its in zip(ours, theirs, strict=True):
        assert mine.log_likelihoods == pytest.approx(its.log_likelihoods, abs=1e-5)
        assert mine.choice == its.choice


def ending(tokenizer: Any) -> Any:
    """The tokenizer with `add_eos_token`, as many are set up that come from a training."""
    ended = copy.deepcopy(tokenizer)
    ids = [(ended.bos_token, ended.bos_token_id), (ended.eos_token, ended.eos_token_id)]
    whole = f"{ended.bos_token} $A {ended.eos_token}"
    ended.backend_tokenizer.post_processor = TemplateProcessing(whole, special_tokens=ids)
    assert ended("A")["input_ids"][-1] == ended.eos_token_id
    return ended


def test_a_closing_token_of_the_tokenizer_is_not_compared(model: Any, tokenizer: Any) -> None:
    plain = choices.answers(model, tokenizer, QUESTIONS, examples=SHOWN)
    assert choices.answers(model, ending(tokenizer), QUESTIONS, examples=SHOWN) == plain
    assert len({answer.choice for answer in plain}) > 1


def test_lm_eval_which_would_compare_closing_tokens_is_not_asked(tokenizer: Any) -> None:
    from benchmarks.tasks.wmdp import harness

    with pytest.raises(ValueError, match=r"find all letters equal.*--scorer own"):
        harness.answers(None, ending(tokenizer), QUESTIONS)


def test_letters_that_are_the_same_tokens_are_refused(model: Any) -> None:
    unknown = build_tokenizer(["Nothing but this"], replace(RECIPE, tokens="word"))
    with pytest.raises(ValueError, match="two of the letters A, B, C, D are the same tokens"):
        choices.answers(model, unknown, QUESTIONS[:1])


@pytest.mark.parametrize("shots", [0, 2, 5])
def test_prompts_are_those_of_their_own_task(
    shots: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MMLU's template as lm-evaluation-harness ships it, over rows of ours."""
    if importlib.util.find_spec("lm_eval") is None:
        pytest.skip("lm-evaluation-harness is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its dependencies' own
        asked = theirs(QUESTIONS[::2], QUESTIONS[1::2], shots, tmp_path)
    examples = [Question("kites", q.question, q.choices, q.answer) for q in QUESTIONS[1::2]]
    ours = [(prompt(q, examples[:shots]), f" {x}") for q in QUESTIONS[::2] for x in "ABCD"]
    assert asked == ours


def theirs(
    questions: list[Question], examples: list[Question], shots: int, folder: Path
) -> list[tuple[str, str]]:
    """Contexts and continuations that their task of a subject makes."""
    import lm_eval
    import yaml
    from lm_eval.api.task import ConfigurableTask

    file = Path(lm_eval.__file__).parent / "tasks" / "mmlu" / "default" / "_default_template_yaml"
    files = {}
    for split, rows in (("test", questions), ("dev", examples)):
        files[split] = str(folder / f"{split}.jsonl")
        lines = [{"question": q.question, "choices": q.choices, "answer": q.answer} for q in rows]
        Path(files[split]).write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = yaml.safe_load(file.read_text()) | {
        "task": "mmlu_kites",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": files, "cache_dir": str(folder / "cache")},
        "description": (
            "The following are multiple choice questions (with answers) about kites.\n\n"
        ),
        "num_fewshot": shots,
    }
    task = ConfigurableTask(config=config)
    task.build_all_requests(rank=0, world_size=1)
    return [instance.args for instance in task.instances]


def test_a_prompt_that_is_too_long_loses_its_beginning(tokenizer: Any) -> None:
    model = small_llama(tokenizer, RECIPE).eval()
    model.config.max_position_embeddings = 12
    answer = choices.answers(model, tokenizer, QUESTIONS[:1])[0]
    whole = tokenizer(f"{prompt(QUESTIONS[0])} B")["input_ids"]
    count = len(whole) - len(tokenizer(prompt(QUESTIONS[0]))["input_ids"])
    with torch.no_grad():
        said = model(input_ids=torch.tensor([whole[-13:-1]])).logits[0].log_softmax(-1)
    expected = sum(said[at, whole[at]].item() for at in range(-count, 0))
    assert answer.log_likelihoods[1] == pytest.approx(expected, abs=1e-5)
