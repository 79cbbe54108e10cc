"""The probability of a text in whatever tokens: a best-first search over its spellings.

A spelling of a text is a sequence of tokens that decodes to it.
"""

import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import accumulate, groupby
from typing import NamedTuple

from torch_alm.language._encoding import IGNORE, Row, pad_id
from torch_alm.language._models import LanguageModel, Tokenizer, positions
from torch_alm.language._scoring import ROWS_PER_BATCH, AnswerScores, in_batches, scores_of
from torch_alm.measures._answers import Answers
from torch_alm.measures._logits import compute_dtype

MOST_TOKENS = 16  # labelled in a row, of which other spellings are looked for
CARRIED, MOST_SPELLINGS = 0.99, 4  # share of the probability in `spellings`, and how many
FIXED, GIVEN = 256, 2**19  # of characters that are a token that stays: labelled, not labelled
LARGE = 690.0  # nats, near the largest of which there is an exp
BLANK = "\u2581"  # of a vocabulary of the sentencepiece kind
AS_THEY_ARE = {*range(33, 127), *range(161, 173), *range(174, 256)}
OTHERS = {256 + i: byte for i, byte in enumerate(sorted({*range(256)} - AS_THEY_ARE))}
"""Characters that stand for other bytes in a byte-level vocabulary (GPT-2)."""


class StringScores(NamedTuple):
    """Scores of the text that the labelled tokens of a row spell, in whatever tokens."""

    loss: float  # -log of its probability, in nats per labelled token of the row
    exact_match: bool  # whether greedy decoding says it, in some tokens
    missing: float  # by how much the loss may be lower for what the search left out
    spellings: list[tuple[float, Row]]  # shares of its probability, with rows: the greedy first
    usual: AnswerScores  # of the row's own tokens

    @property
    def row(self) -> Row:
        """The row in the tokens that greedy decoding spells it with, or else the likeliest."""
        return self.spellings[0][1]

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
    vocabulary, room = vocabulary_of(tokenizer), positions(model)
    searches = [_Search(vocabulary, row) for row in rows]

    def expand(rows: Sequence[Row], searches: Sequence[_Search]) -> list[AnswerScores]:
        """Score rows that hold the paths of these searches."""

        def kernel(found: Answers, places: Sequence[int]) -> Iterator[AnswerScores]:
            choices = [ids for i in places for ids in searches[i].choices()]
            at = [n for n, ids in enumerate(choices) for _ in ids]
            said = found.logits.log_softmax(-1, dtype=compute_dtype(found.logits))
            p = iter(said[at, [token for ids in choices for token in ids]].tolist())
            scored = [[(token, next(p)) for token in ids] for ids in choices]
            steps = zip(scored, found.logits.argmax(-1).tolist(), strict=True)
            for i in places:
                searches[i].expand(steps)
            return scores_of(found, tau)

        return in_batches(model, rows, pad_id(tokenizer), kernel)

    usual = expand(rows, searches)
    left = max(ROWS_PER_BATCH, math.ceil(min(most * len(rows), 2**31)))
    while wanting := [each for each in searches if each.missing(enough) > tolerance]:
        wanting.sort(key=lambda search: -search.missing(enough))
        greedy = [search for search in wanting if search.missing(enough) == math.inf]
        chosen = [search for search in (greedy or wanting)[:left] if search.advance(room)]
        expand([search.row for search in chosen], chosen)
        left -= len(chosen)
        if left <= 0:  # greedy decoding is followed to its end in any case
            left, tolerance = len(rows), math.exp(LARGE)
    return [search.score(scores) for search, scores in zip(searches, usual, strict=True)]


class Vocabulary(NamedTuple):
    """The text of each token, a character a byte, and the tokens of each text."""

    texts: dict[int, str]
    tokens: dict[str, list[int]]
    longest: int

    def first_tokens(self, text: str) -> list[int]:
        """The tokens that a text may begin with, the shortest first."""
        if ord(text[0]) >= FIXED:
            return [ord(text[0]) % GIVEN - FIXED]
        parts = (text[:k] for k in range(1, min(len(text), self.longest) + 1))
        return [token for part in parts for token in self.tokens.get(part, ())]

    def cut(self, text: str, token: int) -> str:
        """The text behind a token that it begins with."""
        return text[1 if ord(text[0]) >= FIXED else len(self.texts[token]) :]


OPAQUE = Vocabulary({}, {}, 0)
"""Of tokens that nothing else spells."""


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """The texts of the tokens of a fast tokenizer of byte-level or of the sentencepiece kind."""
    return _vocabulary_of(tokenizer, len(tokenizer)) if hasattr(tokenizer, "get_vocab") else OPAQUE


@lru_cache(maxsize=4)
def _vocabulary_of(tokenizer: Tokenizer, _: int) -> Vocabulary:
    """Of a tokenizer of so many tokens: one that is given more is read again."""
    kind = repr(getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None))
    is_bytes, is_pieces = "ByteLevel(" in kind, BLANK in kind
    if not (is_bytes or is_pieces):
        return OPAQUE
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
    return Vocabulary(texts, tokens, max(map(len, tokens)))


