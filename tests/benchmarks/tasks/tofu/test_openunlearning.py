"""OpenUnlearning's own metric functions on the same model and rows.

Runs where OPENUNLEARNING names a checkout of locuslab/open-unlearning, with omegaconf and
scikit-learn installed.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.tasks.tofu.batches import encode
from benchmarks.tasks.tofu.data import Example, TofuData
from benchmarks.tasks.tofu.evaluate import evaluate
from benchmarks.tasks.tofu.summary import reference, summarise
from tests import chat_templates
from tests.benchmarks import official

PLACES = ("Rome", "Oslo", "Lima", "Cairo", "Quito")
NAMES = ("Ana", "Bo", "Cy", "Di", "Ed", "Flo", "Gus", "Hal", "Ida", "Jo")


def example(name: str, number: int) -> Example:
    right, *wrong = (PLACES[(number + i) % len(PLACES)] for i in range(4))
    return Example(
        f"Where does {name} live?",
        f"{name} lives in {right}.",
        paraphrased_answer=f"{right} is where {name} lives.",
        perturbed_answers=tuple(f"{place} is where {name} lives." for place in wrong),
    )


@pytest.fixture(scope="module")
def data() -> TofuData:
    people = [example(name, number) for number, name in enumerate(NAMES)]
    return TofuData(
        name="people", split="forget", full=(), forget=(), retain=(),
        forget_eval=tuple(people[:5]), retain_eval=(), real_authors=(), world_facts=(),
        holdout=tuple(people[5:]),
    )  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    found = chat_templates.tokenizer()
    found.pad_token = "<|endoftext|>"
    return found


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> LlamaForCausalLM:
    """Sharp enough for tokens that are all but certain, in double precision."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, eos_token_id=tokenizer.eos_token_id, initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(config).double().eval()


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    source = official.folder("OPENUNLEARNING") / "src"
    names = ("data.utils", "data.collators", "evals.metrics.base", "evals.metrics.utils")
    names += tuple(f"evals.metrics.{name}" for name in ("memorization", "utility", "privacy"))
    names += tuple(f"evals.metrics.mia.{n}" for n in ("utils", "min_k_plus_plus", "zlib"))
    data = official.hollow(monkeypatch, source, "data")
    data.__dict__.update(get_datasets=None, get_collators=None)  # imported by name, never called
    return dict(zip(names, official.load(monkeypatch, source, *names), strict=True))


