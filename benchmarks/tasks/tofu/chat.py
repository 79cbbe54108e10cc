"""A chat model behind an OpenAI-compatible endpoint, asked every prompt at most once.

Accepted answers are kept as JSON lines, written as they arrive: a run that is killed or repeated
pays only for what it does not have.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Lock
from typing import TypeVar

from openai import OpenAI
from tqdm import tqdm

from benchmarks.report.results import drop_cut_line, read_lines

T = TypeVar("T")

OPENING = '{"key": '  # how every line of a cache file begins


class Chat:
    """Answers of one model, from the cache file where it has them, else from the endpoint.

    The key is read from the environment (`OPENAI_API_KEY`) and is written nowhere. No sampling
    options are sent: the model answers as its endpoint is set up.

    Args:
        model: name of the model at the endpoint.
        cache: JSON-lines file of accepted answers; made when the first one arrives.
        base_url: endpoint; `None` is the client's default (`OPENAI_BASE_URL`, else OpenAI's own).
        retries: how often the client repeats a request that failed (rate limit, server error,
            timeout), with growing pauses.
        attempts: how often a prompt is asked whose answer is not accepted.
        timeout: seconds for one request.
        workers: requests under way at once.
    """

    def __init__(
        self,
        model: str,
        cache: str | Path,
        *,
        base_url: str | None = None,
        retries: int = 5,
        attempts: int = 3,
        timeout: float = 60.0,
        workers: int = 8,
    ) -> None:
        self.model = model
        self.cache = Path(cache)
        self.attempts = attempts
        self.workers = workers
        self.base_url = base_url or os.environ.get("OPENAI_BASE_URL")
        self._options = {"base_url": self.base_url, "max_retries": retries, "timeout": timeout}
        self._known = _read(self.cache)
        self._writing = Lock()

    def ask(
        self, prompts: Sequence[str], accept: Callable[[str], T | None], *, progress: bool = False
    ) -> list[T | None]:
        """Collect what `accept` makes of the answer to each prompt; `None` where it accepted none.

        Cost: one request per prompt that is not in the cache, `attempts` for one whose answers
        are not accepted; such answers are not cached and are asked for again by the next run.

        Args:
            prompts: each is one user message; equal ones are asked once.
            accept: reads an answer, or returns `None` if it cannot.

        Raises:
            ValueError: requests are needed and no key is in the environment.
            openai.OpenAIError: a request failed for good; what arrived before is in the cache.
        """
        missing = [p for p in dict.fromkeys(prompts) if self._accepted(p, accept) is None]
        if missing:
            self._fetch(missing, accept, progress)
        return [self._accepted(prompt, accept) for prompt in prompts]

    def _accepted(self, prompt: str, accept: Callable[[str], T | None]) -> T | None:
        reply = self._known.get(self._key(prompt))
        return None if reply is None else accept(reply)

    def _key(self, prompt: str) -> str:
        return hashlib.sha256(json.dumps([self.model, prompt]).encode()).hexdigest()

    def _fetch(
        self, prompts: Iterable[str], accept: Callable[[str], T | None], progress: bool
    ) -> None:
        client = self._client()
        pool = ThreadPoolExecutor(self.workers)
        try:
            waiting = [pool.submit(self._request, client, prompt, accept) for prompt in prompts]
            for done in tqdm(as_completed(waiting), total=len(waiting), disable=not progress):
                done.result()
        finally:
            # A failure ends the run, but not before the requests under way are answered and kept.
            pool.shutdown(cancel_futures=True)
            client.close()

    def _client(self) -> OpenAI:
        key = os.environ.get("OPENAI_API_KEY")
        if key is None and self.base_url is None:
            raise ValueError(
                f"Chat has no key for {self.model!r}; every request would be refused. Did you set "
                "OPENAI_API_KEY, or did you mean a server of your own (`base_url`)?"
            )
        return OpenAI(api_key=key or "none", **self._options)

    def _request(self, client: OpenAI, prompt: str, accept: Callable[[str], T | None]) -> None:
        """Ask until an answer is accepted, and keep that one."""
        messages = [{"role": "user", "content": prompt}]
        for _ in range(self.attempts):
            completion = client.chat.completions.create(model=self.model, messages=messages)
            reply = completion.choices[0].message.content or ""
            if accept(reply) is not None:
                return self._keep(self._key(prompt), reply)
        return None

    def _keep(self, key: str, reply: str) -> None:
        line = json.dumps({"key": key, "model": self.model, "reply": reply}, ensure_ascii=False)
        with self._writing:
            self._known[key] = reply
            self.cache.parent.mkdir(parents=True, exist_ok=True)
            with self.cache.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


def _read(cache: Path) -> dict[str, str]:
    """The answers of a cache file; a line cut by a kill is dropped, a stranger's file is not."""
    lines = cache.read_text(encoding="utf-8").split("\n") if cache.exists() else []
    for number, line in enumerate(lines, 1):
        if line[: len(OPENING)] != OPENING[: len(line)]:
            raise ValueError(
                f"{cache}, line {number} is no cached answer but {line[:40]!r}; answers would be "
                "appended to something else. Did you mean another file for the cache?"
            )
    drop_cut_line(cache)
    return {line["key"]: line["reply"] for line in read_lines(cache)}
