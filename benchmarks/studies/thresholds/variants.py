"""The runs of the thresholds: targets, pressures and learning rates, under one name each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import methods
from benchmarks.engine.presets import PRESETS
from benchmarks.methods import Settings
from benchmarks.tasks.tofu.presets import TOFU

RATES = (1e-4, 2e-4, 5e-4, 1e-3)
"""A decade of learning rates, of both sides."""

SCALES = ("gradient", "step")
MUS = (1e-3, 1e-2, 1e-1, 1.0)
STARTS = (0.0, 1.0)

SHARED = Settings(epochs=10, batch_size=8, mu=0.1, multiplier=0.0, rho_forget=1e-2, rho_retain=1e-2)
"""The paper's number of steps for forget01; nothing here is chosen per target."""

RELEASED: dict[str, Any] = {"release": 0.5}
"""A bounded measure has almost no slack to unwind lambda with."""

TARGETS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "ten": ("α = 10 nats (the paper's)", {"alpha": 10.0}),
    "never_seen": ("α = loss of held-out text", {"alpha": "never_seen"}),
    "rate": ("α = loss at certificate 0.95", {"alpha": "rate:0.95"}),
    "certificate": ("certificate ≥ 0.95", {"measure": "certificate", "alpha": 0.95, **RELEASED}),
    "token_certificate": (
        "token certificate ≥ 0.5",
        {"measure": "token_certificate", "alpha": 0.5, **RELEASED},
    ),
    "level_share": (
        "95 % of that loss, answer by answer",
        {"measure": "level_share", "level": "never_seen", "alpha": 0.95, **RELEASED},
    ),
}


@dataclass(frozen=True)
class Variant:
    """One row of a table: a method and everything it is given, apart from the learning rate.

    Attributes:
        key: Its name in files.
        label: Its name in tables.
        method: A key of the registry.
        settings: Every number.
    """

    key: str
    label: str
    method: str
    settings: Settings

    def at(self, rate: float) -> Settings:
        """The settings at a learning rate."""
        return dataclasses.replace(self.settings, lr=rate)


def variant(
    key: str, label: str, changes: Mapping[str, Any], method: str = "dual_adamw+alm"
) -> Variant:
    """A variant that differs from what all share by `changes`."""
    return Variant(key, label, method, dataclasses.replace(SHARED, **changes))


def targets(split: str) -> list[Variant]:
    """Dual AdamW without a controller, and every target with both kinds of pressure."""
    del split
    found = [variant("none", "no controller", {}, method="dual_adamw")]
    for name, (label, changes) in TARGETS.items():
        found += [
            variant(f"{name}-{scale}", f"{label}, {scale}", {**changes, "scale": scale})
            for scale in SCALES
        ]
    return found


def pressures(split: str) -> list[Variant]:
    """`scale="step"` over three decades of mu, from lambda_0 = 0 and 1, and the gate beside it."""
    del split
    found = []
    for scale in SCALES:
        for start in STARTS:
            for mu in MUS if scale == "step" else (0.1,):
                name = f"{scale}-start{start:g}-mu{mu:g}"
                label = f"{scale}, λ₀ = {start:g}, μ = {mu:g}"
                changes = {"scale": scale, "multiplier": start, "mu": mu, "alpha": "never_seen"}
                found.append(variant(name, label, changes))
    return found


def candidates(split: str) -> list[Variant]:
    """List what a recommendation is chosen from: a target, a pressure, and a release or none."""
    del split
    found = []
    for name, (label, changes) in TARGETS.items():
        if name == "ten":
            continue
        releases = (RELEASED["release"],) if "release" in changes else (0.0, RELEASED["release"])
        for scale, mu in (("gradient", 0.1), ("step", 0.1), ("step", 1.0)):
            for release in releases:
                key = f"{name}-{scale}-mu{mu:g}-release{release:g}"
                text = f"{label}, {scale}, μ = {mu:g}, release {release:g}"
                more = {**changes, "scale": scale, "mu": mu, "release": release}
                found.append(variant(key, text, more))
    return found


BEFORE: dict[str, Any] = {"forget_lr": None, "mu": 0.1, "scale": "gradient", **RELEASED}
"""The preset with which `others` and `presets` were recorded, apart from the rate."""

OTHERS = (
    *("grad_ascent", "single_adamw", "npo", "simnpo", "sharp_min_max", "relearning_resilient"),
    *("blur", "pdu"),
)
"""Methods that raise a loss of their own; GradDiff is Single AdamW here."""

FAILURES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "failure": ("answers that fail ≥ 0.95", {"measure": "failure", "alpha": 0.95}),
    "token_failure": ("tokens that fail ≥ 0.5", {"measure": "token_failure", "alpha": 0.5}),
}
"""Shares without a gradient, for methods that need none of the measure."""

REACHED: Mapping[str, tuple[str, dict[str, Any]]] = {
    **{
        name: TARGETS[name]
        for name in ("token_certificate", "certificate", "never_seen", "level_share")
    },
    **FAILURES,
}


def others(split: str) -> list[Variant]:
    """Targets for methods that raise something else than what is measured."""
    found = []
    for name, (label, changes) in REACHED.items():
        for method in OTHERS:
            own = TOFU.preset("recommended", split, method).settings
            target = {**BEFORE, "measure": "token_nll", **changes}
            told = f"{label}: {methods.label(method)}"
            found.append(
                Variant(
                    f"{name}-{method}", told, f"{method}+alm", dataclasses.replace(own, **target)
                )
            )
    return found


def presets(split: str) -> list[Variant]:
    """Both presets of the two methods that carry the controller in two states."""
    found = []
    for method in ("dual_adamw+alm", "saul"):
        for name in PRESETS:
            before = BEFORE if name == "recommended" else None
            settings = TOFU.preset(name, split, method, before).settings
            label = f"{methods.label(method)}, {name}"
            found.append(Variant(f"{method}-{name}", label, method, settings))
    return found


WAYS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "gate": ("gate, μ = 0.1", {}),
    "step": ("step, μ = 0.1", {"scale": "step"}),
    "auto-gate": ("gate, μ found", {"mu": "auto", "release": 0.0}),
    "aimed": ("step, μ found and aimed", {"mu": "auto", "release": 0.0, "scale": "step"}),
}
EXAMPLES = {"forget05": 200, "forget10": 400}
"""To forget; of the other splits forty."""


def overshoots(split: str) -> list[Variant]:
    """Fifty steps with a mu that is given and one that is found: how far beyond alpha each goes."""
    examples = EXAMPLES.get(split, 40)
    sizes = (("full", "all examples a step", examples), ("mini", "8 examples a step", 8))
    return [
        variant(f"{target}-{way}-{size}", f"{TARGETS[target][0]}, {told}, {batch}", changes)
        for target in ("never_seen", "token_certificate")
        for size, batch, n in sizes
        for way, (told, more) in WAYS.items()
        for given in [{"batch_size": n, "epochs": 50 * n // examples}]
        for changes in [{**TARGETS[target][1], **given, **more}]
    ]


PARTS: Mapping[str, Callable[[str], list[Variant]]] = {
    "targets": targets,
    "pressures": pressures,
    "choose": candidates,
    "others": others,
    "presets": presets,
    "overshoot": overshoots,
}

SEARCHES = ("choose", "others")
"""Parts that a recommendation is chosen from: on seeds that nothing else is reported on."""
