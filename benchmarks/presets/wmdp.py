"""WMDP: the paper's settings for Zephyr-7B, and those for a small model trained from scratch."""

from __future__ import annotations

from benchmarks.presets.table import Change, Entry, Presets, both

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

RECOMMENDED: Change = {
    "losses": "rmu",
    "lr": 1e-3,
    "epochs": 10,
    "batch_size": 4,
    "coefficient": 20.0,
    "retain_weight": 10.0,
    "alpha": "relative:0.11",
    "mu": 1.0,
    "multiplier": 0.0,
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
