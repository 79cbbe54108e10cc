"""A model and rows in memory: what the command does, without a file, and given back as it came."""

import copy
import logging
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import peft
import pytest
import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, TrainerCallback, TrainingArguments

from tests.command.asking import spoken
from tests.command.conftest import FORGET, RETAIN, command_in, lay, report
from torch_alm.command.arguments import parse, spell_options
from torch_alm.language._generation import Reading
from torch_alm.unlearning import Outcome, Refusal, asking, attack, evaluate, resume, unlearn
from torch_alm.unlearning.options import by_name, options_of

SHORT = {"steps": 2, "batch_size": 3, "quiet": True, "alpha": 2.0, "lr": 5e-3}
LONG = {**SHORT, "steps": 60}
PACKED = {"__module__": "torch.ao.nn.quantized.dynamic"}
MIXED = lambda _, given, found: found + found.mean(1, keepdim=True)  # noqa: E731


@pytest.fixture
def own(model: Any) -> Any:
    """A model that a test may change."""
    return copy.deepcopy(model)


def state(model: Any) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def moved(before: Any, model: Any) -> torch.Tensor:
    both = zip(before.parameters(), model.parameters(), strict=True)
    return torch.cat([(p.float() - was).detach().flatten() for was, p in both])


def mode(model: Any) -> list[Any]:
    return [
        *((m.training, getattr(m, "attention_dropout", None)) for m in model.modules()),
        *((p.requires_grad, p.dtype, p.grad) for p in model.parameters()),
        model.model.gradient_checkpointing, vars(model).get("forward"),
    ]  # fmt: skip


def test_it_forgets_in_place_and_the_model_is_given_back_as_it_came(
    own: Any, tokenizer: Any, capsys: Any, tmp_path: Path
) -> None:
    own.train()
    own.model.layers[0].mlp.requires_grad_(False)
    before, known = mode(own), spoken(own.eval(), tokenizer, FORGET)
    own.train()
    outcome = unlearn(own, tokenizer, FORGET, RETAIN, **LONG, gradient_checkpointing=True)
    assert outcome.model is own
    assert (lam := [s["lambda"] for s in outcome.trace]) == sorted(lam)  # though batches are met
    assert mode(own) == before
    own.eval()
    assert known == len(FORGET) and spoken(own, tokenizer, FORGET) < known
    assert spoken(own, tokenizer, FORGET) == round(
        outcome.numbers["after"]["forget"]["said"] * len(FORGET)
    )
    assert capsys.readouterr() == ("", "")
    outcome.put_back()
    assert spoken(own, tokenizer, FORGET) == known
    with pytest.raises(Refusal, match="other weights now"):
        outcome.save(tmp_path)


