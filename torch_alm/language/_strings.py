"""The probability of a text, in whatever tokens: a search over those that agree with it."""

import math
import re
from collections.abc import Iterator, Sequence
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
HUGE = 1e300
BLANK = "\u2581"  # of a vocabulary of the sentencepiece kind
AS_THEY_ARE = {*range(33, 127), *range(161, 173), *range(174, 256)}
OTHERS = {256 + i: byte for i, byte in enumerate(sorted({*range(256)} - AS_THEY_ARE))}
"""Characters that stand for other bytes in a byte-level vocabulary (GPT-2)."""

Step: TypeAlias = tuple[list[tuple[int, float]], int]
"""log p of the tokens that may stand at a place, and the likeliest token of all."""


class StringScores(NamedTuple):
    """Scores of the text that the labelled tokens of a row spell, in whatever tokens."""

    loss: float  # -log of its probability, in nats per labelled token of the row
    exact_match: bool  # whether greedy decoding says it, in some tokens
    rest: float  # by how much the loss may be lower for what was left out
    row: Row  # the row in the tokens that greedy decoding spells it with, or else the likeliest
    usual: AnswerScores  # of the row's own tokens

    @property
    def certificate(self) -> float:
        """A lower bound on 1, if greedy decoding does not say the text, in whatever tokens; or 0.

        It is the margin's of the row's own tokens, and 0 where the text is said in others.
        """
        return 0.0 if self.exact_match else max(self.usual.certificate, 0.0)


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
    found = string_scores(model, tokenizer, rows, tolerance=tolerance, most=most)
    return [score.loss for score in found]


def string_scores(
    model: LanguageModel,
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    tau: float = 1.0,
    *,
    tolerance: float = 0.05,
    most: float = 1.0,
    enough: float = math.inf,
) -> list[StringScores]:
    """Scores of the text of every row, as of `string_nll`, and of its tokens.

    A text whose loss is above `enough` nats per token in any case is looked for no further: what is
    left out may be a share of `tolerance` of the probability that it would have there.
    """
    spelling, room = spelling_of(tokenizer), positions(model)
    runs = [[*_runs_of(row, spelling)] for row in rows]

    def walk(rows: Sequence[Row], runs: Sequence[Sequence[_Run]]) -> list[AnswerScores]:
        """Score rows in which the ways of these runs are labelled."""
        starts = [[ids for run in own for ids in run.starts()] for own in runs]

        def kernel(found: Answers, places: Sequence[int]) -> Iterator[AnswerScores]:
            allowed = [ids for i in places for ids in starts[i]]
            at = [n for n, ids in enumerate(allowed) for _ in ids]
            said = found.logits.log_softmax(-1, dtype=compute_dtype(found.logits))
            p = iter(said[at, [token for ids in allowed for token in ids]].tolist())
            top = iter(found.logits.argmax(-1).tolist())
            for run in (run for i in places for run in runs[i]):
                run.walk([([(token, next(p)) for token in ids], next(top)) for ids in run.starts()])
            return scores_of(found, tau)

        return in_batches(model, rows, pad_id(tokenizer), kernel)

    usual = walk(rows, runs)
    left = max(ROWS_PER_BATCH, math.ceil(min(most * len(rows), 2**31)))
    while wanting := [r for own in runs for r in own if r.share(enough) > tolerance]:
        wanting.sort(key=lambda run: -run.share(enough))
        greedy = [run for run in wanting if run.share(enough) == math.inf]
        chosen = [run for run in (greedy or wanting)[:left] if run.turns(room)]
        walk([run.row for run in chosen], [[run] for run in chosen])
        left -= len(chosen)
        if left <= 0:  # greedy decoding is followed to its end in any case
            left, tolerance = len(rows), HUGE
    return [_score_of(*each) for each in zip(rows, runs, usual, strict=True)]


