"""The tables in LaTeX, laid out as in the paper."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from benchmarks.report.tables import MISSING, Column, Line, emphasis, texts


def latex_table(
    table: Sequence[Line], columns: Sequence[Column], caption: str, red: Collection[str] = ()
) -> str:
    """The paper's layout: references first, best value bold, second best underlined.

    Needs `booktabs`, and `xcolor` for the methods in `red`.
    """
    ranks = emphasis(table, columns, red)
    body = [_latex_line(line, columns, row, red) for line, row in zip(table, ranks, strict=True)]
    references = sum(line.is_reference for line in table)
    rule = [r"\midrule"] if references else []
    return "\n".join(
        [
            r"\begin{table}[tb]",
            r"\centering\small",
            rf"\caption{{{_escaped(caption)}}}",
            rf"\begin{{tabular}}{{@{{}}l|{'c' * len(columns)}@{{}}}}",
            r"\toprule",
            "Method" + "".join(_latex_group(columns)) + r" \\",
            "".join(f" & {_escaped(c.header)}{_latex_arrow(c)}" for c in columns) + r" \\",
            r"\midrule",
            *body[:references],
            *rule,
            *body[references:],
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _latex_line(
    line: Line, columns: Sequence[Column], ranks: Sequence[int], red: Collection[str]
) -> str:
    plain = r"\textcolor{{red}}{{{}}}" if line.method in red else "{}"
    wraps = {0: plain, 1: r"\textbf{{{}}}", 2: r"\underline{{{}}}"}
    cells = zip(texts(line, columns), ranks, strict=True)
    shown = [wraps[rank].format(_latex_number(text)) for text, rank in cells]
    return _escaped(line.label) + "".join(f" & {text}" for text in shown) + r" \\"


def _latex_number(text: str) -> str:
    mean, plus_minus, deviation = text.partition(" ± ")
    mean = mean.replace("-", "$-$").replace(MISSING, "--")
    return rf"{mean} {{\scriptsize $\pm$ {deviation}}}" if plus_minus else mean


def _latex_group(columns: Sequence[Column]) -> list[str]:
    names = list(dict.fromkeys(c.group for c in columns))
    spans = [sum(c.group == name for c in columns) for name in names]
    return [
        rf" & \multicolumn{{{span}}}{{c}}{{\textbf{{{_escaped(name)}}}}}"
        for name, span in zip(names, spans, strict=True)
    ]


def _latex_arrow(column: Column) -> str:
    if column.nearest is not None:
        return rf"$\rightarrow {column.nearest:g}$"
    return {1: r"$\uparrow$", -1: r"$\downarrow$", 0: ""}[column.better]


def _escaped(text: str) -> str:
    for mark in ("&", "%", "_", "#"):
        text = text.replace(mark, "\\" + mark)
    return text.replace("λ", r"$\lambda$").replace("–", "--")