@pytest.mark.parametrize("size", [64, 3])
def test_the_forget_side_stands_still_where_a_pass_meets_no_row_below_the_aim(
    own: Any, tokenizer: Any, size: int
) -> None:
    seen, per_pass = list[torch.Tensor](), list[int]()

    class Reached(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            dual = getattr(more["optimizer"], "optimizer", more["optimizer"])
            seen.append(nn.utils.parameters_to_vector(own.parameters()).detach().clone())
            per_pass[:] = [-(-len(more["train_dataloader"].dataset.forget) // size)]
            for group in dual.retain.param_groups if state.global_step >= 4 else ():
                dual.constraint.alpha = group["lr"] = 0.0

    given = {**SHORT, "steps": 9, "batch_size": size}
    unlearn(own, tokenizer, FORGET, RETAIN, **given, callbacks=[Reached()])
    moves = 4 + per_pass[0] - 1  # a row that is low in one batch of a pass keeps its momentum
    assert [torch.equal(a, b) for a, b in pairwise(seen)] == [False] * moves + [True] * (8 - moves)
    assert (per_pass[0] == 1) == (size == 64)


def test_it_is_the_command(own: Any, tokenizer: Any, tmp_path: Path, folder: Path) -> None:
    """The same numbers step by step, from rows in memory and in files."""
    words = ("--alpha", 2, "--steps", 3, "--lr", "5e-3", "--batch-size", 3, "--quiet")
    command_in(tmp_path, folder, lay(tmp_path))("unlearn", *words)
    outcome = unlearn(own, tokenizer, FORGET, RETAIN, **{**SHORT, "steps": 3})
    outcome.save(tmp_path / "saved")
    told = report(tmp_path / "out")
    assert told["trace"] == report(tmp_path / "saved")["trace"]
    assert told["verdict"] == report(tmp_path / "saved")["verdict"]
    ours, theirs = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name / "model") for name in ("saved", "out")
    )
    assert same(state(ours), state(theirs))
    (tmp_path / "file").touch()
    for folder, why in (("saved", "not empty"), ("file/below", "below cannot be written")):
        with pytest.raises(Refusal, match=why):
            outcome.save(tmp_path / folder)


def test_sentences_name_options_as_python_does_and_the_command_as_it_does() -> None:
    told = "weights on `meta`; `anyway` goes on (`template`, `max_length` 9)"
    typed = "weights on `meta`; --anyway goes on (--template, --max-length 9)"
    assert spell_options(told) == typed
    for path in Path(asking.__file__).parent.glob("*.py"):
        assert not re.search(r"""["' (`]--[a-z]""", path.read_text()), path.name


def test_options_are_those_of_the_command(tmp_path: Path) -> None:
    files = [word for name in ("forget", "retain") for word in (f"--{name}", str(tmp_path))]
    for verb, more in {"unlearn": {}, "evaluate": {}, "attack": {"rows": None}}.items():
        given = parse([verb, "--model", "x", *files, "--output", "y"])
        assert options_of(given) == by_name(verb, more)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"lerning_rate": 1}, "unlearn has no option lerning_rate"),
        ({"relearn": 3}, "Is it of another verb"),
        ({"max_steps": 3}, "Did you mean steps?"),
        ({"learning_rate": 3}, "Did you mean lr?"),
        ({"lr": -1.0}, "`lr` is -1.0, which is no finite number above 0"),
        ({"lr": float("nan")}, "`lr` is nan"),
        ({"max_probe_loss": 95}, "`max_probe_loss` is 95, which is no share"),
        ({"steps": 1.5}, "`steps` is 1.5, which is no whole number from 1 on"),
        ({"method": "sam"}, "is 'sam', which is not one of dual, saul"),
        ({"steps": 1, "epochs": 1}, "`steps` and `epochs` were both given"),
    ],
)
def test_an_option_that_cannot_be_is_refused(options: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told.replace("?", r"\?")):
        unlearn(None, None, FORGET, RETAIN, **options)


def test_rows_that_cannot_be_are_refused_by_name(model: Any, tokenizer: Any) -> None:
    for rows, told in {
        "nothing": ([], "forget has no rows"),
        "a name": ("f.jsonl", "forget is a str, and no list"),
        "a frame": (pd.DataFrame(FORGET), r"forget is a DataFrame.* `rows.to_dict\("),
        "a path": (Path("f.jsonl"), "forget is a PosixPath"),
        "text": (["Who?"], "forget row 1 holds a str"),
        "other": ([{"q": "Who?"}], "forget row 1 has the fields"),
        "same": (RETAIN[:1], "forget row 1 and retain row 1 are the same row"),
    }.values():
        with pytest.raises(Refusal, match=told):
            evaluate(model, tokenizer, rows, RETAIN)
    for other in ("org/name", None, tokenizer):
        with pytest.raises(Refusal, match=f"the model is a {type(other).__name__}"):
            evaluate(other, tokenizer, FORGET, RETAIN)
    with pytest.raises(Refusal, match="the tokenizer is a name"):
        evaluate(model, "org/name", FORGET, RETAIN)  # pyright: ignore


def test_rows_of_datasets_and_of_messages_are_rows(model: Any, tokenizer: Any) -> None:
    asked = [
        [{"role": "user", "content": r["question"]},
         {"role": "assistant", "content": r["answer"]}] for r in FORGET
    ]  # fmt: skip
    known = evaluate(model, tokenizer, FORGET, RETAIN, quiet=True)
    for rows in (datasets.Dataset.from_list(FORGET), [{"messages": each} for each in asked]):
        found = evaluate(model, tokenizer, rows, RETAIN, quiet=True)
        assert found.numbers == known.numbers
    empty = {"prompt": None, "completion": None}
    other = {"prompt": "x", "completion": "y", "question": None, "answer": None}
    mixed = datasets.Dataset.from_list([*({**row, **empty} for row in FORGET), other])
    assert len(evaluate(model, tokenizer, mixed, RETAIN, quiet=True).to_frame()) == (
        len(FORGET) + 1 + len(RETAIN)
    )


def change(**more: Any) -> Callable[[Any], Any]:
    def changed(model: Any) -> Any:
        for name, value in more.items():
            setattr(model, name, value)
        return model

    return changed


