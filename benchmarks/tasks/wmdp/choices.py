"""Accuracy on multiple-choice questions by the most likely letter, as lm-evaluation-harness."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from benchmarks.engine.tokens import token_ids
from benchmarks.tasks.wmdp.questions import LETTERS, Question, prompt

Examples = Mapping[str, Sequence[Question]]  # by subject
DEFAULT_LENGTH = 2048  # as in lm-eval, for a model without a maximum


class Answer(NamedTuple):
    """An answer to a question: log-likelihoods of the four letters, in nats."""

    log_likelihoods: tuple[float, ...]

    @property
    def choice(self) -> int:
        """The most likely letter, the first of several."""
        return max(range(len(LETTERS)), key=lambda i: self.log_likelihoods[i])


def answers(
    model: Any,
    tokenizer: Any,
    questions: Sequence[Question],
    batch_size: int = 16,
    *,
    bos: bool = True,
    examples: Examples = MappingProxyType({}),
) -> list[Answer]:
    """Return the log-likelihood of each letter after the examples of its subject and the question.

    Prompt and letter are encoded together; the letter's token is the one behind the prompt. An EOS
    of the tokenizer is left out. Prompts that are too long lose their beginning. Without `bos` they
    have no BOS, as in lm-eval up to 0.4.9.1.

    Raises:
        ValueError: The letters are not four different tokens.

    Cost: one forward pass per question; the model's mode stays and nothing is drawn from the random
    state.

    Source: lm-evaluation-harness (`multiple_choice`, `acc`); ties go to the first letter there too.
    """
    longest = getattr(model.config, "max_position_embeddings", None) or DEFAULT_LENGTH
    asked = [
        _encode(tokenizer, prompt(question, examples.get(question.subject, ())), longest, bos)
        for question in questions
    ]
    ordered = sorted(range(len(asked)), key=lambda i: -len(asked[i].read))  # little padding
    found: dict[int, Answer] = {}
    was_training = model.training
    model.eval()
    try:
        for start in range(0, len(ordered), batch_size):
            some = ordered[start : start + batch_size]
            found |= zip(some, _score_letters(model, [asked[i] for i in some]), strict=True)
    finally:
        model.train(was_training)
    return [found[i] for i in range(len(asked))]


class _Prompt(NamedTuple):
    """The tokens of a prompt, and the token of each letter behind it."""

    read: list[int]
    letters: list[int]


def _encode(tokenizer: Any, text: str, longest: int, bos: bool) -> _Prompt:
    head, *whole = (
        token_ids(tokenizer, each, bos=bos) for each in (text, *(f"{text} {x}" for x in LETTERS))
    )
    said = [ids[len(head) :] for ids in whole]
    if {*map(len, said)} != {1} or len({ids[0] for ids in said}) < len(LETTERS):
        raise ValueError(
            f"for {type(tokenizer).__name__} the letters {', '.join(LETTERS)} are {said} behind "
            f"{text[-60:]!r}, and not four different tokens; their likelihoods would not "
            "tell which is meant. Is it a tokenizer for text?"
        )
    return _Prompt(head[-longest:], [token for (token,) in said])


@torch.no_grad()
def _score_letters(model: Any, asked: Sequence[_Prompt]) -> list[Answer]:
    """Return the letters' log-probabilities behind the last token of each row."""
    width = max(len(item.read) for item in asked)
    ids = torch.tensor([[*read, *[0] * (width - len(read))] for read, _ in asked])
    mask = torch.tensor([[1] * len(read) + [0] * (width - len(read)) for read, _ in asked])
    logits = model(
        input_ids=ids.to(model.device), attention_mask=mask.to(model.device), use_cache=False
    ).logits
    behind = [
        logits[row, len(read) - 1].float().log_softmax(-1) for row, (read, _) in enumerate(asked)
    ]
    return [
        Answer(tuple(each[item.letters].tolist())) for each, item in zip(behind, asked, strict=True)
    ]
