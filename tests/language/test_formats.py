"""The tokens to forget, and those asked with, are those of the users' own rendering."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.chat_templates import ANSWER, CHATS, KINDS, QUESTION, each, tokenizer
from torch_alm.language import Format, Row, answer_ids, encode, encode_completion, encode_messages
from torch_alm.language._attacks import with_prefix
from torch_alm.language._encoding import prompt_ids

ASKED = {"role": "user", "content": QUESTION}
ANSWERED = {"role": "assistant", "content": ANSWER}


def users(made: Any, *turns: dict[str, str], **variables: Any) -> list[int]:
    """The tokens that the model's users give it."""
    options = {"add_generation_prompt": True, "return_dict": True, **variables}
    return made.apply_chat_template([*turns], **options)["input_ids"]


def told(made: Any, ids: Sequence[int]) -> str:
    return made.decode(ids, skip_special_tokens=False)


def with_bos(made: Any, text: str) -> list[int]:
    """The tokens of a text, with one BOS."""
    return made(text, add_special_tokens=not text.startswith("<s>"))["input_ids"]


def parts(made: Any, row: Row) -> tuple[str, str]:
    return told(made, prompt_ids(row)), told(made, answer_ids(row))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CHATS)
def test_a_chat_model_is_asked_what_its_users_ask_and_taught_what_its_template_renders(
    name: str, kind: str
) -> None:
    chat = CHATS[name]
    made = tokenizer(kind, chat.template, chat.eos)
    rendered = made.apply_chat_template([ASKED, ANSWERED], tokenize=False)
    assert rendered.startswith(chat.prompt + chat.turn), "the template renders what it is to"
    for row in (encode(made, QUESTION, ANSWER), encode_messages(made, [ASKED, ANSWERED])):
        assert prompt_ids(row) == users(made, ASKED)
        whole = made(chat.prompt + chat.turn, add_special_tokens=False)["input_ids"]
        assert told(made, row["input_ids"]) == told(made, whole)
        if name != "a blank at the end of the prompt":
            assert row["input_ids"] == whole
        if kind == "bytes":
            assert parts(made, row) == (chat.prompt, chat.turn.removeprefix(chat.header))


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_that_merges_across_the_boundary_does_not_move_it(kind: str) -> None:
    chat = CHATS["a blank at the end of the prompt"]
    made = tokenizer(kind, chat.template)
    prompt, whole = (
        made(text, add_special_tokens=False)["input_ids"]
        for text in (chat.prompt, chat.prompt + chat.turn)
    )
    if "metaspace" not in kind:
        assert whole[: len(prompt)] != prompt, "it does merge"
    assert prompt_ids(encode(made, QUESTION, ANSWER)) == prompt


@pytest.mark.parametrize("answer", [f" {ANSWER}", f"{ANSWER}\n", f"\n {ANSWER} \n"])
@pytest.mark.parametrize("name", CHATS)
def test_blanks_around_an_answer_are_those_of_the_rendering(name: str, answer: str) -> None:
    chat = CHATS[name]
    made = tokenizer("bytes", chat.template, chat.eos)
    turns = [ASKED, {"role": "assistant", "content": answer}]
    rendered = made.apply_chat_template(turns, tokenize=False)
    prompt, turn = parts(made, encode(made, QUESTION, answer))
    assert rendered.startswith(prompt + chat.header + turn)
    assert prompt == chat.prompt
    end = chat.turn[chat.turn.index(ANSWER) + len(ANSWER) :].strip()
    assert turn.endswith(end)


@pytest.mark.parametrize("answer", ["think", "im_end", "assistant", "0123456789", "e", "/think>"])
@pytest.mark.parametrize("name", ["Qwen3", "Phi-3", "ChatML without a generation prompt"])
def test_an_answer_is_not_mistaken_for_what_stands_around_it(name: str, answer: str) -> None:
    chat = CHATS[name]
    made = tokenizer("bytes", chat.template, chat.eos)
    turn = chat.turn.removeprefix(chat.header).replace(ANSWER, answer)
    assert parts(made, encode(made, QUESTION, answer)) == (chat.prompt, turn)


