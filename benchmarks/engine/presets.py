"""Tables of settings: shared by all methods, then by method, then by split."""

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

PRESETS = ("paper", "recommended")
ALGORITHM: Change = {"probe_every": 1}  # Algorithm 1 measures in every step


def check_preset(name: str) -> None:
    """Make sure that `name` is a preset.

    Raises:
        ValueError: It is not; the message lists the known ones with the closest match.
    """
    if name not in PRESETS:
        closest = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.0)[0]
        known = ", ".join(PRESETS)
        raise ValueError(f"unknown preset {name!r}. Did you mean {closest!r}? Known: {known}.")


def both(rho: float) -> Change:
    """One radius for both sides."""
    return {"rho_forget": rho, "rho_retain": rho}


@dataclass(frozen=True)
class Preset:
    """The settings of one method on one split, with what to know before trusting them.

    Attributes:
        settings: Every number.
        note: The reading used, where the source leaves or makes a doubt; empty otherwise.
    """

    settings: Settings
    note: str = ""


@dataclass(frozen=True)
class Presets:
    """The settings of every method on one benchmark.

    Attributes:
        shared: The paper's, for every method.
        methods: By method, for every split; a method without an entry has the shared ones alone.
        splits: By split and method; what it says replaces the others.
        shared_splits: The paper's, for every method of a split.
        default_split: The paper's row for a split that has none, such as an embedded world.
        own: What a method's own paper fixes, whatever the learning rate.
        recommended: For a small model trained from scratch, the same for every method.
        recommended_splits: By split; what it says replaces the others.
        recommended_methods: By registry key; what it says replaces both.
    """

    shared: Change
    methods: Mapping[str, Entry]
    splits: Mapping[str, Mapping[str, Entry]]
    default_split: str
    own: Mapping[str, Change]
    recommended: Change
    recommended_splits: Mapping[str, Change] = dataclasses.field(default_factory=dict)
    recommended_methods: Mapping[str, Change] = dataclasses.field(default_factory=dict)
    shared_splits: Mapping[str, Change] = dataclasses.field(default_factory=dict)

    def preset(self, name: str, split: str, method: str, overrides: Change | None = None) -> Preset:
        """The settings of a method under a preset, with the overrides of the command line.

        Args:
            name: `paper` or `recommended`.
            split: A split of the benchmark, or the name of an embedded world.
            method: A registry key.
            overrides: Settings that replace the preset's. An alpha alone is in nats per token, as
                in the paper, whatever the preset measures. A learning rate alone takes that of the
                forget side along, where the preset has one.
        """
        check_preset(name)
        changes = dict(overrides or {})
        if "alpha" in changes:
            changes = {"measure": "token_nll", **changes}
        found = self._paper(split, method) if name == "paper" else self._recommended(split, method)
        own = found.settings.forget_lr
        if "lr" in changes and own is not None:
            changes = {"forget_lr": own * changes["lr"] / found.settings.lr, **changes}
        return Preset(dataclasses.replace(found.settings, **changes), found.note)

    def _paper(self, split: str, method: str) -> Preset:
        """The paper's settings; a `+alm` starts from its baseline, lambda_0 = the forget weight.

        lambda_0 is 1 where the paper is silent: the forget weight of nearly every baseline.
        """
        split = split if split in self.splits else self.default_split
        entries, shared = self.splits[split], self.shared_splits.get(split, {})
        plain = method.removesuffix(ALM)
        found = [self.methods.get(plain), entries.get(plain), entries.get(method)]
        changes: dict[str, Any] = {**ALGORITHM, **self.shared, **shared, **self.own.get(plain, {})}
        for change, _ in filter(None, found):
            changes |= change
        notes = dict.fromkeys(note for _, note in filter(None, found) if note)
        start = {"multiplier": changes.get("forget_weight", 1.0)}
        return Preset(Settings(**{**start, **changes}), "; ".join(notes))

    def _recommended(self, split: str, method: str) -> Preset:
        """Give every method one rate and number of steps; what is its own differs."""
        own = self.own.get(method.removesuffix(ALM), {})
        by_split = self.recommended_splits.get(split, {})
        by_method = self.recommended_methods.get(method, {})
        return Preset(Settings(**{**self.recommended, **by_split, **by_method, **own}))
