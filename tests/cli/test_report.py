"""The report: every number of it from report.json, self-contained, and readable."""

import copy
import math
import re
from dataclasses import replace
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import FINISHED, FORGET, RETAIN, Command, fits, report, write
from torch_alm.cli import report as report_module
from torch_alm.cli.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    POINTS,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    thinned,
    ticks,
)
from torch_alm.cli.files import Entry, encode_entries, read_entries, rows_of
from torch_alm.cli.measuring import numbers, read, read_rows, reference_of, text_of
from torch_alm.cli.windows import windows
from torch_alm.language import (
    Format,
    Reading,
    answer_ids,
    encode,
    encode_completion,
    encode_messages,
    encode_text,
    prompt_ids,
    read_answers,
)

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """The text of a page, its links, its tables, and whether every element is closed."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(source)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
        self.links += [v for k, v in attrs if k in ("href", "src", "srcset", "data", "action")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.links += [v for k, v in attrs if k in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open and self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data


def page(path: Path) -> tuple[Page, str]:
    source = (path / "report.html").read_text()
    return Page(source), source


def test_report_json_holds_the_whole_run(unlearned: Path) -> None:
    found = report(unlearned)
    before, after = found["models"]
    assert (before["name"], after["name"]) == ("before", "after")
    for model in (before, after):
        assert set(model["numbers"]) == {"forget", "retain", "holdout"}
        assert 0 <= model["membership_auc"] <= 1
        assert [a["prompt"] for a in model["answers"]["forget"]] == [r["question"] for r in FORGET]
        assert set(model["answers"]["retain"][0]) == {
            *("where", "prompt", "reference", "answer", "rouge", "loss", "exact_match"),
            *("verbatim", "said"),
        }
    assert {"certificate", "loss", "exact_match"} <= set(after["numbers"]["forget"])
    assert set(found["trace"][0]) == {
        "retain_loss",
        "forget",
        "violation",
        "lambda",
        "weight",
        "lr",
    }
    assert len(found["trace"]) == 12
    assert set(found["versions"]) == {"python", "torch-alm", "torch", "transformers", "peft"}
    assert found["settings"]["alpha"] == 2
    assert re.fullmatch(r".*forget\.jsonl, sha256 [0-9a-f]{16}", found["settings"]["forget"])


def test_lambda_in_the_trace_is_algorithm_1(unlearned: Path) -> None:
    found = report(unlearned)
    price = 0.0
    for row in found["trace"]:
        price = max(0.0, price + found["settings"]["mu"] * (2 - row["forget"]))
        assert row["violation"] == pytest.approx(2 - row["forget"], abs=1e-12)
        assert row["lambda"] == row["weight"] == pytest.approx(price, abs=1e-9)


def test_the_page_stands_alone_and_shows_the_numbers(unlearned: Path) -> None:
    shown, source = page(unlearned)
    assert shown.links == []
    assert not re.search(r"https?:|<script|@import|url\(", source)
    found = report(unlearned)
    for model in found["models"]:
        assert f"{model['numbers']['forget']['loss']:.2f}" in shown.text
        assert f"{model['membership_auc']:.2f}" in shown.text
    assert all(row["question"] in shown.text for row in FORGET)
    assert "prefers-color-scheme: dark" in source
    assert 'name="viewport"' in source
    assert source.count("<svg") == 3


def test_what_stands_in_the_files_is_text_not_markup(
    command: Command, tmp_path: Path, files: dict[str, Path]
) -> None:
    nasty = [{"question": "<script>alert(1)</script> A0", "answer": "<b>A0</b> & more"}]
    assert command("evaluate", forget=write(tmp_path / "x.jsonl", nasty)) == 0
    _, source = page(tmp_path / "out")
    assert "<script>" not in source
    assert "&lt;script&gt;alert(1)" in source


def test_evaluate_is_the_same_report_of_one_model_or_two(
    command: Command, tmp_path: Path, unlearned: Path, folder: Path
) -> None:
    options = ("--original", folder)
    saved = unlearned / "model"
    files = {name: unlearned.parent / f"{name}.jsonl" for name in ("forget", "retain", "holdout")}
    code = command("evaluate", *options, model=saved, output="e", **files)
    assert code == 0
    one, two = report(unlearned), report(tmp_path / "e")
    assert one.keys() == two.keys()
    assert [model["name"] for model in two["models"]] == ["original", "model"]
    for mine, theirs in zip(one["models"], two["models"], strict=True):
        assert mine["numbers"] == theirs["numbers"]
        assert mine["answers"] == theirs["answers"]
        assert mine["membership_auc"] == theirs["membership_auc"]
    shown, _ = page(tmp_path / "e")
    assert "How it went" not in shown.text


def test_a_model_is_evaluated_in_the_precision_asked_for(command: Command, tmp_path: Path) -> None:
    losses: list[float] = []
    for precision in ("auto", "fp32", "bf16"):
        assert command("evaluate", "--precision", precision, output=precision) == 0
        (found,) = report(tmp_path / precision)["models"]
        losses.append(found["numbers"]["forget"]["loss"])
    auto, wide, narrow = losses
    assert auto == wide != narrow == pytest.approx(wide, rel=0.1)


def common(said: list[str], right: list[str]) -> int:
    """Length of the longest common subsequence."""
    if not said or not right:
        return 0
    if said[0] == right[0]:
        return 1 + common(said[1:], right[1:])
    return max(common(said[1:], right), common(said, right[1:]))


def test_an_answer_is_scored_by_the_words_it_says_in_order(
    command: Command, tmp_path: Path
) -> None:
    wrong = [{**row, "answer": f"{row['answer'][:-6]} lives A1 in"} for row in FORGET]
    path = write(tmp_path / "f.jsonl", [FORGET[0], *wrong])
    assert command("evaluate", forget=path) == 0
    (found,) = report(tmp_path / "out")["models"]
    scores = []
    for i, row in enumerate(found["answers"]["forget"]):
        said, right = (re.findall(r"\w+", row[key].lower()) for key in ("answer", "reference"))
        scores.append(common(said, right) / len(right))
        assert row["rouge"] == pytest.approx(scores[-1])
        assert row["where"] == f"{path}, line {i + 1}"
    assert 0 < min(scores) < max(scores) == 1
    assert found["numbers"]["forget"]["rouge"] == pytest.approx(fmean(scores))


def test_a_reference_ends_where_the_answer_does(tokenizer: Any) -> None:
    closing = copy.deepcopy(tokenizer)
    closing.add_special_tokens({"additional_special_tokens": ["<end>"]})
    closing.chat_template = "{% for m in messages %}{{ m['content'] }} <end>{% endfor %}"
    for each in (tokenizer, closing):
        row = encode(each, "Where does A0 live ?", "A0 lives in Rome")
        assert text_of(each, row) == "A0 lives in Rome"
    cut = encode(tokenizer, **FORGET[0], max_length=13)
    assert text_of(tokenizer, cut) == "A0 lives in Rome"


@pytest.mark.parametrize("max_length", [11, 12, 64])
def test_what_a_format_closes_an_answer_with_is_not_to_be_said(
    tokenizer: Any, max_length: int
) -> None:
    """In plain words, which no special token tells from the answer's; also of one that is cut."""
    closing = copy.deepcopy(tokenizer)
    closing.chat_template = "{% for m in messages %}{{ m['content'] }} York {% endfor %}"
    answer = "A0 lives in Rome A1 lives in Bonn"
    entry = Entry("line 1", "Where does A0 live ?", answer)
    rows = rows_of(closing, entry, max_length, Format())
    assert (len(rows) > 1) == (max_length < 64)
    assert text_of(closing, rows[-1]).endswith("York")
    assert " ".join(reference_of(closing, entry, row).strip() for row in rows) == answer


