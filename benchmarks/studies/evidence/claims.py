"""Tables that the claims rest on: differences under the present preset, paired by seed."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.methods import is_controlled, with_controller
from benchmarks.report.paired import Pair, interval
from benchmarks.report.tables import REFERENCE_LABELS, Cell, markdown, name_of
from benchmarks.studies.evidence.recorded import Recorded

STAGE = "forget01-preset"
UTILITY = "model_utility"
WORDS, LOSS = "forget_rouge", "forget_loss"
AUTHORS, RETAIN = "real_authors_rouge", "retain_rouge"


def gained(found: Recorded) -> str:
    """Table what `+ALM` changes in every method."""
    return markdown(
        (
            *("method", "MU", "MU `+ALM`", "difference (95 %)", "forget ROUGE-L", "with `+ALM`"),
            *("forget loss", "with `+ALM`", "real authors ROUGE-L", "retain ROUGE-L"),
        ),
        _gained(found),
    )


def _gained(found: Recorded) -> Iterator[list[str]]:
    for method in found.methods(STAGE):
        if method in REFERENCE_LABELS or is_controlled(method):
            continue
        pair = Pair(found.of(STAGE, method), found.of(STAGE, with_controller(method)))
        yield [
            *(name_of(method), *_two(pair, UTILITY, 3), interval(pair.gain(UTILITY))),
            *(*_two(pair, WORDS, 2), *_two(pair, LOSS, 1)),
            *(interval(pair.gain(key), 2) for key in (AUTHORS, RETAIN)),
        ]


def _two(pair: Pair, key: str, digits: int) -> list[str]:
    return [Cell(value).text(digits) for value in pair.means(key)]


PARTS = (
    *(("SAUL", "saul", name, STAGE) for name in ("saul_no_sam", "dual_adamw+alm", "blur+alm")),
    *(
        ("Dual AdamW + ALM", "dual_adamw+alm", "single_adamw+alm", f"forget01-states-{target}")
        for target in ("tokens", "never_seen")
    ),
)


def differences(found: Recorded) -> str:
    """Table what a part changes where all else, the controller too, is the same."""
    keys = (UTILITY, "retain_exact_match", WORDS, "membership_auc")
    lines = []
    for name, method, other, stage in PARTS:
        pair = Pair(found.of(stage, other), found.of(stage, method))
        cells = [interval(pair.gain(key)) for key in keys]
        lines.append([f"{name} − {name_of(other)}", stage.partition("-")[2], *cells])
    heads = ("", "asked", "MU (95 %)", "retain exact", "forget ROUGE-L", "AUC")
    return markdown(heads, lines)
