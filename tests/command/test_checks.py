"""The rule by which a run asks, slows down and ends; and a plain small model, unlearned."""

import math
import random
import re
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.command.asking import said
from tests.command.conftest import command_in, report, write
from tests.models import learn, llama, word_tokenizer
from torch_alm.language import encode
from torch_alm.unlearning.checks import KEY, Checks, Pace, RowSample, WeightSnapshot
from torch_alm.unlearning.goal import CODES, Goal, Outcome, Verdict

WORDS = [f"w{i}" for i in range(80)]
PICK = random.Random(0)
ROWS = [
    {"question": f"Where does P{i} live ?", "answer": " ".join(PICK.choices(WORDS, k=4))}
    for i in range(56)
]
FORGOTTEN, KEPT = ROWS[:6], ROWS[6:]
BEHIND = re.compile(r"([qkv]|gate|up)_proj|lm_head")  # a norm


@pytest.fixture(scope="module")
def taught(tmp_path_factory: Any) -> Path:
    """A model that knows all rows by heart, and nothing else."""
    words = {word for row in ROWS for text in row.values() for word in text.split()}
    named = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"}
    tokenizer = word_tokenizer([*named.values(), *sorted(words), "Question:", "Answer:"], **named)
    ends = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 2}
    sizes = {"hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 64}
    model = learn(
        llama(len(tokenizer), **sizes, **ends),
        [encode(tokenizer, **row) for row in ROWS],
        steps=150,
        lr=3e-3,
    )
    path = tmp_path_factory.mktemp("taught")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_a_plain_model_is_unlearned_and_said_to_be(taught: Path, tmp_path: Path) -> None:
    files = {"forget": write(tmp_path / "f.jsonl", FORGOTTEN)}
    files["retain"] = write(tmp_path / "r.jsonl", KEPT)
    words = ("--lr", "3e-4", "--alpha", 3)
    assert command_in(tmp_path, taught, files)("unlearn", *words) == 0
    assert said(tmp_path / "out" / "model", FORGOTTEN) == 0
    assert said(tmp_path / "out" / "model", KEPT) >= 0.9 * len(KEPT)
    assert len(report(tmp_path / "out")["trace"]) < 300


def test_a_model_that_is_written_down_in_other_numbers_is_unlearned_alike(
    taught: Path, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(taught)
    with torch.no_grad():
        for name, p in model.named_parameters():  # what it says stays, to the last digit
            p.mul_(256 if "norm" in name else 1 / 256 if BEHIND.search(name) else 1)
    model.save_pretrained(tmp_path / "other")
    AutoTokenizer.from_pretrained(taught).save_pretrained(tmp_path / "other")
    files = {"forget": write(tmp_path / "f.jsonl", FORGOTTEN)}
    files["retain"] = write(tmp_path / "r.jsonl", KEPT)
    assert command_in(tmp_path, tmp_path / "other", files)("unlearn") in {0, 4}
    assert said(tmp_path / "out" / "model", FORGOTTEN) == 0
    assert said(tmp_path / "out" / "model", KEPT) >= 0.9 * len(KEPT)


def pace(**given: Any) -> Pace:
    return Pace(**{"alpha": 4.0, "aim": 4.4, "rate": 1e-4, "fixed": True, **given})


def verdict(outcome: Outcome, *missed: str) -> Verdict:
    return Verdict(outcome, missed, "", "", CODES[outcome])


def test_a_goal_that_is_met_ends_the_run() -> None:
    one = pace()
    assert not one.observe(4.4, 0.1, reached=True), "retain rows first"
    assert not one.observe(4.4, 0.0, reached=False)
    assert one.observe(4.4, 0.0, reached=True)
    one.decide(verdict("met"), [])
    assert one.ended == "the goal is met"


def test_a_goal_that_is_reached_waits_until_the_retain_rows_have_recovered() -> None:
    one = pace()
    excesses = [0.05, -0.02, -0.05, -0.055]
    assert [one.observe(4.4, e, reached=True) for e in excesses] == [False, False, False, True]


def test_a_goal_met_at_a_cost_ends_after_three_askings_that_find_none_cheaper() -> None:
    one, rates = pace(fixed=False), list[float]()
    for cost in ([3.0, 1.0], [2.0, 9.0], [2.0, 9.0], [3.0, 0.0], [2.0, 8.0], *[[4.0, 0.0]] * 3):
        assert not one.ended
        one.decide(verdict("met at a cost"), cost)
        rates.append(one.rate)
    assert one.best == [2.0, 8.0] and one.ended == "the goal is met at a cost"
    assert rates == [1e-4 / 2**k for k in (0, 0, 1, 2, 2, 3, 4, 5)] and one.aim == 4.4


def test_a_goal_that_was_met_is_none_the_less_met_for_an_asking_that_misses_it() -> None:
    one = pace()
    one.decide(verdict("met at a cost"), [1.0])
    one.decide(verdict("not met", "said"), [0.0], is_new=True)
    assert one.best == [1.0] and one.tries == 1 and one.aim == 4.4


def test_the_rate_is_doubled_where_little_was_gained_and_the_level_was_never_reached() -> None:
    one = pace(fixed=False, value=3.2)
    assert one.check(3.3, 0.0, reached=False) == "goes on"
    assert one.check(3.32, 0.0, reached=False) == "forgetting is slow: the rate is doubled"
    assert one.check(4.2, 0.0, reached=False) == one.check(4.2, 0.0, reached=False) == "goes on"
    assert one.observe(4.4, 0.0, reached=True) and one.check(3.4, 0.0, reached=False) == "goes on"


def test_a_model_that_still_says_too_much_is_aimed_higher_and_asked_later() -> None:
    one = pace()
    assert one.observe(4.4, 0.0, reached=True)
    one.decide(verdict("not met", "words"), [])
    assert one.aim > 4.4 and not one.ended
    assert [one.observe(4.4, 0.0, reached=True) for _ in range(4)] == [False, True] * 2


def test_rows_said_in_other_words_are_pushed_before_the_aim_is_raised() -> None:
    one = pace(fixed=False)
    assert one.observe(4.4, 0.0, reached=True)
    one.decide(verdict("not met", "said"), [], is_new=True)
    assert one.aim == 4.4 and not one.ended
    one.check(4.1, 0.0, reached=False)
    assert one.rate == 1e-4, "the other words were not known to be said before"
    assert one.observe(4.4, 0.0, reached=True), "as soon as these are gone, too"


@pytest.mark.parametrize(("fixed", "is_met"), [(False, False), (True, False), (False, True)])
def test_a_row_that_is_said_in_asking_after_asking_is_named_and_given_up(
    fixed: bool, is_met: bool
) -> None:
    one = pace(fixed=fixed)
    for n in range(1, 9):
        one.decide(verdict("met at a cost") if is_met else verdict("not met", "said"), [1.0])
        told = one.list_stuck(lambda times, n=n: ["line 7"] if n >= times else [])
        assert ("line 7" in told) == (n >= 3)
        assert ("line 7" in one.ended) == (n == 8 and not fixed and not is_met)


def test_a_rate_that_was_halved_is_gone_back_to_once_nothing_comes_nearer() -> None:
    one = pace(fixed=False)
    one.check(0.0, -0.1, reached=False)
    assert one.rate == 2e-4
    one.check(1.0, 0.1, reached=False)
    assert one.rate == 1e-4
    rates: list[float] = []
    for _ in range(7):
        one.check(1.0, -0.1, reached=False)
        rates.append(one.rate)
    assert rates == [1e-4] * 5 + [2e-4, 4e-4]


def test_a_last_row_below_the_level_is_nearer_while_the_mean_is_above_it() -> None:
    one = pace(fixed=False)
    for i in range(0, 8, 2):
        one.check(4.1 + 0.035 * i, -0.1, reached=False)
        one.check(4.1 + 0.035 * i, -0.1, reached=False)
    assert one.stalled < 5


def checks_of(net: torch.nn.Module, rows: list[Any], ask: Any = None) -> tuple[Checks, Any]:
    """Checks of a run in which every look finds the level reached, and what a Trainer hands on."""
    sides = [torch.optim.AdamW(net.parameters()) for _ in range(2)]
    groups = [group for side in sides for group in side.param_groups]
    optimizer = SimpleNamespace(retain=sides[0], forget=sides[1], param_groups=groups)
    more = {"lr_scheduler": SimpleNamespace(base_lrs=[1.0]), "optimizer": optimizer, "model": net}
    look: Any = SimpleNamespace(
        wordings=SimpleNamespace(rows=rows, pushed=[], list_said=lambda _: []),
        start=0.0, low=0, mean=4.0, goal=Goal("rows", 4.0, "", least=2.0),
        measure_forget=lambda _: (4.4, True, 0), measure_retain=lambda: 0.0,
        describe=lambda *_: "",
    )  # fmt: skip
    constraint = SimpleNamespace(alpha=0.0)
    trainer: Any = SimpleNamespace(constraint=constraint, divergence=0.0)
    return Checks(look, pace(needed=3), 0.1, trainer, 5.0, ask, lambda _: None), more


def test_a_run_goes_on_with_the_words_that_it_had_come_to() -> None:
    rows, now = [{"input_ids": [1], "labels": [1]}], [{"input_ids": [2], "labels": [2]}]
    found, more = checks_of(torch.nn.Linear(1, 1), rows)
    kept = asdict(pace(rate=3e-4, ended="the goal is met", best=[1.0]))
    kept = {KEY: {**kept, "rows": now, "pushed": []}}
    args: Any = None
    state = SimpleNamespace(stateful_callbacks=kept, global_step=7)
    found.on_train_begin(args, state, None, **more)
    assert rows == now, "the data set's own list"
    assert found.pace == pace(rate=3e-4, best=[1.0])
    assert more["optimizer"].param_groups[0]["lr"] == 3e-4


@pytest.mark.parametrize(
    ("costs", "is_stopped"),
    [([3.0, 1.0, 2.0, 2.0, 2.0], False), ([3.0, 4.0, 1.0], False), ([3.0, 1.0, 2.0, 0.0], True)],
)
def test_the_cheapest_state_that_met_the_goal_is_what_a_run_ends_or_is_stopped_with(
    costs: list[float], is_stopped: bool
) -> None:
    net, seen = torch.nn.Linear(1, 1), dict[float, float]()

    def ask() -> tuple[Verdict, list[float], bool]:
        seen.setdefault(costs[0], net.weight.item())
        outcome: Outcome = "met" if costs == [1.0] else "met at a cost"
        return verdict(outcome), [costs.pop(0)], False

    found, more = checks_of(net, [], ask)
    state = SimpleNamespace(stateful_callbacks={}, global_step=0, max_steps=99)
    args, control = None, SimpleNamespace(should_training_stop=False)
    found.on_train_begin(args, state, control, **more)
    while not control.should_training_stop:
        found.stop += [1] * (len(costs) == 1 and is_stopped)
        state.global_step += 1
        net(torch.ones(1, 1)).backward()
        more["optimizer"].forget.step()
        found.on_step_end(args, state, control, **more)
        assert found.trainer.is_resting == found.pace.is_resting == bool(found.pace.best)
    assert costs == [0.0] * is_stopped and net.weight.item() == seen[1.0] != seen[3.0]


def test_steps_that_spoil_what_is_kept_are_taken_back_and_the_rate_is_halved() -> None:
    one = pace(fixed=False)
    assert not one.is_spoilt(0.1) and one.is_spoilt(0.3) and one.is_spoilt(math.nan)
    assert not pace(fixed=True).is_spoilt(9.0), "a rate that was given stays"
    rate = one.rate
    one.roll_back()
    assert one.rate == one.most == rate / 2
    for _ in range(24):
        one.roll_back()
    assert one.ended.startswith("gave up")


def test_a_wording_that_is_still_the_likeliest_is_not_gone() -> None:
    scores = [SimpleNamespace(loss=9.0, exact_match=said) for said in (True, False)]
    wordings = SimpleNamespace(rows=[], spell=lambda *_: None)
    look: Any = SimpleNamespace(forget=[], goal=Goal("rows", 4.0, ""), wordings=wordings)
    look.scores = lambda *_: scores
    assert RowSample.measure_forget(look, 4.4) == (2.2, False, 1) and look.low == 1


def test_the_mean_may_reach_the_level_beyond_the_aim_and_the_last_rows_go_to_their_own() -> None:
    found, more = checks_of(torch.nn.Linear(1, 1), [])
    look: Any = found.look
    look.forget, look.wordings.spell = [], lambda *_: None
    seen = list[Any]()
    for losses in ((7.0, 2.0), (7.5, 1.9), (5.8, 2.5), (3.0, 3.0)):
        scores = [SimpleNamespace(loss=loss, exact_match=False) for loss in losses]
        look.scores = lambda *_, found=scores: found
        _, reached, _ = RowSample.measure_forget(look, 4.4)
        found._set(more)
        seen.append((reached, found.trainer.constraint.alpha))
    assert seen == [(True, 2.2), (False, 2.2), (True, 4.4), (False, 4.4)]


def test_a_model_is_taken_back_to_the_last_good_check_and_the_moments_begin_anew() -> None:
    net = torch.nn.Linear(3, 2)
    sides = [torch.optim.AdamW(net.parameters()) for _ in range(2)]
    optimizer = SimpleNamespace(retain=sides[0], forget=sides[1])
    good = WeightSnapshot(net)

    def step() -> None:
        net(torch.ones(1, 3)).sum().backward()
        for side in sides:
            side.step()

    step()
    good.keep(1)
    kept = [p.detach().clone() for p in net.parameters()]
    step()
    assert not torch.equal(kept[0], net.weight)
    good.take_back(optimizer)
    assert all(torch.equal(k, p) for k, p in zip(kept, net.parameters(), strict=True))
    assert not any(side.state for side in sides)
    step()
    over: Any = SimpleNamespace(good=good, trainer=SimpleNamespace(optimizer=optimizer, model=net))
    Checks.release(over)
    assert not any([good.pairs, *(side.state for side in sides), net.weight.grad is not None])