def test_numbers_of_a_set_are_means_over_its_rows() -> None:
    readings = [Reading(0.5, True, 0.25, 0.75, 0.0), Reading(1.5, False, 0.5, 0.0, 0.0)]
    answers = [{"rouge": 0.5, "said": True}, {"rouge": 0.0, "said": False}]
    assert numbers(readings, answers) == {
        "rows": 2.0,
        "loss": 1.0,
        "probability": pytest.approx((math.exp(-0.5) + math.exp(-1.5)) / 2),
        "exact_match": 0.5,
        "extraction_strength": 0.375,
        "certificate": 0.375,
        "rouge": 0.25,
        "rouge_error": pytest.approx(0.25),
        "said": 0.5,
        "unmeasured": 0.0,
    }
    broken = Reading(math.nan, False, 0.0, 0.0, math.nan)
    assert numbers([broken], answers[:1])["unmeasured"] == 1


def test_only_what_is_shown_is_generated_and_no_longer_than_it_need_be(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[list[int], Any, Any]] = []

    def noted(model: Any, tokenizer: Any, rows: Any, **how: Any) -> Any:
        seen.append(([len(answer_ids(row)) for row in rows], how.get("texts", True),
                     how.get("max_new_tokens")))  # fmt: skip
        return read_answers(model, tokenizer, rows, **how)

    monkeypatch.setattr("torch_alm.cli.measuring.read_answers", noted)
    monkeypatch.setattr("torch_alm.cli.measuring.SPARE_TOKENS", 32)
    text = Entry("x", "", " ".join(word for row in RETAIN for word in row["answer"].split()[:2]))
    asked = Entry("y", RETAIN[0]["question"], RETAIN[0]["answer"])
    done: list[int] = []
    for entries in ([asked], [text, asked], []):
        read(model, tokenizer, encode_entries(tokenizer, entries, 64, Format()), done.append)
    monkeypatch.setattr("torch_alm.cli.measuring.ROWS_PER_BATCH", 2)
    read(
        model, tokenizer, encode_entries(tokenizer, [text, asked, asked], 64, Format()), done.append
    )
    whole, both = ([6], True, 38), ([6, 8], True, 40)
    assert seen == [
        whole, both, ([16], False, None), ([6, 6], True, 38), ([8], True, 40), ([16], False, None),
    ]  # fmt: skip
    assert done == [1, 2, 2, 1]


