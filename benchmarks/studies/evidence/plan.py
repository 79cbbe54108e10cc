"""The runs behind `results/README.md`: splits, methods, seeds and operating points."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.methods import CONTROL
from benchmarks.tasks.tofu.presets import RAISES_ITS_OWN

MATCHED = {"forget01": "0.15", "forget05": "0.15", "forget10": "0.20"}
"""The forget ROUGE-L: the next twentieth above what the models say that never saw the forget set.

They say 0.12, 0.11 and 0.18.
"""

SHARED = ("--retain-authors", "40", "--width", "192", "--questions", "40")
"""The model: two million parameters, trained on the forget set and forty retain authors."""

ALL = "all"
CORE = ",".join(
    [
        *("dual_adamw", "dual_adamw+alm", "sharp_min_max", "sharp_min_max+alm"),
        *("pdu", "pdu+alm", "blur", "blur+alm"),
        *("saul", "saul_no_alm", "saul_no_sam", "saul_no_alm_no_sam"),
    ]
)
CONTROLLED = "dual_adamw+alm,saul"
OTHERS = ",".join(f"{key}+alm" for key in RAISES_ITS_OWN)
"""Methods that raise a loss of their own."""

ASKED_MORE = "dual_adamw+alm,saul,saul_no_sam,sharp_min_max+alm,blur+alm,pdu+alm"
"""Of forget05, under a target of more words or with more steps."""

TWO_STATES = "saul,saul_no_alm,saul_no_sam,saul_no_alm_no_sam,dual_adamw,dual_adamw+alm"
"""Methods that raise what the controller measures, and their versions without it."""

ONE_STATE = "blur,blur+alm,pdu,pdu+alm,sharp_min_max,sharp_min_max+alm"
"""Methods that raise a loss of their own, and their versions without a controller."""

VARIED = "dual_adamw+alm,saul,sharp_min_max+alm,blur+alm,pdu+alm"
"""Of forget05, with one part of the controller changed at a time, on seeds of their own."""

ATTACKED = "dual_adamw,dual_adamw+alm,saul,saul_no_sam,npo,npo+alm"


GATE = ("--forget-lr", "none", "--mu", "0.1", "--scale", "gradient", "--set", "release=0.5")
BEFORE = ("--lr", "1e-3", "--set", "probe_every=1", *GATE)
"""The preset that most tables were recorded with."""


@dataclass(frozen=True)
class Stage:
    """One table: a split at one operating point.

    Attributes:
        split: Of TOFU.
        point: `preset`, the present one; `recommended`, the one before; around that one `matched`
            (by three trials), `matched8`, `gentle`, `longer`, `varied-...`, `words-...`,
            `alpha-...`, `others-...`, `states-...` and `attacks`; or
            `paper`; `control-...`, the retain side alone at one of these.
        methods: Keys, comma-separated.
        seeds: How many.
        more: Further arguments of `tofu.py`.
        script: Which script runs it.
    """

    split: str
    point: str
    methods: str
    seeds: int
    more: tuple[str, ...] = ()
    script: str = "tofu"

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.split}-{self.point}"

    def arguments(self, data: Path, output: Path) -> list[str]:
        """Of the script."""
        run = ["--methods", self.methods, "--seeds", str(self.seeds)]
        where = ["--data", str(data), "--split", self.split, *SHARED]
        before = BEFORE if self.point not in ("preset", "paper", "control-paper") else ()
        return [*where, *run, "--output", str(output / self.name), *before, *self.more]

    def command(self) -> str:
        """Make the command to type."""
        words = self.arguments(Path("DIR"), Path("OUTPUT"))
        program = (
            "benchmarks/tofu.py"
            if self.script == "tofu"
            else f"-m benchmarks.studies.{self.script}"
        )
        return f"python {program} {' '.join(words)}"


def matched(split: str, trials: int = 3) -> tuple[str, ...]:
    """The options of a search at the forgetting of the split: so many settings for each method."""
    return ("--match", f"forget_rouge={MATCHED[split]}", "--trials", str(trials))


def target(measure: str, level: str) -> tuple[str, ...]:
    """The options of a threshold on a measure."""
    return ("--alpha", level, "--set", f"measure={measure}")


# The recommended preset takes 50 steps on forget01; fewer passes make it 50 on the larger splits.
FEWER = {"forget05": ("--epochs", "2"), "forget10": ("--epochs", "1")}
PAPER = ("--preset", "paper")

RATES = ("5e-4", "2e-3", "4e-3")
"""The learning rates that a matched search chose, beside the preset's."""

