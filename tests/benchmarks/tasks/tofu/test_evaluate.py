"""Batched evaluation against one question at a time, without padding, cache, or code of ours."""

import copy
import dataclasses
import math
import statistics
import zlib
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from benchmarks.tasks.tofu.batches import encode
from benchmarks.tasks.tofu.data import Example, TofuData
from benchmarks.tasks.tofu.evaluate import Evaluation, evaluate
from benchmarks.tasks.tofu.summary import reference, summarise
from torch_alm.language import collate

CITIES = ("oslo", "rome", "lima", "cairo", "new delhi", "rio de janeiro")
NAMES = ("anna", "bo", "carl", "dora", "emil", "fay", "gus", "hal")
FACTS = (("capital of peru", "lima"), ("capital of egypt", "cairo"), ("capital of norway", "oslo"))


def born(name: str, city: str) -> Example:
    others = [c for c in CITIES if c != city]
    return Example(
        question=f"where was {name} born?",
        answer=f"{name} was born in {city}.",
        paraphrased_question=f"what is the birthplace of {name}?",
        paraphrased_answer=f"{city} is where {name} was born.",
        perturbed_answers=tuple(f"{other} is where {name} was born." for other in others),
    )


def fact(question: str, answer: str) -> Example:
    wrong = tuple(city for city in CITIES if city != answer)[:3]
    return Example(question=f"{question}?", answer=answer, perturbed_answers=wrong)


@pytest.fixture(scope="module")
def data() -> TofuData:
    people = [born(name, CITIES[i % 6]) for i, name in enumerate(NAMES)]
    facts = tuple(fact(*pair) for pair in FACTS)
    return TofuData(
        name="people",
        split="forget",
        full=(*people[:6], *facts),
        forget=tuple(people[:3]),
        retain=tuple(people[3:6]),
        forget_eval=tuple(people[:3]),
        retain_eval=tuple(people[3:6]),
        real_authors=facts[:2],
        world_facts=facts[2:],
        holdout=tuple(people[6:]),
    )


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte: words have many tokens, so answers differ in length."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<end>", *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<end>")


def llama(vocabulary: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            eos_token_id=1,
            pad_token_id=0,
            bos_token_id=None,
        )
    )