def test_a_batch_keeps_no_more_tokens_than_there_is_room_for(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []

    def noted(model: Any, tokenizer: Any, rows: Any, *, max_new_tokens: int) -> list[Any]:
        prompts = max(len(prompt_ids(row)) for row in rows)
        seen.append((len(rows), prompts + max_new_tokens))
        return [None] * len(rows)

    monkeypatch.setattr("torch_alm.cli.measuring.read_answers", noted)
    monkeypatch.setattr("torch_alm.cli.measuring.TOKENS_PER_BATCH", 200)
    lengths = [3, 9, 4, 20, 6, 12, 5, 30]
    rows = [{"input_ids": [1] * (n + 2), "labels": [-100] * n + [7, 2]} for n in lengths]
    read_rows(model, None, rows)  # pyright: ignore[reportArgumentType]
    assert sum(count for count, _ in seen) == len(rows)
    assert all(count == 1 or count * width <= 200 for count, width in seen)
    assert max(count for count, _ in seen) > 1


def test_there_is_room_for_a_header_of_the_models_own(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []

    def noted(model: Any, tokenizer: Any, rows: Any, **how: Any) -> Any:
        limits.append(how["max_new_tokens"])
        return read_answers(model, tokenizer, rows, **how)

    monkeypatch.setattr("torch_alm.cli.measuring.read_answers", noted)
    monkeypatch.setattr("torch_alm.cli.measuring.SPARE_TOKENS", 32)
    row = {"input_ids": [3, 4, 5, 6, 7, 2], "labels": [-100] * 4 + [7, 2], "asked": [3]}
    read(model, tokenizer, [(Entry("x", "a", "b"), row)])
    assert limits == [5 + 32, 2 + 32]  # without the header, and behind it


TURNS = [
    {"role": role, "content": f"{role} {i}"} for i in range(2) for role in ("user", "assistant")
]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"question": "a", "answer": "b"}, Entry("", "a", "b")),
        ({"prompt": "a ", "completion": " b", "text": "c"},
         Entry("", "a ", " b", is_literal=True)),
        ({"prompt": TURNS[:3], "completion": TURNS[3:]}, Entry("", "user 1", "assistant 1")),
        ({"question": "a", "answer": "b", "paraphrased_question": "c"},
         Entry("", "a", "b", paraphrase="c")),
        ({"messages": TURNS, "text": "c"}, Entry("", "user 1", "assistant 1")),
        ({"text": "a b c"}, Entry("", "", "a b c")),
    ],
)  # fmt: skip
def test_a_row_is_asked_and_answered_as_its_kind_says(
    tmp_path: Path, row: dict[str, Any], expected: Entry
) -> None:
    path = write(tmp_path / "rows.jsonl", [{"text": "before"}, row])
    _, found = read_entries(path, "forget")
    assert found == replace(expected, where=f"{path}, line 2")
    talks = "messages" in row or isinstance(row.get("prompt"), list)
    assert list(found.messages) == (TURNS if talks else [])
    assert found.is_text == (not {"question", "prompt", "messages"} & row.keys())


