"""MUSE: the paper's settings for Llama-2-7B, and those for a small model made from scratch."""

from __future__ import annotations

from benchmarks.engine.presets import Change, Entry, Presets, both

UNSTATED = "the paper gives no settings for this method on MUSE; "
OURS = UNSTATED + "those of SAUL are used"
BENCHMARKS = UNSTATED + "those of MUSE's own baselines are used"
ALPHA = (
    "the paper does not say which forget loss alpha is on; the cross-entropy per token is used, "
    "on which it asks for far more than a uniform guess (10.4 nats), and no run has confirmed it; "
    "lambda_0 and mu, which the paper tunes apart, act on the finished step, where both matter"
)
SHARP = (
    "gamma is read as the weight of the sharpness term and the forget scale as the forget weight; "
    "no radius is given, that of SAUL is used"
)
RESILIENT = (
    "the NPO coefficient is read as the forget weight and the resilient objective coefficient as "
    "the retain weight"
)

OWN: dict[str, Change] = {
    "npo": {"beta": 0.1},
    "simnpo": {"beta": 0.7, "retain_weight": 0.1},
    "pdu": {"retain_multiplier": 50.0, "dual_lr": 1.0, "epsilon": 1.5, "warmup_epochs": 3},
}

PAPER: Change = {"lr": 1e-5, "epochs": 10, "batch_size": 1, **both(5e-3)}

SAUL_ROWS = ("dual_adamw", "saul_no_alm", "saul_no_sam", "saul_no_alm_no_sam")

PAPER_METHODS: dict[str, Entry] = {
    "grad_ascent": ({}, BENCHMARKS),
    "grad_diff": ({}, BENCHMARKS),
    "npo": ({}, BENCHMARKS),
    "simnpo": ({}, UNSTATED + "SimNPO's own are used"),
    "single_adamw": ({}, BENCHMARKS),
    "pdu": ({}, UNSTATED + "PDU's own are used"),
    "sharp_min_max": ({}, SHARP),
    "relearning_resilient": ({}, RESILIENT),
    "blur": ({"beta": 0.4}, ""),
    "saul": ({"scale": "step"}, ALPHA),
    **dict.fromkeys(SAUL_ROWS, ({"scale": "step"}, f"{OURS}; {ALPHA}")),
}

SAUL_NEWS: Change = {"lr": 6e-5, "forget_lr": 2.25e-5, "multiplier": 0.45}
SAUL_BOOKS: Change = {"lr": 6e-5, "forget_lr": 2e-5}
TWO_STATES = ("saul", *SAUL_ROWS)

PAPER_SPLITS: dict[str, dict[str, Entry]] = {
    "news": {
        "sharp_min_max": ({"lr": 2.66e-4, "kappa": 0.05, "forget_weight": 20.0}, ""),
        "relearning_resilient": (
            {"lr": 7e-5, "beta": 0.2, "forget_weight": 2.0, "retain_weight": 5.0},
            "",
        ),
        "blur": ({"lr": 6.5e-5}, ""),
        **dict.fromkeys(TWO_STATES, (SAUL_NEWS, "")),
    },
    "books": {
        "sharp_min_max": ({"kappa": 0.2}, ""),
        "relearning_resilient": (
            {"lr": 2.15e-6, "beta": 0.1, "forget_weight": 0.75, "retain_weight": 2.0},
            "",
        ),
        "blur": ({"lr": 2.4e-6}, ""),
        "simnpo": ({"beta": 0.75}, ""),
        "pdu": ({"epsilon": 0.1}, ""),
        **dict.fromkeys(TWO_STATES, (SAUL_BOOKS, "")),
    },
}

# As for TOFU's small models, for the same reasons; nothing is chosen per method. alpha: just below
# the loss of a uniform guess (ln 264 = 5.6 nats in the embedded world); pairs of blocks make 60
# steps of ten epochs. Single blocks at half the rate were tried there too: most methods were alike
# or worse, Single AdamW kept more.
RECOMMENDED: Change = {
    "lr": 1e-3,
    "epochs": 10,
    "batch_size": 2,
    "alpha": 5.0,
    "mu": 0.1,
    "multiplier": 0.0,
    **both(1e-2),
}

# Byte pairs of 3,000: ln 3000 = 8.0.
RECOMMENDED_SPLITS: dict[str, Change] = {split: {"alpha": 7.5} for split in PAPER_SPLITS}

MUSE = Presets(
    shared=PAPER,
    shared_splits={
        "news": {"alpha": 40.0, "mu": 7.5e-5},
        "books": {"alpha": 55.0, "mu": 3e-4},
    },
    methods=PAPER_METHODS,
    splits=PAPER_SPLITS,
    default_split="news",
    own=OWN,
    recommended=RECOMMENDED,
    recommended_splits=RECOMMENDED_SPLITS,
)
