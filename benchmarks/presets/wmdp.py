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

# A model of 150,000 parameters, 80 steps. Nothing is chosen per method:
# - coefficient: four times the length of its hidden states, so that what is steered says nothing
#   else any more. RMU's 6.5 is two to three times that of Zephyr.
# - retain_weight: R is then a few thousandths of what U begins with.
# - alpha: half of c^2/d, near which U begins. It cannot end much below a third: so much of it is in
#   tokens that stand before a topic is named, and that R keeps where they are.
# - mu: about one over c^2/d, which makes lambda of the order of the weight it replaces.
RECOMMENDED: Change = {
    "losses": "rmu",
    "lr": 5e-3,
    "epochs": 20,
    "batch_size": 4,
    "coefficient": 240.0,
    "retain_weight": 30.0,
    "alpha": "relative:0.5",
    "mu": 1e-3,
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