def test_rows_are_encoded_as_their_kind_says_up_to_the_length_asked_for(tokenizer: Any) -> None:
    text = " ".join(word for row in RETAIN for word in row["answer"].split()[:2])
    question, answer = FORGET[0].values()
    silent = {"role": "user", "content": ""}
    turns = ({"role": "user", "content": question}, {"role": "assistant", "content": answer})
    entries = [
        Entry("w", "", text),
        Entry("w", question, answer),
        Entry("w", question, answer, messages=turns),
        Entry("w", "", answer, messages=(silent, turns[1])),
        Entry("w", question, answer, is_literal=True),
    ]
    form = Format(template="Question: {question} {answer}")
    expected = [
        encode_text(tokenizer, text, 13),
        windows(encode(tokenizer, question, answer, form=form), 13),
        windows(encode_messages(tokenizer, turns, form=form), 13),
        windows(encode_messages(tokenizer, (silent, turns[1]), form=form), 13),
        windows(encode_completion(tokenizer, question, answer), 13),
    ]
    assert encode_entries(tokenizer, entries, 13, form) == [
        (entry, row) for entry, rows in zip(entries, expected, strict=True) for row in rows
    ]
    assert [len(rows) for rows in expected] == [2, 1, 1, 1, 1]


def test_rows_of_every_kind(command: Command, tmp_path: Path) -> None:
    words = [w for row in FORGET for w in (row["question"], row["answer"])]
    mixed = [
        {"prompt": f"Question: {words[0]}\nAnswer:", "completion": f" {words[1]}"},
        {"text": " ".join(words[:4])},
        {"messages": [{"role": "user", "content": words[2]},
                      {"role": "assistant", "content": words[3]}]},
    ]  # fmt: skip
    path = write(tmp_path / "mixed.jsonl", mixed)
    assert command("unlearn", "--epochs", 1, forget=path) in FINISHED
    answers = report(tmp_path / "out")["models"][0]["answers"]["forget"]
    assert [a["prompt"] for a in answers[::2]] == [mixed[0]["prompt"], words[2]]
    assert answers[0]["answer"] == answers[0]["reference"] == words[1]
    given, rest = answers[1]["prompt"], answers[1]["reference"]
    assert f"{given} {rest}" == " ".join(words[:4])
    assert 0.4 < len(given) / len(f"{given} {rest}") < 0.6


