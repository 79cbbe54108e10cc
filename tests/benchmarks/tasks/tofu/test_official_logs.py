"""TOFU's own evaluation logs, recomputed from their per-item losses and generations."""

import json
import statistics
from pathlib import Path

import pytest
from scipy import stats

from benchmarks.tasks.tofu import metrics as tofu
from benchmarks.tasks.tofu.summary import reference, summarise

LOGS = Path(__file__).parents[5] / "shared" / "data" / "tofu" / "official_logs"
LLAMA = "ft_epoch5_lr1e-05_llama2-7b_{}_wd0.01.json"
FILES = {
    "forget": "eval_log_forget.json",
    "retain": "eval_log.json",
    "real_authors": "eval_real_author_wo_options.json",
    "world_facts": "eval_real_world_wo_options.json",
}

pytestmark = pytest.mark.skipif(
    not LOGS.is_dir(), reason=f"TOFU's evaluation logs are not at {LOGS.parent.name}/{LOGS.name}"
)


def log_of(model: str) -> dict:
    return json.loads((LOGS / LLAMA.format(model)).read_text())


def rows_of(model: str) -> list[dict]:
    """The rows `evaluate` would have made, from the losses and texts of a log."""
    log = log_of(model)
    return [
        row(subset, log[file], index)
        for subset, file in FILES.items()
        for index in log[file]["avg_gt_loss"]
    ]


def row(subset: str, log: dict, index: str) -> dict:
    wrong = log["average_perturb_loss"][index]
    loss = log["avg_gt_loss"][index]
    _, generation, truth = log["generated_text"][index]
    return {
        "subset": subset,
        "loss": loss,
        "probability": float(tofu.probability(loss)),
        "paraphrased_loss": log["avg_paraphrased_loss"][index],
        "perturbed_losses": wrong,
        "rouge": tofu.rouge_l_recall(generation, truth),
        "rouge1": tofu.rouge_1_recall(generation, truth),
        "exact_match": generation == truth,
        "certificate": 0.0,
        **dict.fromkeys(
            ("extraction_strength", "extraction_strength_ou", "exact_memorization"), 0.0
        ),
        **dict.fromkeys(("min_k", "min_k_plus_plus", "zlib"), 0.0),
    }


@pytest.mark.parametrize("model", ["full", "retain90", "retain95", "retain99"])
def test_stored_rouge_is_reproduced_item_by_item(model: str) -> None:
    log = log_of(model)["eval_log_forget.json"]
    texts = [log["generated_text"][index] for index in log["rougeL_recall"]]
    found = [tofu.rouge_l_recall(generation, reference) for _, generation, reference in texts]
    assert found == pytest.approx(list(log["rougeL_recall"].values()), abs=1e-12)
    expected = {"full": 300, "retain90": 300, "retain95": 200, "retain99": 40}
    assert len(found) == expected[model]
    found = [tofu.rouge_1_recall(generation, reference) for _, generation, reference in texts]
    assert found == pytest.approx(list(log["rouge1_recall"].values()), abs=1e-12)


@pytest.mark.parametrize(("model", "utility"), [("retain99", 0.620744), ("retain95", 0.600577)])
def test_published_model_utility(model: str, utility: float) -> None:
    assert summarise(rows_of(model))["model_utility"] == pytest.approx(utility, abs=5e-7)


def log_ratios_of(model: str) -> list[float]:
    """TOFU's truth ratios, without a guard, from the logged losses."""
    log = log_of(model)["eval_log_forget.json"]
    wrong = [statistics.fmean(losses) for losses in log["average_perturb_loss"].values()]
    return [c - w for c, w in zip(log["avg_paraphrased_loss"].values(), wrong, strict=True)]


def test_forget_quality_of_the_retrained_and_of_the_original_model() -> None:
    retrained = rows_of("retain90")
    known = reference(retrained)
    same = summarise(retrained, known)
    assert same["forget_quality"] == same["forget_quality_tofu"] == 1.0
    original = summarise(rows_of("full"), known)
    expected = stats.ks_2samp(log_ratios_of("full"), log_ratios_of("retain90")).pvalue
    for suffix in ("", "_tofu"):  # no answer of these models is beyond the guard
        assert original[f"forget_quality{suffix}"] == pytest.approx(expected, rel=1e-9)
        assert 10 ** original[f"forget_quality_log10{suffix}"] == pytest.approx(expected, rel=1e-6)
    assert original["forget_guarded"] == 0.0
    assert original["forget_quality_floor_log10"] < original["forget_quality_log10"] < -10
