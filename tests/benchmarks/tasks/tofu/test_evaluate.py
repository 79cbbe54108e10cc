"""Batched evaluation against one question at a time, without padding, cache, or code of ours."""

import copy
import dataclasses
import math
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from benchmarks.tasks.tofu.batches import encode
from benchmarks.tasks.tofu.data import Example, TofuData
from benchmarks.tasks.tofu.evaluate import Evaluation, evaluate
from benchmarks.tasks.tofu.models import load_or_train
from benchmarks.tasks.tofu.summary import reference, summarise
from benchmarks.tasks.tofu.task import shorten
from benchmarks.tasks.tofu.world import build_world
from torch_alm.language import Row, answer_ids
from torch_alm.language._encoding import prompt_ids

DATA = shorten(build_world(quick=True), 6)
SETS = {"forget": DATA.forget_eval, "retain": DATA.retain_eval, "holdout": DATA.holdout}
SETS |= {"real_authors": DATA.real_authors, "world_facts": DATA.world_facts}


class Subject(NamedTuple):
    """A model that knows some answers and has forgotten others."""

    model: Any
    tokenizer: Any


@pytest.fixture(scope="module")
def subject(shared_models: Path) -> Subject:
    model, tokenizer = load_or_train(build_world(quick=True), shared_models)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.03 * torch.randn_like(parameter))
    return Subject(model, tokenizer)


@pytest.fixture(scope="module")
def evaluation(subject: Subject) -> Evaluation:
    return evaluate(*subject, DATA, max_new_tokens=None)


# ---- the oracle: one row, no batch ------------------------------------------------------------


def row_of(subject: Subject, question: str, answer: str | None) -> Row:
    return encode(subject.tokenizer, question, str(answer))


@torch.no_grad()
def token_tables(model: Any, row: Row) -> tuple[Tensor, Tensor]:
    """(n, V) log-probabilities before each answer token, and the (n,) tokens."""
    logits = model.eval()(torch.tensor([row["input_ids"]])).logits[0].double()
    answer = torch.tensor(answer_ids(row))
    return logits[-len(answer) - 1 : -1].log_softmax(-1), answer


def nll(subject: Subject, question: str, answer: str | None) -> float:
    table, said = token_tables(subject.model, row_of(subject, question, answer))
    return -statistics.fmean(table[t, token].item() for t, token in enumerate(said))


@torch.no_grad()
def greedy(subject: Subject, prompt: list[int], most: int) -> str:
    """Greedy decoding, every token from a full forward pass."""
    ids = list(prompt)
    for _ in range(most):
        token = int(subject.model.eval()(torch.tensor([ids])).logits[0, -1].argmax())
        if token == subject.tokenizer.eos_token_id:
            break
        ids.append(token)
    return subject.tokenizer.decode(ids[len(prompt) :]).strip()


# ---- per question -----------------------------------------------------------------------------


def test_losses_of_all_answers(evaluation: Evaluation, subject: Subject) -> None:
    assert len(evaluation.rows) == 30
    for row in evaluation.rows:
        example = SETS[row["subset"]][row["index"]]
        loss = nll(subject, example.question, example.answer)
        assert row["loss"] == pytest.approx(loss, abs=2e-6)
        assert row["probability"] == pytest.approx(math.exp(-loss), abs=2e-6)
        wrong = [nll(subject, example.question, answer) for answer in example.perturbed_answers]
        assert row["perturbed_losses"] == pytest.approx(wrong, abs=2e-6)
        if example.paraphrased_answer is None:
            assert row["paraphrased_loss"] is None
        else:
            loss = nll(subject, example.question, example.paraphrased_answer)
            assert row["paraphrased_loss"] == pytest.approx(loss, abs=2e-6)


def test_generations_are_greedy(evaluation: Evaluation, subject: Subject) -> None:
    rows = [row_of(subject, row["question"], row["reference"]) for row in evaluation.rows]
    longest = max(len(answer_ids(row)) for row in rows) + 8  # eight to spare
    known = []
    for found, row in zip(evaluation.rows, rows, strict=True):
        if found["subset"] == "holdout":
            assert found["generation"] is None
            continue
        expected = greedy(subject, prompt_ids(row), longest)
        assert found["generation"] == expected
        assert found["exact_match"] == (expected == found["reference"])
        known.append(found["exact_match"])
    assert 0.1 < statistics.fmean(known) < 0.9, "some answers are right and some are not"


