"""Accuracy on multiple-choice questions: the most likely letter, in lm-evaluation-harness's way."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.engine.tokens import token_ids
from benchmarks.tasks.wmdp.questions import LETTERS, Question, prompt

DEFAULT_LENGTH = 2048  # lm-eval's, for a model that does not say how much it can read


class Answer(NamedTuple):
    """An answer to a question: log-likelihoods of the four letters, in nats."""

    log_likelihoods: tuple[float, ...]

    @property
    def choice(self) -> int:
        """The most likely letter, the first of several."""
        return max(range(len(LETTERS)), key=lambda i: self.log_likelihoods[i])


class _Asked(NamedTuple):
    """One continuation: what the model reads, and the tokens it is asked about at the end."""

    read: tuple[int, ...]
    said: tuple[int, ...]


def answers(
    model: Any,
    tokenizer: Any,
    questions: Sequence[Question],
    batch_size: int = 16,
    *,
    bos: bool = True,
) -> list[Answer]:
    """The log-likelihood of each letter after each question.

    Prompt and letter are encoded together and the letter's tokens are those behind the prompt's,
    so that a tokenizer may merge what it likes. What it adds at the end is left out. Prompts that
    are too long lose their beginning. Without `bos` they begin with nothing, as in lm-eval up to
    0.4.9.1.

    Raises:
        ValueError: Two letters are the same tokens, so that nothing could be told from them.

    Cost: one forward pass per question where a letter is one token, four otherwise; the model's
    mode stays and nothing is drawn from the random state.

    Source: lm-evaluation-harness (`multiple_choice`, `acc`); ties go to the first letter there too.
    """
    longest = getattr(model.config, "max_position_embeddings", None) or DEFAULT_LENGTH
    asked = [
        _encoded(tokenizer, (text, f"{text} {letter}"), longest, bos)
        for question in questions
        for text in [prompt(question)]
        for letter in LETTERS
    ]
    width = len(LETTERS)
    for i in range(0, len(asked), width):
        if len({item.said for item in asked[i : i + width]}) < width:
            raise ValueError(
                f"for {type(tokenizer).__name__} two of the letters {', '.join(LETTERS)} are the "
                f"same tokens behind {questions[i // width].question!r}; the first of them would "
                "always win. Is it a tokenizer for text?"
            )
    found = _log_likelihoods(model, asked, batch_size)
    return [Answer(tuple(found[i : i + width])) for i in range(0, len(found), width)]


def _encoded(tokenizer: Any, texts: tuple[str, str], longest: int, bos: bool) -> _Asked:
    """A prompt with and without its continuation."""
    head, whole = (token_ids(tokenizer, text, bos=bos) for text in texts)
    said = whole[len(head) :]
    return _Asked(tuple([*head, *said][-(longest + 1) :][:-1]), tuple(said))


@torch.no_grad()
def _log_likelihoods(model: Any, asked: Sequence[_Asked], batch_size: int) -> list[float]:
    """Each continuation's; what several of them have the model read is read once."""
    tails: dict[tuple[int, ...], Tensor] = {}
    wanted = {item.read: len(item.said) for item in sorted(asked, key=lambda i: len(i.said))}
    was_training = model.training
    model.eval()
    try:
        for reads in _batches(list(wanted), batch_size):
            tails.update(zip(reads, _tails(model, reads, wanted), strict=True))
    finally:
        model.train(was_training)
    return [
        sum(float(tails[i.read][-len(i.said) + at, token]) for at, token in enumerate(i.said))
        for i in asked
    ]


def _tails(
    model: Any, reads: Sequence[tuple[int, ...]], wanted: dict[tuple[int, ...], int]
) -> list[Tensor]:
    """Log-probabilities behind the last tokens of each row, as many as it is asked about."""
    width = max(map(len, reads))
    ids = torch.tensor([[*read, *[0] * (width - len(read))] for read in reads])
    mask = torch.tensor([[1] * len(read) + [0] * (width - len(read)) for read in reads])
    logits = model(
        input_ids=ids.to(model.device), attention_mask=mask.to(model.device), use_cache=False
    ).logits
    return [
        logits[row, len(read) - wanted[read] : len(read)].float().log_softmax(-1).cpu()
        for row, read in enumerate(reads)
    ]


def _batches(reads: list[tuple[int, ...]], batch_size: int) -> Iterator[list[tuple[int, ...]]]:
    """By falling length: little padding, and memory peaks in the first batch."""
    ordered = sorted(reads, key=len, reverse=True)
    for start in range(0, len(ordered), batch_size):
        yield ordered[start : start + batch_size]
