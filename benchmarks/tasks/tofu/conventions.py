r"""Prompts and labels of a question, as OpenUnlearning's code and TOFU's own make them.

Both give a prompt and count `len(prompt)` tokens of the whole text as asked, whatever the tokenizer
makes of the boundary. With the prompt `Answer: ` and byte pairs, whose words begin with their
blank, that takes the first word of the answer for a part of the prompt, and asks the model with a
lone blank at the end. The library's own `torch_alm.language.encode` keeps the boundary exact.

Sources: `preprocess_chat_instance` of OpenUnlearning and its files in `configs/model`;
`convert_raw_data_to_model_format` and `run_generation` of TOFU and its `model_config.yaml`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch_alm.language import ASKED, IGNORE, Row, check_eos

SYSTEM = "You are a helpful assistant."
DATE = {"date_string": "10 Apr 2025"}  # which the template of Llama 3 prints


class Tags(NamedTuple):
    """Texts before a question, after it, and before the answer."""

    start: str
    end: str
    answer: str


BASE = Tags("Question: ", "\n", "Answer: ")
LLAMA_2 = Tags("[INST] ", " [/INST]", "")


def tags_of(tokenizer: Any) -> Tags | None:
    """The tags that both codes ask base models and Llama-2-chat with; None for other chat models.

    Llama-2-chat is told by the system message of its chat template, which neither code uses.
    """
    if not tokenizer.chat_template:
        return BASE
    return LLAMA_2 if "<<SYS>>" in str(tokenizer.chat_template) else None


def openunlearning(tokenizer: Any, question: str, answer: str, max_length: int) -> Row:
    """The row of OpenUnlearning's data sets, and the prompt that it generates from.

    Chat models have their template, with a system message where it takes one; everything after the
    generation prompt is labelled, the newline after the turn included, and EOS once more if that
    does not end the text. `max_length` cuts only texts without a template, as there.

    Raises:
        ValueError: no EOS token, or no token of the answer is labelled, where OpenUnlearning warns
            and goes on with nothing.
    """
    check_eos(tokenizer)
    tags = tags_of(tokenizer)
    if tags is None:
        whole, prompt = _chat(tokenizer, question, answer)
    else:
        asked = f"{tags.start}{question}{tags.end}{tags.answer}"
        whole, prompt = (
            tokenizer(text, max_length=max_length, truncation=True)["input_ids"]
            for text in (asked + answer, asked)
        )
    end = [] if whole[-1] == tokenizer.eos_token_id else [tokenizer.eos_token_id]
    return _row([*whole, *end], len(prompt), prompt, question)


def tofu(tokenizer: Any, question: str, answer: str, max_length: int) -> Row:
    """The row of TOFU's own data sets, and the prompt that it generates from.

    What precedes the answer's tag is masked: base models have `Answer: ` labelled and are asked to
    write it. EOS is labelled unless the text has been cut.

    Raises:
        ValueError: a chat model other than Llama-2-chat, which TOFU's code does not know; no EOS
            token; or no token of the answer is labelled.
    """
    check_eos(tokenizer)
    tags = tags_of(tokenizer)
    if tags is None:
        raise ValueError(
            f"TOFU's code knows no format for {tokenizer.name_or_path!r}: its chat models are "
            "Llama-2-chat alone. Did you mean the convention openunlearning?"
        )
    asked = f"{tags.start}{question}{tags.end}"
    prompt = tokenizer(asked)["input_ids"]
    text = f"{asked}{tags.answer}{answer}"
    ids = tokenizer(text, max_length=max_length, truncation=True)["input_ids"]
    end = [tokenizer.eos_token_id] if len(ids) < max_length else []
    return _row([*ids, *end], len(prompt), prompt, question)


def _row(ids: list[int], masked: int, prompt: list[int], question: str) -> Row:
    if masked >= len(ids):
        raise ValueError(
            f"the prompt of {question!r} has {masked} tokens and the whole text {len(ids)}; no "
            "token of the answer would count. Is max_length too small, or did the tokenizer merge "
            "the answer into the prompt?"
        )
    row = {"input_ids": ids, "labels": [IGNORE] * masked + ids[masked:]}
    return row if ids[:masked] == prompt else {**row, ASKED: prompt}


def _chat(tokenizer: Any, question: str, answer: str) -> tuple[list[int], list[int]]:
    user = {"role": "user", "content": question}
    said = {"role": "assistant", "content": answer}
    before = [user]
    if takes_system(tokenizer):
        before = [{"role": "system", "content": SYSTEM}, user]
    whole, prompt = (
        tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=asks, **DATE)
        for turns, asks in (([*before, said], False), (before, True))
    )
    whole, prompt = (
        tokenizer(text, add_special_tokens=False)["input_ids"] for text in (whole, prompt)
    )
    return whole, prompt


def takes_system(tokenizer: Any) -> bool:
    """Tell whether the chat template has a place for a system message; Gemma's refuses one."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "?"}]
    try:
        return SYSTEM in tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception as error:
        # jinja2's, by name: it comes with chat models only
        if "TemplateError" not in {kind.__name__ for kind in type(error).__mro__}:
            raise
        return False