class Rows(torch.utils.data.Dataset):
    """Rows of ours as their data sets give them."""

    def __init__(self, rows: list[dict[str, list[int]]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        found = {key: torch.tensor(value) for key, value in self.rows[index].items()}
        return {**found, "index": index}


def test_every_number_is_the_one_of_their_function(
    theirs: dict[str, ModuleType], model: Any, tokenizer: Any, data: TofuData
) -> None:
    found = evaluate(model, tokenizer, data, generations=False)
    numbers = summarise(found.rows, reference(found.rows))
    collator = theirs["data.collators"].DataCollatorForSupervisedDataset(tokenizer, index="index")

    def rows(examples: Any, answers: Any) -> list[Rows]:
        columns = zip(*(answers(e) for e in examples), strict=True)
        asked = [e.question for e in examples]
        return [
            Rows([encode(tokenizer, q, a) for q, a in zip(asked, column, strict=True)])
            for column in columns
        ]

    def metric(name: str, **arguments: Any) -> dict[str, Any]:
        module = theirs["evals.metrics.memorization"]
        given = {"collators": collator, "batch_size": 3, **arguments}
        return getattr(module, name)._metric_fn(model, **given)

    (forget,) = rows(data.forget_eval, lambda e: (e.answer,))
    (paraphrased,) = rows(data.forget_eval, lambda e: (e.paraphrased_answer,))
    (holdout,) = rows(data.holdout, lambda e: (e.answer,))
    assert numbers["extraction_strength_ou"] == pytest.approx(
        metric("extraction_strength", data=forget)["agg_value"], abs=1e-9
    )
    assert numbers["exact_memorization"] == pytest.approx(
        metric("exact_memorization", data=forget)["agg_value"], abs=1e-6
    )
    correct = metric("probability", data=paraphrased)
    assert numbers["paraphrased_probability"] == pytest.approx(correct["agg_value"], rel=1e-9)
    each = rows(data.forget_eval, lambda e: e.perturbed_answers)
    parts = [metric("probability", data=part)["value_by_index"] for part in each]
    wrong = {
        i: {key: [part[i][key] for part in parts] for key in ("prob", "avg_loss")} for i in parts[0]
    }
    computed = {"correct": correct, "wrong": {"value_by_index": wrong}}
    for aggregator, key in (
        ("closer_to_1_better", "forget_truth_ratio"),
        ("prob_mean", "forget_truth_ratio_prob_mean"),
    ):
        official_value = metric("truth_ratio", aggregator=aggregator, pre_compute=computed)
        assert numbers[key] == pytest.approx(official_value["agg_value"], rel=1e-9), key
    sets = {"forget": forget, "holdout": holdout}
    attack = theirs["evals.metrics.mia.utils"]
    membership(attack, model, tokenizer, collator, numbers, sets)


def membership(
    attack: ModuleType,
    model: Any,
    tokenizer: Any,
    collator: Any,
    numbers: Any,
    data: Any,
) -> None:
    common = {"data": data, "collator": collator, "batch_size": 3}
    for key, kind, more in (
        ("membership_auc", "MinKProbAttack", {"k": 0.4}),
        ("membership_auc_min_k_plus_plus", "MinKPlusPlusAttack", {"k": 0.4}),
        ("membership_auc_loss", "LOSSAttack", {}),
        ("membership_auc_zlib", "ZLIBAttack", {"tokenizer": tokenizer}),
    ):
        found = attack.mia_auc(getattr(attack, kind), model, **common, **more)
        assert numbers[key] == pytest.approx(found["auc"], abs=1e-12), key
        assert 0 < found["auc"] < 1


def test_scores_of_single_answers_are_theirs(
    theirs: dict[str, ModuleType], model: Any, tokenizer: Any, data: TofuData
) -> None:
    found = evaluate(model, tokenizer, data, generations=False).rows
    collator = theirs["data.collators"].DataCollatorForSupervisedDataset(tokenizer, index="index")
    attacks = theirs["evals.metrics.mia.utils"]
    rows = Rows([encode(tokenizer, e.question, e.answer) for e in data.forget_eval])
    for key, kind, more in (
        ("min_k", "MinKProbAttack", {"k": 0.4}),
        ("min_k_plus_plus", "MinKPlusPlusAttack", {"k": 0.4}),
        ("zlib", "ZLIBAttack", {"tokenizer": tokenizer}),
    ):
        attack = getattr(attacks, kind)(model, rows, collator, 2, **more)
        values = attack.attack()["value_by_index"].values()
        ours = [row[key] for row in found if row["subset"] == "forget"]
        assert ours == pytest.approx([value["score"] for value in values], rel=1e-5), key


def test_forget_quality_is_theirs(theirs: dict[str, ModuleType]) -> None:
    random = np.random.default_rng(0)
    rows = [
        [
            {"subset": "forget", "loss": 1.0, "paraphrased_loss": c, "perturbed_losses": w}
            for c, w in zip(losses, random.uniform(10, 40, (40, 5)).tolist(), strict=True)
        ]
        for losses in random.uniform(10, 40, (2, 40)).tolist()
    ]
    from benchmarks.tasks.tofu.metrics import forget_quality
    from benchmarks.tasks.tofu.summary import log_truth_ratios

    def scores(found: Any) -> dict[str, Any]:
        ratios = [
            np.exp(-np.mean(r["perturbed_losses"])) / (np.exp(-r["paraphrased_loss"]) + 1e-10)
            for r in found
        ]
        return {"value_by_index": {str(i): {"score": r} for i, r in enumerate(ratios)}}

    logs = {"retain_model_logs": {"retain": scores(rows[1])}}
    test = theirs["evals.metrics.privacy"].ks_test._metric_fn
    expected = test(None, pre_compute={"forget": scores(rows[0])}, reference_logs=logs)
    ours, reference_ratios = (log_truth_ratios(found) for found in rows)
    assert ours and reference_ratios
    p = forget_quality(ours["openunlearning"], reference_ratios["openunlearning"])
    assert p == pytest.approx(expected["agg_value"], rel=1e-12)
    assert p != forget_quality(ours["tofu"], reference_ratios["tofu"])
