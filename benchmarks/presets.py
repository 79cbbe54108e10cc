"""Tables of settings: the paper's own, and what we recommend for small models.

`paper` is SAUL's appendix on hyperparameters (Llama-3.2-1B-Instruct, batch 8, 10 epochs). Entries
that cannot be meant as printed, or that the paper does not give, carry a note with the reading
used. `recommended` is for models of a few million parameters trained from scratch.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.methods.settings import Settings

Change = Mapping[str, Any]
Entry = tuple[Change, str]
ALM = "+alm"


@dataclass(frozen=True)
class Preset:
    """The settings of one method on one split, with what to know before trusting them.

    Attributes:
        settings: Every number.
        note: The reading used, where the source leaves or makes a doubt; empty otherwise.
    """

    settings: Settings
    note: str = ""


UNSTATED = "the paper gives no settings for this method on TOFU; "
SGD = "the learning rate only makes sense for SGD, which the text names a grid for; "

# What a method's own paper fixes, whatever the learning rate.
OWN: dict[str, Change] = {
    "npo": {"beta": 0.1},
    "simnpo": {"beta": 4.5, "forget_weight": 0.125},
    "relearning_resilient": {"beta": 0.1},
    "blur": {"beta": 0.1},
    "pdu": {"retain_multiplier": 100.0, "dual_lr": 5.0, "epsilon": 0.3, "warmup_epochs": 5},
}

PAPER: Change = {"lr": 1e-5, "epochs": 10, "batch_size": 8, "alpha": 10.0, "mu": 1e-4}

# For every split; a method without an entry has the settings above alone.
PAPER_METHODS: dict[str, Entry] = {
    "single_adamw": ({}, UNSTATED + "those of Dual AdamW are used"),
    "grad_ascent": ({}, UNSTATED + "OpenUnlearning's weights are used"),
    "grad_diff": ({}, UNSTATED + "OpenUnlearning's weights are used"),
    "npo": ({}, UNSTATED + "NPO's own are used"),
    "simnpo": ({}, UNSTATED + "SimNPO's own for 10 % are used, and for 1 % too"),
    "blur": (
        {"weight_decay": 0.01},
        UNSTATED + "BLUR's own are used, without warm-up and decay of the learning rate",
    ),
    "pdu": (
        {"weight_decay": 0.01},
        UNSTATED + "PDU's own for a 1B model are used, without warm-up of the learning rate",
    ),
    "sharp_min_max": (
        {"optimizer": "sgd", "order": "simultaneous"},
        SGD + "the forget loss is read with a minus sign, as printed it would relearn",
    ),
    "relearning_resilient": (
        {"optimizer": "sgd", "lr": 6e-2, "rho_forget": 1e-2, "alpha": 20.0},
        SGD + "alpha is read on the clean cross-entropy, on NPO it would relearn",
    ),
}


def _both(rho: float) -> Change:
    return {"rho_forget": rho, "rho_retain": rho}


PAPER_SPLITS: dict[str, dict[str, Entry]] = {
    "forget01": {
        "saul": ({**_both(1e-3), "mu": 1e-3}, ""),
        "saul_no_alm": (_both(1e-3), ""),
        "saul_no_sam": ({"rho_retain": 1e-3, "alpha": 30.0}, "alpha is on the edge of its grid"),
        "saul_no_alm_no_sam": ({"rho_retain": 1e-3}, ""),
        "sharp_min_max": ({**_both(1e-4), "lr": 3e-2}, ""),
    },
    "forget05": {
        "saul": (_both(1e-4), ""),
        "saul_no_alm": ({"rho_forget": 1e-3, "rho_retain": 1e-4}, ""),
        "saul_no_sam": ({"rho_retain": 1e-2}, ""),
        "saul_no_alm_no_sam": ({"rho_retain": 1e-2}, ""),
        "dual_adamw": (
            {},
            "printed learning rate 1e-8 is outside the grid and too small to forget; 1e-5 is used",
        ),
        "sharp_min_max": ({**_both(1e-3), "lr": 1e-1, "alpha": 20.0}, ""),
        "simnpo": ({"beta": 2.5, "forget_weight": 0.1375}, UNSTATED + "SimNPO's own are used"),
        "relearning_resilient": ({}, "no row for this split; that of forget01 is used"),
    },
    "forget10": {
        "saul": (_both(1e-2), ""),
        "saul_no_alm": (_both(1e-2), ""),
        "saul_no_sam": ({"rho_retain": 1e-2}, ""),
        "saul_no_alm_no_sam": ({"rho_retain": 1e-2}, ""),
        "dual_adamw": ({"alpha": 12.0}, ""),
        "sharp_min_max": ({"rho_forget": 1e-4, "rho_retain": 1e-3, "lr": 1e-2}, ""),
        "sharp_min_max+alm": ({**_both(1e-4), "lr": 1e-2, "alpha": 20.0}, ""),
        "relearning_resilient": ({}, "no row for this split; that of forget01 is used"),
    },
}

# A model of a million parameters that was trained from scratch, unlearned in as many steps as the
# paper takes for forget01 (40 forget examples, 10 epochs, batch 8). Nothing is chosen per method:
# - lr: about the rate the model was trained with, so that 50 steps suffice to forget. At 3e-4
#   alpha is reached in the last steps only, and every controller stays on.
# - alpha: just below the loss of a uniform guess (ln 248 = 5.5 nats in the embedded world), as the
#   paper's 10 is just below ln 128256 = 11.8.
# - multiplier 0: the gate closes as soon as the forgetting in excess has made up for what was
#   missing before. From the paper's 1 with mu = 1e-3 it could not close in 50 steps.
# - mu: drops out of two-AdamW methods when lambda_0 = 0; elsewhere it sets the scale of lambda:
#   with 0.1 it passes 1, the fixed weight it replaces, after two or three violated steps.
# - radii: the largest of the paper's grid.
RECOMMENDED: Change = {
    "lr": 1e-3,
    "epochs": 10,
    "batch_size": 8,
    "alpha": 5.0,
    "mu": 0.1,
    "multiplier": 0.0,
    **_both(1e-2),
}

# TOFU with a vocabulary of 6,000: ln 6000 = 8.7.
RECOMMENDED_SPLITS: dict[str, Change] = {split: {"alpha": 7.5} for split in PAPER_SPLITS}

PRESETS = ("paper", "recommended")


def check_preset(name: str) -> None:
    """Make sure that `name` is a preset.

    Raises:
        ValueError: It is not; the message lists the known ones with the closest match.
    """
    if name not in PRESETS:
        closest = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.0)[0]
        known = ", ".join(PRESETS)
        raise ValueError(f"unknown preset {name!r}. Did you mean {closest!r}? Known: {known}.")


def preset(name: str, split: str, method: str, overrides: Change | None = None) -> Preset:
    """The settings of a method under a preset, with the overrides of the command line.

    Args:
        name: `paper` or `recommended`.
        split: A TOFU split; the embedded world is treated as `forget01`.
        method: A registry key.
        overrides: Settings that replace the preset's.
    """
    check_preset(name)
    found = paper(split, method) if name == "paper" else recommended(split, method)
    settings = dataclasses.replace(found.settings, **(overrides or {}))
    return Preset(settings, found.note)


def paper(split: str, method: str) -> Preset:
    """The paper's settings; a `+alm` starts from its baseline, lambda_0 = the forget weight.

    lambda_0 is 1 where the paper is silent, which is the forget weight of nearly every baseline.
    """
    entries = PAPER_SPLITS.get(split, PAPER_SPLITS["forget01"])
    plain = method.removesuffix(ALM)
    found = [PAPER_METHODS.get(plain), entries.get(plain), entries.get(method)]
    changes: dict[str, Any] = {**PAPER, **OWN.get(plain, {})}
    for change, _ in filter(None, found):
        changes |= change
    notes = dict.fromkeys(note for _, note in filter(None, found) if note)
    return Preset(_starting_at_forget_weight(changes), "; ".join(notes))


def recommended(split: str, method: str) -> Preset:
    """The same rate, steps and controller for every method; only its own constants differ."""
    own = OWN.get(method.removesuffix(ALM), {})
    return Preset(Settings(**{**RECOMMENDED, **RECOMMENDED_SPLITS.get(split, {}), **own}))


def _starting_at_forget_weight(changes: Mapping[str, Any]) -> Settings:
    return Settings(**{"multiplier": changes.get("forget_weight", 1.0), **changes})