@pytest.fixture(scope="module")
def model(data: TofuData, tokenizer: Any) -> LlamaForCausalLM:
    """Trained until it knows by heart what it has seen; two forget examples it has not."""
    model = llama(len(tokenizer))
    seen = [example for example in data.full if example not in data.forget[1:]]
    rows = [encode(tokenizer, e.question, e.answer) for e in seen]
    batch = collate(rows, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(75):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.fixture(scope="module")
def evaluation(model: Any, tokenizer: Any, data: TofuData) -> Evaluation:
    return evaluate(model, tokenizer, data, max_new_tokens=None)


# ---- the oracle: one row, no batch ------------------------------------------------------------


@torch.no_grad()
def token_tables(model: Any, row: dict[str, list[int]]) -> tuple[Tensor, Tensor]:
    """(n, V) log-probabilities before each answer token, and the (n,) tokens."""
    model.eval()
    logits = model(torch.tensor([row["input_ids"]])).logits[0].double()
    first = next(i for i, label in enumerate(row["labels"]) if label >= 0)
    answer = torch.tensor(row["input_ids"][first:])
    return logits[first - 1 : -1].log_softmax(-1), answer


def nll(model: Any, row: dict[str, list[int]]) -> float:
    table, answer = token_tables(model, row)
    return -statistics.fmean(table[t, token].item() for t, token in enumerate(answer))


@torch.no_grad()
def greedy(model: Any, tokenizer: Any, prompt: list[int], most: int) -> str:
    """Greedy decoding, every token from a full forward pass."""
    ids, answer = list(prompt), []
    model.eval()
    for _ in range(most):
        token = int(model(torch.tensor([ids])).logits[0, -1].argmax())
        if token == tokenizer.eos_token_id:
            break
        ids.append(token)
        answer.append(token)
    return tokenizer.decode(answer).strip()


def prompt_of(tokenizer: Any, question: str) -> list[int]:
    row = encode(tokenizer, question, "x")
    return [i for i, label in zip(row["input_ids"], row["labels"], strict=True) if label < 0]


def examples(data: TofuData, subset: str) -> tuple[Example, ...]:
    name = {"forget": "forget_eval", "retain": "retain_eval"}.get(subset, subset)
    return getattr(data, name)


# ---- per question -----------------------------------------------------------------------------


def test_the_fixture_is_not_vacuous(evaluation: Evaluation) -> None:
    numbers, rows = evaluation
    assert 0 < numbers["forget_exact_match"] < 1
    assert numbers["forget_exact_match"] < numbers["retain_exact_match"]
    assert numbers["extraction_strength"] < numbers["retain_extraction_strength"]
    assert len({len(row["reference"]) for row in rows}) > 4


def test_losses_and_probabilities(
    evaluation: Evaluation, model: Any, tokenizer: Any, data: TofuData
) -> None:
    for row in evaluation.rows:
        example = examples(data, row["subset"])[row["index"]]
        loss = nll(model, encode(tokenizer, example.question, example.answer))
        assert row["loss"] == pytest.approx(loss, abs=2e-6)
        assert row["probability"] == pytest.approx(math.exp(-loss), abs=2e-6)


def test_losses_of_paraphrased_and_perturbed_answers(
    evaluation: Evaluation, model: Any, tokenizer: Any, data: TofuData
) -> None:
    for row in evaluation.rows:
        example = examples(data, row["subset"])[row["index"]]

        def loss(answer: str, question: str = example.question) -> float:
            return nll(model, encode(tokenizer, question, answer))

        wrong = [loss(answer) for answer in example.perturbed_answers]
        assert row["perturbed_losses"] == pytest.approx(wrong, abs=2e-6)
        paraphrase = example.paraphrased_answer
        expected = None if paraphrase is None else pytest.approx(loss(paraphrase), abs=2e-6)
        assert row["paraphrased_loss"] == expected


def test_generations_are_greedy(evaluation: Evaluation, model: Any, tokenizer: Any) -> None:
    asked = [row for row in evaluation.rows if row["subset"] != "holdout"]
    # One byte is one token: the blank before the answer, the answer, the end, and eight to spare.
    longest = max(len(row["reference"]) for row in evaluation.rows) + 2 + 8
    for row in asked:
        expected = greedy(model, tokenizer, prompt_of(tokenizer, row["question"]), longest)
        assert row["generation"] == expected
        assert row["exact_match"] == (expected == row["reference"])
    assert len(asked) == 9
    assert [row["generation"] for row in evaluation.rows[9:]] == [None, None]


@pytest.mark.parametrize("tau", [0.1, 0.5])
def test_certificate_is_a_lower_bound_on_failure(
    model: Any, tokenizer: Any, data: TofuData, tau: float
) -> None:
    found = evaluate(model, tokenizer, data, tau=tau, generations=False)
    for row in found.rows:
        table, answer = token_tables(model, encode(tokenizer, row["question"], row["reference"]))
        margins = []
        for t, token in enumerate(answer.tolist()):
            probabilities = table[t].exp().tolist()
            target = probabilities.pop(token)
            margins.append(target - max(probabilities))
        phi = max(1 - math.log1p(math.exp(m / tau + 1)) for m in margins)
        assert row["certificate"] == pytest.approx(phi, abs=2e-5 / tau)
        assert row["exact_match"] == all(m > 0 for m in margins)
        assert row["certificate"] <= 1 - row["exact_match"]
    numbers = found.numbers
    assert numbers["certificate_raw"] < numbers["certificate"]
    assert numbers["certificate"] <= 1 - numbers["forget_exact_match"]


def test_extraction_strength_and_min_k_leave_out_the_end(
    evaluation: Evaluation, model: Any, tokenizer: Any
) -> None:
    for row in evaluation.rows:
        table, answer = token_tables(model, encode(tokenizer, row["question"], row["reference"]))
        table, answer = table[:-1], answer[:-1]
        n = len(answer)
        right = (table.argmax(-1) == answer).tolist()
        known = next((k for k in range(n) if all(right[k:])), n - 1)
        assert row["extraction_strength_ou"] == pytest.approx(1 - known / n, abs=1e-12)
        known = next(k for k in range(n + 1) if all(right[k:]))
        assert row["extraction_strength"] == pytest.approx(1 - known / n, abs=1e-12)
        assert row["exact_memorization"] == pytest.approx(sum(right) / n, abs=1e-12)
        scores = sorted(table[t, token].item() for t, token in enumerate(answer))
        smallest = scores[: max(math.floor(0.4 * n), 1)]
        assert row["min_k"] == pytest.approx(-statistics.fmean(smallest), abs=1e-5)
        p = table.exp()
        mean = (p * table).sum(-1)
        sigma = ((p * table.square()).sum(-1) - mean.square()).clamp(min=1e-6).sqrt()
        own = table[range(n), answer]
        standard = sorted(((own - mean) / sigma).tolist())[: max(math.floor(0.4 * n), 1)]
        expected = -statistics.fmean(standard)
        assert row["min_k_plus_plus"] == pytest.approx(expected, rel=2e-3, abs=2e-3)


def test_zlib_divides_the_loss_by_the_size_of_the_answer(
    evaluation: Evaluation, tokenizer: Any
) -> None:
    for row in evaluation.rows:
        encoded = encode(tokenizer, row["question"], row["reference"])
        said = tokenizer.decode([i for i in encoded["labels"] if i >= 0], skip_special_tokens=True)
        size = len(zlib.compress(said.encode("utf-8")))
        assert row["zlib"] == row["loss"] / size


# ---- the numbers ------------------------------------------------------------------------------


def unlikely(loss: float) -> float:
    return math.exp(-loss)


def ratio(row: dict[str, Any], guard: float) -> float:
    """P(wrong) / (P(correct) + guard), from the losses of a row."""
    wrong = math.exp(-statistics.fmean(row["perturbed_losses"]))
    return wrong / (math.exp(-row["paraphrased_loss"]) + guard)


def test_numbers_are_the_means_of_the_rows(evaluation: Evaluation) -> None:
    numbers, rows = evaluation
    of = {s: [r for r in rows if r["subset"] == s] for s in ("forget", "retain", "world_facts")}
    for name, members in of.items():
        for key in ("loss", "rouge", "rouge1", "exact_match"):
            mean = statistics.fmean(row[key] for row in members)
            assert numbers[f"{name}_{key}"] == pytest.approx(mean, abs=1e-12)
    for name in ("forget", "retain"):
        mean = statistics.fmean(row["probability"] for row in of[name])
        assert numbers[f"{name}_probability"] == pytest.approx(mean, abs=1e-12)
    for suffix, guard in (("", 1e-10), ("_tofu", 0.0)):
        shares = [
            math.exp(-row["loss"])
            / (math.exp(-row["loss"]) + sum(map(unlikely, row["perturbed_losses"])) + guard)
            for row in of["world_facts"]
        ]
        found = numbers[f"world_facts_probability{suffix}"]
        assert found == pytest.approx(statistics.fmean(shares), rel=1e-12)
        ratios = [ratio(row, guard) for row in of["forget"]]
        assert numbers[f"forget_truth_ratio{suffix}"] == pytest.approx(
            statistics.fmean(min(r, 1 / (r + guard)) for r in ratios), rel=1e-9
        )
        assert numbers[f"retain_truth_ratio{suffix}"] == pytest.approx(
            statistics.fmean(max(0, 1 - ratio(row, guard)) for row in of["retain"]), abs=1e-12
        )
    assert numbers["forget_truth_ratio_prob_mean"] == pytest.approx(
        statistics.fmean(1 / (1 + ratio(row, 0.0)) for row in of["forget"]), rel=1e-6
    )
    assert numbers["paraphrased_probability"] == pytest.approx(
        statistics.fmean(unlikely(row["paraphrased_loss"]) for row in of["forget"]), rel=1e-12
    )
    for key in ("extraction_strength", "extraction_strength_ou", "exact_memorization"):
        for name, prefix in (("forget", ""), ("retain", "retain_")):
            mean = statistics.fmean(row[key] for row in of[name])
            assert numbers[f"{prefix}{key}"] == pytest.approx(mean, abs=1e-12)
    assert numbers["certificate"] == pytest.approx(
        statistics.fmean(max(row["certificate"], 0) for row in of["forget"]), abs=1e-12
    )
    parts = [
        numbers[f"{subset}_{kind}"]
        for subset in ("retain", "real_authors", "world_facts")
        for kind in ("probability", "rouge", "truth_ratio")
    ]
    assert numbers["model_utility"] == pytest.approx(statistics.harmonic_mean(parts), abs=1e-12)


@pytest.mark.parametrize(
    ("number", "key"),
    [
        ("membership_auc", "min_k"),
        ("membership_auc_min_k_plus_plus", "min_k_plus_plus"),
        ("membership_auc_loss", "loss"),
        ("membership_auc_zlib", "zlib"),
    ],
)
def test_scores_are_low_for_what_was_memorised_and_their_auc_counts_pairs(
    evaluation: Evaluation, number: str, key: str
) -> None:
    forget = [row[key] for row in evaluation.rows if row["subset"] == "forget"]
    holdout = [row[key] for row in evaluation.rows if row["subset"] == "holdout"]
    pairs = [(f < h) + (f == h) / 2 for f in forget for h in holdout]
    assert evaluation.numbers[number] == pytest.approx(statistics.fmean(pairs), abs=1e-12)
    assert forget[0] < min(forget[1:] + holdout)  # the one forget example the model has seen


def test_forget_quality_needs_the_retrained_model(
    evaluation: Evaluation, model: Any, tokenizer: Any, data: TofuData
) -> None:
    assert evaluation.numbers["forget_quality"] is None
    assert evaluation.numbers["forget_quality_log10"] is None
    known = reference(evaluation.rows)
    assert known is not None
    numbers = evaluate(model, tokenizer, data, retrained=known, generations=False).numbers
    assert numbers["forget_quality"] == 1.0
    assert numbers["forget_quality_log10"] == 0.0
    away = {name: [r + 100 for r in ratios] for name, ratios in known.items()}
    far = summarise(evaluation.rows, away)
    for suffix in ("", "_tofu"):
        assert far[f"forget_quality{suffix}"] == pytest.approx(0.1, abs=1e-12)  # 2 / C(6, 3)
        assert far[f"forget_quality_log10{suffix}"] == pytest.approx(-1, abs=1e-12)


def test_missing_data_are_none_and_every_key_is_there(
    evaluation: Evaluation, model: Any, tokenizer: Any, data: TofuData
) -> None:
    bare = dataclasses.replace(
        data,
        holdout=(),
        world_facts=(),
        forget_eval=tuple(Example(e.question, e.answer) for e in data.forget_eval),
    )
    numbers = evaluate(
        model, tokenizer, bare, max_new_tokens=None, retrained=reference(evaluation.rows)
    ).numbers
    assert numbers.keys() == evaluation.numbers.keys()
    missing = {name for name, value in numbers.items() if value is None}
    assert missing == {
        *(n for n in numbers if n.startswith("world_facts")),
        *(n for n in numbers if n.startswith(("forget_truth_ratio", "forget_quality"))),
        *(n for n in numbers if n.startswith(("model_utility", "membership_auc"))),
        *("paraphrased_probability", "rouge_hm"),
    }


def test_a_destroyed_model_is_evaluated(model: Any, tokenizer: Any, data: TofuData) -> None:
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.lm_head.weight.fill_(math.nan)
    numbers = evaluate(broken, tokenizer, data, max_new_tokens=4).numbers
    assert numbers["forget_exact_match"] == numbers["retain_exact_match"] == 0
    assert math.isnan(numbers["forget_probability"])
    assert math.isnan(numbers["certificate"])
    assert math.isnan(numbers["model_utility"])
    assert math.isnan(numbers["membership_auc_min_k_plus_plus"])


# ---- options ----------------------------------------------------------------------------------


def test_paraphrased_questions_are_asked_where_there_are_any(
    model: Any, tokenizer: Any, data: TofuData
) -> None:
    found = evaluate(model, tokenizer, data, paraphrased_questions=True, generations=False)
    assert found.rows[0]["question"] == data.forget_eval[0].paraphrased_question
    assert found.rows[6]["question"] == data.real_authors[0].question
    example = data.forget_eval[0]
    asked = encode(tokenizer, str(example.paraphrased_question), example.answer)
    assert found.rows[0]["loss"] == pytest.approx(nll(model, asked), abs=2e-6)
    assert found.rows[0]["reference"] == example.answer


# ---- what must not matter, and what must not change -------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_model_and_random_state_are_left_alone(
    model: Any, tokenizer: Any, data: TofuData, training: bool
) -> None:
    subject = copy.deepcopy(model).train(training)
    weights = copy.deepcopy(subject.state_dict())
    torch.manual_seed(7)
    before = torch.get_rng_state()
    evaluate(subject, tokenizer, data, max_new_tokens=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert subject.training is training
    assert all(torch.equal(value, weights[name]) for name, value in subject.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in subject.parameters())


# ---- generation on its own --------------------------------------------------------------------
