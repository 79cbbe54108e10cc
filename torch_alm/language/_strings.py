"""The probability of a text, in whatever tokens: a search over those that agree with it."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush
from itertools import groupby
from typing import NamedTuple, TypeAlias

from torch_alm.language._encoding import IGNORE, Row, pad_id
from torch_alm.language._models import LanguageModel, Tokenizer, positions
from torch_alm.language._scoring import ROWS_PER_BATCH, AnswerScores, in_batches, scores_of
from torch_alm.measures._answers import Answers
from torch_alm.measures._logits import compute_dtype

MOST_TOKENS = 16  # of a run that is looked for in other tokens
BLANK = "\u2581"  # of a vocabulary of the sentencepiece kind
AS_THEY_ARE = {*range(33, 127), *range(161, 173), *range(174, 256)}
OTHERS = {256 + i: byte for i, byte in enumerate(sorted({*range(256)} - AS_THEY_ARE))}
"""Characters that stand for other bytes in a byte-level vocabulary (GPT-2)."""

Step: TypeAlias = tuple[list[tuple[int, float]], int]
"""log p of the tokens that may stand at a place, and the likeliest token of all."""
_Found: TypeAlias = tuple[AnswerScores, list[Step]]


class StringScores(NamedTuple):
    """Scores of the text that the labelled tokens of a row spell, in whatever tokens."""

    loss: float  # -log of its probability, in nats per labelled token of the row
    exact_match: bool  # whether greedy decoding says it, in some tokens
    rest: float  # by how much the loss may be lower for what was left out
    row: Row  # the row in the likeliest tokens that spell it
    usual: AnswerScores  # of the row's own tokens


def string_nll(
    model: LanguageModel,
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    *,
    tolerance: float = 0.01,
    most: float = 8.0,
) -> list[float]:
    """Larger = more forgotten: -log of the probability of each answer's text, in any tokens.

    `-log sum_s p(s | q)` over the token sequences s that spell what the labelled tokens spell,
    divided by the number of these. It is at most the `token_nll` of the row, and equal where no
    other tokens spell the text. A model that no longer says ` Tehran` may say ` T`, `eh`, `ran`.

    The sum is a best-first search over the tokens that agree with what is left of the text. Tokens
    without a label stay as they are. Other tokens are looked for where up to 16 labelled ones stand
    in a row, and with tokenizers of byte-level or of the sentencepiece kind.

    Args:
        model: a causal language model of transformers.
        tokenizer: its fast tokenizer.
        rows: encoded questions and answers.
        tolerance: the share of the sum that may be missing.
        most: further forward passes per row, on average (32 in all may be taken in any case); what
            they do not find is missing.

    Errors are those of `answer_scores`. It has no gradient. Cost: a forward pass per row, batched,
    and one for each further spelling, of which an answer that the model is sure of needs none.

    Source: Cao and Rimell 2021, You should evaluate your language model on marginal likelihood over
    tokenisations; Geh et al. 2024, Where is the signal in tokenization space?
    """
    found = string_scores(model, tokenizer, rows, 1.0, tolerance=tolerance, most=most)
    return [score.loss for score in found]


def string_scores(
    model: LanguageModel,
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    tau: float,
    *,
    tolerance: float = 0.05,
    most: float = 1.0,
    enough: float = math.inf,
) -> list[StringScores]:
    """Scores of the text of every row, as of `string_nll`, and of its tokens.

    A text whose loss is above `enough` nats per token in any case is looked for no further: what is
    left out may be a share of `tolerance` of the probability that it would have there.
    """
    spelling, pad, room = spelling_of(tokenizer), pad_id(tokenizer), positions(model)
    runs = [list(_runs_of(row, spelling)) for row in rows]
    parts = [[(run, run.root, run.path) for run in own] for own in runs]
    usual = _walk(model, pad, rows, parts, tau)
    left = max(ROWS_PER_BATCH, math.ceil(min(most * len(rows), 2**31)))
    while left > 0 and (wanting := [r for own in runs for r in own if r.share(enough) > tolerance]):
        wanting.sort(key=lambda run: -run.share(enough))
        chosen = [run.widest() for run in wanting[:left]]
        chosen = [part for part in chosen if part[2] and len(_row(*part)["labels"]) <= room]
        left -= len(chosen)
        _walk(model, pad, [_row(*part) for part in chosen], [[part] for part in chosen], tau)
    return [_score_of(*each) for each in zip(rows, runs, usual, strict=True)]


def _walk(
    model: LanguageModel,
    pad: int,
    rows: Sequence[Row],
    parts: Sequence[Sequence["_Part"]],
    tau: float,
) -> list[AnswerScores]:
    """Score rows whose labelled tokens are these paths, and let the runs take in what is found."""
    starts = [[ids for run, node, path in each for ids in run.starts(node, path)] for each in parts]

    def kernel(answers: Answers, places: Sequence[int]) -> Iterator[_Found]:
        allowed = [ids for i in places for ids in starts[i]]
        where = [n for n, ids in enumerate(allowed) for _ in ids]
        columns = [token for ids in allowed for token in ids]
        said = answers.logits.log_softmax(-1, dtype=compute_dtype(answers.logits))[
            where, columns
        ].tolist()
        best, p = answers.logits.argmax(-1).tolist(), iter(said)
        steps = iter([([(token, next(p)) for token in ids], top)
                      for ids, top in zip(allowed, best, strict=True)])  # fmt: skip
        for i, score in zip(places, scores_of(answers, tau), strict=True):
            yield score, [next(steps) for _ in starts[i]]

    found = in_batches(model, rows, pad, kernel) if rows else []
    for each, (_, steps) in zip(parts, found, strict=True):
        for run, node, path in each:
            run.walk(node, path, [steps.pop(0) for _ in path])
    return [score for score, _ in found]


def _score_of(row: Row, runs: Sequence["_Run"], usual: AnswerScores) -> StringScores:
    """The score of a row, of what was found of its runs."""
    count, (ids, labels), at = len(usual.log_probabilities), (list[int](), list[int]()), 0
    for run in runs:
        best = min(run.ends).ids
        ids += [*row["input_ids"][at : len(run.before)], *best]
        labels += [*row["labels"][at : len(run.before)], *best]
        at = len(run.before) + len(run.path)
    ids, labels = ids + row["input_ids"][at:], labels + row["labels"][at:]
    return StringScores(
        sum(run.nats for run in runs) / count,
        all(any(node.is_greedy for node in run.ends) for run in runs),
        sum(math.log1p(run.share(math.inf)) for run in runs) / count,
        {**row, "input_ids": ids, "labels": labels},
        usual,
    )


class Spelling(NamedTuple):
    """The text of each token, a character a byte, and the tokens of each text."""

    texts: dict[int, str]
    tokens: dict[str, list[int]]
    longest: int

    def text(self, token: int) -> str:
        """The text of a token; of one that has none, a character of its own."""
        return self.texts.get(token, chr(256 + token))

    def starts(self, text: str) -> list[int]:
        """The tokens that a text may begin with, the shortest first."""
        if ord(text[0]) >= 256:
            return [ord(text[0]) - 256]
        parts = (text[:k] for k in range(1, min(len(text), self.longest) + 1))
        return [token for part in parts for token in self.tokens.get(part, ())]

    def path(self, text: str) -> list[int]:
        """Tokens that spell a text, or what can be spelt of it, each as long as can be."""
        path = list[int]()
        while text and (starts := self.starts(text)):
            path.append(starts[-1])
            text = text[len(self.text(starts[-1])) :]
        return path


ALONE = Spelling({}, {}, 0)
"""Of tokens of which each is a text of its own."""


def spelling_of(tokenizer: Tokenizer) -> Spelling:
    """The texts of the tokens of a fast tokenizer of byte-level or of the sentencepiece kind."""
    return _spelling_of(tokenizer, len(tokenizer)) if hasattr(tokenizer, "get_vocab") else ALONE


@lru_cache(maxsize=4)
def _spelling_of(tokenizer: Tokenizer, _: int) -> Spelling:
    """Of a tokenizer of so many tokens: one that is given more is read again."""
    kind = repr(getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None))
    is_bytes, is_pieces = "ByteLevel(" in kind, BLANK in kind
    if not (is_bytes or is_pieces):
        return ALONE
    added, tokens = tokenizer.added_tokens_decoder, dict[str, list[int]]()
    special = {*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)}
    for piece, token in tokenizer.get_vocab().items():
        if token in special or not piece:
            continue
        if is_bytes and token not in added:
            text = piece.translate(OTHERS)
        elif found := re.fullmatch("<0x([0-9A-F]{2})>", piece):
            text = chr(int(found[1], 16))
        else:
            text = piece.replace(BLANK, " ").encode().decode("latin-1")
        tokens.setdefault(text, []).append(token)
    texts = {token: text for text, ids in tokens.items() for token in ids}
    return Spelling(texts, tokens, max(map(len, tokens)))


class _Node(NamedTuple):
    """Tokens that spell the beginning of a text, or all of it."""

    nats: float  # -log of their probability
    ids: tuple[int, ...]
    rest: str  # of the text
    is_greedy: bool  # whether greedy decoding says them


@dataclass
class _Run:
    """A run of labelled tokens, and the search for others that spell the same."""

    spelling: Spelling
    before: list[int]  # the tokens of the row that precede it
    path: list[int]  # its own
    ends: list[_Node] = field(default_factory=list[_Node])  # those that spell all of it
    heap: list[_Node] = field(default_factory=list[_Node])  # the others, the widest first

    @property
    def root(self) -> _Node:
        """The node of no token."""
        return _Node(0.0, (), "".join(map(self.spelling.text, self.path)), True)

    @property
    def nats(self) -> float:
        """-log of the probability that was found."""
        return _sum(self.ends)

    def share(self, enough: float) -> float:
        """The probability that is left out, relative to what was found, or would be enough."""
        most = min(self.nats, enough * len(self.path)) - _sum(self.heap)
        return math.exp(min(most, 700.0))

    def widest(self) -> "_Part":
        """Take the likeliest node, and a path from it to the end of the text."""
        node = heappop(self.heap)
        return self, node, self.spelling.path(node.rest)

    def starts(self, node: _Node, path: Sequence[int]) -> Iterator[list[int]]:
        """The tokens that may stand in place of each of a path."""
        rest = node.rest
        for token in path:
            yield self.spelling.starts(rest)
            rest = rest[len(self.spelling.text(token)) :]

    def walk(self, node: _Node, path: Sequence[int], steps: Sequence[Step]) -> None:
        """Take in the log-probabilities along a path."""
        for token, (said, top) in zip(path, steps, strict=True):
            each = {other: self._then(node, other, p, top) for other, p in said}
            for other, child in each.items():
                if not child.rest:
                    self.ends.append(child)
                elif other != token:
                    heappush(self.heap, child)
            node = each[token]

    def _then(self, node: _Node, token: int, p: float, top: int) -> _Node:
        rest = node.rest[len(self.spelling.text(token)) :]
        return _Node(node.nats - p, (*node.ids, token), rest, node.is_greedy and token == top)


_Part: TypeAlias = tuple[_Run, _Node, list[int]]  # a path from a node of a run


def _row(run: _Run, node: _Node, path: Sequence[int]) -> Row:
    """The row in which a path is labelled."""
    ids = [*run.before, *node.ids]
    return {"input_ids": [*ids, *path], "labels": [IGNORE] * len(ids) + [*path]}


def _runs_of(row: Row, spelling: Spelling) -> Iterator[_Run]:
    """The runs of labelled tokens; the first token of a row is predicted by nothing."""
    labels = [IGNORE, *row["labels"][1:]]
    for is_run, places in groupby(range(len(labels)), key=lambda i: labels[i] != IGNORE):
        first, *more = places
        path = labels[first : first + 1 + len(more)]
        if is_run:
            few = len(path) <= MOST_TOKENS
            yield _Run(spelling if few else ALONE, row["input_ids"][:first], path)


def _sum(nodes: Sequence[_Node]) -> float:
    """-log of the sum of probabilities, in nats; infinite for none."""
    least = min((node.nats for node in nodes), default=math.inf)
    if math.isinf(least):
        return least
    return least - math.log(sum(math.exp(least - node.nats) for node in nodes))
