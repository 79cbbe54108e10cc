"""Trainers of TRL behind ours: they prepare both sides of pairs, and the rest is Algorithm 1."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from tests import by_hand
from tests.integrations import toy
from tests.models import word_tokenizer
from torch_alm import ALMConstraint
from torch_alm.integrations.transformers import ALMTrainer, PairedDataset, SAULTrainer
from torch_alm.measures import token_nll

trl = pytest.importorskip("trl", reason="trl is not installed")
datasets = pytest.importorskip("datasets", reason="datasets is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of TRL: what it calls changes its name
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
WORDS = ["<pad>", "<eos>", "Where", "is", *"ABCDE", "?", "Oslo", "Rome", "nobody", "knows"]
NEAR = 2e-6  # Adam makes much of rounding where a gradient is all but 0
TERMS = {"alpha": 2.9, "mu": 1.0, "rho": 0.02, "decay": 0.0}
KINDS = {ALMTrainer: by_hand.alm, SAULTrainer: by_hand.saul}
TRAINERS = [(kind, name) for kind in KINDS for name in ("SFT", "DPO")]


def tokenizer() -> PreTrainedTokenizerFast:
    return word_tokenizer(WORDS, pad_token="<pad>", eos_token="<eos>", unk_token="<pad>")


def small(seed: int = 0) -> GPT2LMHeadModel:
    """A GPT-2: the norms of a Llama are in float32, whatever its weights."""
    torch.manual_seed(seed)
    sizes = {"n_embd": 16, "n_inner": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ends = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(WORDS), **sizes, **still, **ends)).double()


def rows(names: str, answer: str) -> Any:
    """Questions with an answer; for preferences also what is to be said instead."""
    return datasets.Dataset.from_list(
        [
            {"prompt": f"Where is {name} ?", "completion": f" {answer}"}
            | {"chosen": " nobody knows", "rejected": f" {answer}"}
            for name in names
        ]
    )


def of_kind(data: Any, name: str) -> Any:
    unused = ["chosen", "rejected"] if name == "SFT" else ["completion"]
    return data.remove_columns(unused)


def rejected(model: nn.Module, batch: Any) -> Tensor:
    """The mean negative log-likelihood of what is not to be said; TRL puts it second."""
    ids, seen, asked = (
        batch[name].chunk(2)[1] for name in ("input_ids", "attention_mask", "completion_mask")
    )
    labels = ids.masked_fill(asked == 0, -100)
    return token_nll(model, {"input_ids": ids, "attention_mask": seen, "labels": labels})


def trainer(kind: Any, name: str, folder: Path, **given: Any) -> Any:
    config, behind = getattr(trl, f"{name}Config"), getattr(trl, f"{name}Trainer")
    args = config(
        str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=1,
        num_train_epochs=6,
        learning_rate=0.02,
        max_grad_norm=0.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        **given.pop("args", {}),
    )
    model = small()
    if name == "DPO":
        given["ref_model"] = copy.deepcopy(model)
    data = PairedDataset(rows("ABCD", "Oslo"), rows("BCDE", "Rome"))
    pairs = PairedDataset(of_kind(data.forget, name), of_kind(data.retain, name), seed=3)
    joined = toy.recording(type("Joined", (kind, behind), {}))
    return joined(model, args=args, train_dataset=pairs, processing_class=tokenizer(), **given)


def control(kind: Any, name: str) -> dict[str, Any]:
    measure = token_nll if name == "SFT" else rejected
    constraint = ALMConstraint(measure, alpha=TERMS["alpha"], mu=TERMS["mu"])
    return {"constraint": constraint} | ({"rho": TERMS["rho"]} if kind is SAULTrainer else {})


def of_sequences(model: nn.Module, batch: Any) -> Tensor:
    """The log-probability of each completion, by hand."""
    ids, asked = batch["input_ids"], batch["completion_mask"][:, 1:]
    logits = model(input_ids=ids).logits[:, :-1]
    each = -F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    return (each * asked).sum(1)


def preference(model: nn.Module, batch: Any) -> Tensor:
    """The loss of DPO with beta = 0.1, by hand."""
    with torch.no_grad():
        reference = of_sequences(small(), batch)
    chosen, other = (of_sequences(model, batch) - reference).chunk(2)
    return -F.logsigmoid(0.1 * (chosen - other)).mean()


def not_said(model: nn.Module, batch: Any) -> Tensor:
    """The measure of the rejected half, by hand."""
    tokens = batch["completion_mask"].chunk(2)[1].sum(1)
    return -(of_sequences(model, batch).chunk(2)[1] / tokens).mean()


@pytest.mark.parametrize(("kind", "name"), TRAINERS)
def test_a_trainer_behind_prepares_both_sides_and_the_run_is_the_algorithm(
    kind: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "DPO":
        monkeypatch.setattr(by_hand, "by_token", preference)
        monkeypatch.setattr(by_hand, "by_example", not_said)
    found = trainer(kind, name, tmp_path, **control(kind, name))
    found.train()
    steps = [[[micro] for micro in step] for step in found.steps[:-1]]
    assert len(steps) == found.state.global_step == found.constraint.metrics()["steps"] == 12
    rates, model = [0.02 * (1 - step / 12) for step in range(12)], small()
    weights = KINDS[kind](model, steps, rates, 0.0, **TERMS)
    torch.testing.assert_close(toy.values(found.model), toy.values(model), rtol=0, atol=NEAR)
    lines = [line for line in found.state.log_history if "constraint/weight" in line]
    assert [x["constraint/weight"] for x in lines] == pytest.approx(weights, abs=NEAR)
    assert 0.0 in weights and max(weights) > 0, "the gate must open and close"
    assert all("entropy" in line for line in lines), "TRL's own numbers are there as well"


def test_pairs_are_in_tokens_as_trl_makes_them(tmp_path: Path) -> None:
    found = trainer(ALMTrainer, "SFT", tmp_path, **control(ALMTrainer, "SFT"))
    pairs = found.train_dataset
    assert pairs.seed == 3 and found.eval_dataset is None
    told = {tuple(row["input_ids"]): row["labels"] for row in pairs.forget}
    where, is_, mark, oslo = (WORDS.index(word) for word in ("Where", "is", "?", "Oslo"))
    assert told == {
        (where, is_, WORDS.index(name), mark, oslo, 1): [-100] * 4 + [oslo, 1] for name in "ABCD"
    }
    assert len(pairs.retain) == 4 and all(row["labels"][4] == 11 for row in pairs.retain)


@pytest.mark.parametrize("name", ["SFT", "DPO"])
def test_rows_that_the_trainer_behind_drops_are_counted_and_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = rows("ABCD", "Oslo").map(
        lambda row, i: {"prompt": row["prompt"] * (1 + i % 2)}, with_indices=True
    )
    monkeypatch.setitem(globals(), "rows", lambda names, answer: pairs.select(range(4)))
    told = r"2 of 4 rows to forget \(number 1, 3\) are gone after its preparation of rows, and"
    with pytest.warns(UserWarning, match=told):
        found = trainer(ALMTrainer, name, tmp_path, args={"max_length": 7}, **control(None, name))
    assert [found.train_dataset[i]["index"] for i in (0, 1)] == [0, 2]
    with pytest.raises(ValueError, match=r"4 of 4 rows to forget .* nothing is left to forget"):
        trainer(ALMTrainer, name, tmp_path, args={"max_length": 3}, **control(None, name))


@pytest.mark.parametrize("name", ["packing", "eval_packing"])
def test_packing_is_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{name}=True puts several answers .*padding_free=True"):
        trainer(ALMTrainer, "SFT", tmp_path, args={name: True}, **control(None, "SFT"))


def test_flattened_answers_reach_the_measure_with_positions_that_begin_again(
    tmp_path: Path,
) -> None:
    seen: list[Any] = []

    def measure(model: nn.Module, batch: Any) -> Tensor:
        seen.append(batch)
        return model(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).logits.mean()

    args = {"padding_free": True, "max_length": None, "max_steps": 1}
    given = {"constraint": ALMConstraint(measure, alpha=1.0, mu=1.0), "args": args}
    trainer(ALMTrainer, "SFT", tmp_path, **given).train()
    assert [batch["position_ids"].tolist() for batch in seen] == [[[*range(6), *range(6)]]]


def test_sets_to_evaluate_are_prepared_and_know_the_measure(tmp_path: Path) -> None:
    sets = {
        "forget": of_kind(rows("AB", "Oslo"), "SFT"),
        "retain": of_kind(rows("E", "Rome"), "SFT"),
    }
    given = {**control(SAULTrainer, "SFT"), "eval_dataset": sets}
    found = trainer(SAULTrainer, "SFT", tmp_path, args={"eval_strategy": "epoch"}, **given)
    assert found.eval_dataset.keys() == {"forget", "retain"}
    told = found.evaluate()
    batch = found.data_collator([found.eval_dataset["forget"][i] for i in (0, 1)])
    with torch.no_grad():
        expected = by_hand.by_example(found.model, batch)
    assert told["eval_forget_loss"] == pytest.approx(expected.item(), rel=1e-6)
    assert "eval_retain_loss" in told


def test_an_evaluation_of_nothing_is_refused_at_once(tmp_path: Path) -> None:
    given = {**control(SAULTrainer, "SFT"), "args": {"eval_strategy": "epoch"}}
    with pytest.raises(ValueError, match=r'no `eval_dataset` for `eval_strategy="epoch"`\. Did'):
        trainer(SAULTrainer, "SFT", tmp_path, **given)