@pytest.mark.parametrize("tau", [0.1, 0.5])
def test_certificate_is_a_lower_bound_on_failure(subject: Subject, tau: float) -> None:
    found = evaluate(*subject, DATA, tau=tau, generations=False)
    for row in found.rows:
        table, answer = token_tables(
            subject.model, row_of(subject, row["question"], row["reference"])
        )
        margins = []
        for t, token in enumerate(answer.tolist()):
            probabilities = table[t].exp().tolist()
            target = probabilities.pop(token)
            margins.append(target - max(probabilities))
        phi = max(1 - math.log1p(math.exp(m / tau + 1)) for m in margins)
        assert row["certificate"] == pytest.approx(phi, abs=2e-5 / tau)
        assert row["exact_match"] == all(m > 0 for m in margins)
        assert row["certificate"] <= 1 - row["exact_match"]
    assert found.numbers["certificate"] <= 1 - found.numbers["forget_exact_match"]


def test_what_is_counted_per_token_leaves_out_the_end(
    evaluation: Evaluation, subject: Subject
) -> None:
    for row in evaluation.rows:
        encoded = row_of(subject, row["question"], row["reference"])
        table, answer = (part[:-1] for part in token_tables(subject.model, encoded))
        n = len(answer)
        right = (table.argmax(-1) == answer).tolist()
        known = next(k for k in range(n + 1) if all(right[k:]))
        assert row["extraction_strength"] == pytest.approx(1 - known / n, abs=1e-12)
        count = max(math.floor(0.4 * n), 1)
        own = table[range(n), answer].sort().values[:count]
        assert row["min_k"] == pytest.approx(-own.mean().item(), abs=1e-5)


# ---- the numbers ------------------------------------------------------------------------------


def mean(rows: list[dict[str, Any]], key: str) -> float:
    return statistics.fmean(row[key] for row in rows)


def ratio(row: dict[str, Any], guard: float) -> float:
    """P(wrong) / (P(correct) + guard), from the losses of a row."""
    wrong = math.exp(-statistics.fmean(row["perturbed_losses"]))
    return wrong / (math.exp(-row["paraphrased_loss"]) + guard)