@pytest.mark.parametrize("name", ["Qwen3", "ChatML without a generation prompt"])
def test_a_header_is_asked_for_and_not_unlearned_and_given_away_with_the_answer(name: str) -> None:
    chat = CHATS[name]
    made = tokenizer("bytes", chat.template, chat.eos)
    row = encode(made, QUESTION, ANSWER)
    assert prompt_ids(row) == users(made, ASKED)
    assert chat.header
    unlabelled = row["input_ids"][: row["labels"].count(-100)]
    assert told(made, unlabelled) == chat.prompt + chat.header
    begun = with_prefix(row, 0.01)
    assert begun is not None
    assert prompt_ids(begun) == row["input_ids"][: len(unlabelled) + 1]


def test_variables_reach_the_template_as_they_reach_that_of_the_users() -> None:
    made = tokenizer("bytes", CHATS["Qwen3"].template)
    row = encode(made, QUESTION, ANSWER, form=Format(variables={"enable_thinking": False}))
    assert prompt_ids(row) == users(made, ASKED, enable_thinking=False)
    assert parts(made, row)[0].endswith("</think>\n\n")
    assert parts(made, row)[1] == f"{ANSWER}<|im_end|>"


@pytest.mark.parametrize("name", ["Llama-2", "Llama-3", "Qwen2.5", "Zephyr"])
def test_a_system_message_is_that_of_the_format_the_conversation_or_the_template(name: str) -> None:
    chat = CHATS[name]
    made = tokenizer("bytes", chat.template, chat.eos)
    brief, own = ({"role": "system", "content": text} for text in ("Be brief.", "Be kind."))
    form = Format(system="Be brief.")
    assert prompt_ids(encode(made, QUESTION, ANSWER, form=form)) == users(made, brief, ASKED)
    talk = encode_messages(made, [own, ASKED, ANSWERED], form=form)
    assert prompt_ids(talk) == users(made, own, ASKED)
    talk = encode_messages(made, [ASKED, ANSWERED], form=form)
    assert prompt_ids(talk) == users(made, brief, ASKED)
    assert "Be brief." not in parts(made, encode(made, QUESTION, ANSWER))[0]


@pytest.mark.parametrize(
    ("template", "form", "words"),
    [
        (CHATS["Gemma"].template, Format(system="x"), "refuses.*'system'.*no system"),
        ("{{ 1 // 0 }}", Format(), "refuses.*ZeroDivisionError"),
        ("{% if %}", Format(), "refuses.*TemplateSyntaxError"),
        (each("{{ m.content }}", "<think>"), Format(), "asks for an answer after '<think>' and "),
        (each("|{{ m.content }}", "| "), Format(), "asks for an answer after ' ' and writes"),
        (each("{{ m.content.upper() }}"), Format(), f"changes the answer '{ANSWER}'"),
        (each("{{ m.content.split('in')[-1] }}"), Format(), f"changes the answer '{ANSWER}'"),
        (each("{% if m.role == 'user' %}{{ m.content }}{% endif %}"), Format(), "changes the"),
        (
            each(
                "{{ 'x' if m.content | length > 12 }}" + "{{ 'y' if m.content | length <= 12 }}"
                "{{ m.content }}"
            ),
            Format(),
            "changes the answer",
        ),
        (None, Format(system="x"), "has no chat template .* message 'x'"),
    ],
)
def test_a_template_that_does_not_fit_is_refused_by_name(
    template: str, form: Format, words: str
) -> None:
    made = tokenizer("bytes", template)
    with pytest.raises(ValueError, match=rf"(?s)'my/model' {words}.*\?$"):
        encode(made, QUESTION, ANSWER, form=form)


@pytest.mark.parametrize(
    ("name", "answer", "found"),
    [
        (None, "a </s> b", "</s>"),
        ("Llama-2", "<s>struck</s>", "</s>"),
        ("Phi-3", "a <|end|>", r"<\|end\|>"),
        ("Phi-3", "a <|endoftext|>", r"<\|endoftext\|>"),
    ],
)
def test_an_answer_with_the_end_of_a_turn_in_it_is_refused(
    name: str | None, answer: str, found: str
) -> None:
    chat = CHATS[name] if name else None
    made = tokenizer("bytes", chat and chat.template, chat.eos if chat else "</s>")
    with pytest.raises(ValueError, match=f"holds '{found}', which ends a turn"):
        encode(made, QUESTION, answer)
    row = encode(made, answer, ANSWER)  # a question may hold what its users may write
    if chat:
        assert prompt_ids(row) == users(made, {"role": "user", "content": answer})


