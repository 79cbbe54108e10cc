"""Formulas of docstrings, which terminals show as plain text, as LaTeX for the site."""

from __future__ import annotations

import re

SYMBOLS = {
    "lambda+": r"\lambda^+",
    "alpha": r"\alpha",
    "delta": r"\delta",
    "eps": r"\varepsilon",
    "grad": r"\nabla",
    "lambda": r"\lambda",
    "max": r"\max",
    "mu": r"\mu",
    "rho": r"\rho",
    "theta": r"\theta",
    "||": r"\|",
    "<-": r"\leftarrow",
    "*": r"\,",
}
LETTERS = {
    "lambda+": "λ⁺",
    "alpha": "α",
    "delta": "δ",
    "grad ": "∇",
    "lambda": "λ",
    "mu": "μ",
    "rho": "ρ",
    "tau": "τ",
    "theta": "θ",
    "]_+^2": "]₊²",
    "]_+": "]₊",
    "^2": "²",
}
LETTER = re.compile(
    r"lambda\+|\bgrad (?=[A-Zc]\b)|\]_\+(?:\^2)?|\^2"
    r"|\b(?:alpha|delta|lambda|mu|rho|tau|theta)\b(?!_|\w|\()"
)
CODE = re.compile(r"(```.*?```|`[^`]*`|^ *>>>.*?(?=\n\n|\Z)|^    \w+:)", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"(?:^|(?<=\n\n))((?: {4,}\S[^\n]*\n?)+)")
WORDS = r"(?:(?!(?:alpha|delta|eps|grad|lambda|max|mu|rho|theta)\b)\.?[A-Za-z]{2,}\b)"
PROSE = rf"{WORDS}(?: (?:{WORDS}|a\b))*(?: (?! ))?"
TOKEN = re.compile(rf"lambda\+|{PROSE}|[A-Za-z]+|\|\||<-| {{2,}}|.")


def latex(text: str) -> str:
    """Translate lines of a formula: symbols by their names, words upright, gaps as gaps."""
    lines = [_line(line.strip()) for line in text.strip().splitlines()]
    return "\\begin{gathered}\n" + " \\\\\n".join(lines) + "\n\\end{gathered}"


def _line(text: str) -> str:
    text = re.sub(" +=", " =", text)  # signs that were set below each other
    return "".join(_token(found.group()) for found in TOKEN.finditer(text))


def _token(text: str) -> str:
    if text in SYMBOLS:
        return f"{SYMBOLS[text]} "
    if text.isspace():
        return r"\qquad " if len(text) > 1 else " "
    return rf"\text{{{text}}}" if len(text) > 1 else text


def typeset(docstring: str) -> str:
    """Fence the formulas that stand, indented, before the first section of a docstring."""
    head, section, rest = _parted(docstring)
    return BLOCK.sub(_fence, head) + section + rest


def _fence(found: re.Match[str]) -> str:
    block = found.group(1)
    if ">>>" in block:
        return block
    return f"```math\n{latex(block)}\n```\n"


def greek(docstring: str) -> str:
    """Write the names of symbols in prose as letters; code and names of parameters stay."""
    parts = CODE.split(docstring)
    parts[::2] = [LETTER.sub(lambda found: LETTERS[found.group()], part) for part in parts[::2]]
    return "".join(parts)


def _parted(docstring: str) -> tuple[str, str, str]:
    """Split before the first section: *Args:*, *Example:* and the like."""
    parts = re.split(r"(?m)(^[A-Z]\w+:\n(?= ))", docstring, maxsplit=1)
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else (docstring, "", "")
