"""MUSE's numbers: the four columns of the paper, and all that is measured; in percent."""

from __future__ import annotations

from benchmarks.report.layout import CONTROLLER, Axis, Layout
from benchmarks.report.tables import Column

PAPER = (
    Column("verbmem_f", "Forget", "VerbMem", digits=1, better=-1),
    Column("knowmem_f", "Forget", "KnowMem", digits=1, better=-1),
    Column("privleak", "Privacy", "PrivLeak", digits=1, nearest=0.0),
    Column("knowmem_r", "Retain", "KnowMem", digits=1, better=1),
)
NUMBERS = (
    *PAPER,
    Column("membership_auc", "Membership", "AUC", nearest=0.5),
    Column("perplexity_f", "Perplexity", "forget", digits=1, optional=True),
    Column("perplexity_unseen", "Perplexity", "unseen", digits=1, optional=True),
    Column("forget_loss", "Text (nats)", "forget", better=1),
    Column("retain_loss", "Text (nats)", "retain", better=-1),
    Column("gate_open", "Controller", "open"),
    Column("lambda", "Controller", "λ", digits=3),
    Column("seconds", "Time", "s", digits=1),
)

LAYOUT = Layout(
    numbers=NUMBERS,
    paper=PAPER,
    tradeoff=(
        Axis("knowmem_f", "KnowMem, forget (%)"),
        Axis("knowmem_r", "KnowMem, retain (%)"),
    ),
    utility=Axis("knowmem_r", "KnowMem, retain (%)"),
    levels={
        "verbmem_f": False,
        "knowmem_f": False,
        "privleak": True,
        "membership_auc": False,
        "forget_loss": True,
    },
    quick_eval=("retain_probability", "retain_answer_probability"),
    reproduced="forget_answer_probability",
    limit="knowmem_f",
    caption=(
        "Unlearning performance{over}. VerbMem and KnowMem are ROUGE-L F-measures in percent. The "
        "best and second-best values are marked; methods that still answer more of the forget "
        "questions than a model that never saw them ({how}) take no part."
    ),
    columns={
        "VerbMem": "of 128 greedy tokens after the beginning of a forget text",
        "KnowMem": "of the answers to questions about the texts, after ten examples",
        "PrivLeak": "how much less (above 0) or more a membership attack knows than with a model "
        "that never saw the forget texts, in percent; -100: every one is known",
        "AUC": "of that attack, by Min-40 %: 1 knows every forget text, 0.5 tells nothing",
        "forget": "of the forget texts",
        "unseen": "of texts that no model has seen",
        "retain": "of the retain texts",
        **CONTROLLER,
    },
    examples=("verbatim", "forget", "retain"),
)
