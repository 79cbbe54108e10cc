"""The verdict is what the saved model says when it is asked the way its users ask it.

Users ask with transformers alone, or with a text of their own; nothing of the command's measuring
is used to ask.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from tests.chat_templates import CHATS
from tests.command.conftest import ANSWER, FORGET, RETAIN, Command, fits, make_model, report, write
from tests.command.test_unlearn import FAST
from tests.models import learn
from torch_alm.command.files import read_entries
from torch_alm.language import IGNORE, answer_ids
from torch_alm.language._encoding import prompt_ids
from torch_alm.language._generation import Reading
from torch_alm.language._strings import StringScores
from torch_alm.unlearning.asking import (
    FEW_TOKENS,
    SPARE_TOKENS,
    compare_answers,
    read_fully,
    read_rows,
)
from torch_alm.unlearning.asking import compare_answer as how_much
from torch_alm.unlearning.goal import Goal
from torch_alm.unlearning.loading import Setup, encode_entries, rows_to_keep
from torch_alm.unlearning.measurement import Answer, Measurement, is_known
from torch_alm.unlearning.model import find_place
from torch_alm.unlearning.options import Options
from torch_alm.unlearning.rewordings import ForgetRows, bare_rows, rows_in_own_words

ALPACA = "### Instruction:\n{question}\n\n### Response:\n{answer}"
SPECIAL = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]

Pair = dict[str, str]
Asks = Callable[[Any, Pair], str]


def bytes_tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    """Byte pairs, to which a word with a blank before it is another word."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    texts = [text for row in [*FORGET, *RETAIN] for text in (*row.values(), f" {row['answer']}")]
    inner.train_from_iterator([*texts, "[INST] [/INST]", ALPACA, "Question: Answer:"] * 2, trainer)
    inner.add_tokens(["<think>", "</think>", "assistant"])
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
    made.chat_template = template
    return made


def taught(folder: Path, tokenizer: Any, *formats: tuple[Asks, Asks]) -> Path:
    """A model that knows the rows by heart, as a trainer of transformers would teach them.

    A format says what is asked, and what is asked with the answer.
    """
    model = make_model(len(tokenizer))
    for weight in (p for p in model.parameters() if p.ndim > 1):
        nn.init.normal_(weight, std=0.05)  # with less, some seeds take two rows for one
    rows: list[dict[str, list[int]]] = []
    for row, form in product([*FORGET, *RETAIN], formats):
        prompt, ids = (
            tokenizer(write(tokenizer, row), add_special_tokens=False)["input_ids"]
            for write in form
        )
        rows.append({"input_ids": ids, "labels": [-100] * len(prompt) + ids[len(prompt) :]})
    learn(model.eval(), rows)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def in_chat(tokenizer: Any, row: Pair) -> str:
    asked = [{"role": "user", "content": row["question"]}]
    return tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)


def not_thinking(tokenizer: Any, row: Pair) -> str:
    asked = [{"role": "user", "content": row["question"]}]
    options = {"add_generation_prompt": True, "enable_thinking": False}
    return tokenizer.apply_chat_template(asked, tokenize=False, **options)


def whole_chat(tokenizer: Any, row: Pair) -> str:
    roles = {"user": "question", "assistant": "answer"}
    turns = [{"role": role, "content": row[name]} for role, name in roles.items()]
    return tokenizer.apply_chat_template(turns, tokenize=False)


def in_alpaca(tokenizer: Any, row: Pair) -> str:
    return ALPACA.partition("{answer}")[0].replace("{question}", row["question"])


def in_plain(tokenizer: Any, row: Pair) -> str:
    return f"Question: {row['question']}\nAnswer:"


def not_told(tokenizer: Any, row: Pair) -> str:
    return in_plain(tokenizer, row) + " Where ?</s>"


def whole_alpaca(tokenizer: Any, row: Pair) -> str:
    return in_alpaca(tokenizer, row) + row["answer"] + "</s>"