def test_a_report_of_evaluate_says_what_was_asked(
    command: Command, tmp_path: Path, folder: Path, files: dict[str, Path], capsys: Any
) -> None:
    assert command("evaluate", "--rows", 3, "--force", holdout=files["holdout"]) == 0
    found = report(tmp_path / "out")
    (only,) = found.pop("models")
    assert only["name"] == "model"
    assert {name: len(rows) for name, rows in only["answers"].items()} == {
        "forget": 6, "retain": 3
    }  # fmt: skip
    assert only["numbers"]["holdout"]["rows"] == 3
    assert set(found.pop("versions")) == {"python", "torch-alm", "torch", "transformers", "peft"}
    run = found.pop("run")
    assert datetime.fromisoformat(run["date"]).tzinfo is not None
    assert run["seconds"] >= 0 and run["device"].startswith("cpu, ")
    assert found == {
        "title": f"What {folder.name} knows",
        "subtitle": f"{files['forget']} against {files['retain']}",
        "settings": {
            "model": str(folder), "original": None, "template": None, "system": None,
            "columns": None, "max_length": "512", "rows": "3",
            "batch_size": "8", "seed": "0", "device": "cpu", "precision": "auto",
            **{name: str(path) for name, path in files.items()},
        },
        "goal": None, "verdict": None, "controller": None, "trace": [], "attacks": [], "notes": [],
    }  # fmt: skip
    told = capsys.readouterr().out
    assert told.startswith(" " * 45 + "model\nForget (6 rows)\n")
    assert " ".join(told.split()).endswith(f"{tmp_path / 'out'}: report.html, report.json.")


MEASURES = ("rows", "loss", "probability", "rouge", "exact_match", "extraction_strength",
            "certificate")  # fmt: skip


def known(name: str, auc: float | None, **sets: tuple[float, ...]) -> dict[str, Any]:
    """A model in `report.json`: measures of each set, and 22 answers of the forget set."""
    numbers = {key: dict(zip(MEASURES, values, strict=False)) for key, values in sets.items()}
    said = [
        {"where": f"line {i}", "prompt": f"Q{i}?", "reference": f"A{i}", "answer": f"{name} {i}"}
        for i in range(22)
    ]
    said[1]["answer"] = ""
    answers = {"forget": said, "retain": said[:2]}
    return {"name": name, "numbers": numbers, "membership_auc": auc, "answers": answers}


def test_rows_of_a_long_text_stand_beside_those_of_a_tokenizer_that_cuts_it_elsewhere() -> None:
    def model(name: str, lines: list[str]) -> dict[str, Any]:
        rows = [{"where": line, "answer": f"{name} {i}"} for i, line in enumerate(lines)]
        return {"name": name, "answers": {"forget": rows, "retain": []}}

    more, fewer = model("more", ["a", "a", "b", "c"]), model("fewer", ["a", "b", "b", "c"])
    (shown,) = report_module.answers([more, fewer])
    assert [row["said"] for row in shown["rows"]] == [
        [("more", "more 0"), ("fewer", "fewer 0")],
        [("more", "more 2"), ("fewer", "fewer 1")],
        [("fewer", "fewer 2")],
        [("more", "more 3"), ("fewer", "fewer 3")],
    ]


def relearned(name: str, attacker: dict[str, float], after: float) -> dict[str, Any]:
    before = dict(zip(MEASURES, (6.0, 5.0, 0.1, 0.0, 0.01, 0.12), strict=False))
    parts = dict(zip(MEASURES, (6.0, after, 0.2, 0.5, 0.25, 1.0), strict=False))
    told = {"where": "a, line 2", "prompt": "X?", "reference": "RX", "rouge": parts["rouge"]}
    answers = [{**told, "earlier": "", "answer": f"{name} X"}]
    sides = {"before": before, "after": parts}
    return {"name": name, "attacker": attacker, **sides, "answers": answers}