def small(family: str, kind: str, vocabulary: int, **more: Any) -> Any:
    sizes = {"hidden_size": 16, "ffn_dim": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = getattr(transformers, f"{family}Config")(vocab_size=vocabulary, **sizes, **more)
    return getattr(transformers, family + kind)(config)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (lambda m: m.to("meta"), "weights on `meta`"),
        (nn.DataParallel, r"wrapped in DataParallel.* Did you mean `model\.module`"),
        (torch.inference_mode()(copy.deepcopy), "made inside `torch.inference_mode`"),
        (change(is_quantized=True), "quantised weights"),
        (change(more=nn.Parameter(torch.ones(1, dtype=torch.int8), False)), "quantised weights"),
        (change(more=type("Linear", (nn.Module,), PACKED)()), "quantised weights"),
        (lambda m: _spoilt(m), "NaN or infinite"),
        (lambda m: m.model.embed_tokens.register_forward_hook(MIXED) and m, "sees the tokens"),
        (lambda m: small("T5", "ForConditionalGeneration", m.lm_head.out_features), "T5"),
    ],
)
def test_a_model_that_cannot_train_is_refused_by_name(
    own: Any, tokenizer: Any, changed: Any, told: str
) -> None:
    with pytest.raises(Refusal, match=told):
        unlearn(changed(own), tokenizer, FORGET, RETAIN, **SHORT)


def _spoilt(model: Any) -> Any:
    with torch.no_grad():
        model.lm_head.weight[0, 0] = torch.nan
    return model


def test_nothing_is_dropped_in_training_by_whatever_name(tokenizer: Any) -> None:
    made = small(
        "OPT",
        "ForCausalLM",
        len(tokenizer),
        dropout=0.5,
        word_embed_proj_dim=16,
        max_position_embeddings=32,
    )
    outcome = unlearn(made, tokenizer, FORGET, RETAIN, anyway=True, **SHORT)
    assert outcome.trace[0]["retain_loss"] == pytest.approx(0.0, abs=1e-6), "no noise"


def test_adapters_that_peft_has_not_are_refused(tokenizer: Any) -> None:
    how = {**SHORT, "anyway": True, "lora": True}
    with pytest.raises(Refusal, match=r"no adapters for all layers of Mamba.* no `lora`"):
        unlearn(small("Mamba", "ForCausalLM", len(tokenizer)), tokenizer, FORGET, RETAIN, **how)


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_where_no_gradient_is_kept_it_trains_all_the_same(
    own: Any, tokenizer: Any, around: Any
) -> None:
    other = copy.deepcopy(own)
    with around():
        inside = unlearn(own, tokenizer, FORGET, RETAIN, **SHORT)
        assert not torch.is_grad_enabled()
        inside = resume(inside)
        attack(own, tokenizer, FORGET, RETAIN, relearn_steps=1, quiet=True)
    outside = resume(unlearn(other, tokenizer, FORGET, RETAIN, **SHORT))
    assert same(state(own), state(other)) and inside.trace == outside.trace


def test_a_tokenizer_without_a_pad_token_does(own: Any, tokenizer: Any) -> None:
    bare = copy.deepcopy(tokenizer)
    bare.pad_token = None
    assert unlearn(own, bare, FORGET, RETAIN, **SHORT).trace


def test_bfloat16_weights_train_as_float32_ones_and_stay_bfloat16(own: Any, tokenizer: Any) -> None:
    """Their own steps would be lost in rounding, and all together to the nearest number."""
    narrow = own.to(torch.bfloat16)
    before, wide = copy.deepcopy(narrow).float(), copy.deepcopy(narrow).float()
    how = {**SHORT, "steps": 8, "lr": 1e-6}
    outcome = unlearn(narrow, tokenizer, FORGET, RETAIN, **how)
    unlearn(wide, tokenizer, FORGET, RETAIN, **how)
    assert {p.dtype for p in narrow.parameters()} == {torch.bfloat16}
    way, kept = moved(before, wide), moved(before, narrow)
    nearest = moved(before, wide.to(torch.bfloat16))
    assert 0.8 < (kept @ way) / way.square().sum() < 1.2
    assert (nearest @ way) / way.square().sum() < 0.5
    again = evaluate(narrow, tokenizer, FORGET, RETAIN, quiet=True)
    assert outcome.numbers["after"]["forget"] == again.numbers["model"]["forget"]


def test_autocast_leaves_nothing_behind_and_of_two_gpus_one_computes(
    own: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda found: found._n_gpu or 2))
    before = mode(own)
    unlearn(own, tokenizer, FORGET, RETAIN, **SHORT, precision="bf16")
    assert mode(own) == before


