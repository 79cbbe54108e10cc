"""The entailment judge and the reworded questions, asked over real HTTP on loopback."""

import json
import statistics
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai", reason="the judge's client is not installed")

import openai

from benchmarks.report.results import ResultsFolder
from benchmarks.tasks.tofu import judge as judging
from benchmarks.tasks.tofu import paraphrase
from benchmarks.tasks.tofu.chat import Chat
from benchmarks.tasks.tofu.judge import judge, judge_folder, judge_scores, parse_score
from benchmarks.tasks.tofu.task import reword
from benchmarks.tasks.tofu.world import build_world

WORLD = build_world(quick=True)


Reply = str | int  # the text of an answer, or an HTTP status to fail with


class ChatServer:
    """A real HTTP server on loopback that answers each prompt with what `reply` makes of it."""

    def __init__(self, reply: Callable[[str], Reply]) -> None:
        self.reply, self.prompts, self.lock = reply, list[str](), threading.Lock()
        chat = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.path == "/v1/chat/completions"
                status, body = chat.respond(request)
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.send_header("retry-after-ms", "1")  # the client's retries do not wait
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def respond(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        (message,) = request["messages"]
        with self.lock:
            self.prompts.append(message["content"])
            text = self.reply(message["content"])
        if isinstance(text, int):
            return text, {"error": {"message": "refused by the test", "type": "test"}}
        said = {"role": "assistant", "content": text}
        choices = [{"index": 0, "finish_reason": "stop", "message": said}]
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": request["model"]}
        return 200, {**body, "choices": choices}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    """A judge that calls equal what is equal."""
    server = ChatServer(literal)
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


def row(subset: str, index: int, generation: str | None, reference: str = "yes") -> dict[str, Any]:
    question = f"{subset} question {index}?"
    said = {"question": question, "generation": generation, "reference": reference}
    return {"subset": subset, "index": index, **said}


ROWS = [
    row("forget", 0, "yes"), row("forget", 1, "no"), row("retain", 0, "yes"),
    row("real_authors", 0, "yes"), row("real_authors", 1, "no {braces} and\nlines"),
    row("world_facts", 0, "yes"), row("world_facts", 1, "yes"), row("world_facts", 2, ""),
    row("holdout", 0, None),
]  # fmt: skip
TRUTH = [1, 0, 1, 1, 0, 1, 1, 0, None]


def literal(prompt: str) -> Reply:
    return "1" if "(sentence): yes\n" in prompt else "0"


@pytest.mark.parametrize(
    ("reply", "score"),
    [("0", 0), ("1", 1), (" 1\n", 1), *((r, None) for r in ("", "2", "-1", "01", "1.0", "yes"))],
)
def test_only_a_digit_is_a_score(reply: str, score: int | None) -> None:
    assert parse_score(reply) == score


def test_every_generation_is_judged_in_order_and_paid_for_once(
    served: ChatServer, tmp_path: Path
) -> None:
    cache = tmp_path / "deep" / "cache.jsonl"
    assert judge(ROWS[:4], Chat("j", cache)) == TRUTH[:4]
    assert judge(ROWS + ROWS, Chat("j", cache)) == TRUTH + TRUTH
    assert len(served.prompts) == 8
    triple = {"question": "forget question 1?", "generation": "no", "reference": "yes"}
    assert judging.PROMPT.format(**triple) in served.prompts
    assert "a-secret" not in cache.read_text()
    judge(ROWS[:1], Chat("another model", cache))
    assert len(served.prompts) == 9


def test_an_answer_that_stays_unparsable_is_missing_and_not_kept(
    served: ChatServer, tmp_path: Path
) -> None:
    served.reply = lambda prompt: "cannot say" if "forget" in prompt else "1"
    found = judge(ROWS, Chat("j", tmp_path / "c"))
    assert found == [None, None, 1, 1, 1, 1, 1, 1, None]
    numbers = judge_scores(ROWS, found)
    assert numbers["judge_forget"] is None and numbers["judge_missing"] == 2
    served.reply = literal
    assert judge(ROWS[:2], Chat("j", tmp_path / "c")) == [1, 0]


def test_refused_requests_are_repeated_and_a_failure_keeps_what_arrived(
    served: ChatServer, tmp_path: Path
) -> None:
    replies: Iterator[Reply] = iter([429, 500, "1"])
    served.reply = lambda prompt: next(replies)
    assert judge(ROWS[:1], Chat("j", tmp_path / "c")) == [1]
    served.reply = lambda prompt: 401 if "world_facts" in prompt else literal(prompt)
    with pytest.raises(openai.AuthenticationError):
        judge(ROWS, Chat("j", tmp_path / "c"))
    asked = len(served.prompts)
    served.reply = literal
    assert judge(ROWS, Chat("j", tmp_path / "c")) == TRUTH
    assert len(served.prompts) - asked <= 3


def test_without_a_key_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ValueError, match=r"no key for 'j'.*OPENAI_API_KEY"):
        judge(ROWS, Chat("j", tmp_path / "c"))
    assert judge(ROWS[-1:], Chat("j", tmp_path / "c")) == [None]


