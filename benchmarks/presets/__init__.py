"""Settings of every method, a file per benchmark: the paper's, and recommended ones."""

from benchmarks.presets.table import PRESETS, Preset, Presets, check_preset

__all__ = ["PRESETS", "Preset", "Presets", "check_preset"]
