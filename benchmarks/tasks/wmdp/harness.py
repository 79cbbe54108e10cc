"""Accuracies through lm-evaluation-harness, whose numbers the literature reports."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.engine.tokens import token_ids
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

    `bos` is said outright, so that every version does the same; each subject becomes a task.

    Raises:
        ValueError: The tokenizer ends texts by a token of its own, which lm-eval would compare with
            itself.

    Cost: one forward pass per question where a letter is one token.
    """
    if token_ids(tokenizer, "A") != tokenizer("A")["input_ids"]:
        raise ValueError(
            f"{type(tokenizer).__name__} puts a token behind every text, so that lm-eval would "
            "find all letters equal. Did you mean tokenizer.add_eos_token = False, or --scorer own?"
        )
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    by_subject: dict[str, list[int]] = {}
    for i, question in enumerate(questions):
        by_subject.setdefault(question.subject, []).append(i)
    tasks = {f"choices_{n}": places for n, places in enumerate(by_subject.values())}
    with tempfile.TemporaryDirectory() as folder:
        found = simple_evaluate(
            model=HFLM(
                pretrained=model, tokenizer=tokenizer, batch_size=batch_size, add_bos_token=bos
            ),
            tasks=[
                _task(name, [questions[i] for i in places], examples, Path(folder))
                for name, places in tasks.items()
            ],
            task_manager=TaskManager(include_defaults=False),  # reading all of lm-eval's takes 15 s
            bootstrap_iters=0,
            log_samples=True,
            verbosity="ERROR",
        )
    said = {
        tasks[name][sample["doc_id"]]: tuple(float(reply[0]) for reply in sample["filtered_resps"])
        for name, samples in found["samples"].items()
        for sample in samples
    }
    return [Answer(said[i]) for i in range(len(questions))]


def _task(
    name: str, questions: Sequence[Question], known: Examples, folder: Path
) -> dict[str, Any]:
    """lm-eval's task of one subject: its own templates, over files of ours."""
    examples = known.get(questions[0].subject, ())
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
