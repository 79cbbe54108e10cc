"""SAUL's entailment judge: whether a model's answer says the same as the reference."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report.results import ResultsFolder, Row, write_lines
from benchmarks.tasks.tofu.chat import Chat
from benchmarks.tasks.tofu.metrics import harmonic_mean
from benchmarks.tasks.tofu.summary import NEIGHBOURS, SUBSETS, Numbers

Rows = Sequence[Mapping[str, Any]]

# The template is the one printed in SAUL, appendix "GPT-based Evaluation Protocol", word for word:
# another wording would measure something else.
PROMPT = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").rstrip("\n")


def parse_score(reply: str) -> int | None:
    """Return 0 or 1 if the reply is that digit and white space alone, otherwise `None`.

    >>> parse_score(" 1 "), parse_score("0"), parse_score("1 = entailment"), parse_score("10")
    (1, 0, None, None)
    """
    return {"0": 0, "1": 1}.get(reply.strip())


def judge(rows: Rows, chat: Chat) -> list[int | None]:
    """Judge each row with a generation; `None` for others, and for an unparsable reply.

    Cost: one request per question that the chat's cache does not hold.
    """
    names = ("question", "generation", "reference")
    judged = [row for row in rows if row["generation"] is not None]
    prompts = [PROMPT.format(**{name: row[name] for name in names}) for row in judged]
    scores = iter(chat.ask(prompts, parse_score))
    return [None if row["generation"] is None else next(scores) for row in rows]


def judge_scores(rows: Rows, judgements: Sequence[int | None]) -> Numbers:
    """Return percentages of ones per subset, and the harmonic mean of the three utility subsets.

    `judge_forget`, `judge_retain`, `judge_real_authors`, `judge_world_facts`, `judge_hm` (0 if
    one of the three is 0, `None` if one is missing), all in percent over the judged rows, and
    `judge_missing`, how many rows with a generation have no judgement.

    Source: SAUL, appendix "GPT-based Evaluation Protocol"; HM as in its TOFU tables.
    """
    numbers: Numbers = {}
    pairs = list(zip(rows, judgements, strict=True))
    for name in SUBSETS:
        scores = [s for row, s in pairs if row["subset"] == name and s is not None]
        numbers[f"judge_{name}"] = 100 * float(np.mean(scores)) if scores else None
    utility = [numbers[f"judge_{name}"] for name in ("retain", *NEIGHBOURS)]
    known = [value for value in utility if value is not None]
    numbers["judge_hm"] = harmonic_mean(known) if len(known) == len(utility) else None
    numbers["judge_missing"] = sum(
        row["generation"] is not None and score is None for row, score in pairs
    )
    return numbers


def judge_folder(folder: ResultsFolder, chat: Chat) -> None:
    """Add the judge's percentages to every finished run."""

    def judge_run(run: Row) -> Row:
        rows = folder.read("answers", run["method"], run["seed"])
        return run | judge_scores(rows, judge(rows, chat))

    write_lines(folder.results, [judge_run(run) for run in folder.rows()])