def test_numbers_are_the_means_of_the_rows(evaluation: Evaluation) -> None:
    numbers, rows = evaluation
    of = {s: [r for r in rows if r["subset"] == s] for s in ("forget", "retain", "world_facts")}
    keys = ("loss", "rouge", "exact_match")
    expected = {f"{s}_{key}": mean(of[s], key) for s in of for key in keys}
    expected |= {f"{s}_probability": mean(of[s], "probability") for s in ("forget", "retain")}
    forget = of["forget"]
    expected["extraction_strength"] = mean(forget, "extraction_strength")
    paraphrased = [math.exp(-row["paraphrased_loss"]) for row in forget]
    expected["paraphrased_probability"] = statistics.fmean(paraphrased)
    expected["certificate"] = statistics.fmean(max(row["certificate"], 0) for row in forget)
    found = {name: numbers[name] for name in expected}
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("suffix", "guard"), [("", 1e-10), ("_tofu", 0.0)])
def test_ratios_are_guarded_as_the_two_codes_do(
    evaluation: Evaluation, suffix: str, guard: float
) -> None:
    numbers, rows = evaluation
    forget, retain, facts = (
        [row for row in rows if row["subset"] == name]
        for name in ("forget", "retain", "world_facts")
    )
    shares = []
    for row in facts:
        wrong = sum(math.exp(-loss) for loss in row["perturbed_losses"])
        shares.append(row["probability"] / (row["probability"] + wrong + guard))
    ratios = [ratio(row, guard) for row in forget]
    expected = {
        f"world_facts_probability{suffix}": statistics.fmean(shares),
        f"forget_truth_ratio{suffix}": statistics.fmean(min(r, 1 / (r + guard)) for r in ratios),
        f"retain_truth_ratio{suffix}": statistics.fmean(
            max(0, 1 - ratio(row, guard)) for row in retain
        ),
    }
    assert {name: numbers[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    parts = {
        kind: [
            numbers.get(f"{subset}_{kind}{suffix}", numbers[f"{subset}_{kind}"])
            for subset in ("retain", "real_authors", "world_facts")
        ]
        for kind in ("probability", "rouge", "truth_ratio")
    }
    utility = statistics.harmonic_mean([part for of_kind in parts.values() for part in of_kind])
    assert numbers[f"model_utility{suffix}"] == pytest.approx(utility, abs=1e-12)
    assert numbers["rouge_hm"] == pytest.approx(statistics.harmonic_mean(parts["rouge"]))


def test_a_membership_auc_counts_pairs(evaluation: Evaluation) -> None:
    """Of a text that was learnt and one that was not; the first has the lower score."""
    forget, holdout = (
        [row["min_k"] for row in evaluation.rows if row["subset"] == name]
        for name in ("forget", "holdout")
    )
    pairs = [(f < h) + (f == h) / 2 for f in forget for h in holdout]
    assert evaluation.numbers["membership_auc"] == pytest.approx(statistics.fmean(pairs), abs=1e-12)
    assert evaluation.numbers["membership_auc"] > 0.7


def test_forget_quality_needs_the_retrained_model(evaluation: Evaluation) -> None:
    assert evaluation.numbers["forget_quality"] is None
    assert evaluation.numbers["forget_quality_log10"] is None
    known = reference(evaluation.rows)
    assert known is not None
    numbers = summarise(evaluation.rows, known)
    assert (numbers["forget_quality"], numbers["forget_quality_log10"]) == (1.0, 0.0)
    away = {name: [r + 100 for r in ratios] for name, ratios in known.items()}
    far = summarise(evaluation.rows, away)
    for suffix in ("", "_tofu"):
        least = 2 / math.comb(12, 6)
        assert far[f"forget_quality{suffix}"] == pytest.approx(least, abs=1e-12)
        assert far[f"forget_quality_log10{suffix}"] == pytest.approx(math.log10(least), abs=1e-12)


def test_missing_data_are_none_and_every_key_is_there(
    evaluation: Evaluation, subject: Subject
) -> None:
    bare: TofuData = dataclasses.replace(
        DATA,
        holdout=(),
        world_facts=(),
        forget_eval=tuple(Example(e.question, e.answer) for e in DATA.forget_eval),
    )
    numbers = evaluate(
        *subject, bare, max_new_tokens=None, retrained=reference(evaluation.rows)
    ).numbers
    assert numbers.keys() == evaluation.numbers.keys()
    gone = ("world_facts", "forget_truth_ratio", "forget_quality", "model_utility")
    gone += ("membership_auc", "paraphrased_probability", "rouge_hm")
    missing = {name for name, value in numbers.items() if value is None}
    assert missing == {name for name in numbers if name.startswith(gone)}


def test_a_destroyed_model_is_evaluated(subject: Subject) -> None:
    broken = copy.deepcopy(subject.model)
    with torch.no_grad():
        broken.lm_head.weight.fill_(math.nan)
    numbers = evaluate(broken, subject.tokenizer, DATA, max_new_tokens=4).numbers
    assert numbers["forget_exact_match"] == numbers["retain_exact_match"] == 0
    unknown = ("forget_probability", "certificate", "model_utility")
    assert all(math.isnan(numbers[name]) for name in unknown)


def test_paraphrased_questions_are_asked_where_there_are_any(subject: Subject) -> None:
    found = evaluate(*subject, DATA, paraphrased_questions=True, generations=False)
    example = DATA.forget_eval[0]
    assert found.rows[0]["question"] == example.paraphrased_question
    assert found.rows[0]["reference"] == example.answer
    loss = nll(subject, str(example.paraphrased_question), example.answer)
    assert found.rows[0]["loss"] == pytest.approx(loss, abs=2e-6)
    assert found.rows[12]["question"] == DATA.real_authors[0].question


@pytest.mark.parametrize("training", [True, False])
def test_model_and_random_state_are_left_alone(subject: Subject, training: bool) -> None:
    model = copy.deepcopy(subject.model).train(training)
    weights = copy.deepcopy(model.state_dict())
    before = torch.get_rng_state()
    evaluate(model, subject.tokenizer, DATA, max_new_tokens=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training is training
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