# Where lambda+ acts: for methods with two states on the finished step in place of the gradient, for
# the others ten times as heavy (mu drops out of the former while it acts on the gradient).
ON_THE_STEP = ("--scale", "step", "--mu", "1")
CHANGES = {
    "nothing": (),
    "placement": ON_THE_STEP,
    "multiplier": ("--multiplier", "1"),
    "cadence": ("--set", "every=5"),
}

# The search once more, with targets of words around which stricter ones lie, on seeds of its own.
FRESH = (*FEWER["forget05"], "--seed", "20")
WORDS = (
    ("certified", TWO_STATES, (*target("token_certificate", "0.6"), *ON_THE_STEP)),
    ("missed", ONE_STATE, target("token_failure", "0.6")),
)

# One state of AdamW or two, asked for the same at the present preset's rate.
STATES = "single_adamw+alm,dual_adamw+alm"
ONE_TARGET = {
    "tokens": target("token_certificate", "0.5"),
    "never_seen": target("token_nll", "never_seen"),
}

PLAN = (
    Stage("forget01", "preset", ALL, 5),
    *(
        Stage("forget01", f"states-{name}", STATES, 5, ("--lr", "3e-4", *asked))
        for name, asked in ONE_TARGET.items()
    ),
    Stage("forget01", "recommended", ALL, 5),
    Stage("forget01", "matched", ALL, 5, matched("forget01")),
    Stage("forget01", "attacks", ATTACKED, 3, script="attacks"),
    *(
        Stage("forget01", f"alpha-{level}", CONTROLLED, 3, target("token_nll", level))
        for level in ("10", "20", "30", "never_seen")
    ),
    Stage("forget01", "others-never_seen", OTHERS, 3, target("token_nll", "never_seen")),
    Stage("forget01", "others-tokens", OTHERS, 3, target("token_certificate", "0.5")),
    Stage("forget01", "others-certificate", OTHERS, 3, target("certificate", "0.95")),
    *(Stage(split, "recommended", CORE, 3, more) for split, more in FEWER.items()),
    *(Stage(split, "matched", CORE, 3, (*more, *matched(split))) for split, more in FEWER.items()),
    Stage("forget05", "matched8", CORE, 3, (*FEWER["forget05"], *matched("forget05", trials=8))),
    Stage(
        *("forget05", "gentle", ASKED_MORE, 2),
        (*FEWER["forget05"], "--lr", "5e-4", *target("token_certificate", "0.75")),
    ),
    Stage("forget05", "longer", ASKED_MORE, 2, ("--epochs", "4")),
    *(
        Stage("forget05", f"varied-{what}", VARIED, 2, (*FEWER["forget05"], "--seed", "10", *how))
        for what, how in CHANGES.items()
    ),
    *(
        Stage("forget05", f"words-{point}", methods, 3, (*FRESH, *how, *matched("forget05", 8)))
        for point, methods, how in WORDS
    ),
    Stage("forget01", "paper", ALL, 5, PAPER),
    *(Stage(split, "paper", CORE, 3, PAPER) for split in FEWER),
    Stage("forget01", "control-recommended", CONTROL, 5),
    Stage("forget01", "control-paper", CONTROL, 5, PAPER),
    *(Stage(split, "control-recommended", CONTROL, 3, more) for split, more in FEWER.items()),
    *(Stage(split, "control-paper", CONTROL, 3, PAPER) for split in FEWER),
    *(
        Stage(split, f"control-{rate}", CONTROL, seeds, (*FEWER.get(split, ()), "--lr", rate))
        for split, seeds in (("forget01", 5), ("forget05", 3), ("forget10", 3))
        for rate in RATES
    ),
)