CONTENT = {
    "title": "Unlearning M",
    "subtitle": "saul, 2 steps",
    "settings": {"batch_size": 3, "lr": None, "model": "M"},
    "versions": {"python": "3.x", "torch": "2.y"},
    "run": {"date": "2020-02-29T12:00:00+00:00", "seconds": 3725.4, "device": "cuda, A GPU"},
    "goal": {"kind": "loss", "alpha": 4.0, "source": "--alpha"},
    "models": [
        known("before", 0.973, forget=(22, 0.12, 0.887, 0.98, 0.91, 0.87, 0.03),
              retain=(8, 0.21, 0.811, 0.95, 0.93, 0.85, 0.04)),
        known("after", None, forget=(22, 4.56, 0.010, 0.05, 0.02, 0.11, 0.99),
              retain=(8, 0.31, 0.733, 0.92, 0.86, 0.79, 0.06)),
    ],
    "verdict": {
        "outcome": "met at a cost", "code": 4, "missed": [], "text": "The verdict: is out.",
        "cost": "The cost.", "worst": [
            {"where": "a b.jsonl, line 7", "prompt": "W?", "reference": "RW", "answer": "SW",
             "rouge": 0.98, "verbatim": True, "loss": 0.5},
            {"where": "a b.jsonl, line 3", "prompt": "V?", "reference": "RV", "answer": "",
             "rouge": 0.12, "verbatim": False, "loss": 2.5},
        ],
    },
    "trace": [],
    "attacks": [{"name": "model", "rows": [
        relearned("relearn forget", {"examples": 8.0, "final loss": 0.1}, 1.2),
        relearned("answer prefix", {"share": 0.25}, 3.4),
    ]}],
    "notes": ["One note."],
}  # fmt: skip

KNOWN = """\
                                            before         after
Forget (22 rows)
  loss, nats per token                        0.12          4.56
  probability of the answer                  0.887         0.010
  words of the answer said (ROUGE-L)          98 %           5 %
  answered word for word                      91 %           2 %
  follows once begun                          87 %          11 %
  certified not word for word                  3 %          99 %
Retain (8 rows)
  loss, nats per token                        0.21          0.31
  probability of the answer                  0.811         0.733
  words of the answer said (ROUGE-L)          95 %          92 %
  answered word for word                      93 %          86 %
  follows once begun                          85 %          79 %
  certified not word for word                  4 %           6 %
Membership
  forget against unseen                       0.97             –
"""
CAME_BACK = """
                                 words         exact          loss    once begun
relearn forget on 8 rows        0%→50%        1%→25%     5.00→1.20      12%→100%
answer prefix 25% given         0%→50%        1%→25%     5.00→3.40      12%→100%
"""
VERDICT = "The verdict: is out.\nThe cost.\nSaid most: 98 % line 7, 12 % line 3."


def test_the_terminal_says_what_stands_in_the_report() -> None:
    assert report_module.terminal(CONTENT) == KNOWN + CAME_BACK + VERDICT
    plain = {**CONTENT, "goal": None, "verdict": None}
    assert report_module.terminal({**plain, "models": []}) == CAME_BACK[:-1]
    assert report_module.terminal({**plain, "attacks": []}) == KNOWN[:-1]


