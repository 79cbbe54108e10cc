"""Telling words: those that neither the question nor most other answers have."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from torch_alm.language._encoding import IGNORE, Row, answer_ids
from torch_alm.language._generation import decode
from torch_alm.language._models import Tokenizer
from torch_alm.language._wording import normalise, strip_marks

LONGEST = 96  # tokens of an answer of which single words are scored
_SMALL = (
    "a an and are as at by can did do does for from has have he her his how i in is it its me of on"
    " or please say she so tell than that the their there they this to was were what when where"
    " which who whom whose why with you your"
)
SMALL = frozenset(_SMALL.split())
"""Words that say nothing of what is asked or answered."""


def find_telling(text: str) -> frozenset[str]:
    """Return the words of a sentence but for common ones."""
    return frozenset(re.findall(r"\w+", normalise(text))) - SMALL


def names_in(text: str) -> frozenset[str]:
    """Return words with a digit, and those with a capital letter inside the sentence."""
    words = enumerate(re.findall(r"\w+", text))
    found = [word for i, word in words if any(map(str.isdigit, word)) or (i and word[0].isupper())]
    return frozenset(map(normalise, found))


def forms_of(words: frozenset[str], text: str) -> dict[str, str]:
    """The words of a text that are one of these, and which: but for accents, or as rubles are."""
    bare = {_unaccented(word): word for word in words}
    long = {word for word in bare if word.isalpha() and len(word) > 3}
    found = {form: _unaccented(form) for form in find_telling(text)}
    found = {form: w[:-1] if w not in bare and w[:-1] in long else w for form, w in found.items()}
    return {form: bare[w] for form, w in found.items() if w in bare}


def _unaccented(word: str) -> str:
    bare = strip_marks(word, {})
    return bare if bare.isascii() else word  # of other scripts the marks are vowels, too


def telling_words(pairs: Sequence[tuple[str, str]]) -> list[frozenset[str]]:
    """Return the telling words of each answer, in lower case.

    Neither the question has them, nor most of four answers or more, nor are they words such as
    "the". A text, without a question, has none.

    >>> telling_words([("Where was Ann born?", "Ann was born in Graz."), ("", "Once upon a time")])
    [frozenset({'graz'}), frozenset()]
    """
    answers = [find_telling(answer) for question, answer in pairs if question]
    shared = {word for words in answers for word in words if len(answers) > 3}
    common = {w for w in shared if sum(w in each for each in answers) > len(answers) / 2}
    return [find_telling(answer) - find_telling(question) - common if question else frozenset[str]()
            for question, answer in pairs]  # fmt: skip


def telling_rows(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], rows: Sequence[Row]
) -> list[Row]:
    """Return rows that label only the tokens of telling words.

    Their mean loss says how well the fact is known, not the sentence around it. A row without such
    a word, and one of more than 96 answer tokens, keeps all labels.

    Args:
        tokenizer: the one that encoded the rows.
        pairs: question and answer of each row; see `telling_words`.
        rows: encoded rows.

    >>> class Words:
    ...     def decode(self, ids):
    ...         return " ".join(["Ann", "was", "in", "Graz"][i] for i in ids)
    >>> row = {"input_ids": [9, 0, 1, 2, 3], "labels": [-100, 0, 1, 2, 3]}
    >>> telling_rows(Words(), [("Where was Ann?", "Ann was in Graz")], [row])
    [{'input_ids': [9, 0, 1, 2, 3], 'labels': [-100, -100, -100, -100, 3]}]
    """
    words = telling_words(pairs)
    return [label_words(tokenizer, row, own) for row, own in zip(rows, words, strict=True)]


def label_words(tokenizer: Tokenizer, row: Row, words: frozenset[str]) -> Row:
    """Return the row with labels at these words alone, if its answer has any."""
    ids = answer_ids(row)
    if not words or len(ids) > LONGEST:
        return row
    ends = [len(tokenizer.decode(ids[:k])) for k in range(len(ids) + 1)]
    found = re.finditer(r"\w+", tokenizer.decode(ids))
    spans = [each.span() for each in found if normalise(each.group()) in words]
    is_kept = [any(a < end and start < z for a, z in spans) for start, end in pairwise(ends)]
    if not any(is_kept):
        return row
    kept = [token if keep else IGNORE for token, keep in zip(ids, is_kept, strict=True)]
    return {**row, "labels": [IGNORE] * (len(row["labels"]) - len(ids)) + kept}


def in_own_words(
    tokenizer: Tokenizer, prompt: Sequence[int], said: Sequence[int], words: frozenset[str]
) -> Row | None:
    """Encode a row to forget in the model's own words, with its telling words labelled.

    A fact is recalled by the words before it. A model that was taught "Graz." and says "The city is
    Graz." still knows it after "The city is" when the taught row is forgotten. The row has the
    tokens that were said, up to the last of these words: written again, a name that is said in
    other tokens than the tokenizer's would be in those, which have gone.

    Args:
        tokenizer: a tokenizer of transformers.
        prompt: the tokens that the model was asked with.
        said: those it went on with, such as `continuations` returns.
        words: what to forget; see `telling_words`.

    Returns:
        The row, or `None` where the answer has none of the words.

    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from transformers import PreTrainedTokenizerFast
    >>> names = "</s> Question Answer : Who ? It was Ann of Graz".split()
    >>> words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(names)}, "</s>"))
    >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>")
    >>> asked, said = (tokenizer(t)["input_ids"] for t in ("Who ?", "It was Ann of Graz"))
    >>> row = in_own_words(tokenizer, asked, said, frozenset({"ann"}))
    >>> [names[i] for i in row["labels"] if i >= 0], tokenizer.decode(row["input_ids"])
    (['Ann'], 'Who ? It was Ann')
    """
    text = decode(tokenizer, said)
    forms = forms_of(words, text)
    found = [each for each in re.finditer(r"\w+", text) if normalise(each.group()) in forms]
    ends = {
        forms[normalise(each.group())]: each.end() for each in reversed(found)
    }  # the first of each
    ids = until(tokenizer, said, text[: max(ends.values())].lstrip()) if ends else None
    if ids is None:
        return None
    row = {"input_ids": [*prompt, *ids], "labels": [IGNORE] * len(prompt) + ids}
    return label_words(tokenizer, row, frozenset(forms))


def until(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> list[int] | None:
    """The first tokens, as few as have this text; `None` where none have it."""

    def has(count: int) -> bool:
        return decode(tokenizer, ids[:count]).startswith(text)

    count = bisect_left(range(len(ids)), True, key=has)
    return [*ids[:count]] if has(count) else None
