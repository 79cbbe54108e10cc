"""A tiny model, rows to ask it, and words for its tokens."""

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from tests.models import llama

ROWS = [
    {"input_ids": [1, 2, 3 + i, 4 + i, 0], "labels": [-100, -100, 3 + i, 4 + i, 0]}
    for i in range(4)
]


@pytest.fixture
def model() -> Any:
    return llama(12, intermediate_size=32).eval()


class Words:
    """All that a reading asks of a tokenizer: token n is the word wn, and 0 ends an answer."""

    eos_token_id = pad_token_id = 0
    eos_token = "w0"
    unk_token_id = chat_template = None
    added_tokens_decoder: ClassVar[dict[int, Any]] = {}

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return " ".join(f"w{token}" for token in ids if token or not skip_special_tokens)


@pytest.fixture
def parrot(model: Any) -> Any:
    """A model that says w7 whatever it is asked."""
    model.lm_head = nn.Linear(16, 12)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.copy_(torch.eye(12)[7])
    return model


@torch.no_grad()
def asked(model: Any, row: Any) -> tuple[float, str]:
    """The loss of the answer, and what the model says, at most 3 + 8 words."""
    ids, start, said = row["input_ids"], row["labels"].count(-100), list[int]()
    logits = model(torch.tensor([ids])).logits[0, start - 1 : -1]
    while len(said) < 3 + 8:
        said.append(int(model(torch.tensor([ids[:start] + said])).logits[0, -1].argmax()))
        if said[-1] == 0:
            break
    text = " ".join(f"w{token}" for token in said if token)
    return float(nn.functional.cross_entropy(logits, torch.tensor(ids[start:]))), text
