"""WMDP's numbers: accuracy per topic, which is to fall to a guess, and on harmless questions."""

from __future__ import annotations

from benchmarks.report.layout import CONTROLLER, Axis, Layout
from benchmarks.report.tables import Column

GUESS = 0.25
"""The accuracy of guessing among four choices."""


def _accuracy(key: str, header: str, group: str = "Forget") -> Column:
    better, nearest = (0, GUESS) if group == "Forget" else (1, None)
    name = f"{key}_accuracy"
    return Column(name, group, header, better=better, nearest=nearest, optional=True)


TOPICS = (
    _accuracy("bio", "Bio"),
    _accuracy("cyber", "Cyber"),
    _accuracy("chem", "Chem"),
    _accuracy("doom", "Doom salts"),
    _accuracy("shade", "Shadow locks"),
)

LAYOUT = Layout(
    numbers=(
        *TOPICS,
        Column("forget_accuracy", "Forget", "mean", nearest=GUESS),
        _accuracy("retain", "retain", "Kept"),
        _accuracy("neighbour", "neighbours", "Kept"),
        Column("utility_accuracy", "Kept", "all", better=1, optional=True),
        Column("gate_open", "Controller", "open"),
        Column("lambda", "Controller", "λ", digits=3),
        Column("seconds", "Time", "s", digits=1),
    ),
    paper=(
        *TOPICS,
        _accuracy("mmlu", "MMLU", "Utility"),
        _accuracy("retain", "Kept", "Utility"),
        _accuracy("neighbour", "Neighbours", "Utility"),
    ),
    tradeoff=(
        Axis("forget_accuracy", "accuracy on what is to be forgotten (0.25: guessing)"),
        Axis("utility_accuracy", "accuracy on harmless questions"),
    ),
    utility=Axis("utility_accuracy", "accuracy on harmless questions"),
    levels={"forget_accuracy": False},
    quick_eval=("utility_accuracy",),
    reproduced="forget_accuracy",
    panels={
        "violation": "violation U − α (above 0: not yet forgotten)",
        "forget_loss": "U, distance from the steering vector",
        "retain_loss": "R, distance from the model of before",
    },
    caption=(
        "Accuracy on multiple-choice questions{over}. A model that has forgotten can only guess: "
        "0.25. The values nearest to that, and the highest on what is kept, are marked."
    ),
    columns={
        "mean": "over the topics",
        "retain": "on the topics of the retain texts",
        "neighbours": "on topics next to those forgotten, which no method trains on",
        "all": "on all harmless questions",
        **CONTROLLER,
    },
    examples=("forget", "utility"),
    examples_note="{right}: the right letter. {wrong}: another one. Seed {seed}.",
)
