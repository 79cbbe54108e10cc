"""The entailment judge, asked over real HTTP on loopback, and its offline way."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from socket import socket
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

pytest.importorskip("openai", reason="the judge's client is not installed")

import openai

from benchmarks.tasks.tofu.chat import Chat
from benchmarks.tasks.tofu.judge import (
    PROMPT,
    judge,
    judge_scores,
    parse_score,
    read_judgements,
    write_triples,
)
from tests.benchmarks.tasks.tofu.chat_server import serve


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def row(subset: str, index: int, generation: str | None, reference: str = "yes") -> dict[str, Any]:
    return {
        "subset": subset,
        "index": index,
        "question": f"{subset} question {index}?",
        "generation": generation,
        "reference": reference,
    }


ROWS = [
    row("forget", 0, "yes"),
    row("forget", 1, "no"),
    row("retain", 0, "yes"),
    row("real_authors", 0, "yes"),
    row("real_authors", 1, "no {braces} and\nlines"),
    row("world_facts", 0, "yes"),
    row("world_facts", 1, "yes"),
    row("world_facts", 2, ""),
    row("holdout", 0, None),
]
TRUTH = [1, 0, 1, 1, 0, 1, 1, 0, None]


def literal(prompt: str) -> str:
    """Judges by equality of the two responses."""
    return "1" if "(sentence): yes\n" in prompt else "0"


# ---- the prompt and the reply -----------------------------------------------------------------


def test_the_prompt_is_the_printed_one() -> None:
    prompt = PROMPT.format(question="Q?", generation="G", reference="R")
    assert prompt.startswith("You are an expert in Natural Language Inference. Your task is to")
    for line in (
        "0 = contradiction",
        "1 = entailment",
        "Question: Q?",
        "Response 1 (sentence): G",
        "Response 2 (sentence/word): R",
        "Provide your score only as a number.",
    ):
        assert line in prompt.splitlines()
    assert prompt.endswith("Score:")


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("0", 0),
        ("1", 1),
        (" 1\n", 1),
        ("", None),
        ("2", None),
        ("-1", None),
        ("01", None),
        ("1.0", None),
        ("1 = entailment", None),
        ("Score: 1", None),
        ("yes", None),
    ],
)
def test_only_a_digit_is_a_score(reply: str, score: int | None) -> None:
    assert parse_score(reply) == score


# ---- asking -----------------------------------------------------------------------------------


def test_every_generation_is_judged_in_order(tmp_path: Path) -> None:
    with serve(literal) as server:
        found = judge(ROWS, Chat("judge", tmp_path / "cache.jsonl", base_url=server.url))
    assert found == TRUTH
    assert len(server.prompts) == 8
    triple = {"question": "forget question 1?", "generation": "no", "reference": "yes"}
    assert PROMPT.format(**triple) in server.prompts
    assert {headers["authorization"] for headers in server.headers} == {"Bearer a-secret"}


def test_a_judged_run_costs_nothing_twice(tmp_path: Path) -> None:
    cache = tmp_path / "deep" / "cache.jsonl"
    with serve(literal) as server:
        first = judge(ROWS[:4], Chat("judge", cache, base_url=server.url))
        assert len(server.prompts) == 4
        chat = Chat("judge", cache, base_url=server.url)
        assert judge(ROWS, chat) == TRUTH
        assert len(server.prompts) == 8
        assert judge(ROWS + ROWS, chat) == TRUTH + TRUTH
        assert len(server.prompts) == 8
    assert first == TRUTH[:4]
    # The server is gone, and still everything is known: also to a fresh object.
    assert judge(ROWS, Chat("judge", cache, base_url=server.url)) == TRUTH
    assert "a-secret" not in cache.read_text()


def test_another_model_or_another_generation_is_asked_anew(tmp_path: Path) -> None:
    cache = tmp_path / "cache.jsonl"
    with serve(literal) as server:
        judge(ROWS[:1], Chat("judge", cache, base_url=server.url))
        judge(ROWS[:1], Chat("other judge", cache, base_url=server.url))
        assert len(server.prompts) == 2
        changed = [{**ROWS[0], "generation": "never"}]
        assert judge(changed, Chat("judge", cache, base_url=server.url)) == [0]
        assert len(server.prompts) == 3


def test_equal_prompts_are_asked_once(tmp_path: Path) -> None:
    with serve(literal) as server:
        assert judge([ROWS[0]] * 5, Chat("j", tmp_path / "c", base_url=server.url)) == [1] * 5
    assert len(server.prompts) == 1


def test_an_unparsable_answer_is_asked_for_again(tmp_path: Path) -> None:
    replies = iter(["I believe 1", "Score: 1", "1"])
    with serve(lambda prompt: next(replies)) as server:
        chat = Chat("j", tmp_path / "c", base_url=server.url, attempts=3)
        assert judge(ROWS[:1], chat) == [1]
    assert len(server.prompts) == 3


def test_an_answer_that_stays_unparsable_is_missing_and_not_kept(tmp_path: Path) -> None:
    cache = tmp_path / "cache.jsonl"
    with serve(lambda prompt: "cannot say" if "forget" in prompt else "1") as server:
        found = judge(ROWS, Chat("j", cache, base_url=server.url, attempts=2))
        assert found == [None, None, 1, 1, 1, 1, 1, 1, None]
        assert len(server.prompts) == 2 * 2 + 6
        numbers = judge_scores(ROWS, found)
        assert numbers["judge_forget"] is None
        assert numbers["judge_missing"] == 2
        server.reply = literal
        assert judge(ROWS[:2], Chat("j", cache, base_url=server.url)) == [1, 0]


def test_refused_requests_are_repeated(tmp_path: Path) -> None:
    answers: Iterator[str | int] = iter([429, 500, "1"])
    with serve(lambda prompt: next(answers)) as server:
        assert judge(ROWS[:1], Chat("j", tmp_path / "c", base_url=server.url, retries=2)) == [1]
    assert len(server.prompts) == 3


def test_what_arrived_before_a_failure_is_kept(tmp_path: Path) -> None:
    cache = tmp_path / "cache.jsonl"
    with serve(lambda prompt: 401 if "world_facts" in prompt else literal(prompt)) as server:
        chat = Chat("j", cache, base_url=server.url, retries=0, workers=1)
        with pytest.raises(openai.AuthenticationError):
            judge(ROWS, chat)
        server.reply = literal
        asked = len(server.prompts)
        assert len(cache.read_text().splitlines()) >= 5
        assert judge(ROWS, Chat("j", cache, base_url=server.url)) == TRUTH
        assert len(server.prompts) - asked <= 3


def test_no_key_and_no_server_is_said_before_any_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ValueError, match=r"no key for 'j'.*OPENAI_API_KEY"):
        judge(ROWS, Chat("j", tmp_path / "c"))
    with serve(literal) as server:
        assert judge(ROWS, Chat("j", tmp_path / "c", base_url=server.url)) == TRUTH
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert judge(ROWS, Chat("j", tmp_path / "d")) == TRUTH


def test_nothing_to_judge_needs_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    assert judge([], Chat("j", tmp_path / "c")) == []
    assert judge(ROWS[-1:], Chat("j", tmp_path / "c")) == [None]


# ---- the cache file ---------------------------------------------------------------------------


def test_a_line_cut_by_a_kill_is_asked_for_again(tmp_path: Path) -> None:
    cache = tmp_path / "cache.jsonl"
    with serve(literal) as server:
        judge(ROWS, Chat("j", cache, base_url=server.url, workers=1))
        cache.write_bytes(cache.read_bytes()[:-20])
        assert judge(ROWS, Chat("j", cache, base_url=server.url)) == TRUTH
        assert len(server.prompts) == 9
    assert len(cache.read_text().splitlines()) == 8


@pytest.mark.parametrize("content", ['{"method": "saul"}\n', "some notes", '[{"key": 1}]\n'])
def test_a_file_that_is_no_cache_is_refused_and_kept(tmp_path: Path, content: str) -> None:
    file = tmp_path / "notes.jsonl"
    file.write_text(content)
    with pytest.raises(ValueError, match="line 1 is no cached answer"):
        Chat("j", file)
    assert file.read_text() == content


# ---- scores -----------------------------------------------------------------------------------


def test_scores_are_percentages_and_their_harmonic_mean() -> None:
    numbers = judge_scores(ROWS, TRUTH)
    assert numbers["judge_forget"] == 50
    assert numbers["judge_retain"] == 100
    assert numbers["judge_real_authors"] == 50
    assert numbers["judge_world_facts"] == pytest.approx(200 / 3, abs=1e-12)
    expected = statistics.harmonic_mean([100, 50, 200 / 3])
    assert numbers["judge_hm"] == pytest.approx(expected, abs=1e-12)
    assert numbers["judge_missing"] == 0
    assert judge_scores(ROWS[::-1], TRUTH[::-1]) == pytest.approx(numbers, abs=1e-12)


def test_a_utility_subset_without_a_single_one_makes_the_mean_zero() -> None:
    zeros = [0 if row["subset"] == "retain" else score for row, score in zip(ROWS, TRUTH)]  # noqa: B905
    assert judge_scores(ROWS, zeros)["judge_hm"] == 0


def test_a_missing_utility_subset_leaves_no_mean() -> None:
    numbers = judge_scores(ROWS[:3], TRUTH[:3])
    assert numbers["judge_hm"] is None
    assert numbers["judge_world_facts"] is None
    assert numbers["judge_retain"] == 100


# ---- offline ----------------------------------------------------------------------------------


def judged_file(path: Path) -> list[dict[str, Any]]:
    """A judge's work: read the triples, fill in the scores."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["score"] = int(line["generation"] == line["reference"])
    return lines


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_triples_are_written_and_judgements_read_back_in_any_order(tmp_path: Path) -> None:
    file = tmp_path / "triples.jsonl"
    write_triples(ROWS, file)
    assert read_judgements(ROWS, file) == [None] * 9
    lines = judged_file(file)
    assert len(lines) == 8
    assert {"question", "generation", "reference", "subset"} <= lines[0].keys()
    write(file, lines[::-1])
    assert read_judgements(ROWS, file) == TRUTH


