"""Rephrased questions for evaluation, made by a chat model or read from a file.

Source: SAUL, appendix "Paraphrased ToFU Construction and Validation". Training never sees them.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.report.results import write_lines
from benchmarks.tasks.tofu.chat import Chat
from benchmarks.tasks.tofu.data import Example, TofuData
from torch_alm.language import read_records

ASKED = ("forget_eval", "retain_eval", "real_authors", "world_facts")

# The instruction is the one printed in SAUL, appendix "Paraphrase Generation", word for word. The
# appendix does not show where the question stood; here it follows.
PROMPT = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").rstrip("\n")


def questions(data: TofuData) -> list[str]:
    """Return every question of the evaluation, once, in order."""
    return list(dict.fromkeys(e.question for name in ASKED for e in getattr(data, name)))


def generate_paraphrases(asked: Sequence[str], chat: Chat, path: Path) -> dict[str, str]:
    """Write a paraphrase per question, of one line and other than the question, to a file.

    Cost: one request per question that the chat's cache does not hold.
    """
    prompts = [PROMPT.format(question=question) for question in asked]
    replies = chat.ask(prompts, _one_line)
    pairs = [(q, r) for q, r in zip(asked, replies, strict=True) if r not in (None, q)]
    write_lines(path, [{"question": q, "paraphrased_question": r} for q, r in pairs])
    return {question: str(reply) for question, reply in pairs}


def _one_line(reply: str) -> str | None:
    text = reply.strip()
    return text if text and "\n" not in text else None


def read_paraphrases(path: Path) -> dict[str, str]:
    """Read lines of `question` and `paraphrased_question`.

    Raises:
        ValueError: A line lacks one of the two or has an empty one; names the line.
    """
    rows = read_records(path)
    return {row.text("question"): row.text("paraphrased_question") for row in rows}


def with_paraphrases(data: TofuData, paraphrases: Mapping[str, str]) -> TofuData:
    """Replace the questions of the evaluation by their paraphrases; the answers stay.

    Raises:
        ValueError: A question has no paraphrase: numbers would mix two kinds of questions.
    """
    missing = [question for question in questions(data) if question not in paraphrases]
    if missing:
        raise ValueError(
            f"with_paraphrases found none for {len(missing)} of {len(questions(data))} questions, "
            f"the first being {missing[0]!r}. Were the paraphrases made for another split?"
        )

    def reword(examples: tuple[Example, ...]) -> tuple[Example, ...]:
        return tuple(
            dataclasses.replace(e, paraphrased_question=paraphrases[e.question]) for e in examples
        )

    return dataclasses.replace(data, **{name: reword(getattr(data, name)) for name in ASKED})