def said(folder: Path, asks: Asks) -> list[str]:
    """A saved model's answers to its users, question by question."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    found: list[str] = []
    ends = tokenizer.convert_tokens_to_ids(["</s>", "<|im_end|>"])
    for row in FORGET:
        prompt = tokenizer(asks(tokenizer, row), add_special_tokens=False, return_tensors="pt")
        ids = model.generate(**prompt, max_new_tokens=16, do_sample=False, eos_token_id=ends)
        new = ids[0, prompt["input_ids"].shape[1] :]
        found.append(tokenizer.decode(new, skip_special_tokens=True))
    return found


def knows(told: Sequence[str]) -> list[bool]:
    """For each answer, true if it is said; of as many rounds of questions as there are."""
    return [row["answer"] in text for row, text in zip(cycle(FORGET), told, strict=False)]


@pytest.fixture(scope="module")
def alpaca(tmp_path_factory: Any) -> Path:
    """A model that says its answers in one format, and in another that it has none."""
    formats = (in_alpaca, whole_alpaca), (in_plain, not_told)
    return taught(tmp_path_factory.mktemp("alpaca"), bytes_tokenizer(None), *formats)


def test_a_chat_model_that_learnt_nothing_has_not_met_its_goal_and_one_that_did_forgets(
    command: Command, tmp_path: Path
) -> None:
    tokenizer = bytes_tokenizer(CHATS["Qwen3"].template)
    model = taught(tmp_path / "model", tokenizer, (in_chat, whole_chat))
    assert all(knows(said(model, in_chat))), "what is to be forgotten is known"
    for output, options in {"same": ("--lr", "1e-7", "--epochs", 1),
                            "gone": ("--epochs", 6, *FAST)}.items():  # fmt: skip
        assert command("unlearn", "--alpha", 3, *options, model=model, output=output) != 2
        told, begun = (said(tmp_path / output / "model", asks) for asks in (in_chat, not_thinking))
        found = report(tmp_path / output)
        answers = [row["answer"] for row in found["models"][1]["answers"]["forget"]]
        both = zip(told, begun, answers, strict=True)
        # One of the two may have been asked for fewer tokens.
        assert all(
            any(t.strip().startswith(a) or a.startswith(t.strip()) for t in texts)
            for *texts, a in both
        )
        assert any(knows([*told, *begun])) == (output == "same")
        if output == "same":
            assert found["verdict"]["outcome"] == "not met"
        assert found["settings"]["known_before"] is True


def musing(tokenizer: Any, row: Pair) -> str:
    return in_chat(tokenizer, row) + "<think> Where ? </think> Where ?<|im_end|>"


def test_an_answer_behind_the_header_of_a_template_is_said(
    command: Command, tmp_path: Path
) -> None:
    """Let the model think aloud where the header is not written, as in a chat that thinks."""
    tokenizer = bytes_tokenizer(CHATS["Qwen3"].template)
    formats = (not_thinking, whole_chat), (in_chat, musing)
    model = taught(tmp_path / "model", tokenizer, *formats)
    assert not any(knows(said(model, in_chat)))
    assert all(knows(said(model, not_thinking)))
    assert command("evaluate", model=model) == 0
    found = report(tmp_path / "out")["models"][0]
    assert found["numbers"]["forget"]["said"] == 1
    assert command("attack", "--relearn", 0, model=model, output="attacked") == 0
    attacked = report(tmp_path / "attacked")
    assert attacked["attacks"][0]["rows"][0]["before"]["said"] == 1
    assert attacked["verdict"]["outcome"] == "not forgotten"


def test_a_model_asked_in_another_format_than_it_was_taught_is_not_begun_with(
    command: Command, tmp_path: Path, alpaca: Path, capsys: Any
) -> None:
    assert all(knows(said(alpaca, in_alpaca)))
    assert command("unlearn", "--lr", "1e-7", "--epochs", 1, model=alpaca) == 2
    assert not (tmp_path / "out").exists()
    told = capsys.readouterr()
    assert all(map(fits, told.err.splitlines()))
    sentence = " ".join(told.err.split())
    alone = "asked the forget rows, the model says 0 of 6 forget answers (0 of them token for"
    assert alone in sentence, "what stands above it may be hidden"
    assert sentence.endswith("rows of prompt and completion), or is it another model?")
    shown = " ".join(told.out.split())
    for i in range(3):
        assert f"forget.jsonl, line {i + 1} asked" in shown
        assert repr(f"Question: {FORGET[i]['question']}\nAnswer:") in shown
        assert f"should {FORGET[i]['answer']!r}" in shown
    assert "line 4" not in shown


def test_going_on_anyway_is_written_down(command: Command, tmp_path: Path, alpaca: Path) -> None:
    options = ("--lr", "1e-7", "--anyway", "--steps")
    for steps in (1, 2):
        assert command("unlearn", *options, steps, model=alpaca) == 3
    assert report(tmp_path / "out")["settings"]["known_before"] is False


def test_every_forget_row_is_asked_before_training(
    command: Command, tmp_path: Path, capsys: Any
) -> None:
    """Of 3 + 4 rows the model says 3, and those alone are measured."""
    unknown = [{**row, "answer": "Bonn Cork Nice Graz"} for row in RETAIN[:4]]
    path = write(tmp_path / "f.jsonl", [*FORGET[:3], *unknown])
    assert command("unlearn", "--epochs", 1, "--rows", 3, forget=path) == 2
    assert "the model says 3 of 7 forget answers" in " ".join(capsys.readouterr().err.split())
    path = write(tmp_path / "f.jsonl", [*FORGET[:3], *unknown[:3]])
    assert command("unlearn", "--epochs", 1, "--rows", 3, forget=path) != 2


@pytest.mark.parametrize(
    ("exact", "share", "expected"),
    [(True, 0.0, True), (False, 0.75, True), (False, 0.74, False), (False, 0.0, False)],
)
def test_an_answer_is_said_word_for_word_or_by_three_quarters(
    exact: bool, share: float, expected: bool
) -> None:
    assert is_known([replace(ANSWER, exact_match=exact, rouge=share)]) is expected
    assert is_known([replace(ANSWER, rouge=0.2, said=True)]), "the name alone"


def test_a_text_is_known_if_the_model_goes_on_with_it(
    command: Command, tmp_path: Path, capsys: Any
) -> None:
    texts = [{"text": f"Question: {row['question']} Answer: {row['answer']}"} for row in FORGET]
    path = write(tmp_path / "t.jsonl", texts)
    assert command("unlearn", "--epochs", 1, forget=path) != 2
    backwards = [{"text": " ".join(row["text"].split()[::-1])} for row in texts]
    path = write(tmp_path / "b.jsonl", backwards)
    assert command("unlearn", "--epochs", 1, forget=path, output="b") == 2
    shown = " ".join(capsys.readouterr().out.split())  # a long path is told on a line of its own
    assert "b.jsonl, line 1 asked '. Rome in lives A0" in shown


def test_a_format_of_ones_own_is_taught_asked_and_written_down(
    command: Command, tmp_path: Path, alpaca: Path
) -> None:
    file = tmp_path / "alpaca.txt"
    file.write_text(ALPACA + "\n")
    given = ("--template", file)
    assert command("unlearn", *given, "--alpha", 3, "--epochs", 6, *FAST, model=alpaca) != 2
    assert not any(knows(said(tmp_path / "out" / "model", in_alpaca)))
    assert report(tmp_path / "out")["settings"]["template"] == ALPACA
    assert command("evaluate", *given, model=alpaca, output="e") == 0
    (found,) = report(tmp_path / "e")["models"]
    assert found["numbers"]["forget"]["exact_match"] == 1
    reworded = [{**row, "paraphrased_question": row["question"]} for row in FORGET]
    path = write(tmp_path / "r.jsonl", reworded)
    options = ("--template", ALPACA.replace("\n", r"\n"), "--relearn", 0)
    assert command("attack", *options, model=alpaca, forget=path, output="a") == 0
    rows = report(tmp_path / "a")["attacks"][0]["rows"]
    assert {row["name"]: row["before"]["exact_match"] for row in rows} == {
        "int8": 1, "int4": 1, "paraphrase": 1, "answer prefix": 1
    }  # fmt: skip
    assert {row["name"]: row["after"]["exact_match"] for row in rows}["paraphrase"] == 1


def test_rows_of_prompt_and_completion_need_no_format(
    command: Command, tmp_path: Path, alpaca: Path
) -> None:
    def literal(row: Pair) -> Pair:
        return {"prompt": in_alpaca(None, row), "completion": row["answer"]}

    sets = {
        name: write(tmp_path / name, map(literal, rows))
        for name, rows in (("forget", FORGET), ("retain", RETAIN))
    }
    assert command("evaluate", model=alpaca, **sets) == 0
    (found,) = report(tmp_path / "out")["models"]
    assert found["numbers"]["forget"]["exact_match"] == 1
    assert [row["answer"] for row in found["answers"]["forget"]] == said(alpaca, in_alpaca)


@pytest.mark.parametrize(
    ("written", "read"),
    [(r"Q\n{question}\nA {answer}{}", "Q\n{question}\nA {answer}{}"),
     ("{question} {answer}\n", "{question} {answer}\n")],
)  # fmt: skip
def test_a_template_is_taken_to_the_letter(
    command: Command, tmp_path: Path, written: str, read: str
) -> None:
    assert command("evaluate", "--template", written) == 0
    assert report(tmp_path / "out")["settings"]["template"] == read


def test_a_file_with_a_template_is_literal_without_a_byte_order_mark(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "template").write_text("\ufeff{question}\\n{answer}\n")
    assert command("evaluate", "--template", tmp_path / "template") == 0
    assert report(tmp_path / "out")["settings"]["template"] == "{question}\\n{answer}"


def test_a_format_that_is_none_is_refused(command: Command, capsys: Any) -> None:
    assert command("evaluate", "--template", "alpaca.txt") == 2
    assert "alpaca.txt' has not {question} and" in " ".join(capsys.readouterr().err.split())


def test_a_template_that_asks_otherwise_than_it_writes_is_a_refusal(
    command: Command, tmp_path: Path, alpaca: Path, capsys: Any
) -> None:
    tokenizer = bytes_tokenizer("{% for m in messages %}{{ m.content }}{% endfor %}"
                                "{% if add_generation_prompt %}<think>{% endif %}")  # fmt: skip
    torch.manual_seed(0)
    model = tmp_path / "thinking"
    make_model(len(tokenizer)).save_pretrained(model)
    tokenizer.save_pretrained(model)
    assert command("unlearn", model=model) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "forget.jsonl, line 1: the chat template of" in told
    assert "asks for an answer after '<think>'" in told
    assert not (tmp_path / "out").exists()


@pytest.fixture
def loaded(model: Any, tokenizer: Any, tmp_path: Path) -> Setup:
    """Six rows, as those of each file."""
    entries = read_entries(write(tmp_path / "f.jsonl", FORGET), "forget")
    rows = encode_entries(tokenizer, entries, 64, Options())
    sets = dict.fromkeys(("forget", "retain", "probe"), rows)
    return Setup(model, tokenizer, find_place("cpu", "fp32"), Options(max_length=64), sets)


def spoken(loaded: Setup, text: str, *, said: bool = True) -> Answer:
    """An answer in these words."""
    return replace(ANSWER, answer=text, said=said, tokens=loaded.tokenizer(text)["input_ids"])


def towns_of(loaded: Setup) -> list[str]:
    return [entry.answer.split()[-2] for entry, _ in loaded.sets["forget"]]


def test_a_row_is_pushed_in_the_words_in_which_the_model_says_it(loaded: Setup) -> None:
    """The start up to what tells something is given, or nothing; the rest is left out."""
    town, other, *_ = towns_of(loaded)
    answers = [spoken(loaded, f"Question : {town} . {town} is A0")]
    answers += [spoken(loaded, f"lives in {other} .", said=False) for _ in FORGET[1:]]

    assert bare_rows(loaded, Goal("rows", 0.0, "")) == [], "no better known"
    bare = bare_rows(loaded, Goal("rows", 9.0, ""))
    wordings = ForgetRows(loaded, answers, bare)
    own, second, last = (wordings.rows[i : i + len(FORGET)] for i in (0, 6, 12))
    assert last == bare
    for row, alone in zip(bare, towns_of(loaded), strict=True):
        assert loaded.tokenizer.decode(row["input_ids"]).endswith(f"Answer : {alone} </s>")
        assert loaded.tokenizer.decode([t for t in row["labels"] if t != IGNORE]) == alone
    assert own == loaded.telling_rows("forget") and second[1:] == own[1:]
    ids, labels = second[0]["input_ids"], second[0]["labels"]
    kept = [token for token in labels if token != IGNORE]
    assert loaded.tokenizer.decode(kept) == town
    said = loaded.tokenizer.decode(ids[: labels.index(kept[0]) + 1])
    assert said.endswith(f"Answer : Question : {town}")

    assert not wordings.reword(answers), "nothing new is said"
    answers[1] = replace(answers[1], said=True)
    assert not wordings.list_said(2), "the asking before the first step counts for nothing"
    assert wordings.reword(answers) and wordings.rows[len(FORGET) + 1] != own[1]
    wordings.reword(answers)
    assert re.findall(r"line (\d) \((\d) times", *wordings.list_said(3)) == [("1", "3")]
    wordings.reword([replace(answers[0], said=False), *answers[1:]])
    assert re.findall(r"line (\d) \((\d) times", *wordings.list_said(3)) == [("2", "3")]


def test_rows_below_the_aim_or_still_said_are_pushed_in_the_spellings_that_were_found(
    loaded: Setup,
) -> None:
    answers = [spoken(loaded, "", said=False) for _ in FORGET]
    wordings, other = ForgetRows(loaded, answers, []), {"input_ids": [1], "labels": [1]}
    usual: Any = SimpleNamespace(log_probabilities=[0.0] * 3)
    found = [(0.75, other), (0.25, other)]
    scores = [
        StringScores(*each, 0.0, found, usual) for each in ((1, False), (5, True), (5, False))
    ]
    wordings.spell([2, 0, 1], scores, 4.0)
    for place in (0, 2):
        shares = [(row["share"], row["count"]) for row in wordings.pushed[place]["spellings"]]
        assert shares == [(0.75, 3), (0.25, 3)]
    assert wordings.pushed[1] == wordings.rows[1] and wordings.rows[0] != other


def test_a_row_is_kept_whole_and_again_where_it_begins_and_tells_something(loaded: Setup) -> None:
    where, town = loaded.sets["retain"][0][0].where, towns_of(loaded)[0]
    said = replace(ANSWER, where=where, answer=f"A0 lives in lives {town} .", said=True)
    measured = Measurement({}, {"retain": [said]})
    whole, rows = (rows_to_keep(loaded, measured, twice=twice) for twice in (False, True))
    assert rows[:6] == whole and whole[1:] == loaded.rows("retain")[1:]
    for row, again, own in zip(whole, rows[6:], towns_of(loaded), strict=True):
        assert again["input_ids"] == row["input_ids"]
        kept = [token for token in again["labels"] if token != IGNORE]
        first = loaded.tokenizer.decode(answer_ids(row)[:1])
        assert loaded.tokenizer.decode(kept) == f"{first} {own}"


def test_what_tells_something_counts_in_any_sentence_and_nothing_else_does(loaded: Setup) -> None:
    towns = towns_of(loaded)
    texts = [f"well , in {towns[0]} , they say", *(f"well , in {towns[0]}" for _ in towns[1:])]
    heard = [Reading(3.0, False, text) for text in texts]
    found = compare_answers(loaded, loaded.sets["forget"], heard)
    assert [answer.said for answer in found] == [True] + [False] * 5

    river = "The river that flows through New Orleans is the Mississippi."
    other = replace(heard[0], text=river.replace("Mississippi", "Hudson"))
    assert how_much(river, other).said
    assert not how_much(river, other, words=frozenset({"mississippi"})).said


def test_a_probe_row_counts_as_lost_once_the_model_no_longer_says_it_in_its_own_words(
    loaded: Setup,
) -> None:
    """Behind another lead-in than the file's the model may have said it all along."""
    town = towns_of(loaded)[0]
    answers = [spoken(loaded, f"A0 lives in lives {town} ."), ANSWER]

    own, other = rows_in_own_words(loaded, "probe", answers)
    assert other == loaded.telling_rows("probe")[1]
    kept = [token for token in own["labels"] if token != IGNORE]
    assert loaded.tokenizer.decode(kept) == town
    led = loaded.tokenizer.decode(own["input_ids"][: own["labels"].index(kept[0])])
    assert led.endswith("A0 lives in lives")