def test_a_triple_of_several_models_is_judged_once(tmp_path: Path) -> None:
    file = tmp_path / "triples.jsonl"
    write_triples(ROWS + ROWS[:3], file)
    assert len(file.read_text().splitlines()) == 8
    write(file, judged_file(file))
    assert read_judgements(ROWS + ROWS[:3], file) == TRUTH + TRUTH[:3]


def test_a_judgement_belongs_to_its_generation_only(tmp_path: Path) -> None:
    file = tmp_path / "triples.jsonl"
    write_triples(ROWS, file)
    write(file, judged_file(file))
    changed = [{**ROWS[0], "generation": "something else"}, *ROWS[1:]]
    assert read_judgements(changed, file) == [None, *TRUTH[1:]]


@pytest.mark.parametrize("score", [2, -1, 0.5, "1", "yes", True])
def test_a_strange_score_is_an_error_that_names_the_line(tmp_path: Path, score: object) -> None:
    file = tmp_path / "triples.jsonl"
    write_triples(ROWS, file)
    lines = judged_file(file)
    lines[2]["score"] = score
    write(file, lines)
    with pytest.raises(ValueError, match="line 3 has the score"):
        read_judgements(ROWS, file)


def test_contradicting_judgements_are_an_error(tmp_path: Path) -> None:
    file = tmp_path / "triples.jsonl"
    write_triples(ROWS[:1], file)
    (line,) = judged_file(file)
    write(file, [line, {**line, "score": 1 - line["score"]}])
    with pytest.raises(ValueError, match="line 2 judges a triple 0 that an earlier line judges 1"):
        read_judgements(ROWS, file)
    write(file, [line, line])
    assert read_judgements(ROWS[:1], file) == [1]