def test_scores_are_percentages_and_their_harmonic_mean() -> None:
    numbers = judge_scores(ROWS, TRUTH)
    assert numbers["judge_forget"] == 50
    assert numbers["judge_real_authors"] == 50
    assert numbers["judge_world_facts"] == pytest.approx(200 / 3, abs=1e-12)
    expected = statistics.harmonic_mean([100, 50, 200 / 3])
    assert numbers["judge_hm"] == pytest.approx(expected, abs=1e-12)
    assert numbers["judge_missing"] == 0
    zeros = [0 if r["subset"] == "retain" else s for r, s in zip(ROWS, TRUTH, strict=True)]
    assert judge_scores(ROWS, zeros)["judge_hm"] == 0
    assert judge_scores(ROWS[:3], TRUTH[:3])["judge_hm"] is None


def test_finished_runs_get_the_judges_columns(served: ChatServer, tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path)
    for method in ("original", "saul"):
        folder.write("answers", method, 0, ROWS)
        folder.append({"method": method, "seed": 0, "model_utility": 0.5})
    judge_folder(folder, Chat("j", tmp_path / "c"))
    assert [run["judge_forget"] for run in folder.rows()] == [50, 50]
    assert [run["model_utility"] for run in folder.rows()] == [0.5, 0.5]


def test_questions_are_reworded_once_and_asked(served: ChatServer, tmp_path: Path) -> None:
    served.reply = lambda prompt: f"Reworded: {prompt.rpartition('Question: ')[2]}"
    asked, file = paraphrase.questions(WORLD), tmp_path / "words.jsonl"
    made = paraphrase.generate_paraphrases(asked, Chat("j", tmp_path / "c"), file)
    assert made == paraphrase.read_paraphrases(file)
    data = paraphrase.with_paraphrases(WORLD, made)
    for before, after in zip(WORLD.forget_eval, data.forget_eval, strict=True):
        assert after.paraphrased_question == f"Reworded: {before.question}"
        assert after.pair == before.pair
    assert data.forget == WORLD.forget, "what is trained on stays"
    assert "Output ONLY the paraphrased question." in served.prompts[0]


def test_an_unusable_rewording_is_left_out_and_a_missing_one_refused(
    served: ChatServer, tmp_path: Path
) -> None:
    asked = paraphrase.questions(WORLD)
    served.reply = lambda prompt: asked[0] if prompt.endswith(asked[0]) else "Two\nlines"
    chat = Chat("j", tmp_path / "c")
    made = paraphrase.generate_paraphrases(asked[:3], chat, tmp_path / "w.jsonl")
    assert made == {}
    with pytest.raises(ValueError, match=f"found none for {len(asked)} of {len(asked)} questions"):
        reword(WORLD, tmp_path / "none.jsonl", "j")
    (tmp_path / "w.jsonl").write_text('{"question": "Who?", "paraphrased_question": " "}\n')
    with pytest.raises(ValueError, match="line 1: no paraphrased_question"):
        paraphrase.read_paraphrases(tmp_path / "w.jsonl")