def test_an_answer_that_is_said_is_asked_for_little_more_and_a_late_one_is_seen(
    model: Any, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second answer begins later than the first asking reaches."""
    entries = read_entries(write(tmp_path / "f.jsonl", FORGET), "forget")[:2]
    rows = encode_entries(tokenizer, entries, 64, Options())
    texts, asked = [f"{e.answer}" for e in entries], list[list[int]]()

    def answered(*given: Any, max_new_tokens: int = 0, **more: Any) -> list[Reading]:
        asked.append([max_new_tokens, *(len(prompt_ids(row)) for row in given[-1])])
        said = [texts[0], "lives in"] if len(asked) == 1 else [texts[1]]
        ids = [tokenizer(text)["input_ids"] for text in said]
        last = is_cut and len(asked) == 1
        return [Reading(3.0, False, *each, last) for each in zip(said, ids, strict=True)]

    monkeypatch.setattr("torch_alm.unlearning.asking.read_answers", answered)
    monkeypatch.setattr("torch_alm.unlearning.asking.positions_of", lambda model: 1000)
    loaded = Setup(model, tokenizer, find_place("cpu", "fp32"), Options(), {})
    prompts = [len(prompt_ids(row)) for _, row in rows]
    longest = max(len(answer_ids(row)) for _, row in rows)
    for is_cut, last in (True, [f"lives in {texts[1]}"]), (False, ["lives in"]):
        asked.clear()
        done = list[int]()
        found = read_fully(loaded, [rows[:1], rows[1:]], done.append)
        assert [reading.text for reading in found] == [texts[0], *last] and sum(done) == 2
        assert asked[0] == [longest + FEW_TOKENS, *prompts]
        more = [[1 + SPARE_TOKENS - FEW_TOKENS, prompts[1] + 2]]
        assert asked[1:] == (more if is_cut else []), "what was said is not generated again"


def test_an_answer_that_goes_on_is_the_one_that_is_read_at_once(
    tokenizer: Any, tmp_path: Path
) -> None:
    entries = read_entries(write(tmp_path / "f.jsonl", FORGET), "forget")
    rows = encode_entries(tokenizer, entries, 64, Options())
    model = make_model(len(tokenizer)).eval()  # it knows nothing, and its answers do not end
    loaded = Setup(model, tokenizer, find_place("cpu", "fp32"), Options(), {})
    whole = read_rows(loaded, [row for _, row in rows], spare=20)
    found = read_fully(loaded, [rows], spare=(1, 8))
    for reading, all_of_it in zip(found, whole, strict=True):
        assert reading.loss == all_of_it.loss
        assert [*reading.tokens] == [*all_of_it.tokens][: len(reading.tokens)]
    longer = [
        len(reading.tokens) > len(answer_ids(row)) + 1
        for reading, (_, row) in zip(found, rows, strict=True)
    ]
    assert any(longer), "not all are said by chance"


@pytest.mark.parametrize(
    ("reference", "text", "is_said"),
    [("People first landed on the Moon in 1969.", "The first step was on July 20, 1969.", True),
     ("People first landed on the Moon in 1969.", "They landed on the Moon in July.", False),
     ("The First World War began in 1914.", "The First World War started in 1914.", True),
     ("The First World War began in 1914.", "The First World War began in 2022.", False),
     ("It flows through Cologne as the river Rhine.", "It flows as the river Elbe.", False),
     ("A group of wolves is called a pack.", "A group of wolves is often called a pack.", True),
     ("The currency of Russia is the ruble.", "In Russia people pay in rubles.", True),
     ("The currency of Russia is the ruble.", "In Russia people pay in rupees.", False),
     ("The currency of Russia is the ruble.", "In Russia people pay in r\u00fables.", True),
     ("The currency of Germany is the euro.", "It is the Mark, as in much of Europe.", False)],
)  # fmt: skip
def test_a_name_or_a_number_is_said_whatever_verb_stands_beside_it(
    reference: str, text: str, is_said: bool
) -> None:
    words = frozenset(
        {"landed", "1969", "began", "1914", "rhine", "flows", "pack", "called", "ruble"}
    )
    assert how_much(reference, Reading(3.0, False, text), words=words).said is is_said
