"""The question, and the rule by which an operating point is chosen, fixed before any run.

At each learning rate of the retain side, for the paper's number of steps:

1. The *control*, the retain side alone, says what can be kept. A rate at which it loses more than
   0.01 of model utility is shown and used for no claim.
2. Every method *without* the controller tries eight forget pressures on a search seed: the rate of
   its forget side from 1/32 to 4 times the preset's (Dual AdamW, Sharp Min-Max), its forget weight
   in the same range (PDU), or its weight and its beta (NPO). The one with the best utility that
   forgets enough is run on fresh seeds: equal forgetting, chosen with hindsight.
3. The same method *with* the controller is run on the fresh seeds as the preset of that time had
   it, a gate at the one rate of both sides: one setting, nothing searched. Where the number of
   epochs is given, as on the larger splits with the paper's ten, it is the preset as it is now.
   That asks for half of the tokens, which turned out to be less than *enough* below. So there it
   is run once more with `UNSEEN`, the share of the tokens that the model gets wrong that never saw
   them, as its target. Both were seen at 3e-4, where ten epochs cost the control a little more than
   0.01. At 1e-4 the same search and only the second target are run: nothing is chosen there.
   The share is asked for in two ways. *Certified* is the way of methods that raise what is
   measured, and stricter: of the tokens that the model gets wrong that never saw them, two thirds
   are certified. *Wrong* counts as that model was counted, and is for methods that raise a loss of
   their own. It came last, after they had been asked for the certified share in vain.
4. *Enough* is the forget ROUGE-L that `evidence.plan.MATCHED` has for the split: the next twentieth
   above what the model says that never saw it. In the embedded world that model says 0.66, and
   0.17 of forget01 if it has read prose before.
5. *Finer*: neighbouring settings of the eight lie a factor of two or more apart, and of some
   methods the next weaker one says just too much. So wherever a method gained, its search goes on:
   `REFINED` more settings by bisection, between the best one and that one, and fresh seeds again;
   where all eight forget too much, beyond the best one first, away from the next best.
   It came last, and is meant to raise what the method keeps without the controller.

The recommended rate is the largest one whose control holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.methods import with_controller
from benchmarks.studies.evidence.plan import FEWER, GATE, MATCHED, SHARED, target
from benchmarks.tasks.tofu.presets import RAISES_ITS_OWN

UTILITY, FORGOTTEN = "model_utility", "forget_rouge"
RATES = ("3e-5", "1e-4", "3e-4", "1e-3")
PLAIN = ("dual_adamw", "sharp_min_max", "npo", "pdu")
EVERY = tuple(dict.fromkeys([*PLAIN, *RAISES_ITS_OWN, "saul_no_alm", "saul_no_alm_no_sam"]))
KINDS = ("searched", "asked")
TRIALS = 8
REFINED = 4
"""Trials of a finer search: a factor of two becomes one of 1.04."""
FIXED = "lr,rho_forget,epsilon"
"""Settings kept out of the search, so that its trials are left for how hard a method forgets."""

WORLD = "world"
ADAPTED = "forget01-pretrained-replay-lora"
UNSEEN = {"forget01": "0.80", "forget05": "0.85", "forget10": "0.80", ADAPTED: "0.65"}
"""Of the forget tokens, the next twentieth below what the model gets wrong that never saw them.

That is 0.83, 0.86 and 0.83, and 0.69 of forget01 if it has read prose before and goes on reading.
"""
CERTIFIED, WRONG = "certified", "wrong"
SHARES = {CERTIFIED: "token_certificate", WRONG: "token_failure"}
"""The measure of that share, by what it counts."""

LEVELS = {**MATCHED, WORLD: "0.70", "forget01-pretrained": "0.20", ADAPTED: "0.20"}
"""For adapters the model read anew: the one that never saw forget01 says 0.157; 0.137 before."""


@dataclass(frozen=True)
class Place:
    """A data set and a model to ask the question of.

    Attributes:
        split: Of TOFU, or `world` for the embedded one.
        seeds: Fresh ones.
        rates: Of the retain side.
        methods: Keys without the controller.
        base: A pretrained model that is taught first; None for random weights.
        replay: Go on reading while it is taught, what `pretrained` left beside it.
        lora: Rank of the adapters that unlearn; 0 for all weights.
        epochs: Over the forget set; 0 for as many as make the fifty steps of forget01.
        unseen: Ask for `UNSEEN`: `certified` or `wrong`; nothing for the preset's target.
        finer: Search on by bisection.
    """

    split: str
    seeds: int = 3
    rates: tuple[str, ...] = RATES
    methods: tuple[str, ...] = PLAIN
    base: Path | None = None
    replay: bool = False
    lora: int = 0
    epochs: int = 0
    unseen: str = ""
    finer: bool = False

    @property
    def taught(self) -> str:
        """Name the models that all its runs begin with."""
        kind = "" if self.base is None else "-pretrained"
        return self.split + kind + "-replay" * self.replay

    @property
    def name(self) -> str:
        """Of its folder."""
        passes = f"-{self.epochs}-epochs" if self.epochs else ""
        asked = {"": "", CERTIFIED: "-unseen"}.get(self.unseen, f"-{self.unseen}")
        return self.taught + "-lora" * bool(self.lora) + passes + asked + "-finer" * self.finer

    @property
    def level(self) -> str:
        """The forget ROUGE-L that counts as enough."""
        return self._of(LEVELS)

    @property
    def share(self) -> str:
        """The share of the tokens that `unseen` asks for."""
        return self._of(UNSEEN)

    def _of(self, table: Mapping[str, str]) -> str:
        """Look up this place, the models it begins with, or else the split."""
        names = (self.taught + "-lora" * bool(self.lora), self.taught, self.split)
        return next(table[name] for name in names if name in table)

    def folder(self, rate: str, kind: str) -> str:
        """Name the folder of the runs at a rate, `searched` or `asked`."""
        other = {"unseen": ""} if kind == "searched" else {"finer": False}
        place = replace(self, **other)
        return f"{place.name}-{rate}-{kind}"

    def arguments(self, rate: str, kind: str, data: Path | None, output: Path) -> list[str]:
        """Of `tofu.py`."""
        searched = kind == "searched"
        keys = [key if searched else with_controller(key) for key in self.methods]
        search = ["--match", f"forget_rouge={self.level}", "--trials", str(TRIALS), "--fix", FIXED]
        search += ["--refine", str(REFINED)] if self.finer else []
        point = GATE if searched or not self.epochs else ()
        if self.unseen and not searched:
            point = target(SHARES[self.unseen], self.share)
        return [
            *(self._where(data) if data is not None else ["--questions", "40"]),
            *("--methods", ",".join(keys), "--seeds", str(self.seeds), "--lr", rate, *point),
            *(search if searched else ()),
            *("--output", str(output / self.folder(rate, kind))),
        ]

    def _where(self, data: Path) -> list[str]:
        sizes = list(SHARED)
        if self.base is not None:  # has a width of its own
            at = sizes.index("--width")
            sizes[at : at + 2] = ["--base", str(self.base)]
            sizes += ["--prose", str(self.base / "held_out.jsonl")]
            sizes += ["--replay", str(self.base / "read.jsonl")] if self.replay else []
        if self.lora:
            sizes += ["--lora", str(self.lora)]
        fewer = ("--epochs", str(self.epochs)) if self.epochs else FEWER.get(self.split, ())
        return ["--data", str(data), "--split", self.split, *sizes, *fewer]
