"""A prompt and the answer to it as text, in the format in which users ask the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple, TypeAlias

from torch_alm.language._models import Tokenizer

Message: TypeAlias = Mapping[str, str]

QUESTION, ANSWER = "{question}", "{answer}"
PROBE = "0123456789"  # an answer that no template has a rule for


@dataclass(frozen=True)
class Format:
    """The format in which a model is asked, where its tokenizer does not define it.

    Attributes:
        template: text with `{question}` in it and then `{answer}`, in place of the chat template.
            What follows `{answer}` ends the turn; EOS does if nothing follows. Spaces right before
            `{answer}` belong to the answer, as tokenizers have it.
        system: the system message, for a chat template; `None` leaves it to the template.
        variables: other variables of the chat template, such as `{"enable_thinking": False}`.

    Raises:
        ValueError: a template without its two places, or a template and a system message.
    """

    template: str | None = None
    system: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if self.template is None:
            return
        before, answer, after = self.template.partition(ANSWER)
        if not answer or QUESTION not in before or QUESTION in after or ANSWER in after:
            raise ValueError(
                f"the template {self.template!r} has not {QUESTION} and, once and after it, "
                f"{ANSWER}; nothing would say where a question and its answer stand. Did you mean "
                "'Question: {question} Answer: {answer}'? (A Jinja template belongs to the "
                "tokenizer.)"
            )
        if self.system is not None:
            raise ValueError(
                f"a template and the system message {self.system!r} were given; only a chat "
                "template has a place for the message. Did you mean to write it into the template?"
            )


class Exchange(NamedTuple):
    """A prompt and the answer the model shall give."""

    prompt: str  # what users send
    header: str  # what a template writes between the prompt and the answer
    answer: str
    closing: str  # what follows the answer
    is_chat: bool = False  # whether a chat template wrote it, which brings its own BOS


def of_question(tokenizer: Tokenizer, question: str, answer: str, form: Format) -> Exchange:
    """Return a question and its answer in a `Format`."""
    if form.template is not None:
        before, _, after = form.template.partition(ANSWER)
        prompt = before.rstrip(" ")
        return Exchange(prompt.replace(QUESTION, question), before[len(prompt) :], answer, after)
    if tokenizer.chat_template:
        turns = ({"role": "user", "content": question}, {"role": "assistant", "content": answer})
        return of_messages(tokenizer, turns, form)
    if form.system is not None:
        raise ValueError(
            f"{tokenizer.name_or_path!r} has no chat template that would say where the system "
            f"message {form.system!r} stands. Did you mean a template with {QUESTION} and {ANSWER}?"
        )
    return Exchange(f"Question: {question.strip()}\nAnswer:", " ", answer.strip(), "")


def of_completion(tokenizer: Tokenizer, prompt: str, completion: str) -> Exchange:
    """Return a prompt and its completion as they are; a token that ends turns is the closing."""
    texts = [text for text in end_tokens(tokenizer).values() if completion.endswith(text)]
    end = max(texts, key=len, default="")
    return Exchange(prompt, "", completion.removesuffix(end), end)


def of_messages(tokenizer: Tokenizer, messages: Sequence[Message], form: Format) -> Exchange:
    """Return a conversation and its last turn, as the tokenizer's chat template renders them.

    The prompt is rendered with a generation prompt. The turn is the rest of the conversation, with
    blanks and headers; a second rendering, with another answer, shows where the answer stands.
    """
    *before, last = messages
    if form.system is not None and before[0]["role"] != "system":
        before = [{"role": "system", "content": form.system}, *before]
    prompt = _render(tokenizer, before, form, add_generation_prompt=True)
    turn, probed = (
        _after(tokenizer, prompt, _render(tokenizer, [*before, each], form))
        for each in (last, {**last, "content": PROBE})
    )
    header, _, closing = probed.partition(PROBE)
    said = turn[len(header) : len(turn) - len(closing)]
    kept = said.strip() == last["content"].strip()
    if PROBE not in probed or not kept or turn != header + said + closing:
        raise ValueError(
            f"the chat template of {tokenizer.name_or_path!r} changes the answer "
            f"{last['content']!r}: it writes {turn!r}. The model would be taught and judged on "
            "something else. Did you mean another template, or rows of prompt and completion?"
        )
    return Exchange(prompt, header, said, closing, is_chat=True)


def end_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    """Return the special tokens that may end a turn: EOS, `<|im_end|>`, `<|eot_id|>`."""
    known = {i: str(token) for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    known.pop(tokenizer.unk_token_id, None)
    return {**known, tokenizer.eos_token_id: tokenizer.eos_token}


def _after(tokenizer: Tokenizer, prompt: str, whole: str) -> str:
    """Return the part of a rendering behind the prompt."""
    if whole.startswith(prompt):
        return whole[len(prompt) :]
    pairs = zip(prompt, whole, strict=False)
    same = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
    raise ValueError(
        f"the chat template of {tokenizer.name_or_path!r} asks for an answer after "
        f"{prompt[same:][:80]!r} and writes one after {whole[same:][:80]!r}, so that a model that "
        "is taught the one is not asked it. Did you mean another template, or rows of prompt and "
        "completion?"
    )


def _render(
    tokenizer: Tokenizer, messages: Sequence[Message], form: Format, **options: bool
) -> str:
    given = [dict(message) for message in messages]
    try:
        return tokenizer.apply_chat_template(given, tokenize=False, **options, **form.variables)
    except Exception as error:  # a template is a program: it may fail in any way
        raise ValueError(
            f"the chat template of {tokenizer.name_or_path!r} refuses a conversation of "
            f"{[message['role'] for message in messages]} ({type(error).__name__}: {error}). Does "
            "it take these roles, a system message among them?"
        ) from error
