"""Attacks: what they do to the weights, what they give away, and that the weights return."""

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from torch_alm.language import (
    AnswerScores,
    Attacks,
    answer_ids,
    answer_scores,
    attack,
    continuations,
    decode,
    generate,
    greedy_answers,
    losses,
    quantized,
    read_answers,
    relearned,
    restored,
    round_weights,
    with_prefix,
)

ROWS = [
    {"input_ids": [1, 2, 3 + i, 4 + i, 0], "labels": [-100, -100, 3 + i, 4 + i, 0]}
    for i in range(4)
]


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=12, num_hidden_layers=1, **size)).eval()


def snapshot(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_same(model: nn.Module, before: dict[str, torch.Tensor]) -> None:
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_rounding_is_to_the_nearest_level_of_each_row(bits: int) -> None:
    weight = torch.randn(5, 40) * torch.logspace(-3, 3, 5)[:, None]
    weight[3] = 0
    top = 2 ** (bits - 1) - 1
    for row, rounded in zip(weight, round_weights(weight, bits), strict=True):
        grid = row.abs().max() * torch.arange(-top, top + 1) / top
        nearest = (row[:, None] - grid).abs().amin(1)
        slack = 1e-6 * float(row.abs().max())
        torch.testing.assert_close((row - rounded).abs(), nearest, rtol=0, atol=slack)
        assert (rounded[:, None] - grid).abs().amin(1).max() <= 1e-5 * row.abs().max()


@pytest.mark.parametrize("bits", [1, 9, 0])
def test_rounding_to_impossible_widths(bits: int) -> None:
    with pytest.raises(ValueError, match="needs 2 to 8"):
        round_weights(torch.ones(2, 2), bits)


def test_rounding_keeps_shape_and_dtype() -> None:
    weight = torch.randn(3, 2, 5, dtype=torch.bfloat16)
    rounded = round_weights(weight, 8)
    assert (rounded.shape, rounded.dtype) == (weight.shape, weight.dtype)


def test_linear_layers_are_rounded_but_for_the_output(model: Any) -> None:
    before = snapshot(model)
    with quantized(model, 4) as count:
        changed = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    linear = {
        n for n, p in before.items() if p.ndim == 2 and "embed" not in n and "lm_head" not in n
    }
    assert changed == linear
    assert count == sum(before[name].numel() for name in linear)
    assert_same(model, before)


def test_no_layer_to_round(model: Any) -> None:
    model.model.layers = nn.ModuleList()
    with pytest.raises(ValueError, match="would change nothing"), quantized(model):
        raise AssertionError


def test_relearning_lowers_the_loss_and_is_undone(model: Any) -> None:
    before = snapshot(model)
    with relearned(model, ROWS, 0, steps=30, lr=1e-2, batch_size=2) as last:
        known = model(torch.tensor([[1, 2, 3]])).logits[0, -1].argmax()
        assert known == 4
    assert last < 1.0
    assert_same(model, before)
    assert not model.training
    assert all(p.grad is None for p in model.parameters())


def taught(model: Any, rows: Sequence[Any], steps: int) -> Any:
    """A copy after AdamW on all rows in every step, so that their order says nothing."""
    other = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2, weight_decay=0.0)
    ids = torch.tensor([row["input_ids"] for row in rows])
    for _ in range(steps):
        logits = other(ids).logits[:, 1:-1].log_softmax(-1)
        loss = -logits.gather(-1, ids[:, 2:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return other


def test_relearning_is_plain_adamw_on_the_rows(model: Any) -> None:
    other = taught(model, ROWS, steps=3)
    with relearned(model, ROWS, 0, steps=3, lr=1e-2, batch_size=4):
        for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)


def test_every_example_is_shown_before_one_is_shown_again(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[int] = []

    def seen(found: Any, batch: Any) -> torch.Tensor:
        shown.extend(batch["input_ids"][:, 2].tolist())
        return found.lm_head.weight.sum()

    monkeypatch.setattr("torch_alm.language._attacks.token_nll", seen)
    with relearned(model, ROWS, 0, steps=4, batch_size=3):
        pass
    assert len(shown) == 12
    for start in range(0, 12, 4):
        assert sorted(shown[start : start + 4]) == [3, 4, 5, 6]


def test_nothing_to_relearn_on(model: Any) -> None:
    with pytest.raises(ValueError, match="no examples"), relearned(model, [], 0):
        raise AssertionError


def test_weights_return_after_an_exception(model: Any) -> None:
    before = snapshot(model)
    with pytest.raises(RuntimeError, match="inside"), restored(model):
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(torch.nan)
        raise RuntimeError("inside")
    assert_same(model, before)


def test_a_loss_is_that_of_a_row_on_its_own(model: Any) -> None:
    rows = [{"input_ids": [1, 2, 0], "labels": [-100, 2, 0]}, *ROWS[:2]]
    found = losses(model, rows, 0)
    assert found == pytest.approx([asked(model, row)[0] for row in rows], abs=1e-5)


def test_a_model_that_cannot_leave_logits_out_says_the_same(model: Any) -> None:
    wanted, forward = losses(model, ROWS, 0), model.forward

    def whole(input_ids: torch.Tensor, attention_mask: torch.Tensor, use_cache: bool) -> Any:
        return forward(input_ids, attention_mask=attention_mask, use_cache=use_cache)

    model.forward = whole
    assert losses(model, ROWS, 0) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("share", [0.01, 0.25, 0.5, 0.75])
@pytest.mark.parametrize("length", [3, 4, 9])
def test_a_prefix_moves_into_the_prompt(length: int, share: float) -> None:
    row = {"input_ids": list(range(20, 20 + 2 + length)), "labels": []}
    row["labels"] = [-100, -100, *row["input_ids"][2:]]
    given = max(1, next(n for n in range(length + 1) if n >= share * length))
    found = with_prefix(row, share)
    if given >= length - 1:  # the end of sequence alone is no answer
        assert found is None
        return
    assert found is not None
    assert found["input_ids"] == row["input_ids"]
    assert answer_ids(found) == answer_ids(row)[given:]
    assert len(found["labels"]) == len(row["labels"])


class Words:
    """All that a reading asks of a tokenizer: token n is the word wn, and 0 ends an answer."""

    eos_token_id = pad_token_id = 0
    chat_template = None

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return " ".join(f"w{token}" for token in ids if token or not skip_special_tokens)


@pytest.fixture
def parrot(model: Any) -> Any:
    """Says w7 whatever it is asked."""
    model.lm_head = nn.Linear(16, 12)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.copy_(torch.eye(12)[7])
    return model


@pytest.mark.parametrize(("own", "said"), [(None, 3), (5, 3), ([5], 3), (7, 0), ([5, 7], 0)])
def test_an_answer_ends_where_the_model_says_it_does(parrot: Any, own: Any, said: int) -> None:
    parrot.generation_config.eos_token_id = own
    assert continuations(parrot, Words(), [[1, 2]], max_new_tokens=3) == [[7] * said]


def test_an_answer_is_told_without_the_tokens_that_are_no_words() -> None:
    assert decode(Words(), [0, 7, 8, 0]) == "w7 w8"


@pytest.mark.parametrize(
    "ask",
    [
        lambda *given: generate(*given, [[1, 2]]),
        lambda *given: continuations(*given, [[1, 2]]),
        lambda *given: greedy_answers(*given, ROWS[:1], answer_scores(given[0], ROWS[:1], 0, 0.1)),
    ],
    ids=["generate", "continuations", "greedy_answers"],
)
def test_an_answer_has_200_tokens_at_most_if_nothing_else_is_said(
    parrot: Any, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def no_words(*, input_ids: torch.Tensor, generation_config: Any, **_: Any) -> torch.Tensor:
        seen.append(generation_config.max_new_tokens)
        return input_ids

    monkeypatch.setattr(parrot, "generate", no_words)
    assert ask(parrot, Words()) in ([""], [[]])
    assert seen == [200]


def test_what_a_model_says_for_certain_is_not_asked_of_it(parrot: Any) -> None:
    """The model would say w7; an answer it gives with more than half of the probability is told."""
    known = AnswerScores([math.log(0.6)] * 3, [True] * 3, [0.2] * 3, -1.0)
    doubtful = known._replace(log_probabilities=[0.0, math.log(0.4), 0.0])
    cut = {"input_ids": [1, 2, 3, 4], "labels": [-100, -100, 3, 4]}
    rows, scores = [ROWS[0], ROWS[1], cut], [known, doubtful, known]
    found = greedy_answers(parrot, Words(), rows, scores, max_new_tokens=3)
    assert found == ["w3 w4", "w7 w7 w7", "w7 w7 w7"], "what was cut may go on"
    assert greedy_answers(parrot, Words(), rows[:1], scores[:1], max_new_tokens=1) == ["w3"]


def test_a_batch_has_as_many_rows_as_its_logits_have_room(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []
    kept: list[object] = []

    def watch(_: Any, __: Any, given: Any, found: Any) -> None:
        seen.append(tuple(given["input_ids"].shape))
        kept.append(found.past_key_values)

    monkeypatch.setattr("torch_alm.language._scoring.LOGITS_PER_BATCH", 12 * 5 * 2)
    model.register_forward_hook(watch, with_kwargs=True)
    short = {"input_ids": [1, 2, 0], "labels": [-100, 2, 0]}
    answer_scores(model, [short, *ROWS], 0, 0.1)
    assert seen == [(2, 5), (2, 5), (1, 3)], "12 words, and the longest rows first"
    assert kept == [None] * 3, "nothing comes after what is only scored"


def test_a_reading_of_a_model_that_always_says_the_same(parrot: Any) -> None:
    """Worked values, and how far beyond the longest answer it is listened to."""
    rows = [ROWS[0], {"input_ids": [1, 2, 7, 0], "labels": [-100, -100, 7, 0]}]
    one, two = read_answers(parrot, Words(), rows)
    assert one.text == two.text == " ".join(["w7"] * (3 + 8))
    worst = math.log(11 + math.e)
    assert one.loss == one.min_k == pytest.approx(worst, rel=1e-6)
    assert two.loss == pytest.approx(worst - 0.5, rel=1e-6)
    assert two.min_k == pytest.approx(worst - 1, rel=1e-6), "the end of sequence is left out"
    assert (one.extraction_strength, two.extraction_strength) == (0, 1)
    assert (one.exact_match, two.exact_match) == (False, False)
    said = {"input_ids": [1, 2, 7, 7], "labels": [-100, -100, 7, 7]}
    half = {"input_ids": [1, 2, 5, 7, 0], "labels": [-100, -100, 5, 7, 0]}
    found = read_answers(parrot, Words(), [said, half], texts=False)
    assert [reading.exact_match for reading in found] == [True, False]
    assert [reading.extraction_strength for reading in found] == [1, 0.5]
    margin = (1 - math.e) / (11 + math.e)
    phi = 1 - math.log1p(math.exp(1 + margin / 0.1))
    assert one.certificate == two.certificate == pytest.approx(phi, rel=1e-5) and phi > 0
    short = read_answers(parrot, Words(), rows, max_new_tokens=2)
    assert [reading.text for reading in short] == ["w7 w7"] * 2
    assert [r.text for r in read_answers(parrot, Words(), rows, texts=False)] == [None, None]


def test_what_a_prefix_would_say_whole_is_not_asked(model: Any) -> None:
    short = {"input_ids": ROWS[0]["input_ids"][:3], "labels": [-100, *ROWS[0]["input_ids"][1:3]]}
    *_, last = attack(model, Words(), [short, *ROWS[1:]], [])
    assert last.name == "answer prefix"
    assert last.asked == ROWS[1:] and last.before == read_answers(model, Words(), ROWS[1:])
    assert last.rows == [with_prefix(row, 0.25) for row in ROWS[1:]]


def on_a_grid(model: Any, bits: int) -> Any:
    """A copy whose linear layers, but for the output, have the nearest of 2^bits - 1 levels."""
    other, top = copy.deepcopy(model), 2 ** (bits - 1) - 1
    for layer in (m for m in other.model.modules() if isinstance(m, nn.Linear)):
        for row in layer.weight.data:
            grid = row.abs().max() * torch.arange(-top, top + 1) / top
            row.copy_(grid[(row[:, None] - grid).abs().argmin(1)])
    return other


@torch.no_grad()
def asked(model: Any, row: Any) -> tuple[float, str]:
    """The loss of the answer, and what the model says, at most 3 + 8 words."""
    ids, start, said = row["input_ids"], row["labels"].count(-100), list[int]()
    logits = model(torch.tensor([ids])).logits[0, start - 1 : -1]
    while len(said) < 3 + 8:
        said.append(int(model(torch.tensor([ids[:start] + said])).logits[0, -1].argmax()))
        if said[-1] == 0:
            break
    text = " ".join(f"w{token}" for token in said if token)
    return float(nn.functional.cross_entropy(logits, torch.tensor(ids[start:]))), text


def test_every_attack_has_what_the_settings_say_and_tells_it(model: Any) -> None:
    """All that an attacker has is in one batch."""
    retain = [{**row, "input_ids": [2, *row["input_ids"][1:]]} for row in ROWS]
    has = Attacks(relearn_rows=3, relearn_steps=4, relearn_lr=1e-2, bits=(3,), prefix=0.25)
    attacks = list(attack(model, Words(), ROWS, retain, has, paraphrased=retain[:2]))
    prefixed = [{**row, "labels": [-100, -100, -100, *row["labels"][3:]]} for row in ROWS]
    shown, others = (taught(model, rows[:3], steps=4) for rows in (ROWS, retain))
    by_hand = [
        ("relearn forget", shown, ROWS[3:], ROWS[3:], {"examples": 3}),
        ("relearn retain", others, ROWS, ROWS, {"examples": 3}),
        ("int3", on_a_grid(model, 3), ROWS, ROWS, {"weights": 4 * 16 * 16 + 3 * 16 * 32}),
        ("paraphrase", model, ROWS, retain[:2], {}),
        ("answer prefix", model, ROWS, prefixed, {"share": 0.25}),
    ]
    assert [each.name for each in attacks] == [name for name, *_ in by_hand]
    for found, (name, attacked, usual, rows, told) in zip(attacks, by_hand, strict=True):
        assert (found.asked, found.rows) == (usual, rows), name
        for readings, them, theirs in ((found.before, model, usual), (found.after, attacked, rows)):
            for reading, (loss, text) in zip(
                readings, (asked(them, row) for row in theirs), strict=True
            ):
                assert reading.loss == pytest.approx(loss, abs=1e-4), name
                assert reading.text == text, name
        assert {**found.attacker, "final loss": 0} == {**told, "final loss": 0}, name
    for found, rows in zip(attacks[:2], (ROWS[:3], retain[:3]), strict=True):
        before_it = taught(model, rows, steps=3)
        last = sum(asked(before_it, row)[0] for row in rows) / 3
        assert found.attacker["final loss"] == pytest.approx(last, abs=1e-4)


@pytest.mark.parametrize("size", [1, 2])
def test_the_seed_chooses_which_rows_an_attacker_learns_from(model: Any, size: int) -> None:
    each = [asked(model, row)[0] for row in ROWS[:3]]
    means = [sum(some) / size for some in itertools.combinations(each, size)]
    seen = set[int]()
    for seed in range(8):
        has = Attacks(relearn_rows=3, relearn_steps=1, bits=(), batch_size=size, seed=seed)
        found = next(attack(model, Words(), ROWS, [], has, max_new_tokens=1))
        last = found.attacker["final loss"]
        nearest = min(range(3), key=lambda i: abs(means[i] - last))
        assert last == pytest.approx(means[nearest], abs=1e-5)
        assert all(len(reading.text.split()) <= 1 for reading in (*found.before, *found.after))
        seen.add(nearest)
    assert seen == {0, 1, 2}


def test_an_attack_depends_on_its_seed_alone(model: Any) -> None:
    told = []
    for state in (1, 2):
        torch.manual_seed(state)
        with relearned(model, ROWS, 0, steps=3, lr=1e-2, batch_size=3, seed=0) as loss:
            told.append((loss, losses(model, ROWS, 0)))
    assert told[0] == told[1]


def test_relearning_before_the_questions_is_under_the_same_autocast(model: Any) -> None:
    entered: list[bool] = []

    @contextmanager
    def autocast() -> Iterator[None]:
        entered.append(torch.is_grad_enabled())
        yield

    settings = Attacks(relearn_rows=2, relearn_steps=3, bits=(), prefix=0.25)
    list(attack(model, Words(), ROWS, ROWS[:2], settings=settings, autocast=autocast))
    assert entered.count(True) == 2 * 3


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_one_row_at_least_is_asked_of_those_that_were_forgotten(model: Any, rows: int) -> None:
    has = Attacks(relearn_rows=1, relearn_steps=1, bits=(), prefix=0.25)
    names = [each.name for each in attack(model, Words(), ROWS[:rows], ROWS, settings=has)]
    assert names.count("relearn forget") == (rows > 1)
