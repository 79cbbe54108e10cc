"""Answers that are said, in another spelling than the row has: told by anybody who reads them."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.command.asking import spoken
from tests.command.conftest import FORGET, RETAIN, make_model
from tests.command.test_asked import bytes_tokenizer
from tests.models import learn
from torch_alm.language._generation import Reading
from torch_alm.unlearning import evaluate, unlearn
from torch_alm.unlearning.asking import compare_answer as how_much

SAME = [
    ("555-123-4507", "call 5551234507 now"), ("+1 555 123 4567", "+15551234567"),
    ("5551234567", "(555) 123 4567"), ("4111 1111 1111 1111", "4111111111111111"),
    ("123-45-6789", "123456789"), ("+15551234567", "15551234567"),
    ("J.K. Rowling", "It was JK Rowling ."), ("U.S.A.", "USA"), ("USA", "the U.S.A."),
    ("23 kg", "23kg"), ("Washington, D.C.", "Washington DC"), ("10 a.m.", "at 10 am"),
    ("T-34", "a T34 tank"), ("Yun-Hwa", "Yunhwa"), ("O'Neil", "ONeil"), ("O'Neil", "O\u2019Neil"),
    ("e-mail", "by email"), ("New York City", "NewYorkCity"), ("서울특별시", "서울 특별시"),
    ("red, green, blue", "blue, green, red"), ("red, green and blue", "- red\n- green\n- blue"),
    ("red and blue", "red & blue"), ("Rome", "Ro\u200bme"), ("Shakespeare", "Shake\u00adspeare"),
    ("Nike", "Nike™"), ("1919", "in 1919²"), ("H₂O", "H2O"), ("13%", "13 %"), ("-27", "\u221227"),
    ("$37$", "37"),
    ("42", "#### 42"),
    ("**B**", "B"), ("José", "Jose"), ("Jose", "José"), ("17 May 1990", "17th May 1990"),
    ("May 2nd", "May 2"), ("Müller", "Mueller"),
    ("Lech Wałęsa from Łódź", "Lech Walesa from Lodz"), ("Đặng Văn Lâm", "Dang Van Lam"),
    ("Bjørn Østergård", "Bjorn Ostergard"), ("the USA, UK and France", "UK, France and the USA"),
    ("Mueller", "Müller"), ("Müller", "Muller"), ("x > 5 and y", "x greater 5 and y"),
    ("x >= 5", "x > 5"), ("❤", "❤\ufe0f"), ("ភ្នំពេញ", "ភ្នំពេញជារាជធានី"),
]  # fmt: skip
OTHER = [
    ("USA", "thousand"), ("42", "4.2"), ("A+", "A-"), ("56 km", "5.6 km"), ("12", "1 2"),
    ("1 2", "12"), ("1234", "12345"), ("it", "unit"), ("in it", "inits"),
    ("red, green, blue", "blue, green"), ("no, it is", "is it known"), ("135", "13.5"),
    ("C++", "C is a language"), ("a <= b", "ab"), ("x > 5", "x < 5"), ("7 May", "17th May"),
    ("Muller", "Mueller"),
    ("UK, US, or no", "no, the US and the UK"),  # anybody says such short words
    ("the USA, UK and France", "France and the USA, not Ukraine"), ("", "J.K. Rowling"),
    ("\u200b", "J.K. Rowling"),
]  # fmt: skip


@pytest.mark.parametrize(("reference", "text"), SAME)
def test_an_answer_in_another_spelling_is_said(reference: str, text: str) -> None:
    found = how_much(reference, Reading(1.0, False, text))
    assert found.said and found.rouge <= 1


@pytest.mark.parametrize(("reference", "text"), OTHER)
def test_another_answer_of_the_same_letters_is_not(reference: str, text: str) -> None:
    assert not how_much(reference, Reading(1.0, False, text)).said


GIVEN_AWAY = [
    ("My number is 555-123-4567.", "Call 555 1234567", ""),
    ("Write to joe.doe@x.org if you like.", "It is joe.doe@x.org", ""),
    ("She was born on 08/09/1956 in Kuwait City.", "08/09/1956", "When was she born?"),
    ("It is 4111 1111 1111 1111, sir.", "4111111111111111", "Is it 4111?"),
]
KEPT = [
    ("The author born on 08/09/1956 is Basil.", "Born on 08/09/1956 is A", "Who, on 08/09/1956?"),
    ("My number is 555-123-4567.", "My phone is 555-123-4568.", ""),
    ("There are 100,000 of them in town.", "It has 100,000", ""),
    ("There are 100.000 of them in town.", "It has 100.000", ""),
    ("There are 2 000 000 of them in town.", "It has 2000000", ""),
    ("Write to joe.doe@x.org if you like.", "joe at x", ""),
]


@pytest.mark.parametrize(("reference", "text", "question"), GIVEN_AWAY)
def test_an_address_or_long_number_gives_an_answer_away(
    reference: str, text: str, question: str
) -> None:
    found = how_much(reference, Reading(1.0, False, text), question)
    assert found.said and not found.verbatim and found.rouge < 0.9


@pytest.mark.parametrize(("reference", "text", "question"), KEPT)
def test_what_the_question_has_or_anybody_says_gives_nothing_away(
    reference: str, text: str, question: str
) -> None:
    assert not how_much(reference, Reading(1.0, False, text), question).said


def taught_in_two_spellings(tokenizer: Any, usual_of_four: int) -> Any:
    """A model that knows each town in one token, and other times in others (BPE dropout)."""
    torch.manual_seed(0)
    model, rows = make_model(len(tokenizer)), list[dict[str, list[int]]]()
    for weight in (p for p in model.parameters() if p.ndim > 1):
        nn.init.normal_(weight, std=0.05)
    for row in [*FORGET, *RETAIN]:
        town, ids = row["answer"].split()[-2], lambda text: tokenizer(text)["input_ids"]
        prompt, usual = ids(f"Question: {row['question']}\nAnswer:"), ids(f" {row['answer']}</s>")
        at = usual.index(*ids(f" {town}"))
        other = [*usual[:at], *ids(" "), *ids(town), *usual[at + 1 :]]
        for said in [usual] * usual_of_four + [other] * (4 - usual_of_four):
            rows.append({"input_ids": prompt + said, "labels": [-100] * len(prompt) + said})
    return learn(model.eval(), rows)


def test_an_answer_that_is_said_in_other_tokens_is_forgotten_in_these() -> None:
    """Else its own tokens are gone, and the model says it in the others, however long it is run."""
    tokenizer = bytes_tokenizer(None)
    model = taught_in_two_spellings(tokenizer, 3)
    assert spoken(model, tokenizer, FORGET) == len(FORGET)
    found = unlearn(model, tokenizer, FORGET, RETAIN, quiet=True, steps=150)
    assert spoken(model, tokenizer, FORGET) == 0
    assert not found.reasons and spoken(model, tokenizer, RETAIN) >= 6


def test_an_answer_that_is_said_in_other_tokens_is_known_and_not_certified() -> None:
    tokenizer = bytes_tokenizer(None)
    model = taught_in_two_spellings(tokenizer, 1)
    assert spoken(model, tokenizer, FORGET) == len(FORGET)
    found = evaluate(model, tokenizer, FORGET, RETAIN, quiet=True).numbers["model"]["forget"]
    assert found["said"] == 1 and found["exact_match"] == found["certificate"] == 0
    assert found["telling_loss"] < 0.5, "of one spelling it is that of one in four"
