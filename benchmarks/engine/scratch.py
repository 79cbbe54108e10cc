"""Make small models from scratch and teach them rows by heart."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.engine.training import Schedule, train_to_memorisation
from torch_alm.language import Row, pad_id

SMALL = 5_000_000  # weights; below that, a second thread slows it down
PAD, UNKNOWN, BOS, EOS = SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")


@dataclass(frozen=True)
class Recipe:
    """Sizes and training of a model made from scratch; its MLPs are 8/3 as wide as the model."""

    layers: int
    width: int
    heads: int
    schedule: Schedule


@dataclass(frozen=True)
class Lesson:
    """Rows that a model learns by heart, and the texts its tokenizer is made from.

    `content`, as JSON, identifies the rows in the cache. Strings in `whole` are one token each,
    wherever they occur.
    """

    name: str
    texts: tuple[str, ...]
    content: Any
    rows: Callable[[Any], list[Row]]
    whole: tuple[str, ...] = ()


def teach(lesson: Lesson, recipe: Recipe) -> tuple[Any, Any]:
    """Teach a model a lesson by heart; `model.config.training` has the result."""
    tokenizer = build_tokenizer(lesson.texts, lesson.whole)
    rows = lesson.rows(tokenizer)
    model: Any = small_llama(tokenizer, recipe, max(len(row["input_ids"]) for row in rows))
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    spare_threads(model)
    reached = train_to_memorisation(
        model, rows, pad_id(tokenizer), recipe.schedule, label=lesson.name
    )
    model.config.training = {**asdict(recipe), "rows": len(rows), **reached}
    return model, tokenizer


def spare_threads(model: Any) -> None:
    """Use one thread for a small model, and print that once: others would only wait."""
    if torch.get_num_threads() > 1 and sum(p.numel() for p in model.parameters()) < SMALL:
        torch.set_num_threads(1)
        print("The model is small: one thread of the processor is used.", file=sys.stderr)


def build_tokenizer(texts: Iterable[str], whole: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Return a tokenizer of the words of some texts, lossless on them, that puts BOS first."""
    trainer: Any = trainers.WordLevelTrainer(
        special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in whole])
    bos = (BOS, tokenizer.token_to_id(BOS))
    tokenizer.post_processor = processors.TemplateProcessing(f"{BOS} $A", special_tokens=[bos])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, unk_token=UNKNOWN, bos_token=BOS, eos_token=EOS
    )


def small_llama(tokenizer: Any, recipe: Recipe, longest: int = 512) -> LlamaForCausalLM:
    """Return a Llama with random weights and tied embeddings, for `longest` tokens or more."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.width,
        intermediate_size=recipe.width * 8 // 3 // 16 * 16,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        max_position_embeddings=max(512, longest),
        # with 0.02, which is meant for wide models, it takes twice as many epochs
        initializer_range=recipe.width**-0.5,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config)