def test_the_page_says_what_the_terminal_says_and_more() -> None:
    shown = Page(report_module.html(CONTENT))
    table = [re.split(r"  +", line.strip()) for line in KNOWN.splitlines()]
    assert shown.rows == [
        ["", *table[0]],
        *table[1:],
        ["attack", "rows asked", "words", "word for word", "loss", "once begun"],
        [
            "relearn forget on 8 rows",
            "6",
            "0 % → 50 %",
            "1 % → 25 %",
            "5.00 → 1.20",
            "12 % → 100 %",
        ],
        ["answer prefix 25% given", "6", "0 % → 50 %", "1 % → 25 %", "5.00 → 3.40", "12 % → 100 %"],
        ["date", "2020-02-29T12:00:00+00:00"],
        ["duration", "1:02:05"],
        ["batch size", "3"],
        ["model", "M"],
        ["device", "cuda, A GPU"],
        ["versions", "python 3.x, torch 2.y"],
    ]
    words = " ".join(shown.text.split())
    body = words.rpartition("} ")[2]
    assert body.startswith("The verdict: is out.The cost. Unlearning M saul, 2 steps One note.")
    for told in ("98 % word for word, a b.jsonl, line 7 row RW after SW",
                 "V? 12 % a b.jsonl, line 3 row RV after (nothing)",
                 "Answers: forget The first 20 of 22; report.json has them all. "
                 "Q0? row A0 before before 0 after after 0 "
                 "Q1? row A1 before (nothing) after (nothing) Q2?",
                 "Q19? row A19 before before 19 after after 19 Answers: retain Q0?"):  # fmt: skip
        assert told.replace(" ", "") in words.replace(" ", "")


def test_two_attacked_models_stand_side_by_side_in_one_table() -> None:
    (first,) = CONTENT["attacks"]
    content = {**CONTENT, "attacks": [first, {**first, "name": "compared"}]}
    told = report_module.terminal(content)
    head = "words, model  words, other   loss, model   loss, other"
    assert " ".join(head.split()) in " ".join(told.split())
    assert all(len(line) <= 80 for line in told.splitlines())
    shown = Page(report_module.html(content))
    (columns,) = (row for row in shown.rows if row[0] == "attack")
    names = ("words", "word for word", "loss")
    assert columns[2:] == [f"{name}, {model}" for name in names for model in ("model", "compared")]


@pytest.mark.parametrize(
    ("outcome", "tone"), [("met", "met"), ("met at a cost", "costly"), ("not met", "missed")]
)
def test_a_verdict_has_the_colour_of_its_outcome(outcome: str, tone: str) -> None:
    content = {**CONTENT, "verdict": {**CONTENT["verdict"], "outcome": outcome}}
    source = report_module.html(content)
    assert f'class="verdict {tone}"' in source
    assert f".verdict.{tone} {{" in source


@pytest.mark.parametrize(("kind", "title"), [("loss", "Forget loss"), ("rate", "Certified rate")])
def test_lines_are_those_of_the_trace_beside_the_level(kind: str, title: str) -> None:
    keys = ("forget", "retain_loss", "lambda", "weight")
    trace = [dict(zip(keys, numbers, strict=True)) for numbers in ((1, 2, 3, 0), (4, 5, 6, 0.7))]
    goal = {"kind": kind, "alpha": 0.5, "source": "x"}
    charts = report_module.lines({"trace": trace, "goal": goal})
    assert [list(chart.values) for chart in charts] == [[1, 4], [2, 5], [3, 6]]
    assert [chart.level for chart in charts] == [0.5, None, None]
    titles = [title, "Retain loss", "multiplier λ"]
    assert [chart.title for chart in charts] == titles
    assert all(list(chart.is_open) == [False, True] for chart in charts)


def test_chart_lies_within_its_frame_and_marks_open_stretches() -> None:
    values = [0.0, 1.0, float("nan"), -2.0, 5.0]
    chart = Chart("x", values, 4.0, [True, True, False, False, True])
    points = [tuple(map(float, p.split(","))) for p in chart.points.split()]
    assert len(points) == 4, "what is not finite has no place"
    assert all(LEFT <= x <= WIDTH - RIGHT and TOP <= y <= HEIGHT - BOTTOM for x, y in points)
    assert min(y for _, y in points) == TOP  # the largest value is the highest point
    assert len(chart.bands) == 2
    assert sum(width for _, width in chart.bands) == pytest.approx((WIDTH - LEFT - RIGHT) / 2)
    level = chart.level_y
    assert level is not None
    assert TOP < level < HEIGHT - BOTTOM
    assert [label for _, label in chart.y_ticks] == ["-2", "0", "2", "4"]
    assert [label for _, label in chart.x_ticks] == ["1", "3", "5"]


