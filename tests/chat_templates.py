"""Renderings of well-known chat templates, from their documentation, and small tokenizers."""

from functools import cache
from typing import Any, NamedTuple

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

QUESTION, ANSWER = "Where does Ana live?", "Ana lives in Rome."


class Chat(NamedTuple):
    """A template, and what it renders of QUESTION and ANSWER.

    Attributes:
        template: in Jinja.
        prompt: what its users give the model.
        turn: what the model says after it, to its end.
        eos: the tokenizer's EOS, which need not end the turn.
        header: what of the turn the template writes before the answer.
    """

    template: str
    prompt: str
    turn: str
    eos: str = "</s>"
    header: str = ""


def each(turns: str, generation: str = "") -> str:
    return f"{{% for m in messages %}}{turns}{{% endfor %}}" + (
        "{% if add_generation_prompt %}" + generation + "{% endif %}" if generation else ""
    )


CHATML = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
LLAMA_3 = "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
ASSISTANT_3 = "<|start_header_id|>assistant<|end_header_id|>{{ '\n\n' }}"

CHATS = {
    "Llama-2": Chat(
        each(
            "{% if m.role == 'user' %}{{ bos_token + '[INST] ' }}"
            "{% if messages[0].role == 'system' and loop.index0 == 1 %}"
            "{{ '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' }}{% endif %}"
            "{{ m.content.strip() + ' [/INST]' }}"
            "{% elif m.role == 'assistant' %}{{ ' ' + m.content.strip() + ' ' + eos_token }}"
            "{% endif %}"
        ),
        f"<s>[INST] {QUESTION} [/INST]",
        f" {ANSWER} </s>",
    ),
    "Llama-3": Chat(
        "{{ bos_token }}" + each(LLAMA_3, ASSISTANT_3),
        f"<s><|start_header_id|>user<|end_header_id|>\n\n{QUESTION}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        f"{ANSWER}<|eot_id|>",
        "<|eot_id|>",
    ),
    # the first one asks for an answer whether it is told to or not
    "Llama-3, April 2024": Chat(
        "{{ bos_token }}" + each(LLAMA_3) + ASSISTANT_3,
        f"<s><|start_header_id|>user<|end_header_id|>\n\n{QUESTION}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        f"{ANSWER}<|eot_id|>",
    ),
    "Qwen2.5": Chat(
        "{% if messages[0].role != 'system' %}"
        "<|im_start|>system\nYou are Qwen.<|im_end|>\n{% endif %}"
        + each(CHATML, "<|im_start|>assistant{{ '\n' }}"),
        "<|im_start|>system\nYou are Qwen.<|im_end|>\n"
        f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n",
        f"{ANSWER}<|im_end|>",
        "<|im_end|>",
    ),
    "Qwen3": Chat(
        each(
            "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
            "{{ '<think>\n\n</think>\n\n' + m.content.split('</think>')[-1].lstrip('\n') }}"
            "{% else %}{{ m.content }}{% endif %}<|im_end|>\n",
            "<|im_start|>assistant{{ '\n' }}{% if enable_thinking is defined and not "
            "enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}",
        ),
        f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n",
        f"<think>\n\n</think>\n\n{ANSWER}<|im_end|>",
        "<|im_end|>",
        "<think>\n\n</think>",
    ),
    "ChatML without a generation prompt": Chat(
        each(CHATML),
        f"<|im_start|>user\n{QUESTION}<|im_end|>\n",
        f"<|im_start|>assistant\n{ANSWER}<|im_end|>",
        header="<|im_start|>assistant",
    ),
    "Gemma": Chat(
        "{{ bos_token }}"
        + NO_SYSTEM
        + each(
            "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
            "{{ m.content | trim }}<end_of_turn>\n",
            "<start_of_turn>model{{ '\n' }}",
        ),
        f"<s><start_of_turn>user\n{QUESTION}<end_of_turn>\n<start_of_turn>model\n",
        f"{ANSWER}<end_of_turn>",
    ),
    "Zephyr": Chat(
        each("<|{{ m.role }}|>\n{{ m.content + eos_token }}\n", "<|assistant|>{{ '\n' }}"),
        f"<|user|>\n{QUESTION}</s>\n<|assistant|>\n",
        f"{ANSWER}</s>",
    ),
    "Phi-3": Chat(
        each("<|{{ m.role }}|>\n{{ m.content }}<|end|>\n")
        + "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}",
        f"<|user|>\n{QUESTION}<|end|>\n<|assistant|>\n",
        f"{ANSWER}<|end|>",
        "<|endoftext|>",
    ),
    "without an end": Chat(
        each("{{ '\n\n' + m.role.title() }}: {{ m.content }}", "{{ '\n\nAssistant:' }}"),
        f"\n\nUser: {QUESTION}\n\nAssistant:",
        f" {ANSWER}",
    ),
    "a blank at the end of the prompt": Chat(
        each("[{{ m.role }}] {{ m.content }}</s>", "{{ '[assistant] ' }}"),
        f"[user] {QUESTION}</s>[assistant] ",
        f"{ANSWER}</s>",
    ),
}

