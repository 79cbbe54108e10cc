"""Find an answer in what a model says: word for word, nearly so, or in another spelling."""

import re
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any
from unicodedata import category, decomposition, normalize

WORDY, LONG = 6, 4  # letters of a word, other characters: as many are hardly ever part of another
NEARLY = 0.9  # share of an answer's words, in order, from which on it counts as said
COMPARES = re.compile(r"[<>=\u2260\u2264\u2265]")
MARKS = (
    " .,;:!?\"'()[]{}*`$|\u300c\u300d\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb\u3002\u3001"
)
"""May stand around an answer, or be left out: of sentences, brackets, quotation marks, markup."""
UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
"""Thai, Lao, Burmese, Khmer, kana, Chinese."""
GLUED = UNSPACED + r"\uac00-\ud7af"  # Hangul, too: particles follow without a blank
LETTER = rf"[^\W\d_{GLUED}]"
WORD = rf"[^\W_{GLUED}]+"
GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:[.,' \u2019]\d{3})+(?!\d)")  # 1,000 and 1 000
INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u0640\u180b-\u180f\u200b-\u200f\u2060-\u206f\ufe00-\ufe0f\ufeff]"
)
DASHES = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"))

MANY = 6  # digits of a number that is no coincidence, however they are grouped
BETWEEN = r"(?:[^\w<>=+]|_)"  # may be left out or added; signs that compare or add may not
ITEMS = re.compile(r"[,;\n&|]|\band\b|\bor\b|^[ \t]*(?:[-*\u2022]|\d+[.)])[ \t]", re.MULTILINE)
ORDINAL = re.compile(r"(?<=\d)(?:st|nd|rd|th)\b")
LETTERS = {
    "\u00e4": "ae",
    "\u00e6": "ae",
    "\u00f6": "oe",
    "\u00f8": "oe",
    "\u00fc": "ue",
    "\u00e5": "aa",
}
STROKES = dict(zip("\u0142\u0111\u00f0\u00f8\u0127\u0131\u0167", "lddohit", strict=True))
"""Letters that Unicode does not take for another one with an accent."""
WAYS = (dict[int, str](), str.maketrans(LETTERS), str.maketrans(STROKES))
"""Letters as they are, as two others, or as one."""
LONGEST = 100  # letters and digits of an answer; in a longer one words are counted
ITEM = 3  # characters of an item of a list that is no coincidence
UNIQUE = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+|\d(?:[\s().\-/]{0,3}\d){5,}")
"""An address, or a number of six digits and more."""
ROUND = "000"


def normalise(text: str) -> str:
    """Return lower case words between single blanks, with characters in their usual form."""
    seen = normalize("NFKC", INVISIBLE.sub("", text)).translate(DASHES)
    return " ".join(re.sub(r"\d", _digit, seen).split()).casefold()


def _digit(found: re.Match[str]) -> str:
    """Write a digit of any script in the usual form."""
    return str(int(found.group()))


def match_words(text: str, reference: str) -> tuple[float, bool, bool]:
    """Return the share of the reference's words that are said, whether it is all, or nearly all.

    Text after the answer, another token at its end, or another layout do not count as forgetting.
    For a number or a sign alone, the share of words means nothing.
    """
    if not normalise(reference):
        return 0.0, False, False
    verbatim = contains(normalise(text), normalise(reference))
    rouge = 1.0 if verbatim else rouge_l_recall(text, reference)
    counts = _has_words(reference) and not _is_other_relation(text, reference)
    return rouge, verbatim, verbatim or (rouge >= NEARLY and counts)


def contains(text: str, answer: str) -> bool:
    """Return whether a normalised text contains a normalised answer, once or repeated.

    The answer must not be part of another word or number: no letters beside a word of fewer than
    six, no digits beside a number of fewer than six. Thousands may be grouped in any way.
    """
    if _stands_alone(text, answer):
        return True
    return any(map(str.isdecimal, answer)) and _stands_alone(_ungroup(text), _ungroup(answer))


def _stands_alone(text: str, answer: str) -> bool:
    core, pattern = _compile_search(answer)
    return core in text and pattern.search(text) is not None


@lru_cache(maxsize=4096)
def _ungroup(text: str) -> str:
    """Return the text with 1000 for 1,000."""
    return GROUPED.sub(lambda found: re.sub(r"\D", "", found.group()), text)


@lru_cache(maxsize=4096)
def _compile_search(answer: str) -> tuple[str, re.Pattern[str]]:
    """Compile a search for an answer; return also a part that every text with it contains."""
    bare = answer.strip(MARKS)
    core = bare if any(map(str.isalnum, bare)) else answer
    if not re.search(r"\w", core):  # signs alone
        return core, re.compile(rf"(?<!\w){re.escape(core)}(?!\w)")
    first, last = re.match(WORD, core), re.search(rf"{WORD}\Z", core)
    behind = "" if first is None else _border_patterns(first.group(), core[0])[0]
    ahead = "" if last is None else _border_patterns(last.group(), core[-1])[1]
    found = re.escape(core)
    again = f"|(?:{found}){{2}}" if len(core) > 2 else ""  # no coincidence, whatever follows
    return core, re.compile(f"{behind}(?:{found})+{ahead}{again}")