def test_adapters_train_alone(own: Any, tokenizer: Any) -> None:
    before = state(own)
    outcome = unlearn(own, tokenizer, FORGET, RETAIN, **SHORT, lora=True)
    assert isinstance(outcome.model, peft.PeftModel)
    moved = {k: v for k, v in outcome.model.state_dict().items() if "lora_B" in k}
    assert all(bool(v.any()) for v in moved.values())
    again = unlearn(outcome.model, tokenizer, FORGET, RETAIN, **SHORT)
    assert again.model is outcome.model
    assert same(state(again.model.unload()), before)


def test_a_refusal_leaves_no_adapters(own: Any, tokenizer: Any) -> None:
    before, names = mode(own), [*state(own)]
    with pytest.raises(Refusal, match="0 of 1 forget answers"):
        unlearn(own, tokenizer, [{"question": "x", "answer": "Graz"}], RETAIN, lora=True)
    assert [*state(own)] == names and mode(own) == before


class Ends(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        control.should_training_stop = True


class Fails(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        raise KeyboardInterrupt


def test_a_stopped_run_goes_on_and_an_error_puts_the_model_back(
    own: Any, tokenizer: Any, caplog: Any
) -> None:
    caplog.set_level(logging.INFO, "torch_alm.unlearning")
    before = state(own)
    with pytest.raises(KeyboardInterrupt):
        unlearn(own, tokenizer, FORGET, RETAIN, callbacks=[Fails()], **LONG)
    assert same(state(own), before)
    first = unlearn(own, tokenizer, FORGET, RETAIN, callbacks=[Ends()], **LONG)
    assert len(first.trace) == 1 and "Ended after 1 of at most 60 steps" in caplog.text
    assert first.text.endswith("it was stopped.")
    second = resume(first)
    assert len(second.trace) > 1
    assert second.numbers["before"] == first.numbers["before"]
    second.put_back()
    assert same(state(own), before)
    with pytest.raises(Refusal, match="no run"):
        resume(evaluate(own, tokenizer, FORGET, RETAIN, quiet=True))


def test_a_goal_beyond_a_guess_is_warned_of(own: Any, tokenizer: Any, caplog: Any) -> None:
    unlearn(own, tokenizer, FORGET, RETAIN, **{**SHORT, "alpha": 400.0})
    (warned,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "400.00 nats" in warned.message and "Did you mean" in warned.message


def test_an_attack_returns_the_model_bit_for_bit(own: Any, tokenizer: Any) -> None:
    before, how = state(own), mode(own)
    outcome = attack(own, tokenizer, FORGET, RETAIN, relearn_steps=2, quiet=True)
    assert outcome.verdict == "not forgotten"
    assert same(state(own), before) and mode(own) == how
    assert {*outcome.to_frame()["attack"]} >= {"int8", "relearn forget"}


def test_a_notebook_shows_verdict_and_table(own: Any, tokenizer: Any) -> None:
    outcome: Outcome = unlearn(own, tokenizer, FORGET, RETAIN, **SHORT)
    shown = outcome._repr_html_()
    assert outcome.verdict in outcome.text and "<table>" in shown and "Forget" in shown
    assert repr(outcome) == f"Outcome({outcome.text})", "and not the layers of the model"
    frame = outcome.to_frame()
    assert {*frame["model"]} == {"before", "after"} and {*frame["set"]} >= {"forget", "retain"}


def test_behind_the_next_question_nothing_is_an_answer(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the plain format alone: a base model goes on to ask and to answer itself."""
    towns = [row["answer"].split()[-2] for row in FORGET]
    text = f"{towns[1]} Question : Where does n5 live ? Answer : {towns[0]}"
    heard = Reading(3.0, False, text)
    monkeypatch.setattr(asking, "read_answers", lambda *given, **_: [heard for _ in given[2]])

    def said(rows: Any, **options: Any) -> float:
        found = evaluate(model, tokenizer, rows, RETAIN, quiet=True, **options)
        return found.numbers["model"]["forget"]["said"]

    assert said(FORGET[:2]) == 0.5  # the town before it
    assert said(FORGET[:1], template="Ask {question} Say {answer}") == 1.0
    itself = {
        "prompt": "Question : Who ?",
        "completion": f"Question : Where does n5 live ? {towns[0]}",
    }
    assert said([itself]) > 0.0, "the marker is of the answer"
