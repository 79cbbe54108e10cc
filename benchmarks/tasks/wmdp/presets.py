"""WMDP: the paper's settings for Zephyr-7B, and those for a small model trained from scratch."""

from __future__ import annotations

from benchmarks.engine.presets import Change, Entry, Presets, both

UNSTATED = "the paper gives no settings for this method on WMDP; "
LETTER = "alpha = 1.5e-3 is read as an upper bound of U, as printed it holds from the start"

# RMU's set-up: batches of 4, one pass. The multiplier acts on the finished step, as in the public
# code of one of the authors; on the gradient AdamW would cancel it.
PAPER: Change = {
    "losses": "rmu",
    "lr": 5e-5,
    "epochs": 1,
    "batch_size": 4,
    "coefficient": 7.5,
    "retain_weight": 800.0,
    "alpha": 1.5e-3,
    "mu": 1e-3,
    "scale": "step",
}

SAUL: Change = {"lr": 4e-5, "forget_lr": 6e-6, **both(1e-4)}

PAPER_METHODS: dict[str, Entry] = {
    "rmu": ({"coefficient": 6.5, "retain_weight": 1200.0}, UNSTATED + "RMU's own are used"),
    "dual_adamw": ({"lr": 4e-5, "forget_lr": 6e-6}, UNSTATED + "those of SAUL are used"),
    "sharp_min_max": ({"coefficient": 6.5, "retain_weight": 1200.0, **both(3e-4)}, ""),
    "relearning_resilient": (
        {"lr": 1.25e-5, "retain_weight": 1200.0, "rho_forget": 5e-6},
        "U is RMU's, since the row lists its weight and its coefficient",
    ),
    "blur": ({"lr": 6.5e-5}, ""),
    "saul": (SAUL, LETTER),
    "saul_no_alm": (SAUL, UNSTATED + "those of SAUL are used"),
    "saul_no_sam": (SAUL, UNSTATED + "those of SAUL are used; " + LETTER),
    "saul_no_alm_no_sam": (SAUL, UNSTATED + "those of SAUL are used"),
}

# A model of 210,000 parameters, 102 steps. The first three were chosen by plain RMU alone: of
# lr 3e-3 and 5e-3, coefficients 100 and 200, and retain weights 10 and 30, those which keep most
# utility where no more than 0.30 of the forget questions is answered, on seed 1000.
# - coefficient: three times the length of the hidden states; RMU's 6.5 is two to three times that
#   of Zephyr.
# - alpha: the share of c^2/d at which that run of plain RMU first answered no more than 0.30.
# - mu: a tenth of d/c^2, so that lambda grows to the weight it replaces in about ten steps.
# - multiplier and release: as on TOFU's world.
RECOMMENDED: Change = {
    "losses": "rmu",
    "lr": 3e-3,
    "epochs": 17,
    "batch_size": 4,
    "coefficient": 200.0,
    "retain_weight": 10.0,
    "alpha": "relative:0.05",
    "mu": 1.6e-4,
    "multiplier": 0.0,
    "release": 0.5,
    **both(1e-2),
}

WMDP = Presets(
    shared=PAPER,
    methods=PAPER_METHODS,
    splits={"bio+cyber": {}},
    default_split="bio+cyber",
    own={},
    recommended=RECOMMENDED,
)
