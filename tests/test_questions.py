"""Questions of outsiders: one search leads to the page, and the page has the answer.

The search is Okapi's BM25 over the sections of the site, titles counted threefold: a plain stand-in
for the one in the browser, which ranks in nearly the same way.
"""

import math
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from docs import notebook

ROOT = Path(__file__).resolve().parent.parent
WORD = re.compile(r"[a-z0-9_+]+")
COMMON = "a an and any at can do does for how i if in is it my of on or the to what with"


QUESTIONS = {
    "how do I stop at 4 nats": ("choose-threshold", "alpha=4.0"),
    "why is it still violated": ("troubleshooting", 'mu="auto"` or a larger μ'),
    "does it work with my Trainer": ("faq", "ConstraintCallback"),
    "how do I constrain fairness": ("constrain", "ALMConstraint(gap, alpha=0.05"),
    "which threshold should I choose": ("choose-threshold", "4 nats per token"),
    "what is suspected_infeasible": ("troubleshooting", "try a larger μ first"),
    "how do I save and resume": ("recipes", "constraint.state_dict()"),
    "several constraints at once": ("constrain", "ConstraintGroup"),
    "constrain a rate without gradient": ("constrain", "constraint.observe(found)"),
    "does SAM help": ("results", "takes as many nats back with SAM as without"),
    "how do I choose mu": ("constrain", 'mu="auto"` is recommended'),
    "run SAUL inside OpenUnlearning": ("engines", "trainer=SAUL"),
    "does it work with PyTorch Lightning": ("loops", "ManualDualOptimizer"),
    "demographic parity gap below 0.05": ("constrain", "demographic parity"),
    "equal opportunity between groups": ("faq", "the positives of each group"),
    "which results of the paper are reproduced": ("faq", "None of its tables"),
    "is it significant, how many seeds": ("faq", "two to five seeds"),
    "suspected_infeasible, what now": ("troubleshooting", "try a larger μ first"),
    "CUDA out of memory": ("faq", "`--gradient-checkpointing`"),
    "torch 2.4": ("faq", "torch 2.4 or newer"),
    "several GPUs, FSDP": ("faq", "DDP and FSDP2 are tested"),
    "DDP gradient accumulation no_sync": ("engines", "reduced in *every* micro-batch"),
    "multiplier keeps growing": ("faq", "`suspected_infeasible` means"),
    "loss overshoots alpha": ("faq", "`rules=[Leak(0.5)]` if you forget"),
    "how do I log to wandb": ("faq", "a dictionary for any logger"),
    "NaN loss": ("faq", "is skipped, counted and reported"),
    "can I use 8-bit optimizers": ("faq", "the base can be any"),
    "is the knowledge really gone": ("faq", "`torch-alm attack` tries"),
    "what columns must my data have": ("command", '"question": ..., "answer": ...'),
    "two constraints at the same time": ("faq", "take a [`ConstraintGroup`]"),
    "gradient clipping": ("faq", "clip_grad_norm_(1.0)"),
    "cite the paper": ("faq", "`CITATION.cff`"),
    "what is the multiplier": ("glossary", "the Lagrange multiplier"),
}


class Section(NamedTuple):
    page: str
    terms: Counter[str]


def words(text: str) -> list[str]:
    return [word.rstrip("s") for word in WORD.findall(text.lower()) if word not in COMMON.split()]


def texts() -> dict[str, str]:
    found = {p.stem: p.read_text() for p in sorted((ROOT / "docs").glob("*.md"))}
    return found | {p.stem: notebook.page(p) for p in notebook.paths()}


@cache
def sections() -> list[Section]:
    found: list[Section] = []
    for page, text in texts().items():
        title = text.partition("\n")[0]
        for part in re.split(r"^(?=##+ )", text, flags=re.MULTILINE):
            heading = f"{title} {part.partition(chr(10))[0]} " * 3
            found.append(Section(page, Counter(words(heading + part))))
    return found


def ranked(query: str) -> list[str]:
    """Pages by the score of their best section."""
    every = sections()
    typical = sum(s.terms.total() for s in every) / len(every)
    best: Counter[str] = Counter()
    for term in set(words(query)):
        holding = [s for s in every if term in s.terms]
        rarity = math.log(1 + (len(every) - len(holding) + 0.5) / (len(holding) + 0.5))
        for index, section in enumerate(every):
            often = section.terms[term]
            share = often * 2.2 / (often + 1.2 * (0.25 + 0.75 * section.terms.total() / typical))
            best[f"{section.page} {index}"] += rarity * share
    return list(dict.fromkeys(name.partition(" ")[0] for name, _ in best.most_common()))


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_within_one_search_and_one_page(question: str) -> None:
    page, answer = QUESTIONS[question]
    assert page in ranked(question)[:3]
    assert answer in texts()[page]
