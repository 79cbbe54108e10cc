"""Small models that learn rows by heart, from random weights or from what they read before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.engine.prose import blocks
from benchmarks.engine.training import Schedule, train_to_memorisation
from torch_alm.language import Row, pad_id
from torch_alm.unlearning.models import load_model

PAD, UNKNOWN, BOS, EOS = SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")


@dataclass(frozen=True)
class Recipe:
    """Tokenizer, sizes and training of a model made from scratch.

    Attributes:
        tokens: `"word"`, every word of the data is a token; or `"bpe"`, byte pairs.
        vocabulary: Most tokens a BPE may have.
        layers: Transformer blocks.
        width: Size of the hidden state; the feed-forward layers have about 8/3 of it.
        heads: Attention heads.
        schedule: How to train it.
    """

    tokens: Literal["word", "bpe"]
    vocabulary: int
    layers: int
    width: int
    heads: int
    schedule: Schedule


@dataclass(frozen=True)
class Lesson:
    """Rows that a model learns by heart.

    Attributes:
        name: Of the folder the model is kept in.
        texts: What the tokenizer is made from.
        content: What the rows are made from, as JSON: another content, another model.
        rows: The rows to learn, given the tokenizer.
        whole: Strings that are one token each, wherever they stand.
        base: Folder of a pretrained model to teach; None for random weights and a tokenizer made
            from `texts`.
        replay: Texts that the base has read, of which it goes on reading while it is taught.
    """

    name: str
    texts: tuple[str, ...]
    content: Any
    rows: Callable[[Any], list[Row]]
    whole: tuple[str, ...] = ()
    base: Path | None = None
    replay: tuple[str, ...] = ()


def teach(lesson: Lesson, recipe: Recipe, seed: int, label: str | None) -> tuple[Any, Any]:
    """Teach a model a lesson until it knows it by heart; `model.config.training` tells how well.

    Args:
        lesson: What to learn.
        recipe: Tokenizer, model and training; with a base only the training.
        seed: Of weights and batch order.
        label: Of the progress bar; None for none.
    """
    if lesson.base is None:
        tokenizer = build_tokenizer(lesson.texts, recipe, lesson.whole)
        rows = lesson.rows(tokenizer)
        longest = max(len(row["input_ids"]) for row in rows)
        model: Any = small_llama(tokenizer, recipe, seed, longest)
    else:
        model, tokenizer = load_model(lesson.base)
        rows = lesson.rows(tokenizer)
    reached = train_to_memorisation(
        model.to("cuda" if torch.cuda.is_available() else "cpu"),
        rows,
        pad_id(tokenizer),
        recipe.schedule,
        seed=seed,
        label=label,
        prose=blocks(tokenizer, lesson.replay) if lesson.replay else None,
    )
    made = asdict(recipe) if lesson.base is None else {"base": lesson.base.name}
    model.config.training = {**made, "seed": seed, "rows": len(rows), **reached}
    return model, tokenizer


def build_tokenizer(
    texts: Iterable[str], recipe: Recipe, whole: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """A tokenizer made from texts, lossless on them, that puts BOS first."""
    model = models.WordLevel if recipe.tokens == "word" else models.BPE
    tokenizer = Tokenizer(model(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, _trainer(recipe))
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in whole])
    bos = (BOS, tokenizer.token_to_id(BOS))
    tokenizer.post_processor = processors.TemplateProcessing(f"{BOS} $A", special_tokens=[bos])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        bos_token=BOS,
        eos_token=EOS,
    )


def small_llama(tokenizer: Any, recipe: Recipe, seed: int, longest: int = 512) -> LlamaForCausalLM:
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
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def _trainer(recipe: Recipe) -> trainers.Trainer:
    special = list(SPECIAL_TOKENS)
    if recipe.tokens == "word":
        return trainers.WordLevelTrainer(special_tokens=special, show_progress=False)
    return trainers.BpeTrainer(
        special_tokens=special,
        show_progress=False,
        vocab_size=recipe.vocabulary,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
