"""TOFU's numbers: the paper's columns, judged or by ROUGE, and all that is measured."""

from __future__ import annotations

from statistics import harmonic_mean

from benchmarks.report.layout import CONTROLLER, Axis, Layout
from benchmarks.report.results import Row
from benchmarks.report.tables import Column

FLOOR = "forget_quality_floor_log10"


def _forget_quality(key: str, convention: str) -> Column:
    name = f"log FQ ({convention})"
    return Column(key, "Utility", name, digits=1, better=1, optional=True, floor=FLOOR)


NUMBERS = (
    Column("forget_probability", "Forget", "prob.", better=-1),
    Column("forget_rouge", "Forget", "ROUGE-L", better=-1),
    Column("forget_exact_match", "Forget", "exact", better=-1),
    Column("certificate", "Forget", "certif.", better=1),
    Column("retain_probability", "Retain", "prob.", better=1),
    Column("retain_rouge", "Retain", "ROUGE-L", better=1),
    Column("retain_exact_match", "Retain", "exact", better=1),
    Column("real_authors_rouge", "Neighbours", "authors", better=1),
    Column("world_facts_rouge", "Neighbours", "facts", better=1),
    Column("model_utility", "Utility", "MU", better=1),
    Column("prose_perplexity", "Utility", "prose ppl.", digits=1, better=-1, optional=True),
    _forget_quality("forget_quality_log10", "OU"),
    _forget_quality("forget_quality_log10_tofu", "TOFU"),
    Column("forget_guarded", "Utility", "beyond guard", optional=True),
    Column("membership_auc", "Membership", "AUC", nearest=0.5, optional=True),
    Column("memorization_score", "OpenUnlearning", "Mem.", better=1, optional=True),
    Column("gate_open", "Controller", "open"),
    Column("lambda", "Controller", "λ", digits=3),
    Column("seconds", "Time", "s", digits=1),
)

AUTOMATIC = (
    Column("model_utility", "Automatic", "MU", better=1),
    Column("forget_rouge", "Automatic", "Forget ROUGE", better=-1),
)
JUDGED = (
    *AUTOMATIC,
    Column("judge_retain", "Judge", "Retain", better=1),
    Column("judge_world_facts", "Judge", "World facts", better=1),
    Column("judge_real_authors", "Judge", "Real authors", better=1),
    Column("judge_hm", "Judge", "HM", better=1),
    Column("judge_forget", "Judge", "Forget", better=-1),
)
UNJUDGED = (
    *AUTOMATIC,
    Column("retain_rouge", "ROUGE-L (%)", "Retain", better=1, percent=True),
    Column("world_facts_rouge", "ROUGE-L (%)", "World facts", better=1, percent=True),
    Column("real_authors_rouge", "ROUGE-L (%)", "Real authors", better=1, percent=True),
    Column("rouge_hm", "ROUGE-L (%)", "HM", better=1, percent=True),
    Column("forget_rouge", "ROUGE-L (%)", "Forget", better=-1, percent=True),
)


def with_harmonic_mean(row: Row) -> Row:
    """The row with the harmonic mean of the three utility ROUGEs."""
    names = ("retain_rouge", "real_authors_rouge", "world_facts_rouge")
    values = [row.get(name) for name in names]
    return row | {"rouge_hm": None if None in values else harmonic_mean(values)}


LAYOUT = Layout(
    numbers=NUMBERS,
    paper=UNJUDGED,
    judged=JUDGED,
    tradeoff=(
        Axis("forget_rouge", "forget ROUGE-L recall"),
        Axis("model_utility", "model utility"),
    ),
    judged_tradeoff=(
        Axis("judge_forget", "forget (judge, %)"),
        Axis("judge_hm", "HM of the utility sets (judge, %)"),
    ),
    utility=Axis("model_utility", "model utility"),
    levels={
        "forget_rouge": False,
        "forget_probability": False,
        "forget_exact_match": False,
        "extraction_strength": False,
        "extraction_strength_ou": False,
        "exact_memorization": False,
        "forget_loss": True,
        "certificate": True,
        "forget_truth_ratio": True,
    },
    quick_eval=("retain_probability", "real_authors_probability", "world_facts_probability"),
    reproduced="forget_exact_match",
    # an answer given word for word has ROUGE 1
    bounded=frozenset({"forget_rouge"}),
    limit="forget_rouge",
    caption=(
        "Unlearning performance{over}. The best and second-best values are marked; methods that "
        "still say more of the forget set than a model that never saw it ({how}) take no part."
    ),
    columns={
        "prob.": "probability of the answers per token, the geometric mean",
        "ROUGE-L": "recall of the answers, greedily generated",
        "exact": "share of the answers reproduced to the last token",
        "certif.": "share of the answers that are certified not to be reproduced, a lower bound",
        "authors": "ROUGE-L on real authors",
        "facts": "ROUGE-L on world facts",
        "MU": "TOFU's model utility",
        "prose ppl.": "perplexity on running text",
        "log FQ (OU)": "log10 of TOFU's forget quality, guarded as in OpenUnlearning",
        "log FQ (TOFU)": "the same, guarded as in TOFU's code",
        "beyond guard": "share of the forget questions where OpenUnlearning's guard has replaced "
        "the probability of the right answer",
        "AUC": "of a membership attack by Min-K %: 1 knows every forget row, 0.5 tells nothing",
        "Mem.": "OpenUnlearning's memorisation score",
        **CONTROLLER,
    },
    derive=with_harmonic_mean,
)
