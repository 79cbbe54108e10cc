"""Answers in another spelling: `JK Rowling`, `23kg`, `5551234567`, a list as bullets."""

import re
from functools import lru_cache
from itertools import pairwise
from unicodedata import category, decomposition, normalize

from torch_alm.cli.wording import LETTER, MARKS, holds, plain

MANY = 6  # digits in a number that is no chance, however they are grouped
BETWEEN = r"(?:[^\w<>=+]|_)"  # what may be left out, or put in; signs that compare or add may not
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
LONGEST = 100  # letters and digits of an answer; of a longer one the words are counted
ITEM = 3  # characters of an item that is no chance; a shorter one beside longer ones is none
UNIQUE = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+|\d(?:[\s().\-/]{0,3}\d){5,}")
"""An address, or a number of six digits and more."""
ROUND = "000"


def gives_away(text: str, reference: str, question: str) -> bool:
    """Tell whether a text has an address or a long number of an answer, and the question has not.

    Round numbers anybody may say.
    """
    unique = {found.group() for found in UNIQUE.finditer(plain(reference))}
    return any(
        is_respelled(text, one) and not is_respelled(question, one)
        for one in unique
        if not one.endswith(ROUND)
    )


def is_respelled(text: str, reference: str) -> bool:
    """Tell whether a text has an answer but for marks and blanks in it, or all items of a list."""
    for letters in WAYS:
        pattern = _marks_aside(_bare(reference, letters))
        if pattern is not None and pattern.search(_bare(text, letters)):
            return True
    items = [plain(item) for item in ITEMS.split(reference) if item.strip()]
    sizes = [len(re.findall(r"\w", item)) for item in items]
    is_list = len(items) > 1 and min(sizes) > 1 and sum(sizes) >= ITEM * len(sizes)
    return is_list and all(holds(plain(text), item) for item in items)


@lru_cache(maxsize=4096)
def _marks_aside(answer: str) -> re.Pattern[str] | None:
    """Compile the letters and digits of an answer, with any marks and blanks between them.

    Digits of short numbers stay together, and apart where the answer has them apart.
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
    """A pattern of what may not stand beside the first or the last character."""
    if sign.isdecimal():
        return r"\d"
    return LETTER if re.fullmatch(LETTER, sign) else r"(?!)"


def _bare(text: str, letters: dict[int, str]) -> str:
    """The text without accents, invisible characters and what is set above or below its line."""
    kept = "".join(c for c in text if not decomposition(c).startswith(("<super>", "<sub>")))
    signs = normalize("NFKD", ORDINAL.sub("", plain(kept)).translate(letters))
    return "".join(c for c in signs if category(c) != "Mn")
