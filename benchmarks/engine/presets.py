"""Settings in YAML: for all methods, by method, and by split."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from benchmarks.methods import ALM, Settings, settings_of

Change = Mapping[str, Any]


class Preset(NamedTuple):
    """The settings of one method on one split.

    `note` is the reading used where the source is ambiguous, else empty.
    """

    settings: Settings
    note: str


class Presets:
    """The settings of every method on one benchmark.

    The file has `own` (from each method's own paper), and for each of `paper` and `recommended` the
    parts `all`, `methods` and `splits`, the latter again with `all` beside its methods; later ones
    replace earlier ones. A key names one method or several; `npo` includes `npo+alm`; `rho` is both
    radii; a `note` is shown in the report. A split without a row in the paper, such as an embedded
    world, takes that of `default_split`.
    """

    def __init__(self, file: Path) -> None:
        self.table: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))

    def preset(self, name: str, split: str, method: str, overrides: Change | None = None) -> Preset:
        """Return the settings of a method under a preset, `paper` or `recommended`.

        Overrides replace the preset's settings. An alpha alone is in nats per token, as in the
        paper, whatever the preset measures. A learning rate alone also scales that of the forget
        side, where the preset has one.
        """
        changes: dict[str, Any] = {}
        notes: list[str] = []
        for layer in self._layers(self.table[name], split, method):
            found = dict(layer)
            notes += [found.pop("note")] if "note" in found else []
            changes |= with_both_radii(found)
        changes = {"multiplier": changes.get("forget_weight", 1.0), **changes}
        changes |= complete_overrides(changes, dict(overrides or {}))
        return Preset(settings_of(method, changes), "; ".join(dict.fromkeys(notes)))

    def _layers(self, table: Change, split: str, method: str) -> Iterator[Change]:
        splits = table.get("splits", {})
        by_split = splits.get(split) or splits.get(table.get("default_split"), {})
        yield table["all"]
        yield by_split.get("all", {})
        for part in (self.table.get("own", {}), table.get("methods", {}), by_split):
            for key in dict.fromkeys((method.removesuffix(ALM), method)):
                yield from (change for keys, change in part.items() if key in keys.split(", "))


def with_both_radii(change: Change) -> dict[str, Any]:
    """Replace `rho` by the radii of both sides."""
    radii = dict.fromkeys(("rho_forget", "rho_retain"), change["rho"]) if "rho" in change else {}
    return {**radii, **{name: value for name, value in change.items() if name != "rho"}}


def complete_overrides(preset: Change, overrides: dict[str, Any]) -> dict[str, Any]:
    """Add to the overrides what follows: the measure of an alpha, the forget side's rate."""
    if "alpha" in overrides:
        overrides = {"measure": "token_nll", **overrides}
    own = preset.get("forget_lr")
    if "lr" in overrides and own is not None:
        overrides = {"forget_lr": own * overrides["lr"] / preset["lr"], **overrides}
    return overrides