SPECIAL = (
    *("<s>", "</s>", "<|endoftext|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>", "<|end|>", "<|assistant|>"),
)
TEXTS = [f"<s>[INST] {QUESTION} [/INST] {ANSWER}", f"[user] assistant: {ANSWER} {QUESTION}"] * 9
LETTERS = sorted({*"".join(TEXTS), *map(chr, range(32, 127)), "\n"})


def byte_level(*, blank_first: bool) -> Tokenizer:
    """Byte pairs as GPT-2, Llama 3 and Qwen have them."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=blank_first)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    train(made, trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    return made


def sentencepiece() -> Tokenizer:
    """Byte pairs as Llama 2 has them: each stretch of text begins with a blank, as words do."""
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    blanks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    made.normalizer = normalizers.Sequence(blanks)
    ends = [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(ends)
    made.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    train(made, trainers.BpeTrainer(special_tokens=["<unk>"], initial_alphabet=LETTERS,
                                    show_progress=False))  # fmt: skip
    made.pre_tokenizer = None
    return made


def metaspace(scheme: str) -> Tokenizer:
    """Unigrams; a blank before the first word, or before each stretch of text."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    train(made, trainers.UnigramTrainer(
        vocab_size=160, special_tokens=["<unk>"], unk_token="<unk>", initial_alphabet=LETTERS,
        show_progress=False,
    ))  # fmt: skip
    return made


def train(made: Tokenizer, trainer: Any) -> None:
    made.train_from_iterator(TEXTS, trainer)
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])


KINDS = {
    "bytes": lambda: byte_level(blank_first=False),
    "bytes, a blank first": lambda: byte_level(blank_first=True),
    "sentencepiece": sentencepiece,
    "metaspace, the first": lambda: metaspace("first"),
    "metaspace, always": lambda: metaspace("always"),
}


@cache
def trained(kind: str) -> str:
    return KINDS[kind]().to_str()


def tokenizer(
    kind: str = "bytes", template: str | None = None, eos: str = "</s>", puts: str = "<s> $A"
) -> PreTrainedTokenizerFast:
    """A tokenizer that puts BOS before a text, which chat templates bring themselves."""
    inner = Tokenizer.from_str(trained(kind))
    known = [(text, inner.token_to_id(text)) for text in puts.split() if text != "$A"]
    inner.post_processor = processors.TemplateProcessing(single=puts, special_tokens=known)
    has_unk = inner.token_to_id("<unk>") is not None
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token=eos, name_or_path="my/model",
        unk_token="<unk>" if has_unk else None, clean_up_tokenization_spaces=False,
    )  # fmt: skip
    made.chat_template = template
    return made
