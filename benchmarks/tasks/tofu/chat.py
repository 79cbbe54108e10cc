"""A chat model behind an OpenAI-compatible endpoint, asked every prompt at most once."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from openai import OpenAI
from tqdm import tqdm

from benchmarks.report.results import append_line, drop_cut_line, read_lines

T = TypeVar("T")
ATTEMPTS = 3  # for a prompt whose answer is not accepted
WORKERS = 8  # requests at once


class Chat:
    """Answers of one model, from the cache file or else from the endpoint.

    Key and address are read from the environment (`OPENAI_API_KEY`, `OPENAI_BASE_URL`). Accepted
    answers are written to the cache as JSON lines when they arrive: a run that is killed or
    repeated pays for the others alone.
    """

    def __init__(self, model: str, cache: Path) -> None:
        self.model, self.cache = model, cache
        drop_cut_line(cache)
        self._known: dict[str, str] = {line["key"]: line["reply"] for line in read_lines(cache)}

    def ask(self, prompts: Sequence[str], accept: Callable[[str], T | None]) -> list[T | None]:
        """Return `accept(answer)` for each prompt, `None` where it accepted no answer.

        Cost: one request per prompt that is not in the cache, three for one whose answers are not
        accepted; such answers are not cached and are asked for again by the next run.
        """
        if missing := [p for p in dict.fromkeys(prompts) if self._key(p) not in self._known]:
            self._fetch(missing, accept)
        found = (self._known.get(self._key(prompt)) for prompt in prompts)
        return [None if reply is None else accept(reply) for reply in found]

    def _key(self, prompt: str) -> str:
        return hashlib.sha256(json.dumps([self.model, prompt]).encode()).hexdigest()

    def _fetch(self, prompts: Sequence[str], accept: Callable[[str], T | None]) -> None:
        if not os.environ.get("OPENAI_API_KEY"):
            raise ValueError(
                f"there is no key for {self.model!r}; every request would be refused. Did you set "
                "OPENAI_API_KEY? (A server of your own, OPENAI_BASE_URL, takes any.)"
            )

        def reply(prompt: str) -> str | None:
            for _ in range(ATTEMPTS):
                said = client.chat.completions.create(
                    model=self.model, messages=[{"role": "user", "content": prompt}]
                )
                text = said.choices[0].message.content or ""
                if accept(text) is not None:
                    return text
            return None

        self.cache.parent.mkdir(parents=True, exist_ok=True)
        with OpenAI(max_retries=5, timeout=60.0) as client, ThreadPoolExecutor(WORKERS) as pool:
            replies = tqdm(pool.map(reply, prompts), total=len(prompts), desc=self.model)
            for prompt, text in zip(prompts, replies, strict=True):
                if text is not None:
                    self._known[self._key(prompt)] = text
                    append_line(self.cache, {"key": self._key(prompt), "reply": text})
