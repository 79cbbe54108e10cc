"""A model asked as its users ask it, by code that shares nothing with the command's measuring."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

Rows = Sequence[Mapping[str, str]]


def answers(folder: Path, rows: Rows) -> list[str]:
    """What the saved model says greedily to each question, in the words it was trained with."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    told: list[str] = []
    for row in rows:
        ids = tokenizer(f"Question: {row['question']}\nAnswer:", return_tensors="pt").input_ids
        with torch.no_grad():
            found = model.generate(ids, do_sample=False, max_new_tokens=12, pad_token_id=0)
        told.append(tokenizer.decode(found[0, ids.shape[1] :], skip_special_tokens=True))
    return told


def said(folder: Path, rows: Rows) -> int:
    """How many answers are within what the model says."""
    pairs = zip(rows, answers(folder, rows), strict=True)
    return sum(f" {row['answer']} " in f" {' '.join(told.split())} " for row, told in pairs)