class _Prefix(NamedTuple):
    """Tokens that spell the beginning of a text, or all of it; in the order of the search."""

    is_other: bool  # whether greedy decoding says other tokens
    nats: float  # -log of the probability of those that are labelled
    ids: tuple[int, ...]
    rest: str  # the text that is still to be spelt


class _Search:
    """The search for the spellings of the text of a row, from its first label to its last.

    Attributes:
        text: what is to be spelt; a token that stays as it is is a character of its own.
        prefix, path: the model is asked next for the tokens of the path, after the prefix.
        found: the spellings so far.
        frontier: prefixes that are not complete: what greedy decoding says, then the likeliest.
    """

    def __init__(self, vocabulary: Vocabulary, row: Row) -> None:
        self.vocabulary, self.whole, ids = vocabulary, row, row["input_ids"]
        is_labelled = [label != IGNORE for label in row["labels"]]
        is_labelled[0] = False  # the first token is predicted by nothing
        places = [i for i, is_so in enumerate(is_labelled) if is_so] or [0]
        self.first, self.end, self.count = places[0], places[-1] + 1, len(places)
        self.path, self.text = ids[self.first : self.end], ""
        for is_so, group in groupby(range(self.first, self.end), key=is_labelled.__getitem__):
            span = [ids[i] for i in group]
            texts = vocabulary.texts if is_so and len(span) <= MOST_TOKENS else {}
            fixed = FIXED + (0 if is_so else GIVEN)
            self.text += "".join(texts.get(token, chr(fixed + token)) for token in span)
        self.prefix = _Prefix(False, 0.0, (), self.text)
        self.found, self.frontier = list[_Prefix](), list[_Prefix]()

    @property
    def row(self) -> Row:
        """The row of the prefix and the path, with labels in the path alone."""
        before = [*self.whole["input_ids"][: self.first], *self.prefix.ids]
        labels = [IGNORE if is_given else token for token, _, is_given in self.steps()]
        return {"input_ids": before + self.path, "labels": [IGNORE] * len(before) + labels}

    def steps(self) -> Iterator[tuple[int, str, bool]]:
        """The tokens of the path, the text that is left before each, whether it has no label."""
        rest = self.prefix.rest
        for token in self.path:
            yield token, rest, ord(rest[0]) >= GIVEN
            rest = self.vocabulary.cut(rest, token)

    def missing(self, enough: float) -> float:
        """The probability that is left out, relative to what was found, or would be enough.

        It is infinite where greedy decoding is still to be followed.
        """
        if self.frontier and not self.frontier[0].is_other:
            return math.inf
        most = min(_sum(self.found), enough * self.count) - _sum(self.frontier)
        return math.exp(min(most, LARGE))

    def advance(self, room: int) -> bool:
        """Go on from the best prefix, each token the longest; return whether there is a path."""
        self.prefix, self.path = heappop(self.frontier), []
        rest = self.prefix.rest
        while rest and (tokens := self.vocabulary.first_tokens(rest)):
            self.path.append(tokens[-1])
            rest = self.vocabulary.cut(rest, tokens[-1])
        return bool(self.path) and len(self.row["labels"]) <= room

    def choices(self) -> Iterator[list[int]]:
        """The tokens that may stand in place of each labelled one of the path."""
        texts = (rest for _, rest, is_given in self.steps() if not is_given)
        return map(self.vocabulary.first_tokens, texts)

    def expand(self, scores: Iterator[tuple[list[tuple[int, float]], int]]) -> None:
        """Take in log p of the choices at each label, and the likeliest token of all there."""
        prefix = self.prefix
        for token, rest, is_given in self.steps():
            scored, top = ([(token, 0.0)], token) if is_given else next(scores)
            is_other, nats, ids, _ = prefix
            for other, p in scored:
                left = self.vocabulary.cut(rest, other)
                each = _Prefix(is_other or other != top, nats - p, (*ids, other), left)
                prefix = each if other == token else prefix
                if not left:
                    self.found.append(each)
                elif other != token:
                    heappush(self.frontier, each)

    def score(self, usual: AnswerScores) -> StringScores:
        """The scores of what was found."""
        best, total = sorted(self.found), _sum(self.found)
        shares = [math.exp(total - each.nats) for each in best]
        count = 1 + sum(p < CARRIED for p in accumulate(shares[: MOST_SPELLINGS - 1]))
        return StringScores(
            total / self.count,
            not best[0].is_other,
            math.log1p(self.missing(math.inf)) / self.count,
            [(share, self._spell(each)) for share, each in zip(shares, best[:count], strict=False)],
            usual,
        )

    def _spell(self, spelling: _Prefix) -> Row:
        """The row in these tokens."""
        self.prefix, self.path = _Prefix(False, 0.0, (), self.text), [*spelling.ids]
        row = {name: each + self.whole[name][self.end :] for name, each in self.row.items()}
        return {**self.whole, **row}


def _sum(prefixes: Sequence[_Prefix]) -> float:
    """-log of the sum of probabilities, in nats; infinite for none."""
    least = min((each.nats for each in prefixes), default=math.inf)
    if math.isinf(least):
        return least
    return least - math.log(sum(math.exp(least - each.nats) for each in prefixes))
