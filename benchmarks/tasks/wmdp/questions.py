"""Multiple-choice questions in the format of WMDP and MMLU."""

from collections.abc import Sequence
from dataclasses import dataclass

LETTERS = ("A", "B", "C", "D")
PREAMBLE = "The following are multiple choice questions (with answers) about"


@dataclass(frozen=True)
class Question:
    """A question with four choices; its subject as the prompt names it ("high school physics")."""

    subject: str
    question: str
    choices: tuple[str, ...]
    answer: int

    def __post_init__(self) -> None:
        """Check that the question can be asked and scored.

        Raises:
            ValueError: Not four choices, or an answer that is none of the choices.
        """
        if len(self.choices) != len(LETTERS):
            raise ValueError(
                f"{len(self.choices)} choices, and the prompt has the letters A to D. Is this a "
                "question with four choices?"
            )
        if self.answer not in range(len(LETTERS)):
            raise ValueError(
                f"the answer is {self.answer!r}, which is none of the choices. Did you mean a "
                "number from 0 to 3?"
            )


def prompt(question: Question, examples: Sequence[Question] = ()) -> str:
    r"""Return the prompt before the answer, which is `" A"` to `" D"`, with solved examples.

    Source: lm-evaluation-harness, tasks `wmdp_*` and `mmlu` (`sampler: first_n`).

    >>> kite = Question("kites", "What holds a kite? ", ("String", "Tar", "Ice", "Salt"), 0)
    >>> print(prompt(kite))
    The following are multiple choice questions (with answers) about kites.
    <BLANKLINE>
    What holds a kite?
    A. String
    B. Tar
    C. Ice
    D. Salt
    Answer:
    """
    shown = "".join(f"{_format_question(e)} {LETTERS[e.answer]}\n\n" for e in examples)
    return f"{PREAMBLE} {question.subject}.\n\n{shown}{_format_question(question)}"


def _format_question(question: Question) -> str:
    listed = (f"{letter}. {text}\n" for letter, text in zip(LETTERS, question.choices, strict=True))
    return f"{question.question.strip()}\n{''.join(listed)}Answer:"
