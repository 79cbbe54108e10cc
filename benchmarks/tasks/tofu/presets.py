"""TOFU: the paper's settings, and those for a small model trained from scratch."""

from __future__ import annotations

from benchmarks.engine.presets import ALM, Change, Entry, Presets, both

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


PAPER_SPLITS: dict[str, dict[str, Entry]] = {
    "forget01": {
        "saul": ({**both(1e-3), "mu": 1e-3}, ""),
        "saul_no_alm": (both(1e-3), ""),
        "saul_no_sam": ({"rho_retain": 1e-3, "alpha": 30.0}, "alpha is on the edge of its grid"),
        "saul_no_alm_no_sam": ({"rho_retain": 1e-3}, ""),
        "sharp_min_max": ({**both(1e-4), "lr": 3e-2}, ""),
    },
    "forget05": {
        "saul": (both(1e-4), ""),
        "saul_no_alm": ({"rho_forget": 1e-3, "rho_retain": 1e-4}, ""),
        "saul_no_sam": ({"rho_retain": 1e-2}, ""),
        "saul_no_alm_no_sam": ({"rho_retain": 1e-2}, ""),
        "dual_adamw": (
            {},
            "printed learning rate 1e-8 is outside the grid and too small to forget; 1e-5 is used",
        ),
        "sharp_min_max": ({**both(1e-3), "lr": 1e-1, "alpha": 20.0}, ""),
        "simnpo": ({"beta": 2.5, "forget_weight": 0.1375}, UNSTATED + "SimNPO's own are used"),
        "relearning_resilient": ({}, "no row for this split; that of forget01 is used"),
    },
    "forget10": {
        "saul": (both(1e-2), ""),
        "saul_no_alm": (both(1e-2), ""),
        "saul_no_sam": ({"rho_retain": 1e-2}, ""),
        "saul_no_alm_no_sam": ({"rho_retain": 1e-2}, ""),
        "dual_adamw": ({"alpha": 12.0}, ""),
        "sharp_min_max": ({"rho_forget": 1e-4, "rho_retain": 1e-3, "lr": 1e-2}, ""),
        "sharp_min_max+alm": ({**both(1e-4), "lr": 1e-2, "alpha": 20.0}, ""),
        "relearning_resilient": ({}, "no row for this split; that of forget01 is used"),
    },
}

# A model of a million parameters that was trained from scratch, unlearned in as many steps as the
# paper takes for forget01 (40 forget examples, 10 epochs, batch 8). Rate, target and forget rate
# are what `benchmarks/studies/operating_point/preset.py` picked on the embedded world, on seeds of
# its own, by the rule stated there:
# - lr: the largest at which the retain side alone keeps its utility.
# - the constraint: of the targets that a person can state, the one with the best utility among
#   those that forget as much as a model that never saw the answers.
# - multiplier 0: the gate closes as soon as the forgetting in excess has made up for what was
#   missing before. From the paper's 1 it could not close in 50 steps.
# - mu, for methods that raise a loss of their own: sets the scale of lambda.
# - radii: the largest of the paper's grid.
RECOMMENDED: Change = {
    "lr": 3e-4,
    "epochs": 10,
    "batch_size": 8,
    "measure": "token_certificate",
    "alpha": 0.5,
    "mu": 0.1,
    "multiplier": 0.0,
    "release": 0.5,
    **both(1e-2),
}

# These raise what the controller measures: mu is found and the finished forget step made as long as
# alpha needs, so that the forget side can have three times the rate.
RAISES_THE_MEASURE = ("dual_adamw+alm", "saul", "saul_no_sam")
AIMED: Change = {"forget_lr": 9e-4, "mu": "auto", "scale": "step", "release": 0.0}

# These raise a loss of their own, not what the controller measures, which needs no gradient here. A
# share of tokens is out of reach for some: NPO and its kind brake before it. So is any certificate
# for plain ascent, once it has flattened the predictions: they fail, without a margin. Picked by
# `benchmarks/studies/thresholds others` on the embedded world, by the rule stated there.
RAISES_ITS_OWN = (
    *("grad_ascent", "grad_diff", "npo", "simnpo", "single_adamw", "sharp_min_max"),
    *("relearning_resilient", "blur", "pdu"),
)
ANSWERS: Change = {"measure": "failure", "alpha": 0.95}

TOFU = Presets(
    shared=PAPER,
    methods=PAPER_METHODS,
    splits=PAPER_SPLITS,
    default_split="forget01",
    own=OWN,
    recommended=RECOMMENDED,
    recommended_methods={
        **dict.fromkeys(RAISES_THE_MEASURE, AIMED),
        **{f"{key}{ALM}": ANSWERS for key in RAISES_ITS_OWN},
    },
)