def _border_patterns(word: str, edge: str) -> tuple[str, str]:
    """Return patterns that must not match before a word with this first edge, or after its last."""
    behind = ahead = ""
    if len(word) < (WORDY if word.isalpha() else LONG):
        behind, ahead = f"(?<!{LETTER})", f"(?!{LETTER})"
    if edge.isdecimal() and len(word) < WORDY:  # a number of so many digits is no part of another
        behind, ahead = behind + r"(?<!\d)", ahead + r"(?!\d)"
    if edge.isdecimal() and len(word) < LONG:  # 7 is no part of 7,000
        behind, ahead = behind + r"(?<!\d[.,])", ahead + r"(?![.,]\d)"
    return behind, ahead


def is_distinct(answer: str) -> bool:
    """Return whether a normalised answer is hardly ever part of something else, as emoji."""
    is_word = re.fullmatch(f"{LETTER}+", answer) is not None
    return len(answer) >= (WORDY if is_word else LONG if answer.isascii() else 1)


def rouge_l_recall(said: str, reference: str) -> float:
    """Return the share of the reference's words said in order, as TOFU does; 0 for an empty text.

    TOFU's words are made of Latin letters without accents. References with other letters are split
    by their own script: else no word of theirs would ever count as said.
    """
    said, reference = normalize("NFKC", said), normalize("NFKC", reference)
    return float(_scorer(reference.isascii()).score(reference, said)["rougeL"].recall)


@cache
def _scorer(is_ascii: bool) -> Any:  # noqa: ANN401  # the package comes with the extras only
    from rouge_score.rouge_scorer import RougeScorer  # pyright: ignore[reportMissingTypeStubs]

    if is_ascii:
        return RougeScorer(["rougeL"], use_stemmer=True)
    return RougeScorer(["rougeL"], tokenizer=_AnyScript())


def _has_words(reference: str) -> bool:
    """Return whether there are words to count, not one number, letter or sign."""
    words = _words(normalize("NFKC", reference))
    return len(words) > 1 or any(word.isalpha() and len(word) > 1 for word in words)


def _words(text: str) -> list[str]:
    return re.findall(f"[{UNSPACED}]|[^\\W_{UNSPACED}]+", text.casefold())


def _is_other_relation(text: str, reference: str) -> bool:
    """Return whether both have comparisons and none in common: `x < 5` for `x > 5`."""
    said, asked = ({*COMPARES.findall(t)} for t in (text, reference))
    return bool(said and asked) and not said & asked


class _AnyScript:
    """Splits text of any script into words, or characters in scripts without blanks."""

    def tokenize(self, text: str) -> list[str]:
        """Return the words."""
        return _words(text)


def gives_away(text: str, reference: str, question: str) -> bool:
    """Return whether a text has an address or long number of the answer that the question has not.

    Round numbers do not count: they may be a coincidence.
    """
    unique = {found.group() for found in UNIQUE.finditer(normalise(reference))}
    return any(
        is_respelled(text, one) and not is_respelled(question, one)
        for one in unique
        if not one.endswith(ROUND)
    )


def is_respelled(text: str, reference: str) -> bool:
    """Return whether a text has an answer up to marks and blanks, or all items of a list."""
    for letters in WAYS:
        pattern = _compile_respelling(strip_marks(reference, letters))
        if pattern is not None and pattern.search(strip_marks(text, letters)):
            return True
    items = [normalise(item) for item in ITEMS.split(reference) if item.strip()]
    sizes = [len(re.findall(r"\w", item)) for item in items]
    is_list = len(items) > 1 and min(sizes) > 1 and sum(sizes) >= ITEM * len(sizes)
    return is_list and all(contains(normalise(text), item) for item in items)


@lru_cache(maxsize=4096)
def _compile_respelling(answer: str) -> re.Pattern[str] | None:
    """Compile the letters and digits of an answer, with any marks and blanks between them.

    Digits of a short number stay together, and separate numbers stay separate.
    """
    bare = answer.strip(MARKS + "+-#%")
    signs = list(re.finditer(r"[^\W_]", bare))
    if not 1 < len(signs) <= LONGEST or re.search("[<>=+]", bare):
        return None
    is_short = sum(sign[0].isdecimal() for sign in signs) < MANY
    pattern = ""
    for one, two in pairwise(signs):
        is_number = is_short and one[0].isdecimal() and two[0].isdecimal()
        apart = "{1,3}" if one.end() < two.start() else "{0}"
        pattern += re.escape(one[0]) + BETWEEN + (apart if is_number else "{0,3}")
    behind, ahead = _edge(signs[0][0]), _edge(signs[-1][0])
    return re.compile(rf"(?<!{behind}){pattern}{re.escape(signs[-1][0])}(?!{ahead})")


def _edge(sign: str) -> str:
    """Return a pattern that must not match beside the first or the last character."""
    if sign.isdecimal():
        return r"\d"
    return LETTER if re.fullmatch(LETTER, sign) else r"(?!)"


def strip_marks(text: str, letters: dict[int, str]) -> str:
    """Return the text without accents, invisible characters, superscripts and subscripts."""
    kept = "".join(c for c in text if not decomposition(c).startswith(("<super>", "<sub>")))
    signs = normalize("NFKD", ORDINAL.sub("", normalise(kept)).translate(letters))
    return "".join(c for c in signs if category(c) != "Mn")
