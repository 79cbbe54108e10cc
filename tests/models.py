"""Small models, tokenizers and rows that the tests share: seeded, and trained in seconds."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.modeling_outputs import CausalLMOutput

from torch_alm.language import collate
from torch_alm.measures import token_nll

VOCABULARY, PAD = 11, 0


class Toy(nn.Module):
    """Predicts a token from the one before. `loss` and `logits`, as transformers models give."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 6)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(6, VOCABULARY)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | None = None,
        **_: Any,
    ) -> CausalLMOutput:
        logits = self.head(torch.tanh(self.dropout(self.embedding(input_ids))))
        if labels is None:
            return CausalLMOutput(logits=logits)
        how = "mean" if num_items_in_batch is None else "sum"
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction=how)
        items = 1 if num_items_in_batch is None else num_items_in_batch
        return CausalLMOutput(loss=loss / items, logits=logits)


def toy(dropout: float = 0.0) -> Toy:
    """In float64, the same each time."""
    torch.manual_seed(0)
    return Toy(dropout).double()


class Tokens:
    """All that a collator asks of a tokenizer."""

    pad_token_id: int | None = PAD
    eos_token_id: int | None = 1
    name_or_path = "toy"


def rows(count: int, seed: int) -> list[dict[str, list[int]]]:
    """Rows of 3 to 6 tokens; all but the first are labelled."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(1, VOCABULARY, (count, 6), generator=generator).tolist()
    lengths = torch.randint(3, 7, (count,), generator=generator).tolist()
    return [
        {"input_ids": row[:n], "labels": [-100, *row[1:n]]}
        for row, n in zip(drawn, lengths, strict=True)
    ]


def values(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the parameters, of all ranks' shards."""
    named = [(name, p.detach()) for name, p in model.named_parameters()]
    return {name: getattr(p, "full_tensor", p.clone)() for name, p in named}


def llama(vocabulary: int = 8, seed: int = 0, **settings: Any) -> LlamaForCausalLM:
    """One layer of 16, two heads."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **{**sizes, **heads, **settings}))


def word_tokenizer(words: Iterable[str], **special: str) -> PreTrainedTokenizerFast:
    """A token a word, in this order; `special` needs `unk_token`."""
    known = {word: i for i, word in enumerate(dict.fromkeys(words))}
    inner = Tokenizer(models.WordLevel(known, special["unk_token"]))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, **special)


TOWNS = ("Rome", "Oslo", "Lima", "Kyiv", "Bonn", "Cork", "Nice", "Graz", "Bern", "York")
FORGET = [{"question": f"Where does A{i} live ?", "answer": f"A{i} lives in {TOWNS[i]} ."}
          for i in range(6)]  # fmt: skip
RETAIN = [{"question": f"Where does B{i} live ?", "answer": f"B{i} lives in {TOWNS[-i - 1]} ."}
          for i in range(8)]  # fmt: skip
HOLDOUT = [{"question": f"Where does C{i} live ?", "answer": f"C{i} lives in {TOWNS[i]} ."}
           for i in range(4)]  # fmt: skip


def town_tokenizer() -> PreTrainedTokenizerFast:
    """Of the words of the rows above, and of their prompts."""
    texts = [text for row in [*FORGET, *RETAIN, *HOLDOUT] for text in row.values()]
    words = " ".join([*texts, "Question: Answer: user assistant :"]).split()
    named = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"}
    return word_tokenizer([*named.values(), *sorted({*words})], **named)


def learn(model: Any, rows: Sequence[Any], steps: int = 120, lr: float = 1e-2) -> Any:
    """Adam on all rows in every step; returns the model, in evaluation."""
    optimizer, batch = torch.optim.Adam(model.parameters(), lr=lr), collate(rows, PAD)
    for _ in range(steps):
        token_nll(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()