def test_a_missing_file_and_a_line_without_an_id(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="write_triples"):
        read_judgements(ROWS, tmp_path / "none.jsonl")
    write(tmp_path / "t.jsonl", [{"score": 1}])
    with pytest.raises(ValueError, match="line 1 has no `id`"):
        read_judgements(ROWS, tmp_path / "t.jsonl")


# ---- `transformers serve` ---------------------------------------------------------------------


def chain_model(path: Path, after_prompt: str) -> None:
    """A model of bigrams made by hand: after the prompt's last byte it says `after_prompt`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<end>", *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<end>"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    size = len(tokenizer)
    config = LlamaConfig(
        vocab_size=size, hidden_size=260, intermediate_size=4, num_hidden_layers=1,
        num_attention_heads=2, eos_token_id=1, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    chain = tokenizer(":" + after_prompt)["input_ids"] + [1]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(float("norm" in name))
        model.model.embed_tokens.weight[:, :size] = torch.eye(size)
        for now, then in pairwise(chain):
            model.lm_head.weight[then, now] = 1
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


def free_port() -> int:
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_up(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
    except urllib.error.HTTPError as answered:
        answered.close()
    except OSError:
        return False
    return True


def wait_until_up(process: subprocess.Popen, port: int, log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()
        if is_up(port):
            return
        time.sleep(0.2)
    raise TimeoutError(log.read_text())


SERVING = ("fastapi", "pydantic", "uvicorn")


@pytest.mark.skipif(
    not all(map(find_spec, SERVING)),
    reason="`transformers serve` needs the `serving` extra of transformers (fastapi, uvicorn)",
)
@pytest.mark.parametrize(("says", "expected"), [("1", [1, 1]), ("perhaps", [None, None])])
def test_against_transformers_serve(tmp_path: Path, says: str, expected: list) -> None:
    chain_model(tmp_path / "model", says)
    port, log = free_port(), tmp_path / "log"
    command = [str(Path(sys.executable).parent / "transformers"), "serve", str(tmp_path / "model")]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=offline)
        try:
            wait_until_up(process, port, log)
            chat = Chat(
                str(tmp_path / "model"),
                tmp_path / "cache.jsonl",
                base_url=f"http://127.0.0.1:{port}/v1",
                attempts=2,
                workers=1,
            )
            assert judge(ROWS[:2], chat) == expected
        finally:
            process.terminate()
            process.wait()