def _score_of(row: Row, runs: Sequence["_Run"], usual: AnswerScores) -> StringScores:
    ids, labels, count = [*row["input_ids"]], [*row["labels"]], len(usual.log_probabilities)
    for run in reversed(runs):
        place = slice(len(run.before), len(run.before) + run.length)
        ids[place] = labels[place] = min(run.ends).ids
    return StringScores(
        sum(_sum(run.ends) for run in runs) / count,
        all(not all(end.is_other for end in run.ends) for run in runs),
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
        if is_bytes and token not in added:
            text = piece.translate(OTHERS)
        elif byte := re.fullmatch("<0x([0-9A-F]{2})>", piece):
            text = chr(int(byte[1], 16))
        else:
            text = piece.replace(BLANK, " ").encode().decode("latin-1")
        if text and token not in special:
            tokens.setdefault(text, []).append(token)
    texts = {token: text for text, ids in tokens.items() for token in ids}
    return Spelling(texts, tokens, max(map(len, tokens)))


class _Node(NamedTuple):
    """Tokens that spell the beginning of a text, or all of it; in the order of the search."""

    is_other: bool  # whether greedy decoding says other tokens
    nats: float  # -log of their probability
    ids: tuple[int, ...]
    rest: str  # of the text


class _Run:
    """A run of labelled tokens, and the search for others that spell the same.

    Attributes:
        before: the tokens of its row that precede it.
        node, way: where the search stands, and the tokens that are scored from there.
        ends: nodes that spell all of the text.
        heap: the others: what greedy decoding says, then the widest.
    """

    def __init__(self, spelling: Spelling, before: list[int], way: list[int]) -> None:
        self.spelling, self.before, self.way, self.length = spelling, before, way, len(way)
        self.node = _Node(False, 0.0, (), "".join(map(spelling.text, way)))
        self.ends, self.heap = list[_Node](), list[_Node]()

    @property
    def row(self) -> Row:
        """A row in which the way is labelled."""
        ids = [*self.before, *self.node.ids]
        return {"input_ids": [*ids, *self.way], "labels": [IGNORE] * len(ids) + self.way}

    def share(self, enough: float) -> float:
        """The probability that is left out, relative to what was found, or would be enough.

        It is infinite where greedy decoding is still to be followed.
        """
        if self.heap and not self.heap[0].is_other:
            return math.inf
        most = min(_sum(self.ends), enough * self.length) - _sum(self.heap)
        return min(math.exp(min(most, 700.0)), HUGE)

    def turns(self, room: int) -> bool:
        """Go on from the first node, each token the longest; return whether there is a way."""
        self.node, self.way = heappop(self.heap), []
        rest = self.node.rest
        while rest and (starts := self.spelling.starts(rest)):
            self.way.append(starts[-1])
            rest = rest[len(self.spelling.text(starts[-1])) :]
        return bool(self.way) and len(self.row["labels"]) <= room

    def starts(self) -> Iterator[list[int]]:
        """The tokens that may stand in place of each of the way."""
        rest = self.node.rest
        for token in self.way:
            yield self.spelling.starts(rest)
            rest = rest[len(self.spelling.text(token)) :]

    def walk(self, steps: Sequence[Step]) -> None:
        """Take in the log-probabilities along the way."""
        node = self.node
        for token, (said, top) in zip(self.way, steps, strict=True):
            is_other, nats, ids, rest = node
            for other, p in said:
                left = rest[len(self.spelling.text(other)) :]
                each = _Node(is_other or other != top, nats - p, (*ids, other), left)
                node = each if other == token else node
                if not left:
                    self.ends.append(each)
                elif other != token:
                    heappush(self.heap, each)


def _runs_of(row: Row, spelling: Spelling) -> Iterator[_Run]:
    """The runs of labelled tokens; the first token of a row is predicted by nothing."""
    labels = [IGNORE, *row["labels"][1:]]
    for is_run, places in groupby(range(len(labels)), key=lambda i: labels[i] != IGNORE):
        first, *more = places
        way = labels[first : first + 1 + len(more)]
        if is_run:
            few = len(way) <= MOST_TOKENS
            yield _Run(spelling if few else ALONE, row["input_ids"][:first], way)


def _sum(nodes: Sequence[_Node]) -> float:
    """-log of the sum of probabilities, in nats; infinite for none."""
    least = min((node.nats for node in nodes), default=math.inf)
    if math.isinf(least):
        return least
    return least - math.log(sum(math.exp(least - node.nats) for node in nodes))