@pytest.mark.parametrize("count", [2, 3, 7])
def test_steps_are_as_far_apart_from_edge_to_edge(count: int) -> None:
    points = Chart("x", [1.0] * count, None, [False] * count).points.split()
    apart = (WIDTH - LEFT - RIGHT) / (count - 1)
    found = [float(point.split(",")[0]) for point in points]
    assert found == pytest.approx([LEFT + apart * i for i in range(count)], abs=0.05)


@pytest.mark.parametrize("count", [1, 2, POINTS, POINTS + 1, 10_007])
def test_long_runs_are_thinned_by_means(count: int) -> None:
    shown = thinned([float(i) for i in range(count)])
    assert len(shown) <= POINTS
    assert all(step == pytest.approx(value) for step, value in shown)
    assert thinned([]) == []


def test_every_step_is_in_one_mean_and_none_that_is_not_finite() -> None:
    values = [float(i % 7) if i % 5 else float("nan") for i in range(1_000)]
    kept = [(i, value) for i, value in enumerate(values) if i % 5]
    parts = [kept[i : i + 3] for i in range(0, 800, 3)]
    shown = thinned(values)
    assert [step for step, _ in shown] == pytest.approx([fmean(i for i, _ in p) for p in parts])
    assert [value for _, value in shown] == pytest.approx([fmean(v for _, v in p) for p in parts])


@pytest.mark.parametrize("high", [1e-6, 0.03, 1, 5, 7, 12, 25, 1e5])
def test_ticks_are_few_and_round(high: float) -> None:
    marks = ticks(0.0, high)
    assert 2 <= len(marks) <= 6
    assert marks[0] == 0
    assert marks[-1] <= high * (1 + 1e-9)
    steps = [f * 10.0**power for power in range(-9, 9) for f in (1, 2, 5)]
    assert marks[1] == pytest.approx(min(step for step in steps if high / step <= 5 + 1e-9))


@pytest.mark.parametrize(("low", "high"), [(-3.0, 7.0), (-0.024, 0.0), (-1e4, 5e4), (-2.0, 2.0)])
def test_ticks_are_all_multiples_of_their_distance_from_low_to_high(
    low: float, high: float
) -> None:
    marks = ticks(low, high)
    step = marks[1] - marks[0]
    assert marks == pytest.approx([step * k for k in range(-9, 9) if low <= step * k <= high])


@pytest.mark.parametrize("high", [0.0123, 3.0, 999.0, 1001.0, 18_000.0, 1.7e6])
def test_a_label_of_an_axis_says_its_value(high: float) -> None:
    chart = Chart("x", [high], None, [False])
    assert [float(label) for _, label in chart.y_ticks] == pytest.approx(ticks(0.0, high))


def test_svg_is_xml(unlearned: Path) -> None:
    for drawing in re.findall(r"<svg.*?</svg>", page(unlearned)[1], re.DOTALL):
        assert ElementTree.fromstring(drawing).attrib["viewBox"] == f"0 0 {WIDTH} {HEIGHT}"


def test_terminal_fits_80_columns(
    command: Command, tmp_path: Path, files: dict[str, Path], capsys: Any
) -> None:
    steps = ("--epochs", 2, "--rows", 5)
    assert command("unlearn", *steps, holdout=files["holdout"]) in FINISHED
    assert command("attack", output="a") == 0
    told = capsys.readouterr()
    lines = told.out.splitlines() + re.split(r"[\r\n]+", told.err)
    assert all(map(fits, lines))
    bars = [line for line in lines if "lambda" in line and "/2" in line]
    assert any("violation" in bar and bar.rstrip().endswith(", open") for bar in bars)
    assert any(line.startswith("Retain (5 rows)") for line in lines)
    assert len(report(tmp_path / "out")["models"][0]["answers"]["retain"]) == 5 < len(RETAIN)
