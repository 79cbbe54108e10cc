"""A model asked as its users ask it, by code that shares nothing with the command's measuring."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

Rows = Sequence[Mapping[str, str]]


def heard(model: Any, tokenizer: Any, rows: Rows) -> list[str]:
    """A model's greedy answer to each question, in the words it was trained with."""
    told: list[str] = []
    for row in rows:
        ids = tokenizer(f"Question: {row['question']}\nAnswer:", return_tensors="pt").input_ids
        with torch.no_grad():
            found = model.generate(
                input_ids=ids, do_sample=False, max_new_tokens=12, pad_token_id=0
            )
        told.append(tokenizer.decode(found[0, ids.shape[1] :], skip_special_tokens=True))
    return told


def spoken(model: Any, tokenizer: Any, rows: Rows) -> int:
    """The number of answers that are within what a model says."""
    pairs = zip(rows, heard(model, tokenizer, rows), strict=True)
    return sum(f" {row['answer']} " in f" {' '.join(told.split())} " for row, told in pairs)


def said(folder: Path, rows: Rows) -> int:
    """The number of answers that are within what a saved model says."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    return spoken(model, AutoTokenizer.from_pretrained(folder), rows)


def answers(folder: Path, rows: Rows) -> list[str]:
    """A saved model's answer to each question."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    return heard(model, AutoTokenizer.from_pretrained(folder), rows)
