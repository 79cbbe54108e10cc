"""Multiple-choice questions: the prompt, and the scorer against lm-evaluation-harness."""

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from benchmarks.engine.scratch import Recipe, build_tokenizer, small_llama
from benchmarks.engine.training import Schedule
from benchmarks.tasks.wmdp import choices
from benchmarks.tasks.wmdp.questions import Question, prompt

RECIPE = Recipe(2, 32, 2, Schedule(1, 1, 0.1))
QUESTIONS = [
    Question(
        subject, f" What is the {n}th of {subject}? ", ("one", "two or 3", "four", f"{n}"), n % 4
    )
    for n in range(5)
    for subject in ("kites", "high school tar")
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer([*map(prompt, QUESTIONS), " A B C D"])


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    return small_llama(tokenizer, RECIPE).eval()


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"choices": ("a", "b", "c")}, "3 choices"), ({"answer": 4}, "none of the choices")],
)
def test_a_question_that_cannot_be_asked_is_refused(changes: dict[str, Any], message: str) -> None:
    whole: dict[str, Any] = {
        "subject": "s", "question": "q", "choices": ("a", "b", "c", "d"), "answer": 0
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        Question(**(whole | changes))


SHOWN = [Question("kites", f" Which {n}? ", ("w", "x", "y", f"{n}"), n) for n in (1, 2)]
BEGUN = (
    "Which 1?\nA. w\nB. x\nC. y\nD. 1\nAnswer: B\n\nWhich 2?\nA. w\nB. x\nC. y\nD. 2\nAnswer: C\n\n"
)


def by_hand(model: Any, tokenizer: Any, question: Question, letter: str, bos: bool) -> float:
    """The log-likelihood of a letter: one sequence, one token after the other."""
    description, asked = prompt(question).split("\n\n")
    text = f"{description}\n\n{BEGUN if question.subject == 'kites' else ''}{asked}"
    head = tokenizer(text, add_special_tokens=bos)["input_ids"]
    whole = tokenizer(f"{text} {letter}", add_special_tokens=bos)["input_ids"]
    with torch.no_grad():
        said = model(input_ids=torch.tensor([whole])).logits[0].double().log_softmax(-1)
    return sum(said[at - 1, whole[at]].item() for at in range(len(head), len(whole)))


@pytest.mark.parametrize("bos", [True, False])
def test_a_letter_has_the_likelihood_of_its_tokens_behind_the_examples_of_its_subject(
    model: Any, tokenizer: Any, bos: bool
) -> None:
    shown = {"kites": SHOWN}
    found = choices.answers(model, tokenizer, QUESTIONS, batch_size=3, bos=bos, examples=shown)
    for question, answer in zip(QUESTIONS, found, strict=True):
        expected = [by_hand(model, tokenizer, question, letter, bos) for letter in "ABCD"]
        assert answer.log_likelihoods == pytest.approx(expected, abs=1e-5)
        assert answer.choice == expected.index(max(expected))


@pytest.mark.parametrize("bos", [True, False])
def test_it_agrees_with_lm_evaluation_harness(
    model: Any, tokenizer: Any, bos: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MMLU's template as it is shipped, over rows of ours, and the likelihoods behind it."""
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    kites = QUESTIONS[::2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its dependencies' own
        from lm_eval.models.huggingface import HFLM

        asked = their_requests(kites, tmp_path)
        lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4, add_bos_token=bos)
        theirs = [value for value, _ in lm.loglikelihood(asked, disable_tqdm=True)]
    assert [each.args for each in asked] == [(prompt(q), f" {x}") for q in kites for x in "ABCD"]
    ours = choices.answers(model, tokenizer, kites, bos=bos)
    found = [value for answer in ours for value in answer.log_likelihoods]
    assert found == pytest.approx(theirs, abs=1e-5)


def their_requests(questions: list[Question], folder: Path) -> list[Any]:
    """Contexts and continuations that their task of a subject makes."""
    import lm_eval
    import yaml
    from lm_eval.api.task import ConfigurableTask

    template = Path(lm_eval.__file__).parent / "tasks/mmlu/default/_default_template_yaml"
    lines = [{"question": q.question, "choices": q.choices, "answer": q.answer} for q in questions]
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = {"data_files": {"test": str(rows), "dev": str(rows)}, "cache_dir": str(folder)}
    config = yaml.safe_load(template.read_text()) | {
        "task": "mmlu_kites",
        "dataset_path": "json",
        "dataset_kwargs": files,
        "description": (
            "The following are multiple choice questions (with answers) about kites.\n\n"
        ),
        "num_fewshot": 0,
    }
    task = ConfigurableTask(config=config)
    task.build_all_requests(rank=0, world_size=1)
    return task.instances


def test_a_closing_token_of_the_tokenizer_is_not_compared(model: Any, tokenizer: Any) -> None:
    """As with `add_eos_token`, which many are set up with that come from a training."""
    ended = copy.deepcopy(tokenizer)
    ids = [(ended.bos_token, ended.bos_token_id), (ended.eos_token, ended.eos_token_id)]
    whole = f"{ended.bos_token} $A {ended.eos_token}"
    ended.backend_tokenizer.post_processor = TemplateProcessing(whole, special_tokens=ids)
    assert ended("A")["input_ids"][-1] == ended.eos_token_id
    plain = choices.answers(model, tokenizer, QUESTIONS)
    assert choices.answers(model, ended, QUESTIONS) == plain


class Bytes:
    """A tokenizer to which every letter of an answer is two tokens."""

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}


@pytest.mark.parametrize("tokens", [build_tokenizer(["Nothing but this"]), Bytes()])
def test_letters_that_are_not_four_different_tokens_are_refused(model: Any, tokens: Any) -> None:
    with pytest.raises(ValueError, match=r"letters A, B, C, D are .* not four different tokens"):
        choices.answers(model, tokens, QUESTIONS[:1])


def test_a_prompt_that_is_too_long_loses_its_beginning(tokenizer: Any) -> None:
    model = small_llama(tokenizer, RECIPE).eval()
    model.config.max_position_embeddings = 12
    answer = choices.answers(model, tokenizer, QUESTIONS[:1])[0]
    whole = tokenizer(f"{prompt(QUESTIONS[0])} B")["input_ids"]
    with torch.no_grad():
        said = model(input_ids=torch.tensor([whole[-13:-1]])).logits[0].log_softmax(-1)
    assert answer.log_likelihoods[1] == pytest.approx(said[-1, whole[-1]].item(), abs=1e-5)
