"""Small models made from scratch, that learn rows by heart."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.engine.training import Schedule, train_to_memorisation
from torch_alm.language import Row, pad_id

SMALL = 5_000_000  # weights; below, a second thread costs more than it brings
PAD, UNKNOWN, BOS, EOS = SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")


@dataclass(frozen=True)
class Recipe:
    """Sizes and training of a model made from scratch; layers feed forward 8/3 of its width."""

    layers: int
    width: int
    heads: int
    schedule: Schedule


@dataclass(frozen=True)
class Lesson:
    """Rows that a model learns by heart, and what its tokenizer is made from.

    `content`, as JSON, is what the rows are made from: another content, another model. Strings in
    `whole` are one token each, wherever they stand.
    """

    name: str
    texts: tuple[str, ...]
    content: Any
    rows: Callable[[Any], list[Row]]
    whole: tuple[str, ...] = ()


def teach(lesson: Lesson, recipe: Recipe) -> tuple[Any, Any]:
    """Teach a model a lesson until it knows it by heart; `model.config.training` tells how well."""
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
    """Take one thread where a model is small, and say so once: the others would only spin."""
    if torch.get_num_threads() > 1 and sum(p.numel() for p in model.parameters()) < SMALL:
        torch.set_num_threads(1)
        print("The model is small: one thread of the processor is used.", file=sys.stderr)


def build_tokenizer(texts: Iterable[str], whole: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A tokenizer of all words of some texts, lossless on them, that puts BOS first."""
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
    """A Llama with tied embeddings and random weights, for texts of `longest` tokens at least."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.width,
        intermediate_size=recipe.width * 8 // 3 // 16 * 16,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        max_position_embeddings=max(512, longest),
        # the usual 0.02 is made for wide models; with it, this one needs twice as many epochs
        initializer_range=recipe.width**-0.5,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config)