ALPACA = "### Instruction:\n{question}\n\n### Response:\n{answer}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("template", "prompt", "turn"),
    [
        (ALPACA, f"### Instruction:\n{QUESTION}\n\n### Response:\n", f"{ANSWER}</s>"),
        ("Q: {question} A: {answer}", f"Q: {QUESTION} A:", f" {ANSWER}</s>"),
        ("{question}{answer}</s>", QUESTION, f"{ANSWER}</s>"),
        ("{question}|{answer}<|im_end|>\n", f"{QUESTION}|", f"{ANSWER}<|im_end|>"),
        ("{question}|{answer}\n###", f"{QUESTION}|", f"{ANSWER}\n###"),
        ("{question}|{answer}\n", f"{QUESTION}|", f"{ANSWER}\n</s>"),
        ("<s>{x}{{}} %s {question}|{answer}", f"<s>{{x}}{{{{}}}} %s {QUESTION}|", f"{ANSWER}</s>"),
    ],
)
def test_a_template_of_ones_own_stands_for_itself(
    kind: str, template: str, prompt: str, turn: str
) -> None:
    made = tokenizer(kind, CHATS["Qwen3"].template)  # which counts no more
    row = encode(made, QUESTION, ANSWER, form=Format(template=template))
    assert prompt_ids(row) == with_bos(made, prompt)
    assert prompt_ids(row).count(made.bos_token_id) == 1
    assert told(made, row["input_ids"]) == told(made, with_bos(made, prompt + turn))
    assert encode_messages(made, [ASKED, ANSWERED], form=Format(template=template)) == row


@pytest.mark.parametrize(
    "template",
    ["", "{question}", "{answer}", "{answer} {question}", "{question}{answer}{answer}",
     "{question}{answer}{question}", "{% for m in messages %}{{ m.content }}{% endfor %}"],
)  # fmt: skip
def test_a_template_without_its_two_places_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"the system message 'Be brief\.'"):
        Format(template=ALPACA, system="Be brief.")
    with pytest.raises(
        ValueError, match=r"has not \{question\} and, once and after it, \{answer\}"
    ):
        Format(template=template)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "prompt", ["Ana lives in", "Ana lives in ", " Q:\n", "<s>[INST] a [/INST]"]
)
@pytest.mark.parametrize("completion", [" Rome.", "Rome. ", "\nRome.</s>", " Rome.<|im_end|>"])
def test_a_prompt_and_its_completion_are_taken_as_they_are(
    kind: str, prompt: str, completion: str
) -> None:
    made = tokenizer(kind, CHATS["Qwen3"].template)
    row = encode_completion(made, prompt, completion)
    assert prompt_ids(row) == with_bos(made, prompt)
    ends = completion.endswith(("</s>", "<|im_end|>"))
    whole = with_bos(made, prompt + completion + ("" if ends else "</s>"))
    assert told(made, row["input_ids"]) == told(made, whole)
    assert row["input_ids"] == whole or prompt.endswith(" "), "but where the two merge"


@pytest.mark.parametrize(
    ("puts", "eos", "lead"),
    [("<s> $A", "</s>", ["<s>"]), ("$A </s>", "</s>", []), ("<s> $A </s>", "</s>", ["<s>"]),
     ("$A", "</s>", []), ("</s> $A", "</s>", ["</s>"])],
)  # fmt: skip
def test_a_tokenizer_puts_its_own_tokens_before_a_prompt_and_one_end_behind_an_answer(
    puts: str, eos: str, lead: list[str]
) -> None:
    made = tokenizer("bytes", None, eos, puts)
    row = encode(made, QUESTION, ANSWER)
    assert parts(made, row) == (
        "".join(lead) + f"Question: {QUESTION}\nAnswer:", f" {ANSWER}</s>"
    )  # fmt: skip
    assert encode_completion(made, f"Question: {QUESTION}\nAnswer:", f" {ANSWER}") == row


def test_tokens_that_cannot_be_told_apart_are_refused() -> None:
    """A tokenizer of whole texts has no tokens for a part of one."""

    class Whole:
        chat_template, eos_token, eos_token_id, unk_token_id = None, ".", 0, None
        name_or_path, added_tokens_decoder = "my/model", {}

        def __call__(self, text: str, **_: bool) -> dict[str, list[int]]:
            return {"input_ids": [1 + len(text)]}

        def decode(self, ids: Sequence[int], **_: bool) -> str:
            return str(ids)

    with pytest.raises(ValueError, match="'my/model' has no tokens for ' b' after 'Question: a"):
        encode(Whole(), "a", "b")
