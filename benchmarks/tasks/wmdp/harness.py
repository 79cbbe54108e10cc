"""Accuracies through lm-evaluation-harness, whose numbers the literature reports."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.tasks.wmdp.choices import NO_EXAMPLES, Answer, Examples
from benchmarks.tasks.wmdp.questions import LETTERS, Question, description

LISTED = "".join(f"{letter}. {{{{choices[{i}]}}}}\n" for i, letter in enumerate(LETTERS))


def is_installed() -> bool:
    """Tell whether lm-evaluation-harness is there."""
    return find_spec("lm_eval") is not None


def answers(
    model: Any,
    tokenizer: Any,
    questions: Sequence[Question],
    batch_size: int = 16,
    *,
    bos: bool = True,
    examples: Examples = NO_EXAMPLES,
) -> list[Answer]:
    """Answer as `choices.answers` does, through lm-evaluation-harness with files of our own.

    Args:
        model: A causal language model of transformers.
        tokenizer: Its tokenizer.
        questions: Of any subjects; each subject becomes a task.
        batch_size: Prompts per forward pass.
        bos: As in `choices.answers`; said outright, so that every version does the same.
        examples: As in `choices.answers`.

    Cost: one forward pass per question where a letter is one token.
    """
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    by_subject: dict[str, list[int]] = {}
    for i, question in enumerate(questions):
        by_subject.setdefault(question.subject, []).append(i)
    with tempfile.TemporaryDirectory() as folder:
        tasks = {
            f"choices_{n}": [questions[i] for i in places]
            for n, places in enumerate(by_subject.values())
        }
        found = simple_evaluate(
            model=HFLM(
                pretrained=model, tokenizer=tokenizer, batch_size=batch_size, add_bos_token=bos
            ),
            tasks=[
                _task(name, asked, examples.get(asked[0].subject, ()), Path(folder))
                for name, asked in tasks.items()
            ],
            task_manager=TaskManager(include_defaults=False),  # reading all of lm-eval's takes 15 s
            bootstrap_iters=0,
            log_samples=True,
            verbosity="ERROR",
        )
    return _in_order(found["samples"], tasks, by_subject, len(questions))


def _task(
    name: str, questions: Sequence[Question], examples: Sequence[Question], folder: Path
) -> dict[str, Any]:
    """lm-eval's task of one subject: its own templates, over files of ours."""
    files = {"test": folder / f"{name}.jsonl", "dev": folder / f"{name}_dev.jsonl"}
    _write(files["test"], questions)
    _write(files["dev"], examples or questions[:1])  # a split must have a row
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {split: str(file) for split, file in files.items()},
            "cache_dir": str(folder / "cache"),
        },
        "test_split": "test",
        "fewshot_split": "dev",
        "fewshot_config": {"sampler": "first_n"},
        "num_fewshot": len(examples),
        "output_type": "multiple_choice",
        "description": description(questions[0].subject),
        "doc_to_text": f"{{{{question.strip()}}}}\n{LISTED}Answer:",
        "doc_to_choice": list(LETTERS),
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }


def _write(file: Path, questions: Sequence[Question]) -> None:
    rows = ({"question": q.question, "choices": q.choices, "answer": q.answer} for q in questions)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _in_order(
    samples: Mapping[str, Any],
    tasks: Mapping[str, Sequence[Question]],
    by_subject: Mapping[str, list[int]],
    count: int,
) -> list[Answer]:
    """lm-eval's samples, back in the order of the questions."""
    found: dict[int, Answer] = {}
    for name, places in zip(tasks, by_subject.values(), strict=True):
        for sample in samples[name]:
            likelihoods = tuple(float(reply[0]) for reply in sample["filtered_resps"])
            found[places[sample["doc_id"]]] = Answer(likelihoods)
    return [found[i] for i in range(count)]
